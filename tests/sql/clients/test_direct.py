"""Direct events: figure 7 of the Ariel paper cell by cell, notes, the handler clause."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, column, endpoint, make_type, publish, refused, rows, value
from tests.fix_clients import Client
from tests.fix_db import Connect, notifications
from tests.sql.clients.gone import hang_up

Name = Callable[..., str]
MODES = ["direct", "queued"]


@pytest.fixture
def tick(admin: psycopg.Connection, name: Name) -> str:
    made = name("tick")
    make_type(admin, made)
    return made


@pytest.fixture
def clients(connect: Connect, name: Name) -> Callable[..., list[Client]]:
    """Make clients registered for a type: clients(type, "direct", "queued")."""

    def make(event_type: str, *modes: str) -> list[Client]:
        made = [Client(connect(), name("client")) for _ in modes]
        for client, mode in zip(made, modes, strict=True):
            client.register(event_type, mode)
        return made

    return make


def raise_event(connection: psycopg.Connection, event_type: str, n: int, **options: str) -> None:
    call(connection, "publish", event_type, f'{{"n": {n}}}', **options)


def came(admin: psycopg.Connection, client: Client, mode: str) -> list[int]:
    """Return what has come to a client; what is queued waits for dispatch."""
    if mode == "direct":
        return client.pushed()
    rows(admin, "select pgps.dispatch()")
    return [n for occurrence in client.taken() for n in occurrence]


# -- figure 7: raised x registered, and what a commit, a rollback and a killed backend make of it;
# -- handler or polling is the program's affair, and remembered


@pytest.mark.parametrize("style", ["handler", "polling"])
@pytest.mark.parametrize("mode", MODES)
def test_deferred_comes_when_the_transaction_commits_and_never_when_it_does_not(
    admin: psycopg.Connection, connect: Connect, name: Name, tick: str, mode: str, style: str
) -> None:
    client = Client(connect(), name("client"))
    client.call("register_for_event", tick, mode, style)
    client.listen()
    session = connect(autocommit=False)
    raise_event(session, tick, 1, visibility="deferred")
    assert came(admin, client, mode) == []
    session.commit()
    assert came(admin, client, mode) == [1]
    raise_event(session, tick, 2, visibility="deferred")
    session.rollback()
    raise_event(session, tick, 3, visibility="deferred")
    rows(admin, "select pg_terminate_backend(%s, 60000)", [session.info.backend_pid])
    raise_event(admin, tick, 4)
    assert came(admin, client, mode) == [4]
    assert value(admin, "select style from pgps.registrations where client = %s", [client.name]) == style


@pytest.mark.parametrize("style", ["handler", "polling"])
@pytest.mark.parametrize("mode", MODES)
def test_immediate_comes_at_once_whatever_becomes_of_the_transaction(
    admin: psycopg.Connection, connect: Connect, name: Name, tick: str, mode: str, style: str
) -> None:
    client = Client(connect(), name("client"))
    client.call("register_for_event", tick, mode, style)
    client.listen()
    session = connect(autocommit=False)
    raise_event(session, tick, 1, visibility="immediate")
    assert came(admin, client, mode) == [1]
    session.commit()
    raise_event(session, tick, 2, visibility="immediate")
    session.rollback()
    raise_event(session, tick, 3, visibility="immediate")
    rows(admin, "select pg_terminate_backend(%s, 60000)", [session.info.backend_pid])
    assert came(admin, client, mode) == [2, 3]


def test_an_immediate_type_pushes_its_sets_at_once(
    connect: Connect, admin: psycopg.Connection, name: Name, clients: Callable[..., list[Client]]
) -> None:
    made = name("tick")
    make_type(admin, made, visibility="immediate")
    (client,) = clients(made, "direct")
    session = connect(autocommit=False)
    publish(session, made, 1, 2, 3)
    assert client.pushed() == [1, 2, 3]
    session.rollback()


# -- notes, and events that travel with them


def test_a_statement_sends_one_note_and_none_when_nobody_is_registered(
    admin: psycopg.Connection, connect: Connect, tick: str, clients: Callable[..., list[Client]]
) -> None:
    client, queued = clients(tick, "direct", "queued")
    listener = connect()
    rows(listener, f'listen "{client.call("client_channels")[-1]}"')
    rows(admin, f"insert into {endpoint(tick)} (n) select generate_series(1, 1000)")
    (note,) = notifications(listener)
    assert all(part.isdigit() for part in note.payload.split()), "it carries numbers, no data"
    assert client.pushed() == list(range(1, 1001))
    client.call("unregister_for_event", tick)
    publish(admin, tick, 1)
    assert notifications(listener) == []
    assert queued.notes() == []


def test_a_statement_that_is_planned_already_learns_who_registers_and_leaves(
    connect: Connect, tick: str, clients: Callable[..., list[Client]]
) -> None:
    publisher, listener = connect(), connect()
    rows(publisher, "set plan_cache_mode = force_generic_plan")
    rows(publisher, f"prepare raise_it (integer) as insert into {endpoint(tick)} (n) values ($1)")
    rows(
        publisher,
        f"create function pg_temp.raise_it(n integer) returns void language plpgsql as 'begin insert into "
        f"{endpoint(tick)} (n) values (n); end'",
    )

    def plan() -> str:
        return "\n".join(column(publisher, "explain (verbose, costs off) execute raise_it(0)"))

    def raise_both(n: int) -> None:
        rows(publisher, f"execute raise_it({n})")
        rows(publisher, f"select pg_temp.raise_it({n + 1})")

    raise_both(1)
    assert "_tell" not in plan()
    assert "has_table_privilege('pgps_worker'" not in plan()
    (client,) = clients(tick, "direct")
    rows(listener, f'listen "{client.call("client_channels")[-1]}"')
    raise_both(3)
    assert "_tell" in plan()
    assert len(notifications(listener)) == 2
    assert client.pushed() == [3, 4]
    client.call("unregister_for_event", tick)
    raise_both(5)
    assert "_tell" not in plan()
    assert notifications(listener) == []


def test_who_hears_a_note_fetches_with_his_own_rights(
    admin: psycopg.Connection,
    connect: Connect,
    role: Callable[..., str],
    tick: str,
    clients: Callable[..., list[Client]],
    name: Name,
) -> None:
    (client,) = clients(tick, "direct")
    mallory = Client(connect(role("mallory")), name("client"))
    rows(mallory.connection, f'listen "{client.call("client_channels")[-1]}"')
    publish(admin, tick, 1)
    heard = mallory.notes()
    query = "select count(*) from pgps.fetch_direct(%s, %s)"
    assert value(mallory.connection, query, [mallory.name, heard]) == 0, "not registered"
    mallory.register(tick, "direct")
    rows(admin, f"revoke select on {endpoint(tick)} from public")
    assert value(mallory.connection, query, [mallory.name, heard]) == 0, "not permitted"
    for senseless in ("", "x", "1 2", "1 2 3 4 5", "1 -2 3", "1 2 3; drop", "99999999999 1 2", None):
        with refused("22023"):
            value(mallory.connection, query, [mallory.name, [senseless or "null"]])
    with refused("22023", "notes are null"):
        value(mallory.connection, query, [mallory.name, None])
    assert value(mallory.connection, query, [mallory.name, ["999999999 1 9"]]) == 0
    assert client.pushed() == [1]


def carried(client: Client) -> list[int]:
    """Return attribute n of the events that came with their notes."""
    found: list[int] = []
    for note in client.notes():
        _, bracket, statement = note.partition(" [")
        if bracket:
            *_, tuples = json.loads("[" + statement)
            found += [payload["n"] for _, payload in tuples]
    return found


def test_an_immediate_event_travels_with_its_note_and_only_to_who_may_see_it(
    admin: psycopg.Connection,
    connect: Connect,
    role: Callable[..., str],
    tick: str,
    clients: Callable[..., list[Client]],
    name: Name,
) -> None:
    (client,) = clients(tick, "direct")
    alice, group = role("alice"), role("group")
    rows(admin, f"grant {group} to {alice}")
    of_group = Client(connect(group), name("client"))
    of_group.register(tick, "direct")
    member = Client(connect(alice), of_group.name, take_over=True)
    member.listen()
    anybody = connect(role("mallory"))
    for channel in {*client.call("client_channels"), *member.call("client_channels")}:
        if not channel.startswith("pgps_carried_"):
            rows(anybody, f"listen {channel}")
    assert "carried" not in str(rows(anybody, "table pgps.clients")) + str(rows(anybody, "table pgps.registrations"))
    raise_event(admin, tick, 1, visibility="immediate")
    assert (carried(client), carried(member)) == ([1], [1])
    assert notifications(anybody) == [], "the channels are secrets"
    raise_event(admin, tick, 2, visibility="immediate")
    assert (client.pushed(), member.pushed()) == ([2], [2]), "a program that does not know fetches, as ever"
    rows(admin, f"revoke select on {endpoint(tick)} from public")
    raise_event(admin, tick, 3, visibility="immediate")
    assert (carried(client), member.notes()) == ([3], [])
    rows(admin, f"grant select on {endpoint(tick)} to {group}")
    rows(admin, f"revoke {group} from {alice}")
    raise_event(admin, tick, 4, visibility="immediate")
    assert (carried(client), member.notes()) == ([4], []), "who connected it is in the group no more"


def test_the_secret_of_a_session_is_another_for_who_comes_next(
    connect: Connect, tick: str, admin: psycopg.Connection, name: Name
) -> None:
    first = Client(connect(), name("client"))
    first.register(tick, "direct")
    resumed = Client(connect(), first.name, resume=first.session)
    assert resumed.call("client_channels") == first.call("client_channels", session=resumed.session)
    resumed.listen()
    second = Client(connect(), first.name, take_over=True)
    second.listen()
    raise_event(admin, tick, 1, visibility="immediate")
    assert (carried(second), carried(first), carried(resumed)) == ([1], [], [])


@pytest.mark.parametrize("why", ["size", "number", "policy", "crowd", "handler"])
def test_what_cannot_travel_is_a_note(
    admin: psycopg.Connection, tick: str, clients: Callable[..., list[Client]], why: str
) -> None:
    made = clients(tick, *["direct"] * (9 if why == "crowd" else 1))
    me = value(admin, "select current_user")
    if why == "policy":
        call(admin, "create_policy", tick, "mine", me, "n >= 0")
    payload: list[dict[str, Any]] = [{"n": n} for n in range(200 if why == "number" else 1)]
    if why == "size":
        call(admin, "alter_event_type", tick, add_attribute="text text")
        payload[0]["text"] = "x" * 8000
    rows(admin, "select pgps.use_client(%s, %s)", [made[0].name, made[0].session])
    handler = "raiser" if why == "handler" else "all"
    call(admin, "publish", tick, json.dumps(payload), visibility="immediate", handler=handler)
    rows(admin, "select pgps.use_client(null)")
    for client in made:
        (note,) = client.notes()
        assert all(part.isdigit() for part in note.split())
        query = "select count(*) from pgps.fetch_direct(%s, %s)"
        assert value(client.connection, query, [client.name, [note]]) == len(payload)


def test_what_notes_stand_for_is_fetched_in_slices(
    admin: psycopg.Connection, tick: str, clients: Callable[..., list[Client]]
) -> None:
    (client,) = clients(tick, "direct")
    publish(admin, tick, 1, 2, 3)
    publish(admin, tick, 4, 5)
    publish(admin, tick, 6)
    notes = client.notes()
    seen: list[int] = []
    after, place = 0, 1
    query = "select note, event_id, (payload ->> 'n')::integer from pgps.fetch_direct(%s, %s, %s, 2)"
    while part := rows(client.connection, query, [client.name, notes[place - 1 :], after]):
        seen += [n for _, _, n in part]
        place, after = place + part[-1][0] - 1, part[-1][1]
    assert seen == [1, 2, 3, 4, 5, 6]
    occurrences = "select distinct occurrence from pgps.fetch_direct(%s, %s)"
    assert len(column(client.connection, occurrences, [client.name, notes])) == 3


# -- the handler clause


@pytest.mark.parametrize("mode", MODES)
def test_handler_raiser_is_the_client_that_raised_it_and_nobody_else(
    admin: psycopg.Connection, connect: Connect, tick: str, mode: str, clients: Callable[..., list[Client]]
) -> None:
    one, two = clients(tick, mode, mode)
    for number, visibility in enumerate(("deferred", "immediate")):
        raise_event(one.connection, tick, number, handler="raiser", visibility=visibility)
    rows(two.connection, "begin")
    rows(two.connection, "set local pgps.handler = 'raiser'")
    publish(two.connection, tick, 2)
    rows(two.connection, "commit")
    raise_event(admin, tick, 3, handler="raiser")
    raise_event(one.connection, tick, 4)
    session = connect()
    call(session, "use_client", two.name, session=two.session)
    raise_event(session, tick, 5, handler="raiser")
    call(session, "use_client", None)
    raise_event(session, tick, 6, handler="raiser")
    assert (came(admin, one, mode), came(admin, two, mode)) == ([0, 1, 4], [2, 4, 5])


@pytest.mark.parametrize("mode", MODES)
def test_handler_any_is_one_of_the_clients(
    admin: psycopg.Connection, name: Name, mode: str, clients: Callable[..., list[Client]]
) -> None:
    made = name("tick")
    make_type(admin, made, handler="any")
    several = clients(made, mode, mode, mode)
    # Who gets one is drawn by a hash: of 30, one client in a thousand would have had fewer than three.
    for number in range(90):
        publish(admin, made, number)
    raise_event(admin, made, 100, handler="all")
    rows(admin, "select pgps.dispatch()")
    seen = [sorted(came(admin, client, mode)) for client in several]
    assert sorted(n for numbers in seen for n in numbers) == [*range(90), 100, 100, 100]
    assert all(len(numbers) > 3 for numbers in seen), "each has its share"


def test_handler_any_prefers_a_client_that_is_connected(
    admin: psycopg.Connection, tick: str, clients: Callable[..., list[Client]]
) -> None:
    away, direct, queued = clients(tick, "queued", "direct", "queued")
    hang_up(away, admin)
    for number in range(20):
        raise_event(admin, tick, number, handler="any")
    rows(admin, "select pgps.dispatch()")
    assert sorted(came(admin, direct, "direct") + came(admin, queued, "queued")) == list(range(20))
    away = Client(admin, away.name)
    assert away.taken() == []
    call(admin, "use_client", None)


def test_the_handler_clause_holds_when_the_subscription_is_read_as_such(
    admin: psycopg.Connection, tick: str, clients: Callable[..., list[Client]]
) -> None:
    one, _ = clients(tick, "queued", "queued")
    raise_event(admin, tick, 1, handler="raiser")
    raise_event(one.connection, tick, 2, handler="raiser")
    rows(admin, "select pgps.dispatch()")
    subscription = value(admin, "select subscription from pgps.registrations where client = %s", [one.name])
    assert column(one.connection, "select payload -> 'n' from pgps.receive(%s)", [subscription]) == [2]
    with refused("23514", 'invalid handler "some"', "Use all, any or raiser"):
        rows(admin, "set pgps.handler = 'some'")
        publish(admin, tick, 3)
    rows(admin, "reset pgps.handler")


def test_a_forged_raiser_gives_its_events_to_nobody(
    connect: Connect,
    role: Callable[..., str],
    admin: psycopg.Connection,
    tick: str,
    clients: Callable[..., list[Client]],
) -> None:
    (client,) = clients(tick, "queued")
    mallory = connect(role("mallory"))
    call(mallory, "advertise", tick)
    with refused("42501"):
        call(mallory, "use_client", client.name, session=client.session)
    number = value(admin, "select split_part(channel, '_', 3) from pgps.clients where name = %s", [client.name])
    rows(mallory, "select set_config('pgps.client', %s, false)", [number])
    raise_event(mallory, tick, 1, handler="raiser")
    assert came(admin, client, "queued") == []


@pytest.mark.parametrize("visibility", ["deferred", "immediate"])
def test_a_forged_raiser_is_told_to_nobody(
    connect: Connect,
    role: Callable[..., str],
    admin: psycopg.Connection,
    tick: str,
    clients: Callable[..., list[Client]],
    visibility: str,
) -> None:
    direct, queued = clients(tick, "direct", "queued")
    mallory = connect(role("mallory"))
    call(mallory, "advertise", tick)
    number = value(admin, "select client_id from pgps_internal.client where name = %s", [direct.name])
    rows(mallory, "select set_config('pgps.client', %s, false)", [str(number)])
    raise_event(mallory, tick, 1, visibility=visibility)
    raise_event(direct.connection, tick, 2, visibility=visibility)
    rows(admin, "select pgps.dispatch()")
    told = "select payload -> 'n', raiser from pgps.fetch_direct(%s, %s) order by event_id"
    assert rows(direct.connection, told, [direct.name, direct.notes(waits=True)]) == [(1, None), (2, direct.name)]
    found = [queued.receive(), queued.receive()]
    assert [(one["numbers"], one["raiser"]) for one in found if one] == [([1], None), ([2], direct.name)]
