"""The detector as Spark's tasks run it, key by key from stored text, and the SQL that they evaluate."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from composite.described import define_from
from pgps.errors import BadArgument, BrokerError, WrongState
from pgps_spark.detecting.evaluating import condition_of, value_of
from pgps_spark.detecting.keyed import Detected, Job, Row, take
from pgps_spark.detecting.language import read
from tests.unit.composite.histories import CONTEXTS, detected, history
from tests.unit.composite.test_vectors import VECTORS, A, B

COLUMNS = {
    name: {"n": "int", "price": "float", "size": "decimal", "s": "text", "at": "time", "day": "date", "j": "other"}
    for name in ("a", "b")
}


def job_of(expression: str, intervals: tuple[str, ...] = (), **given: Any) -> Job:
    """Return the job of a definition whose events have a name."""
    whole = {"expression": expression, "time_basis": "event", "lateness": "300000 days", "max_open": 1000, **given}
    types = {one.type for one in define_from(whole).aliases}
    return Job(json.dumps(whole), intervals, json.dumps({name: {"name": "text"} for name in types}), ())


def rows_of(job: Job, text: str) -> list[Row]:
    """Return a history, each event once for each leaf that it is one of."""
    leaves = [alias.type for alias in define_from(json.loads(job.given)).aliases]
    return [
        Row(
            leaf, event.time or 0, event.position, event.type, event.position, None, json.dumps({"name": event.payload})
        )
        for event in history(text)
        for leaf, name in enumerate(leaves)
        if name == event.type
    ]


def told(found: list[Detected]) -> list[tuple[int, list[str]]]:
    """Return when something was detected, and the names of its events."""
    parts = [(one.detected, json.loads(one.constituents)) for one in found]
    return sorted((at, [part["payload"]["name"] for part in all_ if "payload" in part]) for at, all_ in parts)


def in_steps(job: Job, rows: list[Row], *, cut: int, end: int) -> list[tuple[int, list[str]]]:
    """Return what is detected in steps of some rows, state being text in between, and time behind each of them."""
    found: list[Detected] = []
    stored: str | None = None
    for start in range(0, len(rows), cut):
        part = rows[start : start + cut]
        later = rows[start + cut :]
        step = take(job, "[]", part, stored, later[0].at if later else end)
        stored, found = step.state, found + step.found
    return told(found)


@pytest.mark.parametrize(("expression", "text"), [(expression, text) for expression, text, _ in VECTORS])
def test_each_vector_is_detected_in_steps_as_at_once(expression: str, text: str) -> None:
    for context in CONTEXTS:
        job = job_of(expression, context=context)
        rows = rows_of(job, text)
        whole = told(take(job, "[]", rows, None, 100).found)
        wanted = [int(one.split(":")[0]) for one in detected(expression, context, text, now=100, max_open=1000).split()]
        assert [at for at, _ in whole] == sorted(wanted)
        for cut in (1, 2):
            assert in_steps(job, rows, cut=cut, end=100) == whole, f"{expression} in {context}, {cut} at a time"


def test_intervals_keep_their_order() -> None:
    given = sorted((end, start, name) for name, all_ in {"a": A, "b": B}.items() for start, end in all_)
    rows = [
        Row("ab".index(name), end, place, name, place, None, "{}", start, end)
        for place, (end, start, name) in enumerate(given, 1)
    ]
    found = take(job_of("a ; b", ("a", "b")), "[]", rows, None, 100).found
    assert [(one.starts, one.ends) for one in found] == [(8, 12)]


def test_a_key_says_when_time_has_something_to_do() -> None:
    job = job_of("not(b)[a, + '5 us']", context="chronicle")
    step = take(job, "[]", rows_of(job, "a1@10"), None, 11)
    assert (step.due, step.found) == (15, [])
    # Time that brings nothing changes nothing.
    assert take(job, "[]", [], step.state, 15).due == 15
    later = take(job, "[]", [], step.state, 16)
    assert (later.state, later.due, told(later.found)) == (None, None, [(15, ["a1"])])


@pytest.mark.parametrize("given", [{"partition_by": "name"}, {}])
def test_a_key_begins_with_its_earliest_event_whichever_came_first(given: dict[str, Any]) -> None:
    job = job_of("a ; every('10 us')", **given)
    rows = rows_of(job, "a1@30 a2@5 a3@17")
    whole = told(take(job, "[1]", rows, None, 55).found)
    stored: str | None = None
    found: list[Detected] = []
    for part, frontier in ((rows[:1], 0), (rows[1:2], 3), (rows[2:], 55)):
        step = take(job, "[1]", part, stored, frontier)
        stored, found = step.state, found + step.found
    assert told(found) == whole == [(10, ["a2"]), (20, ["a3"]), (30, ["a1"]), (40, ["a1"]), (50, ["a1"])]


def test_what_has_too_many_constituents_is_told_with_the_reason_and_ends_nothing() -> None:
    job = job_of("P*(a, '0.000001 s', b)", context="chronicle")
    found = take(job, "[]", rows_of(job, "a1@0 b1@200000 a2@200001 b2@200004"), None, 300_000).found
    assert [one.error for one in found] == ["an occurrence has more than 100,000 constituents", None]
    assert [len(json.loads(one.constituents)) for one in found] == [3, 4]


def test_state_of_another_definition_is_refused() -> None:
    step = take(job_of("a ; b"), "[]", rows_of(job_of("a ; b"), "a1@1"), None, 2)
    with pytest.raises(WrongState, match="another definition") as caught:
        take(job_of("a ; c"), "[]", [], step.state, 3)
    assert caught.value.sqlstate == "55000"


def test_events_wait_each_for_itself_though_their_order_begins_anew_with_each_time() -> None:
    job = job_of("a ; b", context="chronicle")
    first, second = Row(0, 10, 1, "a", 7, None, '{"name":"a7"}'), Row(0, 20, 1, "a", 8, None, '{"name":"a8"}')
    later = [Row(1, 30 + n, 1, "b", 9 + n, None, f'{{"name":"b{9 + n}"}}') for n in (0, 1)]
    step = take(job, "[]", [first], None, 5)
    # The first happens when the second begins to wait; and one that comes again while it waits is one event.
    step = take(job, "[]", [second], step.state, 15)
    step = take(job, "[]", [second], step.state, 16)
    found = take(job, "[]", later, step.state, 100).found
    assert told(found) == [(30, ["a7", "b9"]), (31, ["a8", "b10"])]


@pytest.mark.parametrize("is_waiting", [False, True])
def test_two_events_that_nothing_puts_in_order_are_refused(is_waiting: bool) -> None:
    """One of them would be lost, or another one's payload be taken for its own."""
    job = job_of("a ; b", context="chronicle")
    one, other = Row(0, 10, 1, "a", 7, None, '{"name":"a7"}'), Row(1, 10, 1, "b", 8, None, '{"name":"b8"}')
    stored = take(job, "[]", [one], None, 5).state if is_waiting else None
    with pytest.raises(BadArgument, match=r"events 7 and 8 .* the same order") as caught:
        take(job, "[]", [other] if is_waiting else [one, other], stored, 5)
    assert (caught.value.sqlstate, "order_by" in (caught.value.hint or "")) == ("22023", True)


def test_what_the_filter_raises_and_what_is_given_up_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    given = {"partition_by": "n", "filter": "b.n / a.n > 2", "context": "chronicle", "max_open": 2}
    whole = {"expression": "a ; b", "time_basis": "event", "lateness": "300000 days", **given}
    job = Job(json.dumps(whole), (), json.dumps({name: {"n": "int"} for name in "ab"}), ())
    rows = [Row(0, n, n, "a", n, None, '{"n":0}') for n in range(1, 4)]
    step = take(job, '["0"]', rows, None, 5)
    assert caplog.messages == ['max_open is reached, and 1 open occurrences were given up; key ["0"]']
    other = Job(json.dumps({**whole, "max_open": 9}), (), job.kinds, ())
    rows.append(Row(1, 9, 9, "b", 9, None, '{"n":1}'))
    step = take(other, '["0"]', rows, None, 10)
    assert step.found == []
    assert "the filter raised 3 times" in caplog.messages[1]
    assert "division by zero" in caplog.messages[1]
    # It happens with each event; the log does not fill up.
    take(other, '["1"]', rows, None, 10)
    assert len(caplog.messages) == 2


def value(text: str, a: Any = None, b: Any = None, sets: str = "") -> Any:
    return value_of(read(text, "filter", COLUMNS, frozenset(sets)), {"a": a, "b": b})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("b.price > 1.05 * a.price", True),
        ("b.n / a.n", -3),
        ("b.n % a.n", -1),
        ("b.n / 2.0", Decimal("-3.5")),
        ("- a.n - -1", -1),
        ("a.n = null", None),
        ("a.n = null or a.n = 2", True),
        ("a.n = null and a.n = 3", False),
        ("not a.n = null", None),
        ("b.size is null and a.size is not null", True),
        ("b.size > a.size", None),
        ("coalesce(b.size, a.size, 1)", Decimal("0.5")),
        ("a.s || ':' || b.n", "IBM:-7"),
        ("a.s in ('X', 'IBM') and a.n not between 3 and 4", True),
        ("a.s like 'I_M' and b.s not like 'i%'", True),
        ("b.s like '100\\%'", True),
        ("lower(a.s) = 'ibm' and length(a.s) = 3 and abs(b.n) = 7", True),
        ("b.at - a.at >= interval '1 hour 30 min'", True),
        ("a.at + interval '30 min' > timestamptz '2026-03-01 12:29+00'", True),
        ("b.day - a.day", 1),
        ("a.day + 1 = b.day", True),
        ("b.n = '-7'", True),
    ],
)  # fmt: skip
def test_sql_has_the_value_that_postgresql_gives_it(text: str, wanted: Any) -> None:
    at = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
    a = {"n": 2, "price": 100.0, "size": Decimal("0.5"), "s": "IBM", "at": at, "day": at.date()}
    later = at + dt.timedelta(minutes=90)
    b = {"n": -7, "price": 106.0, "s": "100%", "at": later, "day": at.date() + dt.timedelta(days=1)}
    assert value(text, a, b) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a.price = a.price", True), ("a.price <> a.price", False), ("a.price > b.price", True),
        ("b.price < a.price", True), ("a.price <= b.price", False), ("b.price >= a.price", False),
        ("a.price > 'infinity'", True), ("a.price >= 5", True), ("b.price < 1.5", False),
    ],
)  # fmt: skip
def test_nan_has_the_place_that_postgresql_gives_it(text: str, wanted: bool, admin: psycopg.Connection) -> None:
    sql = text.replace("a.price", "'nan'::float8").replace("b.price", "2::float8")
    assert admin.execute(f"select {sql}".encode()).fetchone() == (wanted,)
    assert value(text, {"price": math.nan}, {"price": 2.0}) is wanted


def test_sets_are_aggregated() -> None:
    rows = [{"n": 1}, {"n": 4}, {}]
    assert value("count(b) = 3 and count(b.n) = 2 and sum(b.n) = 5 and avg(b.n) = 2.5", b=rows, sets="b") is True
    assert value("min(b.n) + max(b.n * 2)", b=rows, sets="b") == 9
    assert value("sum(b.n)", b=[], sets="b") is None
    prices = [{"price": price} for price in (1.0, math.nan, -1.0)]
    assert value("min(b.price)", b=prices, sets="b") == -1.0
    assert math.isnan(value("max(b.price)", b=prices, sets="b"))
    with pytest.raises(ZeroDivisionError):
        value("1 / a.n", {"n": 0})


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        ("a.n > (select 1)", "0A000"), ("f(a.n) > 1", "0A000"), ("now() > a.at", "0A000"), ("a.s < 'X'", "0A000"),
        ("a.s ~ 'X'", "0A000"), ("a.j = 1", "0A000"), ("c.n = 1", "0A000"), ("a.s + 1", "0A000"),
        ("a.nothing = 1", "42703"), ("a.n = 'x'", "22023"), ("a.at > '2026-03-01'", "22023"), ("a.n +", "42601"),
        ("a.n and true", "42804"), ("a.n a.n", "0A000"), ("count(a) > 1", "0A000"), ("lower(a.n) = 'x'", "0A000"),
        ("coalesce(a.n, a.s) = 1", "0A000"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(text: str, sqlstate: str) -> None:
    with pytest.raises(BrokerError) as caught:
        read(text, "filter", COLUMNS)
    assert (caught.value.sqlstate, bool(caught.value.hint)) == (sqlstate, True)


def test_predicates_are_written_for_spark() -> None:
    node = read("price > 1.5 and s = 'X''\\' and n / 2 = 1 and not day is null", "predicate", {"": COLUMNS["a"]})
    assert condition_of(node) == (
        r"((((`price` > 1.5BD) and (`s` = 'X\'\\')) and ((`n` div 2) = 1)) and (not (`day` is null)))"
    )
