"""A request that is cancelled as it ends: its session executes the next one meanwhile, which is not meant."""

from __future__ import annotations

import threading
from typing import Any

import psycopg

from tests.fix_broker import call, rows, value
from tests.fix_clients import Client
from tests.fix_db import Connect, wait_until

# Who cancels knows which session executes the request, and has not cancelled it yet.
_LATE = """
    create or replace function pgps_internal.clock() returns timestamptz language plpgsql volatile as $$
    begin
        if current_setting('application_name') = 'canceller' then
            perform pg_advisory_xact_lock(2);
        end if;
        return clock_timestamp();
    end $$
"""


def test_a_cancellation_meets_no_other_request(connect: Connect, own_database: str) -> None:
    client = Client(connect(dsn=own_database), "client")
    worker, canceller, admin = (connect(dsn=own_database) for _ in range(3))
    rows(admin, "create table public.done (n integer)")
    for n in (1, 2):
        client.call(
            "send_request", f"with a as materialized (select pg_advisory_xact_lock_shared({n * 10})) "
            f"insert into public.done select {n} from a"
        )  # fmt: skip
    rows(admin, "select pg_advisory_lock(n) from unnest(array[10, 20, 2]) n")
    rows(canceller, "set application_name = 'canceller'")
    rows(admin, _LATE)
    outcomes: list[Any] = []

    def work() -> None:
        while claimed := rows(worker, "select request_no from pgps.claim_request()"):
            try:
                outcomes.append(call(worker, "run_request", claimed[0][0]))
            except psycopg.errors.QueryCanceled:
                outcomes.append("cancelled")
                assert call(worker, "fail_request", claimed[0][0], "57014", "it took longer")

    def waits(session: psycopg.Connection, *, lock: str, key: int | None = None) -> bool:
        query = """
            select exists (select from pg_locks where pid = %s and not granted and locktype = %s
                and (%s::integer is null or objid = %s::integer))
        """
        return bool(value(admin, query, [session.info.backend_pid, lock, key, key]))

    working = threading.Thread(target=work)
    cancelling = threading.Thread(target=lambda: rows(canceller, "select pgps.cancel_running_requests()"))
    working.start()
    wait_until(lambda: waits(worker, lock="advisory", key=10))
    assert client.call("cancel_request", 1)
    cancelling.start()
    wait_until(lambda: waits(canceller, lock="advisory", key=2))
    rows(admin, "select pg_advisory_unlock(10)")
    # It waits for who is about to cancel it; else it would be at the next request by now.
    wait_until(lambda: waits(worker, lock="transactionid") or waits(worker, lock="advisory", key=20))
    rows(admin, "select pg_advisory_unlock(2)")
    cancelling.join()
    rows(admin, "select pg_advisory_unlock(20)")
    working.join()
    assert outcomes == ["cancelled", "done"]
    assert rows(admin, "select n from public.done") == [(2,)]
    found = [client.reply() for _ in range(2)]
    assert [f and (f["request_id"], f["sqlstate"]) for f in found] == [(1, "57014"), (2, None)]
