"""What meets the end of a session, of a service or of a unit while a transaction is open."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest
from psycopg import errors

from tests.fix_broker import call, meanwhile, refused, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect, wait_until
from tests.fix_units import Party, make_service

SERVICE = "shop/orders/book"
PARTS = SERVICE.split("/")
Parties = Callable[..., Party]
Make = Callable[[], object]


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_service(connection, SERVICE, deferred=True, status_lifetime=9)
    return connection


@pytest.fixture
def party(broker: psycopg.Connection, own_database: str, connect: Connect) -> Parties:
    return lambda token: Party(connect(dsn=own_database), token)


def numbered(party: Party, token: str, *, take_over: bool = False) -> int:
    session: int = value(party.connection, "select pgps.logon_session(%s, %s)", [token, take_over])
    return session


def end(party: Party, verb: str) -> None:
    party.call(verb, *(["another"] if verb == "logon" else []))


@pytest.mark.parametrize("verb", ["logoff", "logon"])
@pytest.mark.parametrize("named", [False, True])
def test_a_session_does_not_end_before_its_syncpoint_is_committed(party: Parties, verb: str, named: bool) -> None:
    client, one, two = party("c"), party("1").serve(SERVICE), party("2").serve(SERVICE)
    client.request(SERVICE, "before")
    assert one.text("new") == "before"
    one.sync("commit")
    pay = client.request(SERVICE, "pay")["uow_id"]
    assert one.text("new") == "pay"
    with one.connection.transaction():
        one.sync("commit", pay if named else None)
        with refused("55000", pay, "is not committed", "Commit or roll back first"), one.connection.transaction():
            end(one, verb)
        assert two.receive("new") is None
        assert client.status(pay) == "DELIVERED"
    assert client.status(pay) == "PROCESSED"
    end(one, verb)


@pytest.mark.parametrize("verb", ["logoff", "logon"])
def test_what_is_being_sent_is_backed_out_or_committed(party: Parties, verb: str) -> None:
    client, other = party("c"), party("o")
    other.send("", to_service=SERVICE, option="commit")
    pay = client.send("pay", to_service=SERVICE)["uow_id"]
    with client.connection.transaction():
        client.sync("commit")
        with refused("55000", pay), client.connection.transaction():
            end(client, verb)
    assert client.status(pay) == "ACCEPTED"
    # What others have not seen in its hand they are not given back.
    server = party("s").serve(SERVICE)
    with server.connection.transaction():
        assert [server.text("new"), server.text("new")] == ["", "pay"]
        server.sync("commit", pay)
        end(server, verb)
    assert client.status(pay) == "PROCESSED"


@pytest.mark.parametrize("how", ["taken over", "logged off"])
def test_a_syncpoint_of_a_session_that_has_ended_is_not_committed(party: Parties, how: str) -> None:
    client, one, two = party("c"), party("1"), party("2")
    session = numbered(one, "program")
    one.call("register_service", *PARTS, session=session)
    pay = client.request(SERVICE, "pay")["uow_id"]
    assert one.text("new", session=session) == "pay"
    sent = one.send("sent", to_service=SERVICE, session=session)["uow_id"]
    rows(one.connection, "begin")
    for uow_id in (pay, sent):
        one.sync("commit", uow_id, session=session)
    if how == "logged off":
        rows(two.connection, "select pgps.logoff(%s)", [session])
    newer = numbered(two, "program", take_over=True)
    assert two.sync("last", session=newer)["status"] == "BACKEDOUT"
    assert client.status(pay) == "ACCEPTED"
    with refused("55000", f"session {session} has ended", "Log on again"):
        rows(one.connection, "commit")
    assert two.sync("last", session=newer)["status"] == "BACKEDOUT"
    two.call("register_service", *PARTS, session=newer)
    assert two.text("new", session=newer) == "pay"
    with two.connection.transaction():
        two.sync("commit", pay, session=newer)
    assert client.status(pay) == "PROCESSED"


def test_a_session_may_end_with_what_nobody_has_seen(party: Parties) -> None:
    client, one = party("c"), party("1")
    session = numbered(one, "program")
    one.call("register_service", *PARTS, session=session)
    pay = client.request(SERVICE, "pay")["uow_id"]
    with one.connection.transaction():
        assert one.text("new", session=session) == "pay"
        one.sync("commit", pay, session=session)
        rows(one.connection, "select pgps.logoff(%s)", [session])
    assert client.status(pay) == "PROCESSED"


@pytest.mark.parametrize("option", ["commit", "cancel"])
def test_what_is_discarded_with_its_service_is_not_processed(
    broker: psycopg.Connection, party: Parties, option: str
) -> None:
    client, server = party("c"), party("s").serve(SERVICE)
    pay = client.request(SERVICE, "pay")["uow_id"]
    assert server.text("new") == "pay"
    rows(server.connection, "begin")
    server.sync(option)
    call(broker, "drop_service", *PARTS)
    assert client.status(pay) == "DISCARDED"
    with refused("55000", pay, "is DISCARDED"):
        rows(server.connection, "commit")
    assert client.status(pay) == "DISCARDED"


@pytest.mark.parametrize(("verb", "table"), [("logoff", "participant_session_end"), ("logon", "participant_session")])
def test_after_a_logoff_that_was_cancelled_nobody_is_logged_on(
    broker: psycopg.Connection, party: Parties, verb: str, table: str
) -> None:
    client, one, two = party("c"), party("1").serve(SERVICE), party("2").serve(SERVICE)
    client.request(SERVICE, "pay")
    assert one.text("new") == "pay"
    with broker.transaction():
        rows(broker, f"lock table pgps_internal.{table} in share mode")
        rows(one.connection, "set statement_timeout = '2s'")
        with pytest.raises(errors.QueryCanceled):
            end(one, verb)
    rows(one.connection, "set statement_timeout = 0")
    # Nobody knows whether the broker has ended the session: it may have given the unit to somebody else.
    with refused("55000", "not logged on"):
        one.sync("commit")
    one.call("logon", "1")
    one.serve(SERVICE)
    assert two.text("new") == "pay"
    two.sync("commit")


def test_a_session_goes_on_after_a_logon_that_is_refused(party: Parties) -> None:
    one, _two = party("1").serve(SERVICE), party("2")
    with pytest.raises(errors.ObjectInUse):
        one.call("logon", "2")
    party("c").request(SERVICE, "pay")
    assert one.text("new") == "pay"


@pytest.mark.parametrize(
    ("verb", "named"),
    [
        ("alter_service", {"max_uows": 5}),
        ("place_service", {"broker": None}),
        ("drop_service", {}),
        ("grant_service", {"privilege": "send", "role": "public"}),
    ],
)
def test_a_service_that_is_dropped_meanwhile_is_not_changed(
    broker: psycopg.Connection, own_database: str, connect: Connect, verb: str, named: dict[str, object]
) -> None:
    first, second = connect(dsn=own_database), connect(dsn=own_database)
    rows(first, "begin")
    call(first, "drop_service", *PARTS)
    with refused("42704", SERVICE), meanwhile(broker, second, lambda: call(second, verb, *PARTS, **named)):
        first.commit()


def test_two_change_a_service_at_once(broker: psycopg.Connection, own_database: str, connect: Connect) -> None:
    first, second = connect(dsn=own_database), connect(dsn=own_database)
    rows(first, "begin")
    call(first, "alter_service", *PARTS, lifetime="1 hour")
    with meanwhile(broker, second, lambda: call(second, "alter_service", *PARTS, max_uows=5)):
        first.commit()
    assert rows(broker, "select lifetime::text, max_uows from pgps_internal.service") == [("01:00:00", 5)]
    rows(first, "begin")
    for verb in ("drop_service", "create_service"):
        call(first, verb, *PARTS)
    with meanwhile(broker, second, lambda: call(second, "alter_service", *PARTS, max_uows=6)):
        first.commit()
    assert value(broker, "select max_uows from pgps_internal.service") == 6


@pytest.mark.parametrize("option", ["commit", "msg"])
@pytest.mark.parametrize("over", ["time", "drop"])
def test_who_waits_for_a_unit_is_not_given_one_that_is_over(
    broker: psycopg.Connection, party: Parties, clock: Clock, option: str, over: str
) -> None:
    clock.set(clock.now())
    client, one, two = party("c"), party("1").serve(SERVICE), party("2").serve(SERVICE)
    talk = client.send("x", to_service=SERVICE, option=option, lifetime="1 minute")["conversation"]
    rows(one.connection, "begin")
    assert one.text("new") == "x"
    got: list[object] = []

    def receive() -> None:
        try:
            got.append(two.receive(talk))
        except errors.UndefinedObject:
            got.append(None)

    with meanwhile(broker, two.connection, receive):
        if over == "time":
            clock.advance("61 seconds")
        else:
            call(broker, "drop_service", *PARTS)
        one.connection.rollback()
    assert got == [None]


def test_reclaim_does_not_wait_for_who_has_sent_to_a_service_that_is_gone(
    broker: psycopg.Connection, party: Parties, clock: Clock
) -> None:
    client = party("c")
    number = value(broker, "select service_id from pgps_internal.service")
    with client.connection.transaction(force_rollback=True):
        client.send("x", to_service=SERVICE)
        call(broker, "drop_service", *PARTS)
        clock.advance("2 days")
        rows(broker, "set statement_timeout = '10s'")
        call(broker, "reclaim")
        assert value(broker, "select count(*) from pgps_internal.service_dropped") == 1
    call(broker, "reclaim")
    assert value(broker, "select count(*) from pgps_internal.service_dropped") == 0
    assert value(broker, "select to_regclass(%s)", [f"pgps_internal.units_begun_{number}"]) is None


def test_the_setting_of_the_store_changes_twice_in_a_transaction(broker: psycopg.Connection, party: Parties) -> None:
    party("c")
    rows(broker, "update pgps_internal.broker_life set is_held = true")
    began = time.monotonic()
    with broker.transaction():
        for store in ("hot", "warm"):
            call(broker, "configure", "uow_persistent_store", store)
    assert time.monotonic() - began < 30
    assert value(broker, "select value from pgps.settings where name = 'uow_persistent_store'") == "warm"


def test_statuses_in_a_transaction_are_those_of_the_sessions_that_live(
    broker: psycopg.Connection, party: Parties
) -> None:
    client, one = party("c"), party("1").serve(SERVICE)
    first, second = (client.request(SERVICE, text)["uow_id"] for text in ("one", "two"))
    assert one.text("new") == "one"
    view = "select uow_id, status, attempts from pgps.units_of_work order by uow_id"
    with client.connection.transaction():
        assert client.status(first) == "DELIVERED"
        two = party("2").serve(SERVICE)
        assert two.text("new") == "two"
        pid = one.connection.info.backend_pid
        one.connection.close()
        wait_until(lambda: not value(broker, "select count(*) from pg_stat_activity where pid = %s", [pid]))
        expected = {first: ("ACCEPTED", 1), second: ("DELIVERED", 0)}
        asked = {one: client.sync("query", one) for one in expected}
        assert {one: (row["status"], row["attempts"]) for one, row in asked.items()} == expected
        assert {row[0]: tuple(row[1:]) for row in rows(client.connection, view)} == expected
