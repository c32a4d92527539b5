"""Every public function, each argument in turn, three roles: errors say what to do, and nothing is left behind."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, endpoint, quoted, rows, value
from tests.fix_db import Connect
from tests.security.fuzzing import Function, calls, fault, functions, left_behind

# Of all calls so many are made each time; a test marked slow makes all of them.
_ONE_OF = 8
# A worker's session keeps these locks until it ends: that is what they are for.
_KEEPS = {"try_lead", "stay_awake"}


@pytest.fixture
def world(own_database: str, connect: Connect, role: Callable[..., str]) -> dict[str, str]:
    """A broker with something of everything, some of it the owner's, some of somebody else's; returns its roles."""
    admin = connect(dsn=own_database)
    who = {"administrator": role("chief", "pgps_admin"), "owner": role("owner"), "stranger": role("stranger")}
    for name in ("tick", "other"):
        call(admin, "create_event_type", name, "n integer, word text")
        call(admin, "advertise", name)
    rows(admin, f"grant insert, select on {endpoint('tick')} to {quoted(who['owner'])}")
    rows(
        admin,
        f"create table public.fuzz_table (n integer); alter table public.fuzz_table owner to {quoted(who['owner'])}",
    )
    rows(admin, "create table public.fuzz_theirs (n integer)")
    rows(admin, f"create function public.fuzz_callback({endpoint('tick')}) returns void language sql as 'select'")
    owner = connect(who["owner"], dsn=own_database)
    for connection, whose, table in ((owner, "my", "fuzz_table"), (admin, "their", "fuzz_theirs")):
        if whose == "my":
            call(owner, "advertise", "tick")
            call(owner, "begin_load", "tick", "my_load")
        call(connection, "subscribe", "mine" if whose == "my" else "theirs", "tick")
        call(connection, "create_rule", f"{whose}_rule", f"public.{table}", "insert", "tick", ["new.n", "'w'"])
        rows(connection, f"select * from pgps.connect_client('{whose}_client')")
        rows(connection, f"select * from pgps.register_for_event('{whose}_client', 'tick')")
        furnish_rooms(admin, connection, whose, who["owner"] if whose == "my" else admin.info.user)
    call(admin, "create_link", "a_link", "host=nowhere")
    call(admin, "create_policy", "other", "my_policy", who["owner"], "n = 1")
    rows(admin, f"insert into {endpoint('tick')} values (1, 'a'), (2, 'b')")
    rows(admin, "select pgps.create_network('a_network', '{host=nowhere}')")
    rows(admin, "select pgps.dispatch()")
    rows(admin, f"insert into {endpoint('tick')} values (3, 'c')")
    return who


def furnish_rooms(admin: psycopg.Connection, connection: psycopg.Connection, whose: str, role: str) -> None:
    """Make a composite event, a spool with a message and a member, a service, and a conversation with it."""
    call(connection, "create_composite_event", f"{whose}_composite", "tick ; tick")
    call(admin, "create_spool", f"{whose}_spool")
    call(admin, "create_service", whose, "desk", "mail", store="broker")
    for privilege in ("spool", "replay"):
        call(admin, "grant_spool", f"{whose}_spool", privilege, role)
    for privilege in ("send", "serve"):
        call(admin, "grant_service", whose, "desk", "mail", privilege, role)
    rows(connection, f"""select pgps.spool('{whose}_spool', 1, '"m"', keys => '{{"SP_ID": 1}}')""")
    call(connection, "join_group", f"{whose}_spool", f"{whose}_client")
    call(connection, "logon", "t")
    call(connection, "register_service", whose, "desk", "mail")
    rows(connection, f"select pgps.send_message('m', to_service => '{whose}/desk/mail', option => 'commit')")


def is_chosen(who: str, function: Function, argument: str | None, args: list[Any]) -> bool:
    """Tell whether a call is made each time: the good one, null for each argument, a share of the others."""
    nulled = argument is not None and args[[name for name, _ in function.arguments].index(argument)] is None
    return argument is None or nulled or zlib.crc32(f"{who} {function.name} {argument} {args}".encode()) % _ONE_OF == 0


def faults(connection: psycopg.Connection, tried: Iterator[tuple[Function, str | None, list[Any]]]) -> list[str]:
    """Make the calls; return what is wrong, with the call, and what a function has left in the session."""
    connection.autocommit = False
    connection.execute("set statement_timeout = '20s'")
    connection.commit()
    before = left_behind(connection)
    connection.rollback()
    found: list[str] = []
    last: Function | None = None
    for function, argument, args in tried:
        if last is not None and function.name != last.name:
            after = left_behind(connection)
            connection.rollback()
            if last.name not in _KEEPS:
                found += [f"{last.name} leaves {key}: {after[key]}" for key in after if after[key] != before[key]]
            before = after
        last = function
        wrong = fault(connection, function, argument, args)
        if wrong:
            found.append(f"{function.name}({argument}) {str(args)[:200]}: {wrong[:400]}")
        assert not connection.closed, found[-1]
    return found


def contents(admin: psycopg.Connection) -> list[tuple[Any, ...]]:
    """Return what the catalogue says is there: rolled back calls leave nothing."""
    return rows(
        admin,
        """
        select 'relation', n.nspname::text, c.relname::text, c.relacl::text
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname !~ '^pg_' and c.relkind <> 'i'
        union all select 'function', n.nspname::text, p.oid::regprocedure::text, p.proacl::text
        from pg_proc p join pg_namespace n on n.oid = p.pronamespace where n.nspname !~ '^pg_'
        -- Roles are the server's, and tests beside this one make some of their own: what counts is who is what here.
        union all select 'role', r.rolname::text, r.rolsuper::text,
            array(select m.roleid::regrole::text from pg_auth_members m where m.member = r.oid order by 1)::text
        from pg_roles r where exists (select from pg_shdepend d join pg_database b on b.oid = d.dbid
            where d.refobjid = r.oid and b.datname = current_database())
        union all select 'subscription', name, state, null from pgps.subscriptions
        union all select 'setting', name, value, null from pgps.settings
        order by 1, 2, 3
        """,
    )


@pytest.mark.parametrize("who", ["administrator", "owner", "stranger"])
def test_an_argument_that_makes_no_sense_is_answered_in_words(
    world: dict[str, str], connect: Connect, own_database: str, who: str
) -> None:
    admin, connection = connect(dsn=own_database), connect(world[who], dsn=own_database)
    before = contents(admin)
    found = faults(
        connection,
        (
            (f, argument, args)
            for f in functions(admin)
            for argument, args in calls(f)
            if is_chosen(who, f, argument, args)
        ),
    )
    assert not found, "\n".join(found)
    assert contents(admin) == before


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("who", ["administrator", "owner", "stranger"])
def test_all_arguments_that_make_no_sense_are_answered_in_words(
    world: dict[str, str], connect: Connect, own_database: str, who: str
) -> None:
    admin, connection = connect(dsn=own_database), connect(world[who], dsn=own_database)
    before = contents(admin)
    found = faults(connection, ((f, argument, args) for f in functions(admin) for argument, args in calls(f)))
    assert not found, "\n".join(found)
    assert contents(admin) == before


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_arguments_that_make_no_sense_together_do_no_harm(
    world: dict[str, str], connect: Connect, own_database: str
) -> None:
    seed = int(os.environ.get("PGPS_FUZZ_SEED", random.randrange(2**31)))
    chance = random.Random(seed)
    admin = connect(dsn=own_database)
    before = contents(admin)
    every = [(f, list(calls(f))) for f in functions(admin) if f.arguments]

    def random_calls() -> Iterator[tuple[Function, str | None, list[Any]]]:
        for _ in range(5000):
            function, tried = chance.choice(every)
            columns = list(zip(*[args for _, args in tried], strict=True))
            yield function, None, [chance.choice(column) for column in columns]

    for who in ("administrator", "owner", "stranger"):
        # Several arguments at once: nobody can tell whose words an error may be in, but nothing breaks.
        found = [
            f
            for f in faults(connect(world[who], dsn=own_database), random_calls())
            if "SQLSTATE: XX" in f or "leaves" in f
        ]
        assert not found, f"seed {seed}: " + "\n".join(found)
    assert contents(admin) == before
    assert (
        value(admin, "select count(*) from pg_roles where rolname = any (%s) and rolsuper", [list(world.values())]) == 0
    )
