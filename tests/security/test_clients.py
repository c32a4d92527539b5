"""What a role can do through requests and forged calls about clients: nothing that it could not do itself."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import call, column, endpoint, quoted, refused, rows, value
from tests.fix_clients import Client
from tests.security.conftest import Mallory, may_fail

Name = Callable[..., str]
VERBS = [
    "receive_event", "re_receive_event", "commit_event", "fetch_tuples", "fetch_direct", "receive_reply",
    "re_receive_reply", "fetch_reply", "commit_receive", "connect_client", "nothing",
]  # fmt: skip


def execute(admin: psycopg.Connection) -> None:
    """Execute all that waits, as a superuser would."""
    while claimed := rows(admin, "select request_no from pgps.claim_request()"):
        call(admin, "run_request", claimed[0][0])


def test_a_request_does_what_its_sender_may_do(mallory: Mallory, name: Name) -> None:
    client = Client(mallory.connection, name("client"))
    schema = mallory.schema
    win = mallory.define("win()")
    trigger = mallory.define("late()", "trigger", "null")
    rows(mallory.connection, f"create table {schema}.t (n integer)")
    rows(
        mallory.connection,
        f"create constraint trigger late after insert on {schema}.t deferrable initially deferred "
        f"for each row execute function {trigger}()",
    )
    mallory.shadow()
    rows(mallory.connection, f"set search_path = {schema}, pg_catalog")
    rows(
        mallory.connection,
        f"create function {schema}.lazy() returns integer language sql as 'select {win}(); select 1'",
    )
    become = f"alter role {quoted(mallory.role)} superuser"
    requests = [
        become, f"reset role; {become}", f"set session authorization postgres; {become}", f"commit; {become}",
        f"select {win}()", f"select {schema}.lazy() from generate_series(1, 3)",
        f"insert into {schema}.t values (1)", f"set constraints all deferred; insert into {schema}.t values (1)",
        f"declare c cursor with hold for select {schema}.lazy()", f"prepare p as {become}; select 1",
        f"prepare pgps_probe as select {win}()", f"select set_config('search_path', '{schema}', false)",
        "select set_config('role', 'postgres', false)", "select * from pgps_internal.client",
        f"select pgps_internal.note_reply(null, '', null, null, null, null, null, null), {win}()",
        f"do $$ begin perform {win}(); end $$", f"create temp table pg_class as select {win}()", "select 1 as last",
    ]  # fmt: skip
    for request in requests:
        client.call("send_request", request)
    execute(mallory.admin)
    assert not mallory.has_won()
    assert rows(mallory.admin, "select name from pg_prepared_statements where from_sql") == []
    assert value(mallory.admin, "select current_user = session_user")
    found = [client.reply() for _ in requests]
    assert found[-1] is not None
    assert found[-1]["rows"] == [{"last": 1}]
    assert found[6] is not None
    assert found[6]["status"] == "done", "a deferred trigger runs at once, as who sent the request"


@pytest.mark.parametrize("verb", VERBS)
def test_forged_calls_about_clients_end_in_an_error_of_their_own(mallory: Mallory, name: Name, verb: str) -> None:
    mine = Client(mallory.connection, name("client"))
    other = Client(mallory.admin, name("client"))
    forged: list[dict[str, object]] = [
        {}, {"client": None}, {"client": {}}, {"client": other.name, "session": other.session},
        {"client": mine.name, "session": "x"}, {"client": mine.name, "session": 0},
        {"client": mine.name, "after": "x", "notes": {}, "max": -1, "event_name": "'"},
        {"client": mine.name, "notes": [[]], "max": 2**40},
    ]  # fmt: skip
    for args in forged:
        with may_fail("08", "22", "42", "55"):
            rows(mallory.connection, "select pgps._call_client(%s, %s, %s)", [verb, Jsonb(args), b"x"])
    for column_name in ("caller", "result", "blobs", "handed", "payloads"):
        with may_fail("42"):
            rows(mallory.connection, f"insert into pgps_entry.client_calls (verb, {column_name}) values ('x', null)")
    assert other.call("client_channels")


def test_what_only_a_worker_may_call_is_refused_to_others(mallory: Mallory) -> None:
    for function in (
        "claim_request()", "run_request(1)", "fail_request(1, 'x', 'x')", "release_request(1)", "pending_requests()",
        "cancel_running_requests()", "raise_confirming()", "retry_direct()",
    ):  # fmt: skip
        with refused("42501"):
            rows(mallory.connection, f"select pgps.{function}")


def test_what_belongs_to_others_is_not_shown(mallory: Mallory, name: Name) -> None:
    client = Client(mallory.admin, name("client"))
    client.register(quoted(mallory.event_type))
    client.call("send_request", "select 1")
    execute(mallory.admin)
    for named in ({}, {"session": client.session}):
        with refused("42501", "belongs to role"):
            call(mallory.connection, "cancel_request", client.name, 1, **named)
    for view in ("clients", "registrations", "requests"):
        assert rows(mallory.connection, f"select * from pgps.{view}") == []
    rows(mallory.admin, f"revoke select on {endpoint(mallory.event_type)} from public")
    assert column(mallory.connection, "select confirming from pgps.confirm_events") == []
    client.drop()
