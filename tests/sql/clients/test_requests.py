"""Queued requests and their replies."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, refused, rows, value
from tests.fix_clients import Client
from tests.fix_clock import Clock
from tests.fix_db import Connect, wait_until
from tests.sql.clients.gone import hang_up

Name = Callable[..., str]


@pytest.fixture
def client(connect: Connect, own_database: str) -> Client:
    """A client in a database of its own: whoever executes requests takes those of all."""
    return Client(connect(dsn=own_database), "client")


@pytest.fixture
def worker(connect: Connect, own_database: str) -> psycopg.Connection:
    return connect(dsn=own_database)


def execute(worker: psycopg.Connection) -> list[str]:
    """Execute what waits, as a worker does; return how each request ended."""
    ended: list[str] = []
    while claimed := rows(worker, "select request_no from pgps.claim_request()"):
        ended.append(call(worker, "run_request", claimed[0][0]))
    return ended


def test_replies_come_in_the_order_of_the_requests_and_match_them(client: Client, worker: psycopg.Connection) -> None:
    assert [client.call("send_request", f"select {n} as n") for n in (1, 2)] == [1, 2]
    assert client.call("send_request", "select 7 as n", 7) == 7
    assert client.reply() is None
    assert execute(worker) == ["done"] * 3
    found = [client.reply() for _ in range(3)]
    assert [f and (f["request_id"], f["rows"], f["columns"]) for f in found] == [
        (1, [{"n": 1}], ["n"]), (2, [{"n": 2}], ["n"]), (7, [{"n": 7}], ["n"]),
    ]  # fmt: skip
    assert client.reply() is None


def test_a_request_sent_again_is_one_request(client: Client, worker: psycopg.Connection) -> None:
    for _ in range(2):
        assert client.call("send_request", "select 1", 1) == 1
    assert client.call("send_request", "select 2") == 2
    assert len(execute(worker)) == 2
    with refused("22023", "request id 0"):
        client.call("send_request", "select 1", 0)
    with refused("22023", "null"):
        client.call("send_request", None)


def test_a_request_that_was_cancelled_is_answered_in_its_turn_and_has_no_effect(
    client: Client, worker: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    rows(worker, "create table public.done (n integer)")
    for n in range(1, 5):
        client.call("send_request", f"insert into public.done values ({n})")
    with client.connection.transaction(force_rollback=True):
        assert client.call("cancel_request", 1)
    assert [client.call("cancel_request", n) for n in (2, 2)] == [True, True]
    admin = connect(dsn=own_database)
    assert call(admin, "cancel_request", client.name, 3), "an administrator may"
    assert execute(worker) == ["done", "done"]
    found = [client.reply() for _ in range(4)]
    assert [f and (f["request_id"], f["sqlstate"], f["attempts"]) for f in found] == [
        (1, None, 1), (2, "57014", 0), (3, "57014", 0), (4, None, 1),
    ]  # fmt: skip
    assert column(worker, "select n from public.done order by n") == [1, 4]
    assert not client.call("cancel_request", 4)
    for number in (5, None):
        with refused("42704", "has sent no request"):
            client.call("cancel_request", number)
    other = Client(connect(dsn=own_database), client.name, take_over=True)
    with refused("08003"):
        client.call("cancel_request", 4, session=client.session)
    assert not other.call("cancel_request", 4)


def test_any_statement_can_be_a_request(client: Client, worker: psycopg.Connection) -> None:
    requests = [
        "create table public.made (n integer, t text)",
        "insert into public.made values (1, 'a'), (2, null) returning t, n;",
        "with gone as (delete from public.made where n = 1 returning n) select * from gone",
        "update public.made set n = 3",
        "select n, t from public.made; select 5",
        "show search_path",
        "explain select 1",
        "select 'NaN'::numeric as x, array[1, 2] as y, '2000-01-01'::date as z",
        "select 1 where false",
        "",
        "select 1/0",
        "selekt",
        "commit",
        "select count(*) from public.made -- a comment",
    ]
    for request in requests:
        client.call("send_request", request)
    execute(worker)
    found = [client.reply() for _ in requests]
    assert [f and (f["row_count"], f["sqlstate"]) for f in found] == [
        (0, None), (2, None), (1, None), (1, None), (1, None), (1, None), (1, None), (1, None), (0, None), (0, None),
        (None, "22012"), (None, "42601"), (None, "0A000"), (1, None),
    ]  # fmt: skip
    assert found[1] is not None
    assert (found[1]["rows"], found[1]["columns"]) == ([{"n": 1, "t": "a"}, {"n": 2, "t": None}], ["t", "n"])
    assert found[7] is not None
    assert found[7]["rows"] == [{"x": "NaN", "y": [1, 2], "z": "2000-01-01"}]
    assert found[10] is not None
    assert (found[10]["status"], found[10]["error"]) == ("failed", "division by zero")


def test_a_reply_comes_again_until_it_is_completed_and_the_checkpoint_with_it(
    connect: Connect, own_database: str, client: Client, worker: psycopg.Connection
) -> None:
    for n in (1, 2):
        client.call("send_request", f"select {n} as n")
    execute(worker)
    client.reply()
    with refused("55006", "the reply to request 1"):
        client.call("disconnect_client")
    hang_up(client, worker)
    client = Client(connect(dsn=own_database), "client")
    assert client.before is not None
    ids = [client.before[f"last_{what}_request"] for what in ("sent", "received", "committed")]
    assert ids == [2, 1, None]
    again = client.one("select * from pgps.re_receive_reply(%s)")
    assert again is not None
    assert again["request_id"] == 1
    assert client.call("commit_receive", b"one") == 1
    assert client.call("commit_receive") is None
    client.reply()
    client.call("commit_receive")
    client.call("disconnect_client")
    assert Client(client.connection, "client").before["reply_checkpoint"] == b"one"  # type: ignore[index]


def test_effects_and_reply_are_one_transaction(client: Client, worker: psycopg.Connection) -> None:
    rows(worker, "create table public.made (n integer)")
    client.call("send_request", "insert into public.made values (1)")
    ((number,),) = rows(worker, "select request_no from pgps.claim_request()")
    rows(worker, "begin")
    call(worker, "run_request", number)
    assert client.reply() is None
    rows(worker, "rollback")
    assert execute(worker) == ["done"]
    assert call(worker, "run_request", number) is None, "not a second time"
    assert not call(worker, "fail_request", number, "57014", "late")
    assert column(worker, "select n from public.made") == [1]


def test_requests_of_one_client_run_one_after_the_other_and_of_two_side_by_side(
    connect: Connect, own_database: str, client: Client, worker: psycopg.Connection
) -> None:
    other = Client(connect(dsn=own_database), "other")
    for sender in (client, other):
        for n in (1, 2):
            sender.call("send_request", f"select {n}")
    assert value(worker, "select pgps.pending_requests()") == 2
    ((first,),) = rows(worker, "select request_no from pgps.claim_request()")
    rows(worker, "begin")
    call(worker, "run_request", first)
    second = connect(dsn=own_database)
    assert value(second, "select pgps.pending_requests()") == 1
    assert execute(second) == ["done", "done"], "those of the other"
    rows(worker, "commit")
    assert execute(second) == ["done"]


def test_a_request_that_a_living_session_is_about_to_execute_is_claimed_by_no_other(
    connect: Connect, own_database: str, client: Client, worker: psycopg.Connection, clock: Clock
) -> None:
    # Otherwise both have claimed it when it is answered, and one of them counts as a session that it has ended.
    claim = "select request_no from pgps.claim_request()"
    for number in (1, 2, 3):
        client.call("send_request", f"select {number}")
    quicker, gone = connect(dsn=own_database), connect(dsn=own_database)
    ((first,),) = rows(quicker, claim)
    assert rows(worker, claim) == []
    assert call(quicker, "run_request", first) == "done"
    ((second,),) = rows(gone, claim)
    pid = gone.info.backend_pid
    gone.close()
    wait_until(lambda: not rows(worker, "select from pg_stat_activity where pid = %s", [pid]), what="it is gone")
    assert rows(worker, claim) == [(second,)], "who is gone does not execute it"
    assert call(worker, "run_request", second) == "done"
    assert execute(worker) == ["done"]
    assert column(worker, "select attempts from pgps.requests order by request_id") == [1, 2, 1]
    client.call("send_request", "select 4")
    (last,) = rows(quicker, claim)
    clock.advance("2 seconds")
    assert rows(worker, claim) == [last], "nor one that hangs"


def test_a_reply_of_many_rows_is_walked_in_groups(client: Client, worker: psycopg.Connection) -> None:
    client.call("send_request", "select g as n from generate_series(1, 5500) g")
    client.call("send_request", "select g as n, repeat(md5(g::text), 5000) as t from generate_series(1, 20) g")
    execute(worker)
    client.one("select * from pgps.receive_reply(%s)")
    seen: list[int] = []
    query = "select row_number, (payload ->> 'n')::integer from pgps.fetch_reply(%s, %s, 700)"
    while group := rows(client.connection, query, [client.name, len(seen)]):
        assert [number for number, _ in group] == list(range(len(seen) + 1, len(seen) + len(group) + 1))
        seen += [n for _, n in group]
    assert seen == list(range(1, 5501))
    assert rows(client.connection, query, [client.name, 9223372036854775807]) == []
    with refused("22023", "after -1"):
        rows(client.connection, query, [client.name, -1])
    reply = client.reply()
    assert reply is not None
    assert [row["n"] for row in reply["rows"]] == list(range(1, 21))
    assert value(worker, "select max(cardinality(payloads)) from pgps_internal.reply_rows where request_no = 2") < 20


def test_what_a_request_must_not_leave_behind_fails_it(client: Client, worker: psycopg.Connection) -> None:
    for request in (
        "select set_config('statement_timeout', '5', false)",
        "declare c cursor with hold for select 1",
        "set role postgres",
        "select 1",
    ):
        client.call("send_request", request)
    execute(worker)
    assert column(worker, "select sqlstate from pgps.requests order by request_id") == ["55000", "0A000", "42501", None]
    assert value(worker, "select current_setting('statement_timeout')") == "0"
    assert rows(worker, "select name from pg_cursors where is_holdable") == []


def test_a_statement_may_need_what_the_one_before_it_makes(client: Client, worker: psycopg.Connection) -> None:
    client.call("send_request", "create table public.made (n int); insert into public.made values (1), (2)")
    client.call("send_request", "select n from public.made; select n from public.nowhere")
    assert execute(worker) == ["done", "failed"]
    assert value(worker, "select count(*) from public.made") == 2
    replies = [client.reply(), client.reply()]
    assert [reply and reply["sqlstate"] for reply in replies] == [None, "42P01"]


def test_a_date_in_a_request_is_the_day_that_it_is_for_its_sender(client: Client, worker: psycopg.Connection) -> None:
    rows(client.connection, "set datestyle = 'SQL, DMY'; set timezone = 'Asia/Tokyo'")
    client.call("send_request", "select extract(month from date '01/02/2024') as m, current_setting('timezone') as z")
    assert execute(worker) == ["done"]
    assert value(worker, "show datestyle") == "ISO, MDY"
    rows(client.connection, "reset datestyle")
    reply = client.reply()
    assert reply is not None
    assert reply["rows"] == [{"m": 2, "z": "Asia/Tokyo"}]
