"""Who waits for an attribute to be dropped is given the events without it: nothing fails, and no order changes."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, meanwhile, publish, rows, value
from tests.fix_db import Connect

Name = Callable[..., str]


@pytest.fixture
def tick(admin: psycopg.Connection, name: Name) -> str:
    tick = name("tick")
    make_type(admin, tick, "n integer, old integer")
    return tick


@pytest.fixture
def while_dropped(admin: psycopg.Connection, connect: Connect, tick: str) -> Callable[[str], list[object]]:
    """Run a statement twice: alone, and while another session drops the attribute; return what the second gave."""

    def run(statement: str) -> list[object]:
        session, changing = connect(), connect(autocommit=False)
        found: list[tuple[object, ...]] = []
        publish(admin, tick, 1)
        rows(admin, "select pgps.dispatch()")
        rows(session, statement)
        # One alone: of several that fail together each is tried by itself.
        publish(admin, tick, 2)
        rows(admin, "select pgps.dispatch()")
        call(changing, "alter_event_type", tick, drop_attribute="old")
        with meanwhile(admin, session, lambda: found.extend(rows(session, statement))):
            changing.commit()
        return [row[0] for row in found]

    return run


@pytest.mark.parametrize("handler", ["all", "any"])
@pytest.mark.parametrize("function", ["receive", "take"])
def test_a_consumer_is_given_the_events_without_it(
    admin: psycopg.Connection,
    name: Name,
    tick: str,
    while_dropped: Callable[[str], list[object]],
    function: str,
    handler: str,
) -> None:
    all_of_it = name("all")
    call(admin, "subscribe", all_of_it, tick, handler=handler)
    found = while_dropped(f"select payload from pgps.{function}('{all_of_it}', 100)")
    assert found[-1] == {"n": 2}


@pytest.mark.parametrize("argument", ["record", "{endpoint}", "{endpoint}[]"])
def test_no_event_of_a_callback_fails(
    admin: psycopg.Connection, name: Name, tick: str, while_dropped: Callable[[str], list[object]], argument: str
) -> None:
    seen, note, noted = f"public.{name('seen')}", f"public.{name('note')}", name("noted")
    endpoint = f"pgps_event.{tick}"
    rows(admin, f"create table {seen} (g bigserial, n integer)")
    insert = f"insert into {seen} (n) select x.n from unnest(e) x" if "[]" in argument else ""
    rows(
        admin,
        f"create function {note}(e {argument.format(endpoint=endpoint)}) returns void language plpgsql as"
        f" $$ begin {insert or f'insert into {seen} (n) values (e.n)'}; end $$",
    )
    call(admin, "subscribe", noted, tick, execute=f"{note}({argument.format(endpoint=endpoint)})")
    while_dropped("call pgps.run_subscribers()")
    assert column(admin, f"select n from {seen} order by g") == [1, 2]
    assert value(admin, "select count(*) from pgps.exceptions where subscription = %s", [noted]) == 0
    assert value(admin, "select last_error from pgps.subscriptions where name = %s", [noted]) is None


@pytest.mark.parametrize("change", ["add_attribute", "drop_attribute"])
@pytest.mark.parametrize("default", ["3", "(random() * 9)::integer"], ids=["constant", "rewritten"])
def test_callbacks_that_wait_for_an_attribute_run_once_in_their_order(
    admin: psycopg.Connection, connect: Connect, name: Name, tick: str, change: str, default: str
) -> None:
    seen, note, noted = f"public.{name('seen')}", f"public.{name('note')}", name("noted")
    session, changing = connect(), connect(autocommit=False)
    rows(admin, f"create table {seen} (g bigserial, n integer)")
    rows(
        admin,
        f"create function {note}(n integer) returns void language sql as 'insert into {seen} (n) values ($1)'",
    )
    call(admin, "subscribe", noted, tick, execute=f"{note}(n)", max_attempts=1)
    publish(admin, tick, 1)
    rows(admin, "select pgps.dispatch()")
    rows(session, "call pgps.run_subscribers()")
    # One alone: of several that fail together each is tried by itself.
    publish(admin, tick, 2)
    rows(admin, "select pgps.dispatch()")
    call(
        changing,
        "alter_event_type",
        tick,
        **{change: "old" if change == "drop_attribute" else f"new integer default {default}"},
    )
    with meanwhile(admin, session, lambda: rows(session, "call pgps.run_subscribers()")):
        changing.commit()
    assert column(admin, f"select n from {seen} order by g") == [1, 2]
    assert value(admin, "select last_error from pgps.subscriptions where name = %s", [noted]) is None


@pytest.mark.parametrize("handler", ["all", "any"])
def test_a_consumer_that_waits_for_an_attribute_with_a_value_for_each_event_loses_none(
    admin: psycopg.Connection, connect: Connect, name: Name, tick: str, handler: str
) -> None:
    session, changing, all_of_it = connect(), connect(autocommit=False), name("all")
    take = f"select payload -> 'n' from pgps.take('{all_of_it}')"
    found: list[int] = []
    call(admin, "subscribe", all_of_it, tick, handler=handler)
    publish(admin, tick, 1)
    rows(admin, "select pgps.dispatch()")
    found += column(session, take)
    publish(admin, tick, 2)
    rows(admin, "select pgps.dispatch()")
    # The log is written anew: who has looked before sees nothing there.
    call(changing, "alter_event_type", tick, add_attribute="new uuid default gen_random_uuid()")
    with meanwhile(admin, session, lambda: found.extend(column(session, take))):
        changing.commit()
    assert found == [1, 2]


def test_nor_does_one_whose_policies_are_asked(
    admin: psycopg.Connection, connect: Connect, name: Name, tick: str, role: Callable[..., str]
) -> None:
    reader = role("reader")
    session, changing, all_of_it = connect(reader), connect(autocommit=False), name("all")
    take = f"select payload -> 'n' from pgps.take('{all_of_it}')"
    found: list[int] = []
    call(admin, "create_policy", tick, "positive", reader, "n > 0")
    call(session, "subscribe", all_of_it, tick)
    publish(admin, tick, 1)
    rows(admin, "select pgps.dispatch()")
    found += column(session, take)
    publish(admin, tick, 2)
    rows(admin, "select pgps.dispatch()")
    call(changing, "alter_event_type", tick, add_attribute="new uuid default gen_random_uuid()")
    with meanwhile(admin, session, lambda: found.extend(column(session, take))):
        changing.commit()
    assert found == [1, 2]


@pytest.mark.parametrize("kind", ["uuid not null default gen_random_uuid()", "{domain}"], ids=["type", "domain"])
@pytest.mark.parametrize("how", ["log", "receive"])
def test_who_has_looked_before_still_sees_the_events_when_each_gets_a_value_of_its_own(
    admin: psycopg.Connection, connect: Connect, name: Name, tick: str, how: str, kind: str
) -> None:
    session, changing, all_of_it = connect(), connect(autocommit=False), name("all")
    domain = f"public.{name('number')}"
    rows(admin, f"create domain {domain} as uuid default gen_random_uuid()")
    call(admin, "subscribe", all_of_it, tick)
    publish(admin, tick, 1)
    rows(admin, "select pgps.dispatch()")
    call(changing, "alter_event_type", tick, add_attribute=f"new {kind.format(domain=domain)}")
    if how == "log":
        session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with session.transaction():
            rows(session, "select 1")
            changing.commit()
            assert column(session, f"select n from pgps_queue.{tick}_log") == [1]
    else:
        found: list[int] = []
        query = f"select n from pgps_queue.{tick}_receive('{{{all_of_it}}}', 10)"
        with meanwhile(admin, session, lambda: found.extend(column(session, query))):
            changing.commit()
        assert found == [1]
    publish(admin, tick, 2)
    assert value(admin, f"select count(distinct new) from pgps_queue.{tick}_log") == 2
