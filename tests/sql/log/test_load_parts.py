"""Parts of a load in tables of their own: their rows' order, whose they are, and when they go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgps.embedded import EmbeddedCluster
from tests.fix_broker import call, column, make_type, queue, quoted, refused, rows, take, value
from tests.fix_clock import Clock
from tests.fix_db import Connect

_PUBLISH = "select pgps.publish_load(%s, %s, %s::text[], '{n}', null, null, %s)"


def _bring(connection: psycopg.Connection, event_type: str, load: str, part: str, numbers: range) -> str:
    """Bring numbers in as a part, and return its table; without autocommit, the copy is left open."""
    table = str(call(connection, "begin_load_part", event_type, load, part))
    if not connection.autocommit:
        connection.commit()
    with connection.cursor().copy(f"copy {table} (n) from stdin") as copy:
        copy.write("".join(f"{n}\n" for n in numbers))
    return table


def _is_there(connection: psycopg.Connection, *tables: str) -> list[bool]:
    return column(connection, "select to_regclass(t) is not null from unnest(%s::text[]) t", [list(tables)])


@pytest.fixture
def impatient(admin: psycopg.Connection) -> Iterator[None]:
    rows(admin, "set lock_timeout = '5s'")
    yield
    rows(admin, "reset lock_timeout")


def test_parts_are_published_in_the_order_named_wherever_their_rows_are(
    admin: psycopg.Connection, name: Callable[..., str]
) -> None:
    t, s, load = name(), name("reader"), name("load")
    make_type(admin, t, "n integer not null check (n < 100), word text default 'none'")
    call(admin, "subscribe", s, t)
    table = call(admin, "begin_load", t, load)
    odd = ('it\'s "odd", {é}\\' + "x" * 200)[:199]
    assert len(odd.encode()) == 200
    _bring(admin, t, load, odd, range(20, 30))
    _bring(admin, t, load, "own", range(10))
    _bring(admin, t, load, "unnamed", range(90, 99))
    for n, part in ((11, "b"), (10, "a"), (31, "d"), (12, "b"), (30, "c"), (99, "unnamed")):
        rows(admin, f"insert into {table} (n, pgps_part) values (%s, %s)", [n, part])
    with refused("23514"):
        _bring(admin, t, load, "wrong", range(99, 101))
    named = ["own", "a", "b", odd, "c", "a", "own", "d", None, "nothing"]
    assert value(admin, _PUBLISH, [t, load, named, 25]) == 25
    assert take(admin, s) == [*range(13), *range(20, 30), 30, 31]
    assert set(column(admin, f"select word from {queue(t, 'log')}")) == {"none"}
    assert column(admin, "select count(*) from pgps.publications where event_type = %s", [t]) == [1]
    assert column(admin, "select relname from pg_class where starts_with(relname, %s)", [table.split(".")[1]]) == []


def test_a_part_is_read_from_its_beginning_wherever_another_scan_of_it_is(own_cluster: EmbeddedCluster) -> None:
    """Of a table that is large for shared_buffers, PostgreSQL reads where another session reads."""
    with contextlib.closing(psycopg.connect(own_cluster.dsn(), autocommit=True)) as connection:
        rows(connection, "alter system set shared_buffers = '2MB'")
    own_cluster.stop()
    own_cluster.start()
    with contextlib.closing(psycopg.connect(own_cluster.dsn(), autocommit=True)) as connection:
        make_type(connection, "tick")
        call(connection, "begin_load", "tick", "load")
        tables = [_bring(connection, "tick", "load", part, numbers) for part, numbers in (
            ("second", range(50_000, 100_000)), ("first", range(50_000)))]  # fmt: skip
        for table in tables:
            assert value(connection, "select pg_relation_size(%s::regclass)", [table]) > 3 << 19
            rows(connection, f"select n from {table} limit 20000")
            assert value(connection, f"select n from {table} limit 1") not in (0, 50_000)
        assert value(connection, _PUBLISH, ["tick", "load", ["first", "second"], 100_000]) == 100_000
        found = column(connection, f"select n from {queue('tick', 'log')} order by event_id")
        assert found == list(range(100_000))


def test_a_try_that_goes_on_or_is_killed_holds_up_nobody_and_is_not_published(
    admin: psycopg.Connection, name: Callable[..., str], connect: Connect, impatient: None
) -> None:
    t, s, load, other = name(), name("reader"), name("load"), name("load")
    make_type(admin, t)
    call(admin, "subscribe", s, t)
    tables = [call(admin, "begin_load", t, each) for each in (load, other)]
    lost, late = connect(autocommit=False), connect(autocommit=False)
    tables += [_bring(lost, t, load, "lost", range(10, 20)), _bring(late, t, load, "late", range(20, 30))]
    tables += [_bring(lost, t, other, "lost", range(10, 20)), _bring(admin, t, load, "loser", range(10))]
    tables.append(_bring(admin, t, load, "winner", range(10)))
    assert value(admin, _PUBLISH, [t, load, ["winner"], 10]) == 10
    assert call(admin, "discard_load", other) is True
    rows(admin, "select pgps_internal.reclaim_loads()")
    # The next load of this name is another one.
    tables.append(call(admin, "begin_load", t, load))
    late.commit()
    with refused("55000", "has 0 events where 10"):
        rows(admin, _PUBLISH, [t, load, ["late"], 10])
    rows(admin, "select pgps_internal.reclaim_loads()")
    assert _is_there(admin, tables[3], tables[-1]) == [False, True]
    tables.append(_bring(admin, t, load, "late", range(30, 33)))
    # The type is changed, and dropped, while one is copying.
    call(admin, "alter_event_type", t, add_attribute="more text default 'x'")
    assert value(admin, _PUBLISH, [t, load, ["late"], 3]) == 3
    assert take(admin, s) == [*range(10), *range(30, 33)]
    call(admin, "drop_event_type", t, cascade=True)
    lost.rollback()
    rows(admin, "select pgps_internal.reclaim_loads()")
    assert _is_there(admin, *tables) == [False] * len(tables)


def test_a_load_with_parts_is_dropped_when_it_is_old_or_its_type_is_gone(
    admin: psycopg.Connection, connect: Connect, name: Callable[..., str], clock: Clock
) -> None:
    t, load, other = name(), name("load"), name("load")
    make_type(admin, t)
    quoting = connect()
    rows(quoting, "set quote_all_identifiers = on")
    tables = [call(quoting, "begin_load", t, load), _bring(quoting, t, load, "a", range(3))]
    clock.advance("23 hours")
    rows(admin, "select pgps_internal.reclaim_loads()")
    rows(quoting, "select pgps_internal.reclaim_loads()")
    assert _is_there(admin, *tables) == [True, True]
    clock.advance("2 hours")
    rows(admin, "select pgps_internal.reclaim_loads()")
    assert _is_there(admin, *tables) == [False, False]
    tables = [call(admin, "begin_load", t, other), _bring(admin, t, other, "a", range(3))]
    assert value(quoting, _PUBLISH, [t, other, ["a"], 3]) == 3
    tables += [call(admin, "begin_load", t, other), _bring(admin, t, other, "a", range(3))]
    call(admin, "drop_event_type", t, cascade=True)
    rows(admin, "select pgps_internal.reclaim_loads()")
    assert _is_there(admin, *tables) == [False] * 4


def test_a_part_is_of_who_began_the_load_and_of_one_try(
    connect: Connect, admin: psycopg.Connection, name: Callable[..., str], role: Callable[..., str]
) -> None:
    t, u, load, owner, other = name(), name(), name("load"), role("owner"), role("other")
    for each in (t, u):
        make_type(admin, each)
        rows(admin, f"grant insert on pgps_event.{quoted(each)} to {quoted(owner)}, {quoted(other)}")
    mine, stranger = connect(owner), connect(other)
    for connection in (mine, stranger):
        call(connection, "advertise", t)
        call(connection, "advertise", u)
    with refused("55000", "begin_load"):
        call(mine, "begin_load_part", t, load, "a")
    call(mine, "begin_load", t, load)
    table = _bring(mine, t, load, "a", range(3))
    with refused("42501", load):
        call(stranger, "begin_load_part", t, load, "b")
    with refused("42501", load):
        call(mine, "begin_load_part", u, load, "b")
    for attempt in (
        f"select * from {table}", f"insert into {table} values (1)", f"lock table {table}", f"drop table {table}",
        f"truncate {table}", f"copy {table} from stdin",
    ):  # fmt: skip
        with refused("42501"), stranger.transaction():
            rows(stranger, attempt)
    with refused("42501"):
        rows(stranger, _PUBLISH, [t, load, ["a"], 3])
    assert call(stranger, "discard_load", load) is False
    with refused("42710", "part"):
        call(mine, "begin_load_part", t, load, "a")
    for arguments in ((t, load, ""), (t, load, "é" * 101), (t, load, None), (t, None, "b")):
        with refused("22023"):
            call(mine, "begin_load_part", *arguments)
    with refused("42704"):
        call(mine, "begin_load_part", "nothing", load, "b")
    assert value(mine, _PUBLISH, [t, load, ["a"], 3]) == 3


def test_two_tries_of_one_name_are_one_part(
    admin: psycopg.Connection, name: Callable[..., str], connect: Connect
) -> None:
    t, load = name(), name("load")
    make_type(admin, t)
    call(admin, "begin_load", t, load)
    first = connect(autocommit=False)
    call(first, "begin_load_part", t, load, "a")
    rows(admin, "set lock_timeout = '200ms'")
    with refused("55P03"):
        call(admin, "begin_load_part", t, load, "a")
    rows(admin, "reset lock_timeout")
    first.rollback()
    _bring(admin, t, load, "a", range(4))
    assert value(admin, _PUBLISH, [t, load, ["a"], 4]) == 4


def test_a_load_has_two_hundred_tables_and_the_other_parts_share_one(
    admin: psycopg.Connection, name: Callable[..., str]
) -> None:
    t, s, load = name(), name("reader"), name("load")
    make_type(admin, t)
    call(admin, "subscribe", s, t)
    table = call(admin, "begin_load", t, load)
    parts = [f"{n:03}" for n in range(202)]
    for n in range(200):
        _bring(admin, t, load, parts[n], range(n, n + 1))
    for n in (200, 201):
        assert call(admin, "begin_load_part", t, load, parts[n]) is None
        rows(admin, f"insert into {table} (n, pgps_part) values (%s, %s)", [n, parts[n]])
    assert value(admin, _PUBLISH, [t, load, parts[::-1], 202]) == 202
    assert take(admin, s) == list(range(202))[::-1]


def test_parts_are_published_as_immediate_events(admin: psycopg.Connection, name: Callable[..., str]) -> None:
    t, s, load = name(), name("reader"), name("load")
    call(admin, "create_event_type", t, "n integer", visibility="immediate")
    call(admin, "advertise", t)
    call(admin, "subscribe", s, t)
    call(admin, "begin_load", t, load)
    for part, numbers in (("b", range(3, 6)), ("a", range(3))):
        _bring(admin, t, load, part, numbers)
    assert value(admin, _PUBLISH, [t, load, ["a", "b"], 6]) == 6
    assert take(admin, s) == list(range(6))


def test_a_part_that_a_crash_has_emptied_is_not_published(own_cluster: EmbeddedCluster) -> None:
    def connected() -> psycopg.Connection:
        return psycopg.connect(make_conninfo(own_cluster.dsn()), autocommit=True)

    with contextlib.closing(connected()) as connection:
        make_type(connection, "tick")
        call(connection, "begin_load", "tick", "load")
        tables = [_bring(connection, "tick", "load", "before", range(3))]
        killed, failed = connected(), connected()
        killed.autocommit = failed.autocommit = False
        tables += [_bring(killed, "tick", "load", "killed", range(100_000))]
        tables += [_bring(failed, "tick", "load", "failed", range(100_000))]
        failed.rollback()
    own_cluster.kill9()
    own_cluster.start()
    killed.close()
    failed.close()
    with contextlib.closing(connected()) as connection:
        _bring(connection, "tick", "load", "after", range(3))
        with refused("55000", "has 3 events where 6"):
            rows(connection, _PUBLISH, ["tick", "load", ["before", "after"], 6])
        assert column(connection, f"select n from {queue('tick', 'log')}") == []
        assert call(connection, "discard_load", "load") is True
        assert _is_there(connection, *tables) == [False] * 3
