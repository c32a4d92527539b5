"""What every subscription of a story must have received, worked out apart from the brokers.

The log of an origin (a broker in one of its epochs) is noted when the broker dispatches, before anything can be
trimmed, lost or restored. A subscription has to have, of each origin, what its filter wants from one moment on: all of
it, once, in the origin's order, whole transactions. Left out may only be what a restored origin itself has lost, and
what the broker's exceptions call a gap.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.fix_broker import call, rows
from tests.links.fleet import Member

Origin = tuple[str, int]
"""A broker's name, and its epoch."""

Wants = Callable[["Event"], bool]


@dataclass(frozen=True)
class Event:
    """What was published; `m` is what filters ask for."""

    n: int
    m: int
    type: str
    transaction: int


@dataclass
class Logged:
    """An event at its place in the log of its origin; lost: the origin was restored to a state before it."""

    event: Event
    batch: int
    lost: bool = False


@dataclass
class Subscription:
    """A global subscription: what it has received, and from which place of each log on it must have all.

    `begun`: how many transactions had begun when it was made.
    """

    broker: str
    name: str
    pattern: str
    text: str | None
    wants: Wants
    begun: int
    must: dict[Origin, int] = field(default_factory=dict)
    got: list[int] = field(default_factory=list)

    def is_wanted(self, event: Event) -> bool:
        return self.pattern in (event.type, "t*") and self.wants(event)

    def copied(self, broker: str) -> Subscription:
        return Subscription(
            broker, self.name, self.pattern, self.text, self.wants, self.begun, dict(self.must), list(self.got)
        )


@dataclass
class Gap:
    """Batches of an origin that a broker has reported as trimmed."""

    after: int
    upto: int


class Oracle:
    """The logs of all origins, and the subscriptions."""

    def __init__(self) -> None:
        self.events: dict[int, Event] = {}
        self.logs: dict[Origin, list[Logged]] = defaultdict(list)
        self.places: dict[int, tuple[Origin, int]] = {}
        self.noted: dict[str, int] = defaultdict(int)
        self.epochs: dict[str, int] = defaultdict(lambda: 1)
        self.subscriptions: list[Subscription] = []
        self.checked = 0
        self.gaps = 0

    def note(self, member: Member) -> None:
        """Note what a broker has dispatched of its own since the last time."""
        query = " union all ".join(
            f"""
            select b.batch_id, l.event_id, l.n
            from pgps_internal.batch_type b, unnest(b.ids) r, pgps_internal.{name}_log l
            where b.batch_id > %(last)s and l.pgps_origin_event is null
                and l.event_id >= lower(r) and l.event_id < upper(r)
            """
            for name in ("tick", "tock")
        )
        found = rows(
            member.admin, f"select distinct * from ({query}) x order by 1, 2", {"last": self.noted[member.name]}
        )
        origin = (member.name, self.epochs[member.name])
        for batch, _, n in found:
            assert n not in self.places, f"event {n} was dispatched twice at {member.name}"
            self.places[n] = origin, len(self.logs[origin])
            self.logs[origin].append(Logged(self.events[n], batch))
        self.noted[member.name] = member.last_batch()

    def receive(self, member: Member, subscription: Subscription) -> None:
        """Take what a subscription has, and acknowledge it."""
        with member.admin.transaction():
            found = rows(
                member.admin, "select (payload ->> 'n')::integer from pgps.receive(%s, 100000)", [subscription.name]
            )
            call(member.admin, "ack", subscription.name)
        subscription.got += [n for (n,) in found]

    def settled(self) -> None:
        """Everything has arrived: what is published from now on must reach every subscription."""
        for subscription in self.subscriptions:
            for origin, log in self.logs.items():
                subscription.must.setdefault(origin, len(log))

    def restored(self, member: Member, backup: list[Subscription], epoch: int, last_batch: int) -> None:
        """A broker has lost what came behind a batch of an epoch, and its subscriptions with it."""
        for (name, era), log in self.logs.items():
            for logged in log if name == member.name else []:
                logged.lost = logged.lost or (era, logged.batch) > (epoch, last_batch)
        others = [s for s in self.subscriptions if s.broker != member.name]
        self.subscriptions = others + [s.copied(s.broker) for s in backup]
        self.noted[member.name] = last_batch

    def resumed(self, member: Member, *, is_new: bool) -> None:
        """A broker goes on in a new epoch; what was in force for it is so from the start, unless it is a copy."""
        self.epochs[member.name] = member.identity()["epoch"]
        for subscription in [] if is_new else self.subscriptions:
            if any(name == member.name for name, _ in subscription.must):
                subscription.must[member.name, self.epochs[member.name]] = 0

    def cloned(self, original: Member, clone: Member, last_batch: int) -> None:
        """Enter a copy: another broker, whose subscriptions go on with all origins but the original itself."""
        self.noted[clone.name] = last_batch
        for subscription in [s for s in self.subscriptions if s.broker == original.name]:
            twin = subscription.copied(clone.name)
            twin.must = {origin: place for origin, place in twin.must.items() if origin[0] != original.name}
            twin.got = [n for n in twin.got if self.places[n][0][0] != original.name]
            self.subscriptions.append(twin)

    def of(self, broker: str) -> list[Subscription]:
        return [s for s in self.subscriptions if s.broker == broker]

    def backup_of(self, broker: str) -> list[Subscription]:
        return copy.deepcopy([s.copied(broker) for s in self.of(broker)])

    def check(self, subscription: Subscription, gaps: dict[Origin, list[Gap]], *, final: bool) -> None:
        """Compare what a subscription has, origin by origin; at the end of a story nothing may be missing."""
        got: dict[Origin, list[int]] = defaultdict(list)
        for n in subscription.got:
            assert n in self.places, f"{subscription}: event {n} was never dispatched where it was published"
            origin, place = self.places[n]
            got[origin].append(place)
        for origin, log in self.logs.items():
            self._check_origin(subscription, origin, log, got[origin], gaps.get(origin, []), final=final)
        self.checked += len(subscription.got)

    def _check_origin(
        self,
        subscription: Subscription,
        origin: Origin,
        log: list[Logged],
        got: list[int],
        gaps: list[Gap],
        *,
        final: bool,
    ) -> None:
        said = (
            f"{subscription.name} at {subscription.broker} ({subscription.pattern}, {subscription.text}), of {origin}"
        )
        assert got == sorted(set(got)), f"{said}: repeated or out of order: {self._around(log, got)}"
        wanted = [place for place, logged in enumerate(log) if subscription.is_wanted(logged.event)]
        unwanted = set(got) - set(wanted)
        assert not unwanted, f"{said}: not wanted: {unwanted}"
        must = subscription.must.get(origin) if final else None
        last = got[-1] if got else -1
        is_remote = origin[0] != subscription.broker
        # A pattern is a filter for each of its types: each comes into force by itself.
        for name in {log[place].event.type for place in wanted}:
            first = next((place for place in got if log[place].event.type == name), None)
            starts = [place for place in (first, must) if place is not None]
            if not starts:
                continue
            # At home what counts is the commit: the first batch may hold what was committed before it was subscribed.
            early = [
                place
                for place in wanted
                if first is not None
                and log[place].batch == log[first].batch
                and log[place].event.transaction <= subscription.begun
                and log[place].event.transaction not in {log[p].event.transaction for p in got}
            ]
            missing = [
                place
                for place in wanted
                if log[place].event.type == name and place not in got
                and (place >= min(starts) or (is_remote and first is not None and log[place].batch == log[first].batch))
                and (final or place < last)
                and not (log[place].lost and (place > last or not is_remote))
                and not any(gap.after < log[place].batch <= gap.upto for gap in gaps)
                and (is_remote or place not in early)
            ]  # fmt: skip
            assert not missing, (
                f"{said}: lost places {missing}, batches {[log[p].batch for p in missing]},"
                f" n {[log[p].event.n for p in missing]}; must from {subscription.must.get(origin)}, first {first},"
                f" got {got[:3]}…{got[-3:]} of {len(log)}"
            )

    @staticmethod
    def _around(log: list[Logged], got: list[int]) -> list[tuple[int, int]]:
        bad = [i for i in range(1, len(got)) if got[i] <= got[i - 1]]
        return [(got[i - 1], got[i]) for i in bad[:5]]


def gaps_of(member: Member, names: dict[str, str]) -> dict[Origin, list[Gap]]:
    """The gaps that stand among a broker's exceptions; `names`: of broker ids."""
    found: dict[Origin, list[Gap]] = defaultdict(list)
    query = """
        select o.broker_id::text, o.epoch, substring(r.error from 'batches ([0-9]+) to')::bigint, r.origin_batch
        from pgps_internal.rejected r join pgps_internal.origin o using (origin_id) where r.sqlstate = '58030'
    """
    for broker_id, epoch, first, upto in rows(member.admin, query):
        found[names.get(str(broker_id), str(broker_id)), int(epoch)].append(Gap(first - 1, upto))
    return found
