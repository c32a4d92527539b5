"""The ledgers of clients are reclaimed, and what is the newest of its kind outlives that."""

from __future__ import annotations

from tests.fix_broker import call, make_type, publish, rows, value
from tests.fix_clients import Client
from tests.fix_db import Connect

LEDGERS = {"client_mark": 16384, "client_checkpoint": 16384, "reply_mark": 16384, "request_no": 4096}


def test_where_a_client_is_outlives_the_segment_it_was_noted_in(own_database: str, connect: Connect) -> None:
    admin = connect(dsn=own_database)
    make_type(admin, "tick")
    client = Client(connect(dsn=own_database), "client")
    client.register("tick")
    for number in (1, 2):
        publish(admin, "tick", number)
    rows(admin, "select pgps.dispatch()")
    for request in ("select 1", "select 2"):
        client.call("send_request", request)
        number = value(admin, "select request_no from pgps.claim_request()")
        call(admin, "run_request", number)
    client.receive()
    client.call("commit_event", b"event")
    client.reply()
    client.call("commit_receive", b"reply")

    def turn(place: int) -> None:
        for ledger, size in LEDGERS.items():
            sequence = f"pgps_internal.{ledger}_seq" if ledger == "request_no" else f"pgps_internal.{ledger}_id_seq"
            rows(admin, "select setval(%s, %s)", [sequence, size * place + 5])
        rows(admin, "select pgps.reclaim(100)")

    turn(1)
    assert value(admin, "select count(*) from pgps_internal.reply_rows where request_no = 2") == 1, "not completed"
    again = Client(client.connection, "client")
    assert again.before is not None
    assert client.before is not None
    kept = again.before
    assert [kept[f"last_{what}_request"] for what in ("sent", "received", "committed")] == [2, 1, 1]
    assert (kept["event_checkpoint"], kept["reply_checkpoint"]) == (b"event", b"reply")
    assert kept["last_received_event"] == kept["last_committed_event"] is not None
    second, reply = again.receive(), again.reply()
    assert second is not None
    assert reply is not None
    assert (second["numbers"], reply["request_id"], reply["rows"]) == ([2], 2, [{"?column?": 2}])
    again.call("commit_receive")
    for place in (2, 3):
        turn(place)
    sizes = "select sum(pg_relation_size(format('pgps_internal.%%s_0', l)::regclass)) from unnest(%s::text[]) l"
    ledgers = ["client_mark", "client_checkpoint", "reply_mark", "request", "reply", "request_attempt"]
    assert value(admin, sizes, [ledgers]) == 0
    open_again = Client(client.connection, "client").receive_again()
    assert open_again is not None
    assert open_again["numbers"] == [2]
    assert client.call("send_request", "select 3") == 3


def test_what_a_client_has_in_hand_stays_its_newest_when_an_older_mark_is_kept(
    own_database: str, connect: Connect
) -> None:
    admin = connect(dsn=own_database)
    client = Client(connect(dsn=own_database), "client")
    for event_type in ("tick", "tock"):
        make_type(admin, event_type)
        client.register(event_type)
    publish(admin, "tick", 1)
    rows(admin, "select pgps.dispatch()")
    assert client.taken() == [[1]]
    rows(admin, "select setval('pgps_internal.client_mark_id_seq', %s)", [LEDGERS["client_mark"] + 5])
    publish(admin, "tock", 2)
    publish(admin, "tock", 3)
    rows(admin, "select pgps.dispatch()")
    received = client.receive()
    assert received is not None
    assert received["numbers"] == [2]
    rows(admin, "select pgps.reclaim(100)")
    assert value(admin, "select pg_relation_size('pgps_internal.client_mark_0')") == 0
    again = client.receive_again()
    assert again is not None
    assert again["numbers"] == [2], "it is in hand"
    assert client.taken() == [[3]], "and completed when the next is asked for"
    publish(admin, "tick", 4)
    rows(admin, "select pgps.dispatch()")
    assert client.taken() == [[4]], "what was completed before does not come again"
