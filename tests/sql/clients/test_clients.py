"""Sessions of clients, registrations, occurrences of queued events, checkpoints."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, endpoint, make_type, meanwhile, publish, receive, refused, rows, value
from tests.fix_clients import Client
from tests.fix_db import Connect, notifications, wait_until
from tests.sql.clients.gone import hang_up

Name = Callable[..., str]


@pytest.fixture
def tick(admin: psycopg.Connection, name: Name) -> str:
    made = name("tick")
    make_type(admin, made)
    return made


@pytest.fixture
def client(connect: Connect, name: Name) -> Client:
    return Client(connect(), name("client"))


def dispatch(admin: psycopg.Connection) -> None:
    rows(admin, "select pgps.dispatch()")


def test_an_administrator_who_is_no_superuser_sees_who_is_connected(
    connect: Connect, role: Callable[..., str], client: Client
) -> None:
    watcher = connect(role("watcher", "pgps_admin"))
    connected = "select connected from pgps.clients where name = %s"
    assert rows(watcher, connected, [client.name]) == [(True,)]
    client.connection.close()
    wait_until(lambda: rows(watcher, connected, [client.name]) == [(False,)])


def test_a_session_ends_cleanly_or_not_and_the_next_one_is_told(
    admin: psycopg.Connection, connect: Connect, client: Client, tick: str
) -> None:
    assert client.before is not None
    assert [client.before[key] for key in ("disconnected", "previous_at", "last_received_event")] == [None] * 3
    client.call("disconnect_client")
    with refused("08003", "is not connected"):
        client.register(tick)
    again = Client(client.connection, client.name)
    assert again.before is not None
    assert again.before["disconnected"] is True
    hang_up(client, admin)
    third = Client(connect(), client.name)
    assert third.before is not None
    assert third.before["disconnected"] is False
    assert third.before["previous_at"] is not None


def test_two_programs_with_one_name_the_second_is_refused_or_fences_the_first(
    connect: Connect, client: Client, tick: str
) -> None:
    other = connect()
    with refused("55006", "is connected by process", "take_over"):
        Client(other, client.name)
    second = Client(other, client.name, take_over=True)
    with refused("08003", "not connected in this database session"):
        client.register(tick)
    with refused("08003", "has ended"):
        client.call("commit_event", session=client.session)
    with refused("08003", "has ended"):
        Client(connect(), client.name, resume=client.session)
    third = Client(connect(), client.name, resume=second.session)
    assert third.session > second.session > client.session
    second.call("client_channels", session=third.session)


def test_a_client_belongs_to_a_role(connect: Connect, role: Callable[..., str], client: Client, name: Name) -> None:
    stranger = connect(role("stranger"))
    with refused("42501", "belongs to role"):
        Client(stranger, client.name)
    with refused("42704", "does not exist"):
        call(stranger, "client_channels", name("nobody"))
    with refused("42501"):
        call(stranger, "drop_client", client.name)
    assert value(stranger, "select count(*) from pgps.clients where name = %s", [client.name]) == 0


def test_registrations_outlive_the_session_and_begin_when_they_are_made(
    admin: psycopg.Connection, connect: Connect, client: Client, tick: str
) -> None:
    publish(admin, tick, 1)
    client.register(tick)
    publish(admin, tick, 2)
    hang_up(client, admin)
    publish(admin, tick, 3)
    dispatch(admin)
    client = Client(connect(), client.name)
    client.register(tick)
    assert client.taken() == [[2], [3]]
    with refused("42704", "not registered"):
        client.call("unregister_for_event", "other")
    client.call("unregister_for_event", tick)
    publish(admin, tick, 4)
    dispatch(admin)
    assert client.taken() == []
    assert value(admin, "select count(*) from pgps.subscriptions where event_type = %s", [tick]) == 0


def test_a_registration_needs_a_type_the_owner_may_see(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], name: Name, tick: str
) -> None:
    alice = Client(connect(role("alice")), name("client"))
    with refused("42704"):
        alice.register(name("nothing"))
    with refused("22023", "mode"):
        alice.register(tick, "sideways")
    with refused("22023"):
        rows(alice.connection, "select pgps.register_for_event(%s, null)", [alice.name])
    rows(admin, f"revoke select on {endpoint(tick)} from public")
    for mode in ("direct", "queued"):
        with refused("42501", "may not register"):
            alice.register(tick, mode)


def test_a_wildcard_takes_what_the_client_may_see_now_and_later_and_skips_the_rest_silently(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], name: Name
) -> None:
    prefix = name("security")
    kinds = [f"{prefix}_{kind}" for kind in ("open", "closed", "late")]
    alice = Client(connect(role("alice")), name("client"))
    for kind in kinds[:2]:
        make_type(admin, kind)
    rows(admin, f"revoke select on {endpoint(kinds[1])} from public")
    alice.register(prefix + "*")
    bob = Client(connect(role("bob")), name("client"))
    bob.register(prefix + "*", "direct")
    make_type(admin, kinds[2])
    assert [n.payload for n in notifications(bob.connection)] == ["registrations"]
    bob.listen()
    for number, kind in enumerate(kinds):
        publish(admin, kind, number)
    rows(admin, f"grant select on {endpoint(kinds[1])} to public")
    publish(admin, kinds[1], 10)
    dispatch(admin)
    assert [n for occurrence in alice.taken() for n in occurrence] == [0, 1, 2, 10]
    assert sorted(bob.pushed()) == [0, 2]
    for kind in kinds:
        call(admin, "drop_event_type", kind, cascade=True)


def test_an_occurrence_is_one_raise_however_its_tuples_lie_among_others(
    admin: psycopg.Connection, connect: Connect, client: Client, tick: str
) -> None:
    client.register(tick)
    slow, quick = connect(), connect()
    held = f"""
        insert into {endpoint(tick)} (n)
        select case g when 2 then (select g from pg_advisory_xact_lock(81)) else g end from generate_series(1, 3) g
    """
    # Side by side: the ids of one statement lie among those of the other.
    rows(quick, "select pg_advisory_lock(81)")
    with meanwhile(admin, slow, lambda: rows(slow, held)):
        publish(quick, tick, 11, 12)
        rows(quick, "select pg_advisory_unlock(81)")
    publish(admin, tick, 20)
    dispatch(admin)
    assert client.taken() == [[1, 2, 3], [11, 12], [20]]
    assert client.receive() is None
    assert value(admin, "select pending_events from pgps.clients where name = %s", [client.name]) == 0


def test_the_last_occurrence_comes_again_until_it_is_completed(
    admin: psycopg.Connection, connect: Connect, client: Client, tick: str
) -> None:
    client.register(tick)
    for numbers in ((1, 2), (3,)):
        publish(admin, tick, *numbers)
    dispatch(admin)
    first = client.receive()
    assert first is not None
    assert (first["numbers"], first["tuples"], first["attempt"], first["event_type"]) == ([1, 2], 2, 1, tick)
    assert first["last_event_id"] > first["event_id"]
    hang_up(client, admin)
    client = Client(connect(), client.name)
    assert client.before is not None
    assert client.before["last_received_event"] == first["event_id"]
    assert client.before["last_committed_event"] is None
    again = client.receive_again()
    assert again is not None
    assert (again["numbers"], again["attempt"]) == ([1, 2], 2)
    with refused("55006", "is pending"):
        client.call("disconnect_client")
    assert client.call("commit_event") == first["event_id"]
    assert client.call("commit_event") is None
    second = client.receive()
    assert second is not None
    assert second["numbers"] == [3]
    with refused("55006", f"event {second['event_id']} is pending"):
        client.call("disconnect_client")
    assert client.receive() is None, "and completes the one before"
    client.call("disconnect_client")


def test_committed_with_the_applications_own_writes_each_is_processed_once(
    admin: psycopg.Connection, connect: Connect, client: Client, tick: str, name: Name
) -> None:
    table = name("processed")
    rows(admin, f"create table public.{table} (n integer)")
    client.register(tick)
    publish(admin, tick, 1)
    publish(admin, tick, 2)
    dispatch(admin)
    client.connection.autocommit = False
    for crash in (True, False, True, False):
        found = client.receive() if not crash else client.receive_again() or client.receive()
        assert found is not None
        rows(client.connection, f"insert into public.{table} select unnest(%s::integer[])", [found["numbers"]])
        client.call("commit_event")
        if crash:
            client.connection.rollback()
        else:
            client.connection.commit()
    client.connection.autocommit = True
    assert column(admin, f"select n from public.{table}") == [1, 2]
    rows(admin, f"drop table public.{table}")


def test_a_large_occurrence_is_walked_in_groups(admin: psycopg.Connection, client: Client, tick: str) -> None:
    client.register(tick)
    rows(admin, f"insert into {endpoint(tick)} (n) select generate_series(1, 2500)")
    dispatch(admin)
    assert client.receive() is not None
    seen: list[int] = []
    after = 0
    query = "select event_id, (payload ->> 'n')::integer from pgps.fetch_tuples(%s, %s, 1000)"
    while group := rows(client.connection, query, [client.name, after]):
        assert len(group) <= 1000
        seen += [n for _, n in group]
        after = group[-1][0]
    assert seen == list(range(1, 2501))
    with refused("22023"):
        client.call("fetch_tuples", 0, 0)


def test_a_checkpoint_is_stored_with_what_it_belongs_to(
    admin: psycopg.Connection, connect: Connect, client: Client, tick: str
) -> None:
    client.register(tick)
    for number in range(4):
        publish(admin, tick, number)
    dispatch(admin)
    client.receive(checkpoint=b"nothing yet")
    client.connection.autocommit = False
    client.receive(checkpoint=b"first done")
    client.connection.rollback()
    client.connection.autocommit = True
    for large in (b"\x00\xff" * 5000, b"\x01" * 20_000_000, b"small"):
        client.call("commit_event", large)
        hang_up(client, admin)
        client = Client(connect(), client.name)
        assert client.before is not None
        assert client.before["event_checkpoint"] == large
        assert client.before["reply_checkpoint"] is None
        client.receive()
    assert value(admin, "select event_checkpoint_bytes from pgps.clients where name = %s", [client.name]) == 5
    with refused("54000", "104857601 bytes"):
        rows(client.connection, "select pgps.commit_event(%s, decode(repeat('00', 104857601), 'hex'))", [client.name])


def test_receive_is_for_one_name_or_for_all_in_order(
    admin: psycopg.Connection, client: Client, name: Name, tick: str
) -> None:
    other = name("other")
    make_type(admin, other)
    client.register(tick)
    client.register(other)
    for number in range(4):
        publish(admin, (tick, other)[number % 2], number)
    dispatch(admin)
    found = [client.receive(other), client.receive(), client.receive()]
    assert [f and f["numbers"] for f in found] == [[1], [0], [2]]
    assert [f and f["event_name"] for f in found] == [other, tick, tick]
    with refused("42704", "mode queued"):
        client.receive(name("nothing"))


def test_the_subscription_underneath_is_one_like_any_other(
    admin: psycopg.Connection, client: Client, tick: str
) -> None:
    subscription = client.register(tick)["subscription"]
    publish(admin, tick, 1, 2)
    publish(admin, tick, 3)
    dispatch(admin)
    assert [p["n"] for p in receive(client.connection, subscription, 1)] == [1]
    call(client.connection, "ack", subscription)
    assert client.taken() == [[2], [3]]
    publish(admin, tick, 4)
    dispatch(admin)
    assert [p["n"] for p in receive(client.connection, subscription)] == [4]
    call(admin, "pause", subscription)
    assert client.receive() is None
    call(admin, "unsubscribe", subscription)
    assert value(admin, "select count(*) from pgps.registrations where client = %s", [client.name]) == 0


def test_a_policy_decides_what_is_in_an_occurrence(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], tick: str, name: Name
) -> None:
    alice = role("alice")
    call(admin, "create_policy", tick, "even", alice, "n % 2 = 0")
    client = Client(connect(alice), name("client"))
    client.register(tick)
    direct = Client(connect(alice), name("client"))
    direct.register(tick, "direct")
    publish(admin, tick, 1, 2, 3, 4)
    publish(admin, tick, 5)
    publish(admin, tick, 6)
    dispatch(admin)
    assert client.taken() == [[2, 4], [6]]
    assert direct.pushed() == [2, 4, 6]


def test_a_type_that_somebody_is_registered_for_is_dropped_only_with_cascade(
    admin: psycopg.Connection, client: Client, tick: str
) -> None:
    client.register(tick, "direct")
    with refused("2BP01", "is registered for it"):
        call(admin, "drop_event_type", tick)
    call(admin, "drop_event_type", tick, cascade=True)
    assert value(admin, "select count(*) from pgps.registrations where client = %s", [client.name]) == 0


def test_a_type_that_is_changed_goes_on(admin: psycopg.Connection, client: Client, tick: str) -> None:
    client.register(tick)
    publish(admin, tick, 1)
    call(admin, "alter_event_type", tick, add_attribute="text_too text default 'x'")
    publish(admin, tick, 2)
    dispatch(admin)
    assert client.taken() == [[1], [2]]


def test_a_dropped_client_leaves_nothing(admin: psycopg.Connection, client: Client, tick: str) -> None:
    client.register(tick)
    client.call("send_request", "select 1")
    call(admin, "drop_client", client.name)
    assert value(admin, "select count(*) from pgps.clients where name = %s", [client.name]) == 0
    assert value(admin, "select count(*) from pgps.subscriptions where event_type = %s", [tick]) == 0
