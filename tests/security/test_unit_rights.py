"""Units of work and conversations of others: who is no party to them neither sees, continues nor ends them."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import column
from tests.fix_db import Connect
from tests.fix_units import Party, make_service

SERVICE = "shop/orders/book"
OUTSIDERS = ("stranger", "peer", "admin")

# What may be tried with another's open unit, its conversation and its session.
ATTEMPTS = (
    "send_message('forged', conversation => '{conversation}')",
    "send_message('forged', conversation => '{conversation}', session => {session})",
    "send_message('forged', to_service => 'shop/orders/book', session => {session})",
    "receive_message('{conversation}')",
    "receive_message('{conversation}', session => {session})",
    "receive_message('old')",
    *(
        f"syncpoint('{option}', uow_id => '{{uow}}'{status}{session})"
        for option in ("commit", "backout", "cancel", "delete", "eoc", "eoccancel", "query", "setustatus")
        for status in ([", user_status => 'forged'"] if option == "setustatus" else [""])
        for session in ("", ", session => {session}")
    ),
    *(
        f"syncpoint('{option}', conversation => '{{conversation}}'{session})"
        for option in ("commit", "backout", "cancel", "last")
        for session in ("", ", session => {session}")
    ),
    "syncpoint('commit', uow_id => 'both', conversation => '{conversation}')",
    "end_conversation('{conversation}')",
    "end_conversation('{conversation}', session => {session})",
    "logoff(session => {session})",
    "deregister_service('shop', 'orders', 'book', session => {session})",
)


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    return connect(dsn=own_database)


@pytest.fixture
def roles(role: Callable[..., str]) -> dict[str, str]:
    found = {kind: role(kind) for kind in ("client", "server", "stranger", "peer")}
    return found | {"admin": role("admin", "pgps_admin")}


@pytest.mark.parametrize("who", OUTSIDERS)
def test_who_is_no_party_neither_sees_nor_changes_a_unit(
    broker: psycopg.Connection, own_database: str, connect: Connect, roles: dict[str, str], who: str
) -> None:
    """A peer may send to the service and serve it, and has the same token: all that it lacks is being a party."""
    make_service(broker, SERVICE, roles["client"], roles["server"], roles["peer"], deferred=True)
    client, server = (Party(connect(roles[kind], dsn=own_database), kind) for kind in ("client", "server"))
    server.serve(SERVICE)
    asked = client.request(SERVICE, "one")
    conversation = asked["conversation"]
    assert server.text() == "one"
    server.sync("commit")
    sent = client.send("two", conversation)
    open_unit, accepted = sent["uow_id"], client.request(SERVICE, "three")
    sessions = column(broker, "select session_id from pgps_internal.participant_session order by session_id")
    # The same tokens, whoever they are of: a participant is a role and a token.
    outsiders = [Party(connect(roles[who], dsn=own_database), token) for token in ("client", "server")]
    if who == "peer":
        for outsider in outsiders:
            outsider.serve(SERVICE)
            assert outsider.text("new") == "three", "before its first unit is committed any server may have it"
            outsider.sync("backout")
    for outsider in outsiders:
        for unit in (open_unit, asked["uow_id"]):
            for session in sessions:
                for attempt in ATTEMPTS:
                    call = attempt.format(conversation=conversation, uow=unit, session=session)
                    assert refused_or_nothing(outsider.connection, call), call
    assert not refused_or_nothing(client.connection, f"syncpoint('query', uow_id => '{open_unit}')"), "its own"
    assert client.status(open_unit) == "RECEIVED"
    client.sync("commit", open_unit)
    assert server.text("old") == "two"
    assert server.sync("commit")["user_status"] is None
    assert client.status(accepted["uow_id"]) == "ACCEPTED"


def refused_or_nothing(session: psycopg.Connection, call: str) -> bool:
    """Try a call; true when it was refused by an error of the contract, or found nothing."""
    try:
        found = session.execute(f"select to_jsonb(x) from pgps.{call} x".encode()).fetchall()
    except psycopg.Error as error:
        return error.sqlstate in ("42501", "42704", "55000")
    return all(isinstance(row, dict) and row["code"] == "00780305" for (row,) in found)


def test_units_and_conversations_of_others_are_shown_to_administrators_alone(
    broker: psycopg.Connection, own_database: str, connect: Connect, roles: dict[str, str]
) -> None:
    make_service(broker, SERVICE, roles["client"], roles["server"], roles["peer"], deferred=True)
    client = Party(connect(roles["client"], dsn=own_database), "client")
    made = client.request(SERVICE, "one", user_status="secret")
    shown = {}
    for who, its_role in roles.items():
        session = connect(its_role, dsn=own_database)
        shown[who] = [
            column(session, "select uow_id from pgps.units_of_work"),
            column(session, "select conversation from pgps.conversations"),
        ]
    all_of_it = [[made["uow_id"]], [made["conversation"]]]
    assert shown == {who: all_of_it if who in ("client", "admin") else [[], []] for who in roles}
