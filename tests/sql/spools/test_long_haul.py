"""Messages for other networks, step by step: each contact point gets all, in order, once, whatever comes in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import call, column, meanwhile, refused, rows, value
from tests.fix_db import Connect
from tests.links.conftest import brokers  # noqa: F401 - a fixture
from tests.links.rig import Broker

Brokers = Callable[[int], list[Broker]]


class Haul:
    """A connection to a contact point, as a worker manages it; each step is a transaction of its own."""

    def __init__(self, here: psycopg.Connection, there: psycopg.Connection, place: int = 1) -> None:
        self.here, self.there = here, there
        query = "select contact_id from pgps_internal.network_contact where place = %s"
        self.contact = value(here, query, [place])
        self.upto: int | None = None

    def open(self) -> bool:
        """Become the manager, and learn where the contact point is."""
        found: bool = call(self.here, "network_open", self.contact)
        if found:
            reached = call(self.there, "network_reached", Jsonb(call(self.here, "network_next", self.contact)))
            self.upto = self.take(call(self.here, "network_next", self.contact, None, 0, Jsonb(reached)))
        return found

    def next(self, most: int = 1000) -> Any:
        return call(self.here, "network_next", self.contact, self.upto, most)

    def take(self, batch: Any) -> int:
        found: int = call(self.there, "network_take", Jsonb(batch))
        return found

    def carry(self, most: int = 1000) -> None:
        """Carry all there is, and dispatch at both ends."""
        dispatch(self.here)
        while (batch := self.next(most))["messages"]:
            self.upto = self.take(batch)
        dispatch(self.here)
        dispatch(self.there)


def dispatch(connection: psycopg.Connection) -> None:
    rows(connection, "select pgps.dispatch()")


def contents(connection: psycopg.Connection, spool: str = "checker") -> list[tuple[int, Any]]:
    return rows(connection, "select seqn, message from pgps.spooled_messages where spool = %s", [spool])


def waiting(connection: psycopg.Connection) -> int:
    found: int = value(connection, "select waiting from pgps.networks")
    return found


@pytest.fixture
def norway(brokers: Brokers) -> Broker:  # noqa: F811
    return brokers(1)[0]


@pytest.fixture
def sweden(brokers: Brokers, norway: Broker) -> list[Broker]:  # noqa: F811
    """Two contact points of network "sweden", which norway knows."""
    made = brokers(2)
    call(norway.admin, "create_network", "sweden", [broker.dsn for broker in made])
    return made


def test_each_contact_point_gets_all_of_it_once_in_the_order_of_commit(norway: Broker, sweden: list[Broker]) -> None:
    sif, sigyn = sweden
    one = Haul(norway.admin, sif.admin)
    assert one.open()
    call(norway.admin, "spool", "checker", 3, "1", Jsonb({"K": 7}), ["add"], network="sweden")
    many = [{"entry": 1, "message": n, "network": "sweden"} for n in range(2, 6)]
    sent = call(norway.admin, "spool_many", "checker", Jsonb(many))
    one.carry(most=2)
    assert contents(sif.admin) == [(n, n) for n in range(1, 6)]
    found = rows(sif.admin, "select entry, keys, keywords, sender from pgps.spooled_messages where seqn = 1")
    assert found == [(3, {"K": 7}, ["add"], value(norway.admin, "select current_user"))]
    assert waiting(norway.admin) == 5, "sigyn has none of them"
    assert [call(norway.admin, f, sent[0]) for f in ("spool_getseqn", "spool_inquire", "spool_cancel")] == [
        2,
        1,
        False,
    ]
    # The connection breaks after the contact point has committed, and before it was heard.
    two = Haul(norway.admin, sigyn.admin, 2)
    assert two.open()
    batch = two.next(3)
    assert two.take(batch) == 3
    two = Haul(norway.admin, sigyn.admin, 2)
    assert two.open()
    assert two.upto == 3
    assert two.take(batch) == 3, "again, by whoever has it still"
    two.carry()
    assert contents(sigyn.admin) == contents(sif.admin)
    assert waiting(norway.admin) == 0
    assert call(norway.admin, "spool_inquire", sent[0]) == 1, "it has arrived"
    assert rows(sif.admin, "select network, arrived_seqn, gaps from pgps.network_origins") == [("sweden", 5, 0)]
    assert column(norway.admin, "select name from pgps.spools") == []


def test_one_session_manages_a_connection_and_another_takes_over(
    norway: Broker, sweden: list[Broker], connect: Connect
) -> None:
    first, second = connect(dsn=norway.dsn), connect(dsn=norway.dsn)
    manager, standby = Haul(first, sweden[0].admin), Haul(second, sweden[0].admin)
    assert manager.open()
    assert not standby.open()
    with refused("55000", "not managed"):
        standby.next()
    call(norway.admin, "spool", "checker", 1, "1", network="sweden")
    dispatch(norway.admin)
    batch = manager.next()
    pid = value(first, "select pg_backend_pid()")
    assert column(norway.admin, "select manager from pgps.network_contacts order by place") == [pid, None]
    rows(norway.admin, "select pg_terminate_backend(%s, 60000)", [pid])
    assert standby.open()
    call(norway.admin, "spool", "checker", 1, "2", network="sweden")
    standby.carry()
    assert manager.take(batch) == 2, "what the dead one has sent arrives late, and is there"
    dispatch(sweden[0].admin)
    assert contents(sweden[0].admin) == [(1, 1), (2, 2)]


def test_what_was_read_to_be_sent_cannot_be_cancelled(norway: Broker, sweden: list[Broker]) -> None:
    haul = Haul(norway.admin, sweden[0].admin)
    haul.open()
    early, sent = (call(norway.admin, "spool", "checker", 1, str(n), network="sweden") for n in (1, 2))
    dispatch(norway.admin)
    assert call(norway.admin, "spool_cancel", early)
    batch = haul.next()
    assert not call(norway.admin, "spool_cancel", sent)
    haul.upto = haul.take(batch)
    haul.carry()
    assert contents(sweden[0].admin) == [(1, 2)]


def test_an_expired_message_stays_and_a_full_spool_holds_nobody_up(norway: Broker, sweden: list[Broker]) -> None:
    sif = sweden[0].admin
    call(sif, "create_spool", "checker", max_messages=2)
    haul = Haul(norway.admin, sif)
    haul.open()
    past = value(norway.admin, "select now() - interval '1 hour'")
    call(norway.admin, "spool", "checker", 1, "0", None, None, past, network="sweden")
    for n in (1, 2, 3):
        call(norway.admin, "spool", "checker", 1, str(n), network="sweden")
        dispatch(norway.admin)
    haul.upto = haul.take(haul.next(2))
    dispatch(sif)
    haul.carry()
    assert contents(sif) == [(1, 1), (2, 2), (3, 3)]
    with refused("54000", "3 messages of 2"):
        call(sif, "spool", "checker", 1, "4")


def test_a_network_is_not_dropped_with_what_is_being_spooled_for_it(
    norway: Broker,
    sweden: list[Broker],
    connect: Connect,
) -> None:
    spooling, dropping = connect(dsn=norway.dsn, autocommit=False), connect(dsn=norway.dsn)
    call(spooling, "spool", "checker", 1, "1", network="sweden")
    # What is published later is dispatched before it.
    call(norway.admin, "create_spool", "here")
    call(norway.admin, "spool", "here", 1, "2")
    dispatch(norway.admin)
    with (
        pytest.raises(psycopg.errors.DependentObjectsStillExist, match="1 messages"),
        meanwhile(norway.admin, dropping, lambda: call(dropping, "drop_network", "sweden")),
    ):
        spooling.commit()
    for one in (Haul(norway.admin, there.admin, place) for place, there in enumerate(sweden, 1)):
        one.open()
        one.carry()
    assert [contents(there.admin) for there in sweden] == [[(1, 1)]] * len(sweden)
    # Whoever comes when it is gone is told so.
    other = connect(dsn=norway.dsn, autocommit=False)
    call(other, "drop_network", "sweden")
    with (
        pytest.raises(psycopg.errors.UndefinedObject, match="sweden"),
        meanwhile(norway.admin, spooling, lambda: call(spooling, "spool", "checker", 1, "3", network="sweden")),
    ):
        other.commit()


def test_contact_points_come_and_go(norway: Broker, sweden: list[Broker], brokers: Brokers) -> None:  # noqa: F811
    sif, sigyn = sweden
    for n in (1, 2):
        call(norway.admin, "spool", "checker", 1, str(n), network="sweden")
    one = Haul(norway.admin, sif.admin)
    one.open()
    one.carry()
    call(norway.admin, "alter_network", "sweden", [sif.dsn])
    assert waiting(norway.admin) == 0, "it waited for sigyn alone"
    one.carry()
    (third,) = brokers(1)
    call(norway.admin, "alter_network", "sweden", [third.dsn, sif.dsn])
    call(norway.admin, "spool", "checker", 1, "3", network="sweden")
    with refused("2BP01", "cascade"):
        call(norway.admin, "drop_network", "sweden")
    new = Haul(norway.admin, third.admin)
    new.open()
    new.carry()
    one.carry()
    assert (contents(third.admin), contents(sif.admin)) == ([(1, 3)], [(1, 1), (2, 2), (3, 3)])
    call(norway.admin, "drop_network", "sweden")
    assert rows(norway.admin, "table pgps.networks") == []
    # Made again it counts anew, and nothing is taken for what was there before.
    call(norway.admin, "create_network", "sweden", [sif.dsn])
    call(norway.admin, "spool", "checker", 1, "4", network="sweden")
    again = Haul(norway.admin, sif.admin)
    again.open()
    again.carry()
    assert contents(sif.admin)[3:] == [(4, 4)]
    assert contents(sigyn.admin) == []


def test_a_contact_point_that_was_put_back_says_what_it_lost(norway: Broker, sweden: list[Broker]) -> None:
    sif = sweden[0].admin
    call(norway.admin, "alter_network", "sweden", [sweden[0].dsn])
    haul = Haul(norway.admin, sif)
    haul.open()
    call(norway.admin, "spool", "checker", 1, "1", network="sweden")
    haul.carry()
    # As a backup has it that was made before; nobody else needs that message, so it is gone.
    rows(sif, "delete from pgps_internal.network_mark where line < 0 and upto > 0")
    haul.open()
    call(norway.admin, "spool", "checker", 1, "2", network="sweden")
    haul.carry()
    assert contents(sif)[-1] == (2, 2)
    assert column(sif, "select gaps from pgps.network_origins") == [1]


def test_a_contact_point_that_is_left_out_meanwhile_is_handed_nothing(
    norway: Broker, sweden: list[Broker], connect: Connect
) -> None:
    haul = Haul(connect(dsn=norway.dsn), sweden[0].admin)
    haul.open()
    sent = call(norway.admin, "spool", "checker", 1, "1", network="sweden")
    dispatch(norway.admin)
    holder = connect(dsn=norway.dsn, autocommit=False)
    call(holder, "alter_network", "sweden", [sweden[1].dsn])
    with refused("55000", "not managed"), meanwhile(norway.admin, haul.here, haul.next):
        holder.commit()
    assert call(norway.admin, "spool_cancel", sent), "nobody had it"


def test_who_may_spool_into_a_network_and_define_one(
    norway: Broker, sweden: list[Broker], connect: Connect, role: Callable[..., str]
) -> None:
    user = role()
    sender = connect(user, dsn=norway.dsn)
    with refused("42501", "grant_spool"):
        call(sender, "spool", "checker", 1, "1", network="sweden")
    call(norway.admin, "create_spool", "checker")
    with refused("42501", "may not spool"):
        call(sender, "spool", "checker", 1, "1", network="sweden")
    call(norway.admin, "grant_spool", "checker", "spool", user)
    assert call(sender, "spool", "checker", 1, "1", network="sweden") > 0
    # In one call some stay here; "local" is here.
    mixed = [{"entry": 1, "message": n, "network": where} for n, where in enumerate([None, "sweden", "local"])]
    assert len(call(sender, "spool_many", "checker", Jsonb(mixed))) == 3
    dispatch(norway.admin)
    assert contents(norway.admin) == [(1, 0), (2, 2)]
    assert waiting(norway.admin) == 2
    assert rows(sender, "table pgps.networks") == []
    with refused("42501"):
        call(sender, "create_network", "usa", ["dbname=x"])
    for function in ("serve_networks()", "network_open(1)", "network_next(1)", "network_take('{}')"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            rows(sender, f"select pgps.{function}")


def test_messages_that_make_no_sense_are_refused_and_hold_up_no_spool(norway: Broker, sweden: list[Broker]) -> None:
    haul = Haul(norway.admin, sweden[0].admin)
    haul.open()
    # An entry of ten digits is in order, too.
    call(norway.admin, "spool", "checker", 2147483647, '"m"', network="sweden")
    dispatch(norway.admin)
    batch = haul.next()
    (message,) = batch["messages"]
    call(sweden[0].admin, "create_spool", "other")
    for wrong in (
        {"keys": {"a": {"x": 1}}},
        {"keys": "a"},
        {"keys": {str(n): n for n in range(10)}},
        {"keywords": ["a", ["b"]]},
        {"entry": -1},
        {"entry": None},
        {"sender": None},
        {"spooled_at": None},
        {"spool": None},
        {"spool": "x" * 41},
        {"more": 1},
    ):
        with refused("22023"):
            haul.take({**batch, "messages": [message, {**message, **wrong}]})
    for senseless in ([1], ["a"], [None], [[message]]):
        with refused("22023"):
            haul.take({**batch, "messages": senseless})
    haul.carry()
    call(sweden[0].admin, "spool", "other", 1, '"n"')
    dispatch(sweden[0].admin)
    assert contents(sweden[0].admin) == [(1, "m")]
    assert contents(sweden[0].admin, "other") == [(1, "n")]


def test_networks_that_make_no_sense_are_refused(norway: Broker, sweden: list[Broker]) -> None:
    for contacts in ([], [None], ["nonsense"], ["dbname=a", "dbname=a"], ["colour=red"]):
        with refused("22023"):
            call(norway.admin, "create_network", "usa", contacts)
    with refused("42710", "alter_network"):
        call(norway.admin, "create_network", "sweden", ["dbname=x"])
    with refused("42602", "this broker"):
        call(norway.admin, "create_network", "local", ["dbname=x"])
    for function in ("alter_network", "drop_network"):
        with refused("42704", "atlantis", "create_network"):
            call(norway.admin, function, "atlantis")
    with refused("42704", "sweden"):
        call(sweden[0].admin, "spool", "checker", 1, "1", network="sweden")
    with refused("22023", "entry"):
        call(norway.admin, "spool", "checker", -1, "1", network="sweden")
