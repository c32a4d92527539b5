"""Write a random script: steps that happen to a network of six brokers on three servers in quick succession.

The script is made from the seed alone before anything happens. Which servers and links are up, paused or gone follows
from the earlier steps, so each step is possible when its time comes. Everything that a step breaks is repaired some
seconds later, and other steps happen in between.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.links.storm.script import FILTERS, Keep, Pair, Script, Step

NARROW = [name for name in FILTERS if name != "any"]
PATTERNS = ["tick", "tick", "tock", "t*"]


@dataclass(frozen=True)
class Climate:
    """The kinds of steps with their relative weights, and the seconds between one step and the next."""

    every: float = 0.7
    weights: dict[str, float] = field(
        default_factory=lambda: {
            "drop": 4, "drop_hard": 0.7, "pause": 4, "break": 1.5, "cut": 1.5, "kill_worker": 3, "kill_server": 2,
            "subscribe": 3, "unsubscribe": 2, "burst": 2, "type": 1.2, "behind": 2.5, "restore": 0.7,
            "restore_server": 0.4, "clone": 0.4,
        }
    )  # fmt: skip

    def without(self, *kinds: str) -> Climate:
        """Return the same climate without some kinds of steps."""
        return Climate(self.every, {kind: weight for kind, weight in self.weights.items() if kind not in kinds})

    def only(self, *kinds: str) -> Climate:
        """Return the same climate with only some kinds of steps."""
        return Climate(self.every, {kind: weight for kind, weight in self.weights.items() if kind in kinds})


def random_script(seed: int, seconds: float = 25.0, climate: Climate | None = None) -> Script:
    """Write the script of a seed."""
    return _Forecast(seed, seconds, climate or Climate()).write()


class _Forecast:
    """The state of the network as far as the steps written so far have brought it."""

    def __init__(self, seed: int, seconds: float, climate: Climate) -> None:
        self.random = random.Random(seed)
        self.climate = climate
        self.script = Script(seed=seed, seconds=seconds)
        self.now = 0.0
        self.later: list[tuple[float, int, str, tuple[str, ...]]] = []
        self.serial = itertools.count(1)
        self.links: dict[Pair, str] = {}
        self.down: set[int] = set()
        self.idle: set[str] = set()
        self.subscriptions: dict[str, str] = {}
        self.backups: set[str] = set()
        self.once: set[str] = set()
        self.busy_until = 0.0

    def write(self) -> Script:
        self._lay_out()
        while self.now < self.script.seconds:
            self.now += self.random.expovariate(1 / self.climate.every)
            while self.later and self.later[0][0] <= self.now:
                at, _, what, args = heapq.heappop(self.later)
                self._do(what, *args, at=at)
            if self.now < self.script.seconds:
                self._something()
        self.script.steps.sort(key=lambda step: step.at)
        return self.script

    def _lay_out(self) -> None:
        script, names = self.script, list("abcdef")
        places = [0, 0, 1, 1, 2, 2]
        self.random.shuffle(places)
        script.brokers.update(zip(names, places, strict=True))
        tree = {(names[self.random.randrange(i)], names[i]) for i in range(1, len(names))}
        others = [(low, high) for i, high in enumerate(names) for low in names[:i] if (low, high) not in tree]
        tree.update(self.random.sample(others, self.random.randint(2, 4)))
        # A link may be defined by either side.
        script.links += [pair if self.random.random() < 0.7 else (pair[1], pair[0]) for pair in sorted(tree)]
        self.links = dict.fromkeys(script.links, "up")
        script.publishers += sorted(self.random.sample(names, self.random.randint(3, 6)))
        for name in names:
            script.keeps.append(Keep(name, f"{name}_called", "tick", self._filter()))
            script.keeps.append(Keep(name, f"{name}_read", self.random.choice(["tock", "t*"]), self._filter()))
        script.calm = self.random.random() < 0.6

    def _filter(self) -> str:
        return "any" if self.random.random() < 0.2 else self.random.choice(NARROW)

    # What there is

    def is_up(self, name: str) -> bool:
        return self.script.brokers[name] not in self.down

    def redundant(self) -> list[Pair]:
        """Return the links, in the direction defined now, without any one of which the network is still connected."""
        there = {pair for pair, state in self.links.items() if state != "gone"}
        return [pair for pair in sorted(there) if self._connects(there - {pair})]

    def _connects(self, pairs: set[Pair]) -> bool:
        seen, edge = {"a"}, ["a"]
        while edge:
            name = edge.pop()
            for pair in pairs:
                if name in pair:
                    other = pair[1] if pair[0] == name else pair[0]
                    if other not in seen:
                        seen.add(other)
                        edge.append(other)
        return seen >= set(self.script.brokers)

    def in_state(self, *states: str) -> list[Pair]:
        return [pair for pair, state in sorted(self.links.items()) if state in states and self.is_up(pair[0])]

    # Steps

    def _do(self, what: str, *args: str, at: float | None = None) -> bool:
        """Add a step to the script if it is possible now."""
        if not self._makes_sense(what, *args):
            return False
        becomes = {"make": "up", "drop": "gone", "drop_hard": "gone", "pause": "paused", "resume": "up",
                   "break": "broken", "mend": "up"}.get(what)  # fmt: skip
        if becomes:
            self.links[args[0], args[1]] = becomes
        elif what == "kill_server":
            self.down.add(int(args[0]))
        elif what == "start_server":
            self.down.discard(int(args[0]))
        elif what == "kill_worker":
            self.idle.add(args[0])
        elif what == "start_worker":
            self.idle.discard(args[0])
        self.script.steps.append(Step(round(at if at is not None else self.now, 2), what, args))
        return True

    def _makes_sense(self, what: str, *args: str) -> bool:
        needs = {"make": "gone", "drop": "up", "drop_hard": "up", "pause": "up", "resume": "paused", "break": "up",
                 "mend": "broken"}.get(what)  # fmt: skip
        if needs is not None:
            ends = args[:2] if what == "drop_hard" else args[:1] if what in {"pause", "break"} else ()
            return self.links[args[0], args[1]] == needs and all(self.is_up(name) for name in ends)
        match what:
            case "kill_server":
                return int(args[0]) not in self.down
            case "start_server":
                return int(args[0]) in self.down
            case "kill_worker":
                return args[0] not in self.idle and self.is_up(args[0])
            case "start_worker":
                return args[0] in self.idle
        return True

    def _after(self, least: float, most: float, what: str, *args: str) -> None:
        at = self.now + self.random.uniform(least, most)
        heapq.heappush(self.later, (at, next(self.serial), what, args))

    def _at(self, at: float, what: str, *args: str) -> None:
        heapq.heappush(self.later, (at, next(self.serial), what, args))

    def _something(self) -> None:
        weights = dict(self.climate.weights)
        # Most mistakes were found with links that are taken away while a server is down and come back with it.
        if self.down and "drop" in weights:
            weights["drop"] *= 3
        choices: list[Callable[[], None]] = [getattr(self, f"_{name}") for name in weights]
        self.random.choices(choices, list(weights.values()))[0]()

    def _drop(self, what: str = "drop") -> None:
        found = [pair for pair in self.redundant() if self.links[pair] == "up" and self.is_up(pair[0])]
        if found:
            pair = self.random.choice(found)
            if self._do(what, *pair):
                self._after(0.3, 8, "make", *pair)
                if self.random.random() < 0.4:
                    self._kill_server(self.script.brokers[self.random.choice(pair)])

    def _drop_hard(self) -> None:
        self._drop("drop_hard")

    def _pause(self) -> None:
        for pair in self.random.sample(found := self.in_state("up"), min(len(found), self.random.choice([1, 1, 2]))):
            self._do("pause", *pair)
            self._after(0.2, 6, "resume", *pair)

    def _break(self) -> None:
        found = self.in_state("up")
        if found:
            pair = self.random.choice(found)
            self._do("break", *pair)
            self._after(0.5, 6, "mend", *pair)

    def _cut(self) -> None:
        name = self.random.choice([name for name in self.script.brokers if self.is_up(name)])
        self._do("cut", name)

    def _kill_worker(self) -> None:
        name = self.random.choice(list(self.script.brokers))
        if self._do("kill_worker", name):
            self._after(0.05, 3, "start_worker", name)

    def _kill_server(self, server: int | None = None) -> None:
        if len(self.down) < 2 and self.now > self.busy_until:
            number = server if server is not None else self.random.randrange(3)
            if self._do("kill_server", str(number)):
                self._after(0.3, 3.5, "start_server", str(number))

    def _subscribe(self) -> None:
        found = [name for name in self.script.brokers if self.is_up(name)]
        if found:
            broker, name = self.random.choice(found), f"s{next(self.serial)}"
            self._do("subscribe", broker, name, self.random.choice(PATTERNS), self._filter())
            self.subscriptions[name] = broker

    def _unsubscribe(self) -> None:
        found = [name for name, broker in self.subscriptions.items() if self.is_up(broker)]
        if found:
            name = self.random.choice(found)
            self._do("unsubscribe", self.subscriptions.pop(name), name)

    def _burst(self) -> None:
        found = [name for name in self.script.publishers if self.is_up(name)]
        if found:
            self._do("burst", self.random.choice(found), str(self.random.choice([40, 100, 300])))

    def _type(self) -> None:
        """Make an event type at two neighbours at the same time."""
        found = [pair for pair in self.in_state("up") if self.is_up(pair[1])]
        if found and len([name for name in self.once if name.startswith("tnew")]) < 3 and "restore" not in self.once:
            name = f"tnew{next(self.serial)}"
            self.once.add(name)
            self._do("type", name, *self.random.choice(found))

    def _behind(self) -> None:
        """Let a broker fall behind its neighbour, which has another path; then make it the neighbour's only path.

        A redundant link m-l is dropped, the server of m is killed and comes back cut off; then l has no other link
        than m-l, made anew; then m gets its links back.
        """
        found = [
            pair
            for pair in self.redundant()
            if self.links[pair] == "up" and self.script.brokers[pair[0]] != self.script.brokers[pair[1]]
        ]
        if not found or self.down or self.now < self.busy_until or self.script.seconds - self.now < 9:
            return
        pair = self.random.choice(found)
        m, ahead = pair if self.random.random() < 0.5 else (pair[1], pair[0])
        server, brokers = self.script.brokers[m], self.script.on(self.script.brokers[m])
        around = [p for p in self.links if p != pair and (p[0] in brokers) != (p[1] in brokers)]
        others = [p for p in self.links if p != pair and ahead in p and p not in around]
        t, chance = self.now, self.random
        self._do("drop", *pair)
        self._at(t + 1.2, "kill_server", str(server))
        for p in around:
            self._at(t + 1.1 if p[0] in brokers else t + 1.3, "pause", *p)
        self._at(t + chance.uniform(1.8, 2.5), "start_server", str(server))
        for p in others:
            self._at(t + 4.2, "pause", *p)
        made = t + chance.uniform(4.3, 5)
        self._at(made, "make", *pair)
        for p in around:
            self._at(made + chance.uniform(1, 2.5), "resume", *p)
        for p in others:
            self._at(made + chance.uniform(1.5, 4), "resume", *p)
        self.busy_until = made + 2

    def _restore(self) -> None:
        """Copy a broker's database; some seconds later put it back."""
        found = [name for name in self.script.brokers if self.is_up(name)]
        if "restore" not in self.once and found and self.script.seconds - self.now > 6:
            self.once.add("restore")
            name = self.random.choice(found)
            self._do("backup", name)
            self._after(2, 6, "restore", name)

    def _restore_server(self) -> None:
        """Copy the files of a server; some seconds later put them back."""
        if "restore" not in self.once and not self.down and self.script.seconds - self.now > 9:
            self.once.add("restore")
            server = self.random.randrange(3)
            self.busy_until = self.now + 8
            self._do("backup_server", str(server))
            self._at(
                self.now + self.random.uniform(3, 6),
                "restore_server",
                str(server),
                "early" if self.script.seed % 2 else "late",
            )

    def _clone(self) -> None:
        found = [name for name in self.script.brokers if self.is_up(name)]
        if not self.once & {"clone", "restore"} and len(found) == len(self.script.brokers):
            self.once |= {"clone", "restore"}
            original = self.random.choice(found)
            self._do("clone", original, "g", *self.random.sample(list(self.script.brokers), 2))
