"""Who changes or drops an event type beside transactions that use it and stay open: publishers get in between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.fix_broker import call, endpoint, make_type, publish, refused, rows, value
from tests.fix_db import Connect, wait_until

Name = Callable[..., str]

CHANGES = {
    "an attribute": "select pgps.alter_event_type('{0}', add_attribute => 'm integer')",
    "the time attribute": "select pgps.alter_event_type('{0}', time_attribute => 'at')",
    "a policy": "select pgps.create_policy('{0}', 'positive', '{1}', 'n > 0')",
    "its queue": "select pgps.alter_queue('{0}_in', persistent => false)",
    "a coupled rule": "select pgps.subscribe('{0}_rule', '{0}', execute => 'pg_catalog.pg_sleep(0)', "
    "coupling => 'immediate')",
    "resumed": "select pgps.resume_event_type('{0}')",
    "dropped": "select pgps.drop_event_type('{0}', cascade => true)",
}
USES = {
    "queue": "select from pgps_queue.{0}_in",
    "log": "select from pgps_internal.{0}_log",
    "publication": "insert into pgps_event.{0} (n) values (0)",
}


@contextmanager
def running(session: psycopg.Connection, statement: str) -> Iterator[list[BaseException | None]]:
    """Run a statement beside the block, which it has to survive; the list has its error, or None, when it has ended."""
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            session.execute(statement.encode())
        except psycopg.Error as error:
            ended.append(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ended
    finally:
        thread.join(60)
    assert ended, f"does not end: {statement}"


def waits(watcher: psycopg.Connection, session: psycopg.Connection) -> bool:
    """Tell whether a session waits for another one, in the queue for a lock or between two tries."""
    query = "select wait_event_type = 'Lock' or wait_event = 'PgSleep' from pg_stat_activity where pid = %s"
    return bool(value(watcher, query, [session.info.backend_pid]))


@pytest.fixture
def used(admin: psycopg.Connection, name: Name, role: Callable[..., str]) -> tuple[str, str]:
    """A type, and a role."""
    made = name()
    make_type(admin, made, "n integer, at timestamptz default now()")
    return made, role("reader")


@pytest.mark.parametrize(
    ("change", "use"),
    # A trigger is made beside readers.
    [(change, use) for change in CHANGES for use in USES if change != "a coupled rule" or use == "publication"],
)
def test_publishers_get_in_between_while_a_change_waits_for_an_open_transaction(
    admin: psycopg.Connection, connect: Connect, used: tuple[str, str], change: str, use: str
) -> None:
    made, _ = used
    user, changer, publisher = connect(autocommit=False), connect(), connect()
    rows(publisher, "set lock_timeout = '5s'")
    rows(user, USES[use].format(made))
    with running(changer, CHANGES[change].format(*used)) as ended:
        try:
            wait_until(lambda: ended or waits(admin, changer))
            for number in range(1, 11):
                # In the queue behind it this would wait for the transaction that stays open, and fail.
                publish(publisher, made, number)
            assert not ended
        finally:
            user.commit()
    assert ended == [None]


def test_who_has_no_more_patience_is_told_who_uses_the_type(
    connect: Connect, admin: psycopg.Connection, used: tuple[str, str]
) -> None:
    user = connect(autocommit=False)
    rows(user, f"select from pgps_queue.{used[0]}_in")
    other = connect()
    rows(other, "set lock_timeout = '300ms'")
    for change in ("an attribute", "a policy", "dropped"):
        with pytest.raises(psycopg.errors.LockNotAvailable, match="is used by other transactions") as caught:
            other.execute(CHANGES[change].format(*used).encode())
        assert str(user.info.backend_pid) in str(caught.value.diag.message_detail)
        assert value(other, "show lock_timeout") == "300ms"
    user.commit()
    rows(other, "begin")
    rows(other, CHANGES["an attribute"].format(*used))
    assert value(other, "show lock_timeout") == "300ms"
    rows(other, "commit")
    publish(admin, used[0], 1)


def test_two_who_wait_for_each_other_are_told_so(connect: Connect, admin: psycopg.Connection, name: Name) -> None:
    first, second = name(), name()
    make_type(admin, first)
    make_type(admin, second)
    changer, publisher = connect(autocommit=False), connect(autocommit=False)
    # It would find the deadlock itself, if it looked while the other is in one of its short tries.
    rows(publisher, "set deadlock_timeout = '1min'")
    publisher.commit()
    call(changer, "alter_event_type", first, "m integer")
    publish(publisher, second, 1)
    with running(publisher, f"insert into {endpoint(first)} (n) values (1)") as ended:
        try:
            wait_until(lambda: waits(admin, publisher))
            with refused("40P01"):
                call(changer, "alter_event_type", second, "m integer")
        finally:
            changer.rollback()
    assert ended == [None]
    publisher.commit()


def test_what_is_dropped_with_a_type_is_waited_for_before_anything_is_locked(
    connect: Connect, admin: psycopg.Connection, used: tuple[str, str], name: Name
) -> None:
    made, above = used[0], name()
    call(admin, "create_composite_event", above, f"{made} a ; {made} b")
    table = name("stored")
    rows(admin, f"create table public.{table} (n integer)")
    call(admin, "create_rule", name("rule"), f"public.{table}", "INSERT", made, ["new.n"])
    user, changer, publisher = connect(autocommit=False), connect(), connect()
    rows(publisher, "set lock_timeout = '5s'")
    for use in (f"select from pgps_internal.{above}_log", f"select from public.{table}"):
        rows(user, use)
        rows(changer, "set lock_timeout = '2s'")
        with running(changer, CHANGES["dropped"].format(made)) as ended:
            wait_until(lambda: ended or waits(admin, changer))
            for number in range(1, 6):
                publish(publisher, made, number)
        assert isinstance(ended[0], psycopg.errors.LockNotAvailable)
        user.commit()
    rows(admin, f"select pgps.drop_event_type('{made}', cascade => true); drop table public.{table}")


def test_who_waits_for_a_type_that_is_dropped_meanwhile_is_told_so(
    connect: Connect, admin: psycopg.Connection, used: tuple[str, str]
) -> None:
    dropping, other = connect(autocommit=False), connect()
    rows(dropping, CHANGES["dropped"].format(*used))
    with running(other, CHANGES["the time attribute"].format(*used)) as ended:
        wait_until(lambda: waits(admin, other))
        dropping.commit()
    assert isinstance(ended[0], psycopg.errors.UndefinedObject)


NEEDED = {
    "a subscription": ("select pgps.subscribe('{0}_s', '{0}')", "select pgps.drop_event_type('{0}')", "{0}_s"),
    "a shared subscription": (
        "select pgps.subscribe('{0}_s', '{0}', handler => 'any')",
        "select pgps.drop_event_type('{0}')",
        "{0}_s",
    ),
    "a composite event": (
        "select pgps.create_composite_event('{0}_c', '{0} x')",
        "select pgps.drop_event_type('{0}')",
        "{0}_c",
    ),
    "a registration": (
        "select pgps.connect_client('c'), pgps.register_for_event('c', '{0}', mode => 'direct')",
        "select pgps.drop_event_type('{0}')",
        "client",
    ),
    "an event": ("insert into pgps_event.{0} (n) values (1)", "select pgps.drop_event_type('{0}')", "not delivered"),
    "a filter": (
        "select pgps.subscribe('{0}_s', '{0}', 'n > 0')",
        "select pgps.alter_event_type('{0}', drop_attribute => 'n')",
        "{0}_s",
    ),
    "the order of events": (
        "select pgps.create_composite_event('{0}_c', '{0} x', time_basis => 'event')",
        "select pgps.alter_event_type('{0}', time_attribute => '')",
        "{0}_c",
    ),
}


@pytest.mark.parametrize("what", sorted(NEEDED))
def test_what_is_needed_since_somebody_was_waited_for_is_neither_dropped_nor_altered(
    connect: Connect, own_database: str, what: str
) -> None:
    admin, using, changing = (
        connect(dsn=own_database),
        connect(dsn=own_database, autocommit=False),
        connect(dsn=own_database),
    )
    make_type(admin, "tick", "n integer, at timestamptz default now()")
    call(admin, "alter_event_type", "tick", time_attribute="at")
    # Of their classes there is nothing to be made when somebody else subscribes.
    call(admin, "subscribe", "prefix", "t*")
    call(admin, "subscribe", "prefix_shared", "t*", handler="any")
    use, change, blocker = (text.format("tick") for text in NEEDED[what])
    rows(using, use)
    with running(changing, change) as ended:
        wait_until(lambda: waits(admin, changing))
        using.commit()
    assert isinstance(ended[0], psycopg.errors.DependentObjectsStillExist)
    assert blocker in str(ended[0])
    publish(admin, "tick", 2)
    rows(admin, "select pgps.dispatch()")
    received = [payload["n"] for (payload,) in rows(admin, "select payload from pgps.take('prefix')")]
    assert received == ([1, 2] if what == "an event" else [2])
