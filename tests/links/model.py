"""Random networks, and a check of every subscription against its origins while links come and go."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.fix_broker import call, make_type, rows, value
from tests.links.rig import Broker, Link, open_link, received, settle

Pair = tuple[int, int]
KINDS = ("tick", "tock")


@dataclass
class Subscription:
    """A global subscription and what it has received; its filter is m >= limit, m being n modulo ten."""

    broker: int
    name: str
    limit: int
    kind: str
    settled: int | None = None
    got: list[tuple[str, int]] = field(default_factory=list)


class Network:
    """Brokers, the links among them that are defined, and those that are up."""

    def __init__(self, brokers: list[Broker], seed: int, *, redundant: int) -> None:
        self.random = random.Random(seed)
        self.brokers = brokers
        pairs = {(self.random.randrange(i), i) for i in range(1, len(brokers))}
        others = [(low, high) for high in range(len(brokers)) for low in range(high) if (low, high) not in pairs]
        pairs.update(self.random.sample(others, min(redundant, len(others))))
        self.pairs = sorted(pairs)
        self.up: dict[Pair, Link] = {}
        self.subscriptions: list[Subscription] = []
        self.published = 0
        for broker in brokers:
            for kind in KINDS:
                make_type(broker.admin, kind, "n integer, m integer")
        for low, high in self.pairs:
            call(brokers[low].admin, "create_link", f"to_{brokers[high].name}", brokers[high].dsn)
            self.raise_link((low, high))

    def raise_link(self, pair: Pair) -> None:
        low, high = self.brokers[pair[0]], self.brokers[pair[1]]
        link = self.up[pair] = open_link(low, high, f"to_{high.name}")
        # Some batches are small ones, some go by COPY.
        link.out.with_rows, link.back.with_rows = 32 * (pair[0] % 2), 32 * (pair[1] % 2)

    def publish(self, broker: Broker, count: int) -> None:
        """Publish so many events, each in its own transaction."""
        for _ in range(count):
            self.published += 1
            kind = self.random.choice(KINDS)
            rows(broker.admin, f"insert into pgps_event.{kind} values (%s, %s)", [self.published, self.published % 10])

    def cut(self, pair: Pair) -> None:
        self.up.pop(pair).close()

    def step(self) -> None:
        """Do one thing at random."""
        what = self.random.random()
        broker = self.random.choice(self.brokers)
        if what < 0.2:
            self.publish(broker, self.random.randint(1, 4))
        elif what < 0.24:
            self.subscribe(self.random.randrange(len(self.brokers)))
        elif what < 0.26 and self.subscriptions:
            gone = self.subscriptions.pop(self.random.randrange(len(self.subscriptions)))
            call(self.brokers[gone.broker].admin, "unsubscribe", gone.name)
        elif what < 0.31:
            pair = self.random.choice(self.pairs)
            if pair in self.up:
                self.cut(pair)
            else:
                self.raise_link(pair)
        elif what < 0.5:
            broker.settle()
        elif self.up:
            link = self.up[self.random.choice(sorted(self.up))]
            lane = self.random.choice([link.out, link.back])
            if self.random.random() < 0.05:
                self.interrupt(link)
            else:
                lane.move(max_events=self.random.choice([1, 3, 100]))

    def interrupt(self, link: Link) -> None:
        """Lose the sender's session between the commit at the receiver and its confirmation."""
        pair = next(pair for pair, one in self.up.items() if one is link)
        link.out.move()
        self.cut(pair)
        self.raise_link(pair)

    def subscribe(self, place: int) -> None:
        name = f"s{len(self.subscriptions)}_{self.published}_{self.random.randrange(1000)}"
        limit = self.random.randrange(0, 8)
        kind = self.random.choice(KINDS)
        call(self.brokers[place].admin, "subscribe", name, kind, filter=f"m >= {limit}", scope="global")
        self.subscriptions.append(Subscription(place, name, limit, kind))

    def rest(self) -> None:
        """Raise all links and let everything arrive."""
        for pair in self.pairs:
            if pair not in self.up:
                self.raise_link(pair)
        settle(self.brokers, list(self.up.values()), rounds=200)
        for subscription in self.subscriptions:
            if subscription.settled is None:
                subscription.settled = self.published

    def check(self) -> int:
        """Compare what each subscription has with its origins' logs; return how many events were checked."""
        checked = 0
        for subscription in self.subscriptions:
            here = self.brokers[subscription.broker]
            subscription.got += received(here, subscription.name)
            for origin in self.brokers:
                got = [n for name, n in subscription.got if name == origin.name]
                want = self.expected(subscription, origin)
                if origin is here:
                    assert got == want[len(want) - len(got) :], (subscription, origin.name, "local")
                    continue
                since = value(
                    here.admin,
                    """
                    select a.since from pgps_internal.activation a
                    join pgps_internal.origin o using (origin_id)
                    join pgps_internal.pushed p using (key) join pgps_internal.subscription s using (subscription_id)
                    where s.name = %s and o.name = %s
                    """,
                    [subscription.name, origin.name],
                )
                after = self.expected(subscription, origin, since)
                said = (subscription, here.name, origin.name, since, got, after)
                # From one moment on everything: that moment is when its filter came to be in force there.
                assert got == after[len(after) - len(got) :], said
                assert set(got) >= {n for n in after if n > (subscription.settled or 0)}, said
                checked += len(got)
        return checked

    def expected(self, subscription: Subscription, origin: Broker, since: int = 0) -> list[int]:
        """What an origin has published for a subscription behind a batch, in the order of its batches."""
        found = rows(
            origin.admin,
            f"""
            select l.n from pgps_internal.{subscription.kind}_log l
            join pgps_internal.batch_type b on l.event_id <@ b.ids
            where l.pgps_origin_event is null and b.batch_id > %s and l.m >= %s order by b.batch_id, l.event_id
            """,
            [since, subscription.limit],
        )
        return [n for (n,) in found]

    def close(self) -> None:
        for pair in list(self.up):
            self.cut(pair)


def play(network: Network, steps: int) -> int:
    """Play a random story, let it come to rest, and check it; twice."""
    try:
        network.rest()
        for place in range(len(network.brokers)):
            network.subscribe(place)
        network.rest()
        for _ in range(steps):
            network.step()
        network.rest()
        network.check()
        for broker in network.brokers:
            network.publish(broker, 10)
        network.rest()
        return network.check()
    finally:
        network.close()
