"""Random networks whose links are dropped and made again, too: what is dropped goes, nothing is lost or repeated."""

from __future__ import annotations

from tests.fix_broker import call
from tests.links.model import Network, Pair
from tests.links.rig import Broker, settle


class DroppingNetwork(Network):
    """A network in which links begin to drain at random moments, several of one broker at the same time, too."""

    def __init__(self, brokers: list[Broker], seed: int, *, redundant: int) -> None:
        self.draining: set[Pair] = set()
        self.gone: set[Pair] = set()
        super().__init__(brokers, seed, redundant=redundant)

    def _name(self, pair: Pair) -> str:
        return f"to_{self.brokers[pair[1]].name}"

    def _drop(self, pair: Pair) -> None:
        call(self.brokers[pair[0]].admin, "drop_link", self._name(pair))
        self.draining.add(pair)

    def _make(self, pair: Pair) -> None:
        self.gone.discard(pair)
        call(self.brokers[pair[0]].admin, "create_link", self._name(pair), self.brokers[pair[1]].dsn)
        self.raise_link(pair)

    def _remove_drained(self) -> bool:
        """Do what workers do with links that are drained; return whether there was one."""
        drained = [pair for pair in sorted(self.draining) if pair in self.up and self.up[pair].drained]
        for pair in drained:
            self.up[pair].remove()
            self.cut(pair)
            self.draining.discard(pair)
            self.gone.add(pair)
        return bool(drained)

    def step(self) -> None:
        """Do one thing at random, of which dropping, removing and making a link is a part."""
        what = self.random.random()
        there = [pair for pair in self.pairs if pair not in self.draining and pair not in self.gone]
        if what < 0.05 and there:
            self._drop(self.random.choice(there))
        elif what < 0.07 and self.gone:
            self._make(self.random.choice(sorted(self.gone)))
        elif what < 0.1:
            self._remove_drained()
        elif len(self.gone) < len(self.pairs):
            every = self.pairs
            self.pairs = [pair for pair in every if pair not in self.gone]
            super().step()
            self.pairs = every

    def rest(self) -> None:
        """Let everything arrive and what is dropped go; make all links again, and let everything arrive once more."""
        for pair in self.pairs:
            if pair not in self.up and pair not in self.gone:
                self.raise_link(pair)
        settle(self.brokers, list(self.up.values()), rounds=200)
        while self._remove_drained():
            settle(self.brokers, list(self.up.values()), rounds=200)
        assert not self.draining, f"these were dropped and do not go: {self.draining}"
        for pair in sorted(self.gone):
            self._make(pair)
        super().rest()
