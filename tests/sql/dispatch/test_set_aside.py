"""An event type that fails in dispatch is set aside; the others go on, and nothing of it is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psycopg
import pytest

from tests.fix_broker import call, column, endpoint, make_type, meanwhile, numbers, refused, rows, take, value
from tests.fix_db import Connect

Name = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Pair:
    """A type that gets broken, one that does not, and who gets events of each and of both."""

    admin: psycopg.Connection
    bad: str = "pair_bad"
    good: str = "pair_good"

    def publish(self, event_type: str, *ns: int) -> None:
        for n in ns:
            rows(self.admin, f"insert into {endpoint(event_type)} (n) values (%s)", [n])

    def break_it(self) -> None:
        rows(self.admin, "alter table pgps_internal.pair_bad_log drop column _producer cascade")

    def mend_it(self) -> None:
        rows(self.admin, "alter table pgps_internal.pair_bad_log add column _producer text")
        call(self.admin, "resume_event_type", self.bad)

    def dispatch(self) -> None:
        rows(self.admin, "select pgps.dispatch()")

    def state(self) -> list[str]:
        return column(self.admin, "select state from pgps.event_types order by name")


@pytest.fixture
def pair(own_database: str, connect: Connect) -> Pair:
    made = Pair(connect(dsn=own_database))
    for event_type in (made.bad, made.good):
        make_type(made.admin, event_type)
        call(made.admin, "subscribe", event_type, event_type)
    call(made.admin, "subscribe", "both", "pair_*")
    call(made.admin, "subscribe", "some", "pair_*", filter="n >= 10")
    rows(made.admin, "create table public.wanted (n integer)")
    rows(made.admin, "insert into public.wanted select generate_series(0, 99)")
    call(made.admin, "subscribe", "stored", made.bad, filter="n in (select w.n from public.wanted w)")
    return made


def test_the_others_go_on_and_what_was_kept_comes_in_its_order(pair: Pair) -> None:
    pair.publish(pair.bad, 1)
    pair.publish(pair.good, 2)
    pair.dispatch()
    pair.publish(pair.bad, 3, 11)
    pair.publish(pair.good, 4, 12)
    pair.break_it()
    for batch in range(3):
        pair.dispatch()
        assert pair.state() == ["set aside", "active"]
        pair.publish(pair.good, 13 + batch)
    pair.dispatch()
    assert take(pair.admin, pair.good) == [2, 4, 12, 13, 14, 15]
    error, hint = rows(pair.admin, "select last_error, hint from pgps.event_types where name = %s", [pair.bad])[0]
    assert "_producer" in error
    assert "alter table pgps_internal.pair_bad_log add column _producer text" in hint
    assert "pgps.resume_event_type('pair_bad')" in hint
    with refused("55000", pair.bad, "add column _producer"):
        call(pair.admin, "resume_event_type", pair.bad)
    with refused("2BP01", "not delivered"):
        rows(pair.admin, "select pgps.unsubscribe(s) from unnest('{pair_bad,stored}'::text[]) s")
        call(pair.admin, "drop_event_type", pair.bad)
    pair.mend_it()
    pair.publish(pair.bad, 5, 16)
    pair.dispatch()
    assert pair.state() == ["active", "active"]
    assert value(pair.admin, "select count(*) from pgps_internal.broken_type") == 0
    assert take(pair.admin, "both") == [1, 2, 4, 12, 13, 14, 15, 3, 11, 5, 16]
    assert take(pair.admin, "some") == [12, 13, 14, 15, 11, 16]


def test_subscribers_of_the_type_itself_get_all_once(pair: Pair) -> None:
    pair.publish(pair.bad, 1)
    pair.dispatch()
    pair.publish(pair.bad, *range(2, 9))
    pair.break_it()
    pair.dispatch()
    # One who subscribes now gets what is published from now on.
    call(pair.admin, "subscribe", "late", "pair_b*")
    pair.mend_it()
    pair.publish(pair.bad, 9, 10)
    pair.dispatch()
    for name in (pair.bad, "stored"):
        assert take(pair.admin, name) == list(range(1, 11))
    assert take(pair.admin, "late") == [9, 10]
    pair.dispatch()
    assert numbers(pair.admin, pair.bad) == []
    assert column(pair.admin, "select failed from pgps.trouble_counts()") == []


def test_reclaim_keeps_what_is_set_aside_and_what_came_of_it(pair: Pair) -> None:
    pair.publish(pair.bad, 1)
    pair.break_it()
    pair.dispatch()
    pair.publish(pair.good, 2)
    pair.dispatch()
    # Another segment is in use then, so that this one could go.
    rows(pair.admin, "select setval('pgps_internal.event_id_seq', nextval('pgps_internal.event_id_seq') + 65536)")
    pair.publish(pair.good, 3)
    pair.dispatch()
    for name in (pair.good, "both", "some"):
        take(pair.admin, name)
    reclaim(pair)
    pair.mend_it()
    pair.dispatch()
    reclaim(pair)
    assert take(pair.admin, "both") == [1]
    assert take(pair.admin, "stored") == [1]
    reclaim(pair)
    assert take(pair.admin, pair.bad) == [1]
    reclaim(pair)
    assert value(pair.admin, "select count(*) from pgps_internal.set_aside") == 0
    assert value(pair.admin, "select count(*) from pgps_internal.pair_bad_log") == 0


def reclaim(pair: Pair) -> None:
    """Reclaim until nothing is left to reclaim."""
    while value(pair.admin, "select pgps.reclaim()"):
        pass


def test_a_type_that_is_taken_apart_holds_up_nobody_and_can_be_dropped(pair: Pair) -> None:
    for event_type in (pair.bad, pair.good):
        pair.publish(event_type, 1)
    pair.dispatch()
    pair.break_it()
    # What was matched before is received, also by those who get it with other types.
    query = "select (payload ->> 'n')::integer from pgps.receive('both')"
    assert column(pair.admin, query) == [1, 1]
    with refused("55000", pair.bad, "pgps.resume_event_type"):
        pair.publish(pair.bad, 2)
    rows(pair.admin, "alter table pgps_internal.pair_bad_log drop column xid cascade")
    rows(pair.admin, "select setval('pgps_internal.event_id_seq', nextval('pgps_internal.event_id_seq') + 65536)")
    pair.publish(pair.good, 2)
    pair.dispatch()
    for name in (pair.good, "some"):
        take(pair.admin, name)
    call(pair.admin, "unsubscribe", "both")
    reclaim(pair)
    assert value(pair.admin, f"select count(*) from pgps_internal.{pair.good}_log") == 1
    rows(pair.admin, "drop table pgps_internal.pair_bad_log cascade")
    rows(pair.admin, "select setval('pgps_internal.event_id_seq', nextval('pgps_internal.event_id_seq') + 65536)")
    pair.publish(pair.good, 3)
    pair.dispatch()
    assert take(pair.admin, pair.good) == [3]
    reclaim(pair)
    assert value(pair.admin, f"select count(*) from pgps_internal.{pair.good}_log") == 1
    call(pair.admin, "drop_event_type", pair.bad, True)
    assert pair.state() == ["active"]


def test_a_step_that_fails_for_no_lack_of_a_column_sets_the_type_aside_too(pair: Pair) -> None:
    type_id = value(pair.admin, "select type_id from pgps_internal.event_type where name = %s", [pair.bad])
    rows(pair.admin, f"drop function pgps_internal.part_ids_{type_id}")
    pair.publish(pair.bad, 1)
    pair.publish(pair.good, 2)
    pair.dispatch()
    pair.publish(pair.good, 3)
    pair.dispatch()
    assert take(pair.admin, pair.good) == [2, 3]
    assert pair.state() == ["set aside", "active"]
    assert f"part_ids_{type_id}" in value(pair.admin, "select last_error from pgps.event_types where name = 'pair_bad'")
    call(pair.admin, "resume_event_type", pair.bad)
    pair.dispatch()
    assert take(pair.admin, pair.bad) == [1]
    assert pair.state() == ["active", "active"]


def test_a_failure_that_has_passed_delays_nothing_for_long(pair: Pair) -> None:
    """A fault that is gone at the next attempt needs nobody."""
    rows(pair.admin, "create sequence public.attempts")
    type_id = value(pair.admin, "select type_id from pgps_internal.event_type where name = %s", [pair.bad])
    text = value(pair.admin, "select pg_get_functiondef(to_regproc(%s))", [f"pgps_internal.part_ids_{type_id}"])
    failing = "begin\n if nextval('public.attempts') < 3 then raise exception 'not now'; end if;"
    rows(pair.admin, text.replace("begin\n", failing, 1))
    pair.publish(pair.bad, 1, 2)
    pair.publish(pair.good, 3)
    pair.dispatch()
    assert take(pair.admin, pair.good) == [3]
    pair.dispatch()
    assert take(pair.admin, pair.bad) == [1, 2]
    assert pair.state() == ["active", "active"]


def test_a_filter_that_fails_is_not_the_types_fault(pair: Pair) -> None:
    call(pair.admin, "subscribe", "divides", pair.bad, filter="1 / (n - 3) >= 0")
    pair.publish(pair.bad, 2, 3, 4)
    pair.publish(pair.good, 5)
    pair.dispatch()
    assert pair.state() == ["active", "active"]
    assert take(pair.admin, "divides") == [4]
    assert take(pair.admin, pair.bad) == [2, 3, 4]
    assert column(pair.admin, "select subscription from pgps.exceptions") == ["divides"]


def test_a_type_that_is_set_aside_can_be_dropped(pair: Pair) -> None:
    pair.publish(pair.bad, 1)
    pair.break_it()
    pair.dispatch()
    call(pair.admin, "drop_event_type", pair.bad, True)
    pair.publish(pair.good, 2)
    pair.dispatch()
    assert take(pair.admin, "both") == [2]
    assert value(pair.admin, "select count(*) from pgps_internal.set_aside") == 0


def test_only_an_administrator_resumes_a_type(
    pair: Pair, connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    call(pair.admin, "resume_event_type", pair.good)
    with refused("42501"):
        call(connect(role("plain"), dsn=own_database), "resume_event_type", pair.good)
    with refused("42704", "nosuch"):
        call(pair.admin, "resume_event_type", "nosuch")


def test_a_type_that_is_resumed_while_another_one_is_dispatched_keeps_its_order(
    pair: Pair, connect: Connect, own_database: str
) -> None:
    both = "select format('drop function pgps_internal.part_ids_%s', type_id) from pgps_internal.event_type"
    for drop in column(pair.admin, both):
        rows(pair.admin, drop)
    pair.publish(pair.bad, 1)
    pair.dispatch()
    pair.publish(pair.good, 2)
    pair.publish(pair.bad, 3)
    pair.dispatch()
    pair.dispatch()
    assert pair.state() == ["set aside", "set aside"]
    call(pair.admin, "resume_event_type", pair.good)
    holder, dispatcher = connect(dsn=own_database, autocommit=False), connect(dsn=own_database)
    # Who dispatches has chosen the window of the good one, and waits before he takes it.
    for n in range(4):
        rows(holder, f"lock table pgps_internal.batch_{n} in share mode")
    with meanwhile(pair.admin, dispatcher, lambda: rows(dispatcher, "select pgps.dispatch()")):
        call(pair.admin, "resume_event_type", pair.bad)
        holder.rollback()
    pair.dispatch()
    assert pair.state() == ["active", "active"]
    assert take(pair.admin, pair.bad) == [1, 3]
    assert take(pair.admin, pair.good) == [2]
