"""Stories of redundant paths: who turns to another one, or has children that do, lacks nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, rows, value
from tests.fix_db import wait_until
from tests.links.peer import Item, Origin, Peer
from tests.links.rig import Broker, Link, open_link, received, settle

Brokers = Callable[[int], list[Broker]]


class Mesh:
    """Brokers o, n, m, l: o publishes; n leads to m, and l is beside them."""

    def __init__(self, brokers: list[Broker]) -> None:
        self.o, self.n, self.m, self.l = brokers
        self.brokers = brokers
        self.up: dict[str, Link] = {}
        self.published = 0
        for broker, name in zip(brokers, "onml", strict=True):
            call(broker.admin, "configure", "broker", name)
            broker.name = name
            make_type(broker.admin, "tick", "n integer, kind integer")
        for one, other in ("on", "nm", "ol"):
            self.define(one, other)

    def broker(self, name: str) -> Broker:
        return next(broker for broker in self.brokers if broker.name == name)

    def define(self, one: str, other: str) -> None:
        call(self.broker(one).admin, "create_link", f"to_{other}", self.broker(other).dsn)
        self.resume(one + other)

    def resume(self, pair: str) -> None:
        self.up[pair] = open_link(self.broker(pair[0]), self.broker(pair[1]), f"to_{pair[1]}")

    def pause(self, pair: str) -> None:
        """Close a link; returns when both brokers have seen it."""
        self.up.pop(pair).close()

    def settle(self) -> None:
        settle(self.brokers, list(self.up.values()))

    def publish(self, count: int) -> None:
        """Publish at o, each in a transaction, and dispatch: so many batches there."""
        for _ in range(count):
            self.published += 1
            rows(self.o.admin, "insert into pgps_event.tick values (%s, %s)", [self.published, self.published % 2])
            self.o.settle()

    def close(self) -> None:
        for link in self.up.values():
            link.close()


@pytest.fixture
def mesh(brokers: Brokers) -> Iterator[Mesh]:
    made = Mesh(brokers(4))
    yield made
    made.close()


def test_a_broker_that_is_behind_its_new_child_lacks_nothing(mesh: Mesh) -> None:
    call(mesh.m.admin, "subscribe", "even", "tick", filter="kind = 0", scope="global")
    call(mesh.l.admin, "subscribe", "odd", "tick", filter="kind = 1", scope="global")
    mesh.settle()
    mesh.publish(4)
    mesh.settle()
    # m falls behind, while l goes on.
    mesh.pause("nm")
    mesh.publish(20)
    mesh.settle()
    # l loses its way, and turns to m, where nobody has wanted what l wants.
    mesh.pause("ol")
    mesh.define("m", "l")
    mesh.settle()
    mesh.publish(4)
    mesh.resume("nm")
    mesh.settle()
    mesh.publish(4)
    mesh.settle()
    assert [n for _, n in received(mesh.m, "even")] == list(range(2, 33, 2))
    assert [n for _, n in received(mesh.l, "odd")] == list(range(1, 33, 2))
    assert not rows(mesh.m.admin, "select * from pgps_internal.gap")


def test_explain_says_why_an_event_fetched_for_others_is_not_for_a_subscription(mesh: Mesh) -> None:
    call(mesh.m.admin, "subscribe", "even", "tick", filter="kind = 0", scope="global")
    call(mesh.l.admin, "subscribe", "all", "tick", scope="global")
    call(mesh.m.admin, "subscribe", "local", "tick")
    mesh.settle()
    mesh.publish(2)
    mesh.settle()
    mesh.pause("ol")
    mesh.publish(4)
    mesh.settle()
    mesh.define("m", "l")
    mesh.settle()
    assert [n for _, n in received(mesh.l, "all")] == list(range(1, 7))
    fetched = value(mesh.m.admin, "select max(event_id) from pgps_internal.tick_log where n = 5")
    said: dict[str, str] = dict(rows(mesh.m.admin, "select * from pgps.explain('local', %s)", [fetched]))
    assert "asked for again for a broker behind this one" in said["start"]


def test_explain_says_from_when_on_a_filter_is_in_force(brokers: Brokers) -> None:
    here = brokers(1)[0]
    make_type(here.admin, "tick")
    x = Origin("x")
    with peers(here, "b") as (b,):
        b.say(b.ad(x))
        call(here.admin, "subscribe", "all", "tick", scope="global")
        b.hear()
        one, key = b.attachment(x)["attachment"], b.key(x)
        b.say(b.data(x, one, 0, 4, (40, 4)))
        here.settle()
        event = value(here.admin, "select event_id from pgps_internal.tick_log")
        said: dict[str, str] = dict(rows(here.admin, "select * from pgps.explain('all', %s)", [event]))
        assert (
            said["start"] == 'it is of batch 4 of broker "x", where the filter of the subscription was not in force yet'
        )
        b.say(b.active(x, key, one, 4))
        said = dict(rows(here.admin, "select * from pgps.explain('all', %s)", [event]))
        assert "is in force there from behind batch 4 on" in said["start"]


@contextmanager
def peers(here: Broker, *names: str) -> Iterator[list[Peer]]:
    with ExitStack() as stack:
        made = [Peer(here, name, broker=f"{ord(name):08x}-0000-4000-8000-000000000000") for name in names]
        for peer in made:
            stack.callback(peer.hears.close)
            stack.callback(peer.says.close)
        yield made


@contextmanager
def held(here: Broker, table: str) -> Iterator[None]:
    """Hold up whoever reads a table, until the block ends."""
    with psycopg.connect(here.dsn) as connection:
        connection.execute(f"lock table pgps_internal.{table} in access exclusive mode".encode())
        yield


class Beside(threading.Thread):
    """A call in a thread; what it raises is raised by `result`."""

    def __init__(self, here: Broker, session: psycopg.Connection, act: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.here, self.pid, self.act = here, session.info.backend_pid, act
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.act()
        except BaseException as error:
            self.error = error

    def waits(self) -> bool:
        # Not whoever waits to make a file longer, for a moment.
        locked = "wait_event_type = 'Lock' and wait_event <> 'extend'"
        query = f"select count(*) = 1 from pg_stat_activity where pid = %s and {locked}"
        return bool(value(self.here.admin, query, [self.pid]))

    def finish(self) -> None:
        self.join(60)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


def events(heard: list[Item]) -> list[tuple[int, int]]:
    """Up to which batch, and how many events, of each item with events; silence is left out."""
    return [(i["attachment"], i["events"]) for i in heard if i.get("events")]


def every(d: Peer, me: Origin, attachment: int, horizon: int) -> list[Item]:
    wanted = d.message("sub", key="k", filter=None, constant_types=None, environment={}, type="tick")
    return [wanted, d.message("attach", **me.key, attachment=attachment, horizon=horizon, keep=["k"])]


def test_a_filter_that_is_heard_while_batches_are_packed_lacks_none_of_them(brokers: Brokers) -> None:
    here = brokers(1)[0]
    make_type(here.admin, "tick")
    me = Origin("here", here.identity()["broker"])
    with peers(here, "d") as (d,):
        d.hear()
        with held(here, "offer"):
            # The sender has read how far it is packed, and looks at the routes now.
            sends = Beside(here, d.hears, lambda: call(d.hears, "link_next", d.heard, 1000, True))
            wait_until(sends.waits, what="the sender looks at the routes")
            rows(here.admin, "insert into pgps_event.tick values (1)")
            here.settle()
            says = Beside(here, d.says, lambda: d.say(*every(d, me, 1, 0)))
            wait_until(lambda: not says.is_alive() or says.waits(), what="the filter is heard, or waits to be")
        sends.finish()
        says.finish()
        heard = d.hear()
        assert events(heard) == [(1, 1)], heard


def test_an_attachment_that_is_heard_while_another_is_answered_is_answered_itself(brokers: Brokers) -> None:
    here = brokers(1)[0]
    make_type(here.admin, "tick")
    me = Origin("here", here.identity()["broker"])
    with peers(here, "d") as (d,):
        d.say(*every(d, me, 1, 0)[:1])
        d.hear()
        rows(here.admin, "insert into pgps_event.tick values (1)")
        d.hear()
        d.say(*every(d, me, 1, 0)[1:])
        with held(here, "trimmed"):
            # The sender has found the first, and looks what is still there for its answer.
            sends = Beside(here, d.hears, lambda: call(d.hears, "link_next", d.heard, 1000, True))
            wait_until(sends.waits, what="the sender answers")
            says = Beside(here, d.says, lambda: d.say(*every(d, me, 2, 0)[1:]))
            wait_until(lambda: not says.is_alive() or says.waits(), what="the second is heard, or waits to be")
        sends.finish()
        says.finish()
        heard = d.hear()
        assert (2, 1) in events(heard), heard
        assert value(here.admin, "select attachment from pgps_internal.attached") == 2


def test_two_neighbours_tell_of_a_new_type_at_once_and_both_carry_it(brokers: Brokers) -> None:
    here = brokers(1)[0]
    here.identity()
    attributes = [{"name": "n", "type": "integer"}]
    definition = {"name": "tock", "attributes": attributes, "reliability": "guaranteed", "persistent": True}
    with peers(here, "b", "c") as (b, c), psycopg.connect(here.dsn) as other:
        # Whoever comes first is held up with its type made and not committed.
        other.execute("lock table pgps_internal.foreign_type in access exclusive mode")
        first = Beside(here, b.says, lambda: b.say(b.message("type", **definition)))
        wait_until(first.waits, what="the first has made the type")
        second = Beside(here, c.says, lambda: c.say(c.message("type", **definition)))
        wait_until(second.waits, what="the second waits")
        other.rollback()
        first.finish()
        second.finish()
    found = rows(here.admin, "select count(*), count(difference) from pgps_internal.foreign_type")
    assert found == [(2, 0)], column(here.admin, "select difference from pgps_internal.foreign_type")


def test_a_type_created_here_while_a_neighbour_tells_of_it_is_carried(brokers: Brokers) -> None:
    here = brokers(1)[0]
    here.identity()
    definition = {"name": "tock", "attributes": [{"name": "n", "type": "integer"}], "reliability": "guaranteed"}
    with peers(here, "b") as (b,):
        here.admin.autocommit = False
        try:
            make_type(here.admin, "tock")
            says = Beside(brokers(1)[0], b.says, lambda: b.say(b.message("type", **definition, persistent=True)))
            wait_until(says.waits, what="the neighbour's type waits")
            here.admin.commit()
        finally:
            here.admin.rollback()
            here.admin.autocommit = True
        says.finish()
        assert rows(here.admin, "select difference from pgps_internal.foreign_type") == [(None,)]
