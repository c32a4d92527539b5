"""Events that cannot be handed out as JSON hold up nobody: what is valid json may have no jsonb."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, rows, value
from tests.fix_clients import Client
from tests.fix_db import Connect

# What the type json takes, and jsonb does not.
_BAD = ['"\\u0000"', "1e400000", '{"a": "\\ud800"}']
_STATES = ["22P05", "22003", "22P02"]


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    session = connect(dsn=own_database)
    make_type(session, "doc", "n integer, body json")
    return session


def publish(broker: psycopg.Connection, *bodies: str, kind: str = "doc", cast: str = "j") -> None:
    """Publish events numbered from 1, each with a document."""
    for n, body in enumerate(bodies, 1):
        rows(broker, f"insert into pgps_event.{kind} select %s, {cast} from (values (%s::json)) x(j)", [n, body])
    rows(broker, "select pgps.dispatch()")


def drained(broker: psycopg.Connection, verb: str, max_events: int, name: str = "s") -> list[list[int]]:
    """Receive until nothing comes: the numbers that each call gave."""
    found: list[list[int]] = []
    while True:
        received = column(broker, f"select (payload ->> 'n')::integer from pgps.{verb}(%s, %s)", [name, max_events])
        if not received:
            return found
        found.append(received)
        if verb == "receive":
            rows(broker, "select pgps.ack(%s)", [name])


@pytest.mark.parametrize("max_events", [1, 2, 100])
@pytest.mark.parametrize("handler", ["all", "any"])
@pytest.mark.parametrize("verb", ["receive", "take"])
def test_what_jsonb_does_not_take_goes_to_the_exception_queue_and_the_others_come_in_order(
    broker: psycopg.Connection, verb: str, handler: str, max_events: int
) -> None:
    call(broker, "subscribe", "s", "doc", handler=handler)
    publish(broker, "1", _BAD[0], "3", "4", _BAD[1], _BAD[2], "7")
    assert [n for part in drained(broker, verb, max_events) for n in part] == [1, 3, 4, 7]
    found = rows(broker, "select n, sqlstate, state, body::text from pgps_queue.doc_exception order by n")
    assert found == [(n, state, "failed", bad) for n, state, bad in zip((2, 5, 6), _STATES, _BAD, strict=True)]
    said = column(broker, "select error from pgps_queue.doc_exception order by n")
    for error, bad in zip(said, _BAD, strict=True):
        assert 'attribute "body"' in error
        assert bad in error
        assert "pgps_queue.doc_receive" in error
    assert value(broker, "select pgps.retry_exception('doc')") == 3
    assert drained(broker, verb, max_events) == []
    assert column(broker, "select distinct state from pgps_queue.doc_exception") == ["failed"], "it is as it was"
    publish(broker, "{}")
    assert drained(broker, verb, max_events) == [[1]]


@pytest.mark.parametrize("verb", ["receive", "take"])
def test_competing_consumers_file_what_is_no_json_behind_what_another_one_holds(
    broker: psycopg.Connection, connect: Connect, own_database: str, verb: str
) -> None:
    call(broker, "subscribe", "s", "doc", handler="any")
    publish(broker, "1", _BAD[0], "3", "4")
    other = connect(autocommit=False, dsn=own_database)
    assert column(other, f"select payload ->> 'n' from pgps.{verb}('s', 1)") == ["1"]
    assert drained(broker, verb, 1) == [[3], [4]]
    assert column(broker, "select n from pgps_queue.doc_exception") == [2]
    other.rollback()
    assert drained(broker, verb, 1) == [[1]]


@pytest.mark.parametrize(
    ("attribute", "cast"),
    [
        ("json[]", "array[j]"),
        ("holder", "row(j, 1)::holder"),
        ("holder[]", "array[row(j, 1)::holder]"),
        ("some_json", "j::some_json"),
        ("mood", "'bad'::mood"),
    ],
)
def test_it_is_the_same_wherever_json_is_within(broker: psycopg.Connection, attribute: str, cast: str) -> None:
    rows(broker, "create type holder as (j json, k integer)")
    rows(broker, "create domain some_json as json")
    rows(broker, "create type mood as enum ('good', 'bad')")
    rows(
        broker,
        "create function says(mood) returns json language plpgsql as $$ begin"
        " if $1 = 'bad' then raise exception 'no word for it'; end if; return to_json($1::text); end $$",
    )
    rows(broker, "create cast (mood as json) with function says(mood)")
    make_type(broker, "within", f"n integer, x {attribute}")
    call(broker, "subscribe", "s", "within")
    rows(broker, "insert into pgps_event.within values (0, null)")
    publish(broker, _BAD[0], kind="within", cast=cast)
    rows(broker, "insert into pgps_event.within values (2, null)")
    rows(broker, "select pgps.dispatch()")
    assert drained(broker, "receive", 100) == [[0, 2]]
    assert rows(broker, "select n, error like '%%attribute \"x\"%%' from pgps_queue.within_exception") == [(1, True)]


def test_what_is_due_by_the_time_that_one_cannot_be_told_comes_before_it(broker: psycopg.Connection) -> None:
    rows(broker, "create type mood as enum ('good', 'bad')")
    # Until it has failed, what was put back has become due.
    rows(
        broker,
        "create function says(mood) returns json language plpgsql as $$ begin"
        " if $1 = 'bad' then perform pg_sleep(0.4); raise exception 'no word for it'; end if;"
        " return to_json($1::text); end $$",
    )
    rows(broker, "create cast (mood as json) with function says(mood)")
    make_type(broker, "within", "n integer, x mood")
    call(broker, "subscribe", "s", "within")
    rows(broker, "insert into pgps_event.within values (1, 'good'), (2, 'bad'), (3, 'good')")
    rows(broker, "select pgps.dispatch()")
    (first,) = column(broker, "select event_id from pgps.receive('s', 1)")
    rows(broker, "select pgps.nack('s', %s, 'not now', '300 milliseconds')", [first])
    assert drained(broker, "receive", 1) == [[1], [3]]
    assert column(broker, "select n from pgps_queue.within_exception") == [2]


def test_a_subscription_to_a_prefix_gets_the_others(broker: psycopg.Connection) -> None:
    make_type(broker, "document", "n integer")
    call(broker, "subscribe", "s", "doc*")
    rows(broker, "insert into pgps_event.document values (0)")
    publish(broker, "1", _BAD[0], "3")
    assert [n for part in drained(broker, "receive", 100) for n in part] == [0, 1, 3]
    assert column(broker, "select n from pgps_queue.doc_exception") == [2]


def test_many_of_them_are_filed_at_once(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "doc")
    rows(
        broker,
        "insert into pgps_event.doc select n, case when n % 100 = 0 then '{}' else '\"\\u0000\"' end::json"
        " from generate_series(1, 2000) n",
    )
    rows(broker, "select pgps.dispatch()")
    assert drained(broker, "receive", 1000) == [[*range(100, 2100, 100)]]
    assert value(broker, "select count(*) from pgps_queue.doc_exception where state = 'failed'") == 1980


def test_as_rows_and_by_a_callback_it_is_taken(broker: psycopg.Connection) -> None:
    rows(broker, "create table seen (n integer, body text)")
    rows(
        broker,
        "create function see(e pgps_event.doc) returns void language sql as"
        " 'insert into seen values (e.n, e.body::text)'",
    )
    call(broker, "subscribe", "s", "doc")
    call(broker, "subscribe", "i", "doc", execute="see")
    publish(broker, "1", *_BAD)
    rows(broker, "call pgps.run_subscribers()")
    expected = [(n, text) for n, text in enumerate(["1", *_BAD], 1)]
    assert rows(broker, "select n, body from seen order by n") == expected
    assert rows(broker, "select n, body::text from pgps_queue.doc_receive(array['s'], 10)") == expected


@pytest.mark.parametrize(
    ("attribute", "cast"),
    [("json", "j"), ("json[]", "array[j]"), ("holder", "row(j, 1)::holder"), ("some_json", "j::some_json")],
)
@pytest.mark.parametrize("handler", ["all", "any"])
def test_rows_have_it_also_when_competing_consumers_share_it_or_it_was_put_back(
    broker: psycopg.Connection, handler: str, attribute: str, cast: str
) -> None:
    rows(broker, "create type holder as (j json, k integer)")
    rows(broker, "create domain some_json as json")
    make_type(broker, "rec", f'n integer, "name" {attribute}, at timestamptz[], more {attribute}')
    call(broker, "subscribe", "s", "rec", handler=handler)
    call(broker, "subscribe", "other", "rec")
    for n, body in enumerate(["1", *_BAD], 1):
        published = f"insert into pgps_event.rec select %s, {cast}, array[now()] from (values (%s::json)) x(j)"
        rows(broker, published, [n, body])
    rows(broker, "select pgps.dispatch()")
    expected = rows(broker, "select n, name::text, at, more from pgps_queue.rec_log order by n")
    received = "select pgps_event_id, n, name::text, at, more from pgps_queue.rec_receive(array['s'], 10) order by 1"
    first = rows(broker, received)
    assert [row[1:] for row in first] == expected
    call(broker, "nack", "s", first[1][0])
    call(broker, "ack", "s")
    assert [row[1:] for row in rows(broker, received)] == expected[1:2]
    assert rows(broker, "select * from pgps_queue.rec_exception where state = 'failed'") == []
    assert column(broker, "select payload ->> 'n' from pgps.receive('other')") == ["1"], "as JSON it cannot be had"


def test_a_setting_that_a_program_has_left_behind_hides_nothing(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "doc")
    publish(broker, "1", *_BAD)
    for mode in ("or null", "as texts"):
        rows(broker, "select set_config('pgps.payloads', %s || ' in ' || pg_current_xact_id(), false)", [mode])
        assert drained(broker, "receive", 10) in ([[1]], [])
    assert value(broker, "select count(*) from pgps_queue.doc_exception where state = 'failed'") == 3


def test_an_error_of_another_kind_is_raised_as_it_is(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "s", "doc")
    publish(broker, "1")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="invalid max_events"):
        rows(broker, "select from pgps.receive('s', -1)")


def test_the_log_has_its_attributes_and_no_payload(broker: psycopg.Connection) -> None:
    publish(broker, "1", *_BAD)
    found = rows(broker, "select n, body::text, payload is null from pgps_queue.doc_log order by event_id")
    assert found == [(1, "1", False), *((n, bad, True) for n, bad in enumerate(_BAD, 2))]


@pytest.mark.parametrize("mode", ["queued", "direct"])
def test_a_registered_client_is_told_of_it_without_its_payload(
    broker: psycopg.Connection, connect: Connect, own_database: str, mode: str
) -> None:
    client = Client(connect(dsn=own_database), "c")
    client.register("doc", mode)
    expected = [[(1, True)], [(None, False)], [(3, True)]]
    found = []
    for n, body in enumerate(["1", _BAD[0], "3"], 1):
        rows(broker, "insert into pgps_event.doc values (%s, %s)", [n, body])
        rows(broker, "select pgps.dispatch()")
        if mode == "direct":
            query = "select (payload ->> 'n')::integer, payload is not null from pgps.fetch_direct('c', %s)"
            found.append(rows(client.connection, query, [client.notes(waits=True)]))
        else:
            assert client.one("select * from pgps.receive_event('c')")
            query = "select (payload ->> 'n')::integer, payload is not null from pgps.fetch_tuples('c')"
            found.append(rows(client.connection, query))
    assert found == expected


def test_levels_that_are_too_deep_hold_up_nobody(broker: psycopg.Connection) -> None:
    """The publisher's statement needs less of the stack than those around an event that is handed out."""
    call(broker, "subscribe", "s", "doc")
    low, high = 100, 100_000
    while high - low > 1:
        depth = (low + high) // 2
        try:
            rows(broker, "insert into pgps_event.doc select 1, (repeat('[', %s) || repeat(']', %s))::json", [depth] * 2)
            low = depth
        except psycopg.errors.StatementTooComplex:
            high = depth
    publish(broker, "7")
    received = [n for part in drained(broker, "receive", 100) for n in part]
    failed = value(broker, "select count(*) from pgps_queue.doc_exception")
    assert failed > 0
    assert len(received) + failed == value(broker, "select count(*) from pgps_queue.doc_log")
