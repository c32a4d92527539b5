"""Services, their attributes and rights; logging on, registering."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.fix_broker import call, rows, value
from tests.fix_db import Connect, wait_until
from tests.fix_units import Party, make_service
from tests.sql.units.conftest import SERVICE

PARTS = SERVICE.split("/")


def service(broker: psycopg.Connection, columns: str) -> tuple[Any, ...]:
    (row,) = rows(broker, f"select {columns} from pgps.services where class || '/' || server || '/' || service = %s",
                  [SERVICE])  # fmt: skip
    return row


def test_a_service_takes_what_it_does_not_say_from_the_broker(broker: psycopg.Connection) -> None:
    columns = "store, lifetime, status_lifetime, max_uows, max_messages_in_uow, max_message_bytes, deferred"
    assert service(broker, columns) == ("off", timedelta(days=1), 0, 1000000, 16, 31647, True)
    call(broker, "alter_service", *PARTS, store="broker", lifetime="1 hour", max_uows=7, reset=["deferred"])
    assert service(broker, columns) == ("broker", timedelta(hours=1), 0, 7, 16, 31647, False)
    for name, setting in {
        "uow_status_lifetime": "9", "uow_max_messages": "3", "uow_max_message_bytes": "99", "uow_deferred": "yes",
    }.items():  # fmt: skip
        call(broker, "configure", name, setting)
    assert service(broker, columns) == ("broker", timedelta(hours=1), 9, 7, 3, 99, True)
    call(broker, "alter_service", *PARTS, reset=["store", "lifetime", "max_uows"])
    assert service(broker, columns) == ("off", timedelta(days=1), 9, 1000000, 3, 99, True)
    call(broker, "drop_service", *PARTS)
    assert value(broker, "select count(*) from pgps.services") == 0


@pytest.mark.parametrize(
    ("setting", "bad"),
    [
        ("uow_store", "no"), ("uow_status_lifetime", "255"), ("uow_status_lifetime", "-1"), ("uow_max_active", "-1"),
        ("uow_max_messages", "0"), ("uow_lifetime", "0"), ("uow_lifetime", "-1 hour"), ("uow_deferred", "perhaps"),
        ("uow_persistent_store", "lukewarm"), ("uow_persistent_store", None), ("uow_store", None),
    ],
)  # fmt: skip
def test_a_setting_has_its_range(broker: psycopg.Connection, setting: str, bad: str | None) -> None:
    with pytest.raises(errors.InvalidParameterValue):
        call(broker, "configure", setting, bad)


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        ({"store": "no"}, errors.InvalidParameterValue),
        ({"lifetime": "0"}, errors.InvalidParameterValue),
        ({"lifetime": "1000 years"}, errors.InvalidParameterValue),
        ({"status_lifetime": 255}, errors.InvalidParameterValue),
        ({"max_uows": -1}, errors.InvalidParameterValue),
        ({"max_messages_in_uow": 0}, errors.InvalidParameterValue),
        ({"max_message_bytes": 0}, errors.InvalidParameterValue),
    ],
)
def test_an_attribute_has_its_range(
    broker: psycopg.Connection, attributes: dict[str, Any], error: type[psycopg.Error]
) -> None:
    with pytest.raises(error):
        make_service(broker, "a/b/c", **attributes)
    with pytest.raises(error):
        call(broker, "alter_service", *PARTS, **attributes)


def test_names_of_services(broker: psycopg.Connection) -> None:
    for bad in (["", "b", "c"], ["a/b", "b", "c"], ["a", "x" * 41, "c"], ["a", "b", "c\n"]):
        with pytest.raises(errors.InvalidName):
            call(broker, "create_service", *bad)
    with pytest.raises(errors.InvalidParameterValue):
        call(broker, "create_service", "a", "b", None)
    with pytest.raises(errors.DuplicateObject):
        call(broker, "create_service", *PARTS)
    for function in ("alter_service", "drop_service"):
        with pytest.raises(errors.UndefinedObject):
            call(broker, function, "a", "b", "c")
    with pytest.raises(errors.InvalidParameterValue):
        call(broker, "alter_service", *PARTS, reset=["colour"])


def test_only_administrators_make_services_and_give_rights(
    broker: psycopg.Connection, party: Callable[..., Party], role: Callable[..., str]
) -> None:
    nobody = role("nobody")
    connection = party(role=nobody).connection
    for function, *args in (
        ("create_service", "a", "b", "c"), ("alter_service", *PARTS), ("drop_service", *PARTS),
        ("grant_service", *PARTS, "send", nobody), ("revoke_service", *PARTS, "send", nobody),
    ):  # fmt: skip
        with pytest.raises(errors.InsufficientPrivilege):
            call(connection, function, *args)


def test_rights_to_send_and_to_serve(
    broker: psycopg.Connection, party: Callable[..., Party], role: Callable[..., str]
) -> None:
    sender, server = role("sender"), role("server")
    client, other = party("c", role=sender), party("s", role=server)
    with pytest.raises(errors.InsufficientPrivilege):
        client.request(SERVICE, "x")
    with pytest.raises(errors.InsufficientPrivilege):
        other.serve(SERVICE)
    assert rows(client.connection, "select * from pgps.services") == []
    call(broker, "grant_service", *PARTS, "send", sender)
    call(broker, "grant_service", *PARTS, "SERVE", server)
    assert rows(client.connection, "select can_send, can_serve from pgps.services") == [(True, False)]
    conversation = client.request(SERVICE, "x")["conversation"]
    with pytest.raises(errors.InsufficientPrivilege):
        client.serve(SERVICE)
    assert other.serve(SERVICE).text("new") == "x"
    other.send("answer", conversation)
    assert [row["status"] for row in other.both()] == ["PROCESSED", "ACCEPTED"]
    assert client.receive(conversation)["sender"] == server  # type: ignore[index]
    call(broker, "revoke_service", *PARTS, "send", sender)
    with pytest.raises(errors.InsufficientPrivilege):
        client.send("more", conversation)
    call(broker, "revoke_service", *PARTS, "serve", server)
    rows(broker, "select pgps.grant_service('shop', 'orders', 'book', 'send', 'public')")
    client.request(SERVICE, "y")
    assert other.receive("new") is None
    for privilege, whom, error in (
        ("look", sender, errors.InvalidParameterValue),
        ("send", "nobody_of_that_name", errors.UndefinedObject),
        ("send", None, errors.InvalidParameterValue),
    ):
        with pytest.raises(error):
            call(broker, "grant_service", *PARTS, privilege, whom)


def test_everybody_sees_their_own(
    broker: psycopg.Connection, party: Callable[..., Party], role: Callable[..., str]
) -> None:
    one, two = role("one"), role("two")
    for who in (one, two):
        call(broker, "grant_service", *PARTS, "send", who)
    first, second = party("t", role=one), party("t", role=two)
    mine = first.request(SERVICE, "x")["uow_id"]
    second.request(SERVICE, "y")
    assert rows(first.connection, "select uow_id, status, sender, messages from pgps.units_of_work") == [
        (mine, "ACCEPTED", one, 1)
    ]
    assert value(first.connection, "select count(*) from pgps.conversations") == 1
    assert value(broker, "select count(*) from pgps.units_of_work") == 2
    assert rows(broker, "select depth, attempts, oldest is not null from pgps.services") == [(2, 0, True)]


def test_a_token_is_used_by_one_session_at_a_time(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    first, second = party("white"), party("black")
    with pytest.raises(errors.ObjectInUse, match="white"):
        second.call("logon", "white")
    # The logon that it had is still there.
    second.request(SERVICE, "x")
    first.call("logoff")
    second.call("logon", "white")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="not logged on"):
        first.request(SERVICE, "x")
    with pytest.raises(errors.ObjectInUse):
        first.call("logon", "white")
    second.connection.close()

    def is_free() -> bool:
        try:
            first.call("logon", "white")
        except errors.ObjectInUse:
            return False
        return True

    wait_until(is_free)


def test_a_logon_counts_at_once_whatever_becomes_of_the_transaction(
    broker: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    connection = connect(dsn=own_database, autocommit=False)
    party = Party(connection, "white")
    with pytest.raises(errors.ObjectInUse):
        Party(broker, "white")
    party.request(SERVICE, "x")
    connection.rollback()
    assert party.sync("last")["code"] == "00780305"
    party.call("logoff")
    connection.rollback()
    with pytest.raises(errors.ObjectNotInPrerequisiteState):
        party.sync("last")
    connection.rollback()
    Party(broker, "white")


def test_a_second_logon_in_a_transaction_that_has_sent(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    one = party("one", autocommit=False)
    uow_id = one.send("x", to_service=SERVICE)["uow_id"]
    one.call("logon", "two")
    assert one.sync("last")["code"] == "00780305"
    one.connection.commit()
    one.call("logon", "one")
    # What the first logon was sending was backed out with it, and no status of it is kept.
    assert one.status(uow_id) is None


def test_who_sets_another_role_logs_on_again(
    broker: psycopg.Connection, party: Callable[..., Party], role: Callable[..., str]
) -> None:
    other = role("other")
    one = party("t")
    rows(one.connection, f"set role {other}")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="logged on as role"):
        one.sync("last")
    one.call("logon", "t")
    assert one.sync("last")["code"] == "00780305"
    rows(one.connection, "reset role")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="logged on as role"):
        one.sync("last")


@pytest.mark.parametrize("token", ["", "x" * 256, "a\nb"])
def test_bad_tokens(broker: psycopg.Connection, token: str) -> None:
    with pytest.raises(errors.InvalidParameterValue):
        Party(broker, token)


def test_registering(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    make_service(broker, "a/b/live")
    client, server = party(), party()
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="not registered, and not deferred"):
        client.request("a/b/live", "x")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="not registered"):
        server.receive("new")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="not registered"):
        server.call("deregister_service", "a", "b", "live")
    server.serve("a/b/live")
    assert value(broker, "select servers from pgps.services where service = 'live'") == 1
    client.request("a/b/live", "x")
    server.call("deregister_service", "a", "b", "live")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="not registered, and not deferred"):
        client.request("a/b/live", "x")
    server.serve("a/b/live")
    assert server.text("new") == "x"
    for function in ("register_service", "deregister_service"):
        with pytest.raises(errors.UndefinedObject):
            server.call(function, "no", "such", "thing")
    with pytest.raises(errors.UndefinedObject):
        client.request("no/such/thing", "x")
    with pytest.raises(errors.UndefinedObject):
        server.receive("new", service="nothing")


def test_who_listens_is_woken(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    client, server = party(), party().serve(SERVICE)
    channel = value(broker, "select channel from pgps.services")
    rows(server.connection, f"listen {channel}")
    client.request(SERVICE, "x")
    (woken,) = server.connection.notifies(timeout=60, stop_after=1)
    assert woken.channel == channel
    assert server.text("new") == "x"


def test_rights_in_the_statement_language(broker: psycopg.Connection, role: Callable[..., str]) -> None:
    one, two = role("One"), role("two")
    rights = "select privilege, role::text from pgps_internal.service_right order by 1, 2"
    for statement, tag in (
        (f'GRANT SEND ON SERVICE shop/orders/book TO "{one}", {two}', "GRANT"),
        (f"grant serve on service 'shop/orders/book' to {two};", "GRANT"),
        (f'revoke send on service "shop"/"orders"/"book" from {two}', "REVOKE"),
        (f"revoke serve on service SHOP/Orders/book from {two}", "REVOKE"),
        (f"grant serve on service SHOP/orders/BOOK to {two}", "GRANT"),
    ):
        assert value(broker, "select pgps.execute(%s)", [statement]) == tag
    assert rows(broker, rights) == [("send", f'"{one}"'), ("serve", two)]
    for statement, error in (
        ("grant send on service shop/orders to public", errors.SyntaxError),
        ("grant send on service shop/orders/book from public", errors.SyntaxError),
        ("grant send on service a/b/c to public", errors.UndefinedObject),
    ):
        with pytest.raises(error):
            rows(broker, "select pgps.execute(%s)", [statement])


def test_names_of_services_are_folded_unless_in_quotes(
    broker: psycopg.Connection, party: Callable[..., Party], role: Callable[..., str]
) -> None:
    sender = role("sender")
    for name in ("A/B/C", '"A"/"B"/"C"'):
        make_service(broker, name, deferred=True)
    names = "select class, server, service from pgps.services where class ilike 'a' order by class collate \"C\""
    assert rows(broker, names) == [("A", "B", "C"), ("a", "b", "c")]
    with pytest.raises(errors.DuplicateObject):
        make_service(broker, "a/b/c")
    assert value(broker, "select pgps.execute(%s)", [f"GRANT SEND ON SERVICE A/B/C TO {sender}"]) == "GRANT"
    client, server = party("c", role=sender), party("s").serve("a/B/c").serve('"A"/"B"/"C"')
    with pytest.raises(errors.InsufficientPrivilege) as refused:
        client.send("x", to_service='"A"/"B"/"C"')
    # The hint can be typed as it stands.
    assert """grant_service('"A"', '"B"', '"C"', 'send'""" in str(refused.value.diag.message_hint)
    first = client.send("x", to_service="A/b/C")
    assert client.send("y", first["conversation"], to_service="a/B/c", option="commit")["status"] == "ACCEPTED"
    with pytest.raises(errors.InvalidParameterValue):
        client.send("y", first["conversation"], to_service='"A"/"B"/"C"')
    assert server.receive("new", **{"class": '"A"'}) is None
    taken = server.receive("new", **{"class": "A"})
    assert taken is not None
    assert (taken["class"], taken["server"], taken["service"]) == ("a", "b", "c")
    # One that a server holds is counted by both views.
    counts = "select depth, held, oldest is not null from pgps.{} where service = 'c'"
    for view in ("services", "conversations"):
        assert rows(broker, counts.format(view)) == [(1, 1, True)]
    server.sync("backout")
    for view in ("services", "conversations"):
        assert rows(broker, counts.format(view)) == [(1, 0, True)]


def test_what_was_sent_to_a_service_that_is_dropped_is_discarded(
    broker: psycopg.Connection, party: Callable[..., Party]
) -> None:
    client, server, other = party("c"), party("s").serve(SERVICE), party("o", autocommit=False)
    held, waits = (client.request(SERVICE, text, status_lifetime=9) for text in ("held", "waits"))
    open_one = client.send("open", to_service=SERVICE, status_lifetime=9)
    assert server.text("new") == "held"
    # Neither waits for a sender's transaction, nor is it waited for.
    late = other.send("late", to_service=SERVICE, option="commit", status_lifetime=9)["uow_id"]
    rows(broker, "set lock_timeout = '10s'")
    call(broker, "drop_service", *PARTS)
    other.connection.commit()
    for uow_id in (held["uow_id"], waits["uow_id"], open_one["uow_id"]):
        row = client.sync("query", uow_id)
        assert (row["status"], row["class"], row["service"]) == ("DISCARDED", PARTS[0], PARTS[2])
    assert other.status(late) == "DISCARDED"
    for who, uow_id in ((client, open_one["uow_id"]), (server, held["uow_id"])):
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="status DISCARDED"):
            who.sync("commit", uow_id)
    with pytest.raises(errors.UndefinedObject, match="does not exist"):
        client.send("more", held["conversation"])
    assert value(broker, "select count(*) from pgps.units_of_work where status = 'DISCARDED'") == 4
    # One of that name is another one, and gets nothing of it.
    make_service(broker, SERVICE, deferred=True)
    server.serve(SERVICE)
    assert server.receive("any") is None
    assert client.status(waits["uow_id"]) == "DISCARDED"


def test_a_server_that_waits_is_woken_when_the_session_that_holds_a_unit_ends(
    broker: psycopg.Connection, party: Callable[..., Party], own_database: str
) -> None:
    waiting = party("w").serve(SERVICE)
    listener = waiting.connection
    channel = value(broker, "select channel from pgps.services")
    party("c").request(SERVICE, "one")
    rows(listener, f"listen {channel}")

    def ends(holder: Party) -> None:
        holder.call("logoff")

    def logs_on_again(holder: Party) -> None:
        holder.call("logon", "another")

    def is_lost(holder: Party) -> None:
        pid = holder.connection.info.backend_pid
        rows(broker, "select pg_terminate_backend(%s)", [pid])
        gone = "select count(*) = 0 from pg_stat_activity where pid = %s"
        wait_until(lambda: value(broker, gone, [pid]), what="the end of the session")
        rows(broker, "select pgps.relay_units()")

    for number, end in enumerate((ends, logs_on_again, is_lost, is_lost)):
        holder = party(f"h{number}").serve(SERVICE)
        # The last one is lost in the transaction in which it receives.
        holder.connection.autocommit = number < 3
        assert [holder.text("new"), waiting.text("new")] == ["one", None]
        list(listener.notifies(timeout=0))
        end(holder)
        assert [note.channel for note in listener.notifies(timeout=60, stop_after=1)] == [channel], end.__name__
    assert waiting.text("new") == "one"


def test_errors_say_what_to_do_about_limits_and_isolation(
    broker: psycopg.Connection, party: Callable[..., Party]
) -> None:
    client = party("c")
    call(broker, "alter_service", *PARTS, max_uows=5)
    call(broker, "configure", "uow_max_active", "1")
    client.request(SERVICE, "one")
    with pytest.raises(errors.ProgramLimitExceeded, match="uow_max_active is 1") as refused:
        client.request(SERVICE, "two")
    assert "pgps.configure('uow_max_active'" in str(refused.value.diag.message_hint)
    with pytest.raises(errors.ProgramLimitExceeded, match="at most 32 bytes"):
        client.request(SERVICE, "two", user_status="y" * 33)
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match=r"no unit of work is open\n"):
        client.sync("commit")
    rows(client.connection, "begin isolation level repeatable read")
    with pytest.raises(errors.ActiveSqlTransaction, match="units of work cannot be sent or received"):
        client.send("two", to_service=SERVICE)
