"""What units of work leave behind: no dead rows, queues that are read from a low mark on, space that comes back."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from tests.fix_broker import call, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect, wait_until
from tests.fix_units import Party
from tests.sql.units.conftest import SERVICE

LEDGERS = """
    select coalesce(sum(s.n_tup_upd + s.n_tup_del), 0) from pg_stat_user_tables s
    where s.schemaname = 'pgps_internal' and s.relname ~
        '^(conversation|conversation_state|unit|unit_commit|unit_state|unit_message|unit_note|session_hand|queue_low)_\\d'
"""
MARK = "select low_no, left_behind from pgps_internal.queue_low order by low_no desc limit 1"


def serve_all(server: Party) -> list[str]:
    served: list[str] = []
    while (text := server.text("new")) is not None:
        served.append(text)
        server.sync("commit")
    return served


def test_nothing_is_updated_or_deleted_and_the_low_mark_moves(
    broker: psycopg.Connection, party: Callable[..., Party], own_database: str, connect: Connect
) -> None:
    old = connect(dsn=own_database, autocommit=False)
    rows(old, "set transaction isolation level repeatable read; select 1")
    client, server = party("c"), party("s").serve(SERVICE)
    for n in range(80):
        client.send(str(n), to_service=SERVICE, option="commit")
    assert serve_all(server) == [str(n) for n in range(80)]
    client.send("last", to_service=SERVICE, option="commit")
    assert serve_all(server) == ["last"]
    ((low, left),) = rows(broker, MARK)
    assert value(broker, "select count(*) from pgps_internal.unit_commit where entry_no <= %s", [low]) >= 64
    assert left == []
    rows(server.connection, "select pg_stat_force_next_flush()")
    rows(client.connection, "select pg_stat_force_next_flush()")
    rows(broker, "select pg_stat_clear_snapshot()")
    assert value(broker, LEDGERS) == 0


def test_the_low_mark_forgets_nobody(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    """Held units, and those whose transactions commit late, are below it and come all the same."""
    client, server, holder = party("c"), party("s").serve(SERVICE), party("h").serve(SERVICE)
    old, young = party("old", autocommit=False), party("young", autocommit=False)
    rows(old.connection, "select pg_current_xact_id()")
    client.send("held", to_service=SERVICE, option="commit")
    assert holder.text("new") == "held"
    for n in range(40):
        client.send(str(n), to_service=SERVICE, option="commit")
    for late in (young, old):
        late.send(f"late {late.connection.info.backend_pid}", to_service=SERVICE, option="commit")
    for n in range(40, 100):
        client.send(str(n), to_service=SERVICE, option="commit")
    assert serve_all(server) == [str(n) for n in range(100)]
    client.send("more", to_service=SERVICE, option="commit")
    assert serve_all(server) == ["more"]
    ((low, left),) = rows(broker, MARK)
    assert len(left) == 1
    assert low > value(broker, "select min(entry_no) from pgps_internal.unit_commit")
    for late in (old, young):
        late.connection.commit()
        assert serve_all(server) == [f"late {late.connection.info.backend_pid}"]
    holder.sync("backout")
    assert serve_all(server) == ["held"]


def test_a_call_that_finds_nothing_writes_nothing(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    """Servers are woken together, and most of them find nothing: the low mark is moved by one that does."""
    client, server, idle = party("c"), party("s").serve(SERVICE), party("i", autocommit=False).serve(SERVICE)
    idle.connection.commit()
    conversation = ""
    for n in range(20):
        conversation = client.send(str(n), to_service=SERVICE, option="commit")["conversation"]
    assert len(serve_all(server)) == 20
    assert idle.receive("new") is None
    assert idle.receive("old") is None
    assert value(idle.connection, "select pg_current_xact_id_if_assigned() is null")
    with client.connection.transaction():
        assert client.receive(conversation) is None
        assert value(client.connection, "select pg_current_xact_id_if_assigned() is null")


def skip_to_next_segment(broker: psycopg.Connection) -> None:
    """Go on with the numbers of the next segment, as if the ones up to it were used."""
    rows(broker, "select setval('pgps_internal.uow_no_seq', (last_value / 65536 + 1) * 65536) "
         "from pgps_internal.uow_no_seq")  # fmt: skip


def test_space_comes_back(broker: psycopg.Connection, party: Callable[..., Party], clock: Clock) -> None:
    client, server = party("c"), party("s").serve(SERVICE)
    kept = client.request(SERVICE, "kept", "more", lifetime="1 year", user_status="here")
    done = client.request(SERVICE, "done", status_lifetime=254, lifetime="1 day")["uow_id"]
    bound = client.request(SERVICE, "bound", lifetime="1 year")
    assert server.text("new") == "kept"
    server.sync("backout")
    for text, unit in (("kept", kept), ("done", None), ("bound", None)):
        assert server.text("new") == text
        if unit is None:
            server.sync("commit", value(broker, "select uow_id from pgps.units_of_work where status = 'DELIVERED' "
                                        "order by uow_id desc limit 1"))  # fmt: skip
    server.sync("backout", kept["uow_id"])
    client.send("bound 2", bound["conversation"], option="commit", lifetime="1 year")
    for n in range(50):
        client.send(str(n), to_service=SERVICE, option="commit")
    while (row := server.receive("any")) is not None:
        if row["conversation"] in (kept["conversation"], bound["conversation"]):
            continue
        server.sync("commit", row["uow_id"])
    server.call("logoff")
    clock.advance("2 days")
    assert value(broker, "select count(*) from pgps_internal.unit_0") > 50
    for _ in range(2):
        skip_to_next_segment(broker)
    client.send("new", to_service=SERVICE, option="commit")
    ledgers = ("conversation", "unit", "unit_commit", "unit_state", "unit_message", "conversation_state")
    left = " union all ".join(f"(select '{ledger}' from pgps_internal.{ledger}_0 limit 1)" for ledger in ledgers)

    def is_empty() -> bool:
        # A segment that autovacuum has at this moment is left for the next time.
        return call(broker, "reclaim") == 0 and rows(broker, left) == []

    wait_until(is_empty, what="the segments are empty")
    assert value(broker, "select count(*) from pgps_internal.unit") < 6
    # What is needed was carried over: states, messages, user status, bindings, the order.
    assert client.status(done) == "PROCESSED"
    server.call("logon", "s")
    server.serve(SERVICE)
    assert server.text("old") == "bound 2"
    row = server.receive("new")
    assert row is not None
    assert (bytes(row["message"]), row["attempts"], row["user_status"]) == (b"kept", 3, "here")
    assert server.text("old") == "more"
    assert server.text("new") == "new"
    assert call(broker, "reclaim") == 0


def test_what_is_needed_of_a_segment_is_asked_at_once(broker: psycopg.Connection, party: Callable[..., Party]) -> None:
    """Who begins or commits a unit waits for as long as the segment is locked."""
    client, server = party("c"), party("s").serve(SERVICE)
    for n in range(60):
        client.send(str(n), to_service=SERVICE, option="commit")
    assert len(serve_all(server)) == 60
    for n in range(60):
        client.send(str(n), to_service=SERVICE, option="commit")
    for _ in range(2):
        skip_to_next_segment(broker)
    client.send("new", to_service=SERVICE, option="commit")
    asked = "select coalesce(sum(calls), 0) from pg_stat_xact_user_functions where funcname = any (%s)"
    with broker.transaction():
        rows(broker, "set local track_functions = 'all'")
        assert value(broker, "select pgps_internal.reclaim_units()") > 0
        assert value(broker, asked, [["_this_life"]]) < 30
        assert value(broker, asked, [["clock", "hand_of", "setting", "state_of"]]) < 60
    assert serve_all(server) == [*(str(n) for n in range(60)), "new"]


def test_what_a_session_has_in_hand_is_not_that_of_an_older_segment(
    broker: psycopg.Connection, party: Callable[..., Party]
) -> None:
    """Segments that are not reclaimed come round: the newest one has rows of four segments before."""
    client, server = party("c"), party("s").serve(SERVICE)
    client.send("first", to_service=SERVICE, option="commit")
    assert serve_all(server) == ["first"]
    skip_to_next_segment(broker)
    skip_to_next_segment(broker)
    client.send("second", to_service=SERVICE, option="commit")
    assert server.text("new") == "second"
    skip_to_next_segment(broker)
    skip_to_next_segment(broker)
    client.send("third", to_service=SERVICE, option="commit")
    assert server.sync("commit")["status"] == "PROCESSED"
    assert serve_all(server) == ["third"]


def test_what_is_committed_late_is_found_in_any_segment(
    broker: psycopg.Connection, party: Callable[..., Party]
) -> None:
    """The low mark has gone past it in the segment that it is in, or in the next one."""
    client, server = party("c"), party("s").serve(SERVICE)
    before, within = party("before", autocommit=False), party("within", autocommit=False)
    before.connection.commit()
    within.connection.commit()
    before.send("before", to_service=SERVICE, option="commit")
    for portion in range(4):
        if portion % 2 == 0:
            skip_to_next_segment(broker)
        texts = [f"{portion} {n}" for n in range(40)]
        for n, text in enumerate(texts):
            if portion == 1 and n == 8:
                within.send("within", to_service=SERVICE, option="commit")
            client.send(text, to_service=SERVICE, option="commit")
        assert serve_all(server) == texts
    ((low, _),) = rows(broker, MARK)
    assert low > 65536 * 2
    for late in (within, before):
        late.connection.commit()
        assert serve_all(server) == [late.token]
