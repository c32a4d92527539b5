"""Change things: event types come and go; subscriptions are made, altered, moved, paused, ended and made again."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg

from tests.chaos.churn.publish import Writer
from tests.chaos.churn.stage import BASE, BOSS, MAKER, OWNERS, Player, Stage, make_type
from tests.chaos.churn.truth import FILTERS, Kind, Life, Span
from tests.fix_broker import call, rows

MOST_TYPES = 5
AGAIN = "pr"
"""The name of a type that is made anew under it whenever it was dropped."""


class Types(Player):
    """Makes and drops event types."""

    def __init__(self, stage: Stage, number: int) -> None:
        super().__init__(stage, f"types-{number}", MAKER)
        self.number = number
        self.names = (f"p{number}{n}" for n in itertools.count(1))
        self.writer = Writer(stage, 100 + number, self.random)

    def step(self) -> float:
        mine = [kind for name, kind in self.stage.types.items() if name not in BASE and self._is_mine(name)]
        make = [self._make, self._make_open, self._dispatch]
        drop = [self._drop, self._drop_open, self._refused, self._undone]
        if not mine:
            action = self.random.choice(make)
        elif len(mine) >= MOST_TYPES // 2:
            action = self.random.choice(drop)
        else:
            action = self.random.choice(make + drop)
        action()
        return self.random.expovariate(4.0)

    def _is_mine(self, name: str) -> bool:
        return name == AGAIN if self.number == 2 else name != AGAIN

    def _new_name(self) -> str:
        return AGAIN if self.number == 2 else next(self.names)

    def _publish(self, name: str) -> None:
        rows(self.connection, "begin")
        self.writer.commit(self.connection, self.writer.write(self.connection, name, self.random.choice([1, 3])))

    def _make(self) -> None:
        """Make a type, and publish it at once."""
        name = self._new_name()
        made: list[Kind] = []
        self.done(lambda connection: made.append(make_type(connection, name)))
        self.stage.tell(f"make {name} {made[0].oid}")
        self.stage.types[name] = made[0]
        self._publish(name)

    def _make_open(self) -> None:
        """Make a type in a transaction that stays open for a while, and perhaps publishes it."""
        name, undone = self._new_name(), self.random.random() < 0.2
        ns: list[int] = []
        rows(self.connection, "begin")
        kind = make_type(self.connection, name)
        if self.random.random() < 0.5:
            ns = self.writer.write(self.connection, name, 2)
        self._ending.wait(self.random.uniform(0.05, 0.5))
        if undone:
            rows(self.connection, "rollback")
        else:
            self.writer.commit(self.connection, ns)
            self.stage.types[name] = kind
        self.stage.tell(f"make {name} {kind.oid} in a transaction{' that is rolled back' if undone else ''}")

    def _some(self) -> str:
        return self.random.choice([one for one in self.stage.types if one not in BASE and self._is_mine(one)])

    def _drop(self, held: float = 0.0) -> None:
        name = self._some()
        kind = self.stage.types[name]
        if self.random.random() < 0.5:
            self._publish(name)
        if self.random.random() < 0.5:
            # The publishers find out by themselves.
            self.stage.types.pop(name)
        try:
            span = self.done(lambda connection: call(connection, "drop_event_type", name, True), held=held)
        except psycopg.Error:
            self.stage.types[name] = kind
            raise
        self.stage.types.pop(name, None)
        self.stage.note_dropped(kind, span)
        self.stage.tell(f"drop {name} {kind.oid}, {span.done - span.began:.2f} s")

    def _drop_open(self) -> None:
        self._drop(self.random.uniform(0.05, 1.0))

    def _undone(self) -> None:
        """Drop a type in a transaction that stays open for a while, and is rolled back."""
        name = self.random.choice(list(self.stage.types))
        held = self.random.choice([0.1, 0.3, 1.0, 2.5])
        self.done(lambda connection: call(connection, "drop_event_type", name, True), held=held, undone=True)
        self.stage.tell(f"drop {name} in a transaction that is rolled back after {held} s")

    def _refused(self) -> None:
        """Drop a type that is mostly needed still."""
        name = self._some()
        kind = self.stage.types[name]
        span = self.done(lambda connection: call(connection, "drop_event_type", name))
        self.stage.types.pop(name, None)
        self.stage.note_dropped(kind, span)
        self.stage.tell(f"drop {name} {kind.oid}, which nobody needs")

    def _dispatch(self) -> None:
        """Dispatch by hand, beside the worker."""
        call(self.connection, "dispatch")


@dataclass
class Slots:
    """The names of subscriptions: what there is under each of them, and who changes it."""

    names: list[str]
    lives: dict[str, Life] = field(default_factory=dict)
    locks: dict[str, threading.Lock] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.locks = {name: threading.Lock() for name in self.names}


class Subscriptions(Player):
    """Makes and changes subscriptions, one name at a time; other threads have others at the same time."""

    def __init__(self, stage: Stage, number: int, slots: Slots) -> None:
        super().__init__(stage, f"changes-{number}", BOSS)
        self.slots = slots
        self.actions: dict[Callable[[Life], None], int] = {
            self._end: 3, self._again: 4, self._filter: 6, self._owner: 4, self._owner_and_filter: 2, self._pause: 3,
            self._seek: 4, self._limit: 1, self._slow: 2, self._retry: 1,
        }  # fmt: skip

    def step(self) -> float:
        name = self.random.choice(self.slots.names)
        if not self.slots.locks[name].acquire(blocking=False):
            return 0.05
        try:
            life = self.slots.lives.get(name)
            if life is None or life.ended is not None:
                self.subscribe(name)
            else:
                self.random.choices(list(self.actions), list(self.actions.values()))[0](life)
        except psycopg.Error as error:
            self.stage.tell(f"{name}: {error.sqlstate} {str(error).splitlines()[0]}")
            raise
        finally:
            self.slots.locks[name].release()
        return self.random.expovariate(5.0)

    def _open(self) -> dict[str, float | bool]:
        """Return how long the transaction of a step stays open, and whether it is rolled back."""
        if self.random.random() < 0.7:
            return {}
        return {"held": self.random.uniform(0.03, 0.5), "undone": self.random.random() < 0.2}

    def _do(self, what: str, actions: Callable[[psycopg.Connection], object]) -> Span | None:
        """Do something in a transaction; return when, or None if it was rolled back."""
        how = self._open()
        span = self.done(actions, held=float(how.get("held", 0.0)), undone=bool(how.get("undone")))
        took = f"{'rolled back ' if how.get('undone') else ''}after {span.done - span.began:.2f} s"
        self.stage.tell(f"{what} {took} (from {span.began - self.stage.began:.2f})")
        self.stage.counts[what.split()[1]] += 1
        return None if how.get("undone") else span

    def _new(self, name: str) -> tuple[Life, str]:
        chance = self.random
        number = next(self.stage.life_numbers)
        named = [one for one in self.stage.types if one != AGAIN]
        life = Life(
            number, name, chance.choice(["p*", "p*", "p1*", chance.choice(BASE), chance.choice(named)]),
            chance.choice(["all", "all", "any", "called"]), chance.choice(["now", "now", "earliest"]),
            chance.choice(OWNERS),
        )  # fmt: skip
        self.stage.lives[number] = life
        return life, chance.choice(list(FILTERS))

    def _subscribe(self, connection: psycopg.Connection, life: Life, wanted: str) -> None:
        if life.mode == "called":
            rows(connection, _CALLBACK.format(life=life.number))
        rows(connection, f"set local role {life.owner}")
        call(
            connection, "subscribe", life.name, life.pattern, FILTERS[wanted][0], start=life.start,
            execute=f"churn.called_{life.number}" if life.mode == "called" else None,
            handler="any" if life.mode == "any" else "all", max_attempts=5,
        )  # fmt: skip
        rows(connection, "set local role none")
        query = "insert into churn.life values (%s, %s) on conflict (name) do update set life = excluded.life"
        rows(connection, query, [life.name, life.number])

    def _made(self, life: Life, wanted: str, span: Span) -> None:
        life.filters.append((span, wanted))
        self.slots.lives[life.name] = life
        life.made = span
        for kind, dropped in list(self.stage.truth.dropped.items()):
            # Its type was dropped, with all its subscriptions, after this one was begun.
            if kind.name == life.pattern and dropped.done > span.began:
                life.ended = dropped

    def subscribe(self, name: str) -> None:
        """Make a subscription."""
        life, wanted = self._new(name)
        what = f"{name} subscribe {life.number}: {life.pattern} {wanted} {life.mode} {life.start} {life.owner}"
        span = self._do(what, lambda connection: self._subscribe(connection, life, wanted))
        if span is not None:
            self._made(life, wanted, span)

    def _end(self, life: Life) -> None:
        def end(connection: psycopg.Connection) -> None:
            call(connection, "unsubscribe", life.name)
            rows(connection, "delete from churn.life where name = %s", [life.name])

        span = self._do(f"{life.name} unsubscribe", end)
        if span is not None:
            life.ended = span

    def _again(self, life: Life) -> None:
        """End it and make another one of its name, in one transaction."""
        other, wanted = self._new(life.name)

        def both(connection: psycopg.Connection) -> None:
            call(connection, "unsubscribe", life.name)
            self._subscribe(connection, other, wanted)

        what = f"{life.name} again {other.number}: {other.pattern} {wanted} {other.mode} {other.start} {other.owner}"
        span = self._do(what, both)
        if span is not None:
            life.ended = span
            self._made(other, wanted, span)

    def _alter(self, life: Life, what: str, wanted: str | None, owner: str | None) -> None:
        named = {"owner": owner} if owner else {}
        if wanted:
            named["filter"] = FILTERS[wanted][0] or ""
        span = self._do(
            f"{life.name} {what}", lambda connection: call(connection, "alter_subscription", life.name, **named)
        )
        if span is not None and wanted:
            life.filters.append((span, wanted))
        if span is not None and owner:
            life.owner = owner

    def _filter(self, life: Life) -> None:
        wanted = self.random.choice(list(FILTERS))
        self._alter(life, f"filter {wanted}", wanted, None)

    def _owner(self, life: Life) -> None:
        owner = self.random.choice(OWNERS)
        self._alter(life, f"owner {owner}", None, owner)

    def _owner_and_filter(self, life: Life) -> None:
        wanted, owner = self.random.choice(list(FILTERS)), self.random.choice(OWNERS)
        self._alter(life, f"both {owner} {wanted}", wanted, owner)

    def _pause(self, life: Life) -> None:
        self._do(f"{life.name} pause", lambda connection: call(connection, "pause", life.name))
        self._ending.wait(self.random.uniform(0.0, 0.6))
        self._do(f"{life.name} resume", lambda connection: call(connection, "resume", life.name))

    def _seek(self, life: Life) -> None:
        query = "select event_id from churn.got where life = %s and event_id is not null order by place desc limit 30"
        known = [event for (event,) in rows(self.connection, query, [life.number])]
        start = self.random.choice(
            ["now", "earliest", str(self.random.choice(known))] if known else ["now", "earliest"]
        )

        def move(connection: psycopg.Connection) -> None:
            call(connection, "seek", life.name, start)
            # Who consumes waits for this transaction: what is noted behind this came after it.
            rows(connection, "insert into churn.got (life) values (%s)", [life.number])

        span = self._do(f"{life.name} seek {start}", move)
        if span is not None:
            life.seeks.append((span, start))

    def _limit(self, life: Life) -> None:
        """Have it suspended by the next reclaim when a little waits; resume it."""
        self._do(
            f"{life.name} limit", lambda connection: call(connection, "alter_subscription", life.name, max_backlog=3)
        )
        self._ending.wait(self.random.uniform(0.3, 2.0))
        self._do(
            f"{life.name} unlimited",
            lambda connection: [
                call(connection, "alter_subscription", life.name, on_backlog="keep"),
                call(connection, "resume", life.name),
            ],
        )

    def _slow(self, life: Life) -> None:
        pace = self.random.choice([0.0, 0.001, 0.01, 0.05])
        self._do(f"all pace {pace}", lambda connection: rows(connection, "update churn.pace set seconds = %s", [pace]))

    def _retry(self, life: Life) -> None:
        name = self.random.choice(list(self.stage.types))
        self._do(f"{name} retry", lambda connection: call(connection, "retry_exception", name))


_CALLBACK = """
create function churn.called_{life}(e record) returns void language plpgsql as $f$
begin
    if e.n % 23 = 0 and random() < 0.4 then
        raise exception 'this callback fails now and then';
    end if;
    insert into churn.got (life, n) values ({life}, e.n);
end
$f$
"""
