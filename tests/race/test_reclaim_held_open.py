"""Who waits for a ledger that reclaim has locked reads what reclaim has carried over, not what was there before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, ids, make_type, meanwhile, numbers, publish, rows, sink, sunk, take, value
from tests.fix_clients import Client
from tests.fix_db import Connect
from tests.fix_spools import Member, Spool
from tests.fix_units import Party, make_service
from tests.sql.match.lane_steps import cut, make_filter, run_lanes, take_only

Held = Callable[..., AbstractContextManager[None]]
LOCKED = """
    select count(distinct relation) from pg_locks l where l.pid = %s and l.mode = 'AccessExclusiveLock' and l.granted
        and l.relation = any (array(select format('pgps_internal.%%s_%%s', t, n)::regclass::oid
            from unnest(%s::text[]) t, generate_series(0, 3) n))
"""
SERVICE = "shop/orders/book"


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "tick")
    return connection


@pytest.fixture
def reader(own_database: str, connect: Connect) -> psycopg.Connection:
    return connect(dsn=own_database)


@contextmanager
def reclaimed(
    broker: psycopg.Connection,
    reclaimer: psycopg.Connection,
    reader: psycopg.Connection,
    step: Callable[[], object],
    ledgers: dict[str, tuple[str, int]],
) -> Any:
    """Let ledgers go on in segments far ahead, and reclaim hold the old ones until the reader waits with its step."""
    for sequence, size in set(ledgers.values()):
        last = value(broker, f"select last_value from pgps_internal.{sequence}")
        rows(broker, f"select setval('pgps_internal.{sequence}', {(last // size + 2) * size})")
    rows(reclaimer, "select pgps.reclaim(100)")
    truncated = {name for name in ledgers if value(broker, LOCKED, [reclaimer.info.backend_pid, [name]])}
    assert truncated == set(ledgers)
    with meanwhile(broker, reader, step):
        waits = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
        assert value(broker, waits, [reader.info.backend_pid]), "the reader goes by the ledgers"
        yield
        reclaimer.commit()


@pytest.fixture
def held(own_database: str, connect: Connect, broker: psycopg.Connection, reader: psycopg.Connection) -> Held:
    def during(step: Callable[[], object], **ledgers: tuple[str, int]) -> AbstractContextManager[None]:
        reclaimer = connect(dsn=own_database, autocommit=False)
        return reclaimed(broker, reclaimer, reader, step, ledgers)

    return during


POSITION = {"position": ("position_id_seq", 262144)}


def test_a_callback_runs_no_event_again(broker: psycopg.Connection, reader: psycopg.Connection, held: Held) -> None:
    table = sink(broker, "tick")
    call(broker, "subscribe", "s", "tick", execute=table)
    publish(broker, "tick", 1, 2, 3)
    rows(broker, "select pgps.dispatch()")
    call(broker, "run_subscriber", "s")
    ran = []
    with held(lambda: ran.append(call(reader, "run_subscriber", "s")), **POSITION):
        pass
    assert ran == [0]
    assert sunk(broker, table) == [1, 2, 3]


@pytest.mark.parametrize("how", ["all", "up to one", "put back", "received rows"])
def test_what_a_consumer_has_received_stays_received(
    broker: psycopg.Connection, reader: psycopg.Connection, held: Held, how: str
) -> None:
    call(broker, "subscribe", "s", "tick")
    publish(broker, "tick", 1, 2, 3, 4)
    assert take(broker, "s") == [1, 2, 3, 4]
    publish(broker, "tick", 5, 6)
    rows(broker, "select pgps.dispatch()")
    first, last = ids(reader, "s")
    done: list[Any] = []
    steps: dict[str, Callable[[], object]] = {
        "all": lambda: call(reader, "ack", "s"),
        "up to one": lambda: call(reader, "ack", "s", first),
        "put back": lambda: call(reader, "nack", "s", last),
        "received rows": lambda: call(reader, "ack_each", ["s"]),
    }
    with held(lambda: done.append(steps[how]()), **POSITION):
        pass
    left = {"all": [], "up to one": [6], "put back": [6, 5], "received rows": []}[how]
    assert numbers(reader, "s") == left


def test_a_lane_is_where_it_was(broker: psycopg.Connection, reader: psycopg.Connection, held: Held) -> None:
    make_filter(broker)
    call(broker, "subscribe", "s", "tick", "public.good(n)")
    publish(broker, "tick", 1, 2)
    cut(broker)
    run_lanes(broker)
    assert take_only(broker, "s") == [1, 2]
    at = "select pgps_internal.lane_position(lane_id) from pgps_internal.lane"
    before, found = value(broker, at), []
    assert before > value(broker, "select from_batch from pgps_internal.lane")
    with held(lambda: found.append(value(reader, at)), lane_step=("lane_step_seq", 65536)):
        pass
    assert found == [before]


def test_a_client_goes_on_where_it_was(broker: psycopg.Connection, reader: psycopg.Connection, held: Held) -> None:
    client = Client(reader, "client")
    client.register("tick")
    for request in ("select 1", "select 2"):
        client.call("send_request", request)
        call(broker, "run_request", value(broker, "select request_no from pgps.claim_request()"))
    publish(broker, "tick", 1)
    rows(broker, "select pgps.dispatch()")
    assert client.receive() is not None
    client.call("commit_event", b"event")
    for _ in range(2):
        client.reply()
        client.call("commit_receive", b"reply")
    before: list[Any] = []
    seen = client.one("select * from pgps.connect_client(%s, %s, %s)", {"take_over": True})
    ledgers = {name: (f"{name}_id_seq", 16384) for name in ("client_mark", "client_checkpoint", "reply_mark")}
    ledgers |= dict.fromkeys(("request", "reply"), ("request_no_seq", 4096))

    def connect_again() -> None:
        before.append(client.one("select * from pgps.connect_client(%s, %s, %s)", {"take_over": True}))

    with held(connect_again, **ledgers):
        pass
    told = ["last_sent_request", "last_received_request", "last_committed_request", "last_committed_event"]
    told += ["event_checkpoint", "reply_checkpoint"]
    assert seen is not None
    assert [before[0][each] for each in told] == [seen[each] for each in told]
    assert client.call("send_request", "select 3") == 3


def test_what_a_member_had_is_known(broker: psycopg.Connection, reader: psycopg.Connection, held: Held) -> None:
    call(broker, "create_spool", "s")
    spool = Spool(broker, "s")
    member = Member(broker, spool, "m")
    spool.spool(1, 2)
    assert len(member.received(1)) == 1
    member.ack()
    had = "select pgps_internal.somebody_had(spool_id, 1) from pgps_internal.spool where name = 's'"
    told: list[bool] = []
    with held(lambda: told.append(value(reader, had)), spool_mark=("spool_mark_id_seq", 16384)):
        pass
    assert told == [True]


OF_UNITS = ("conversation", "conversation_state", "unit", "unit_commit", "unit_message", "session_hand")
UNITS = dict.fromkeys(OF_UNITS, ("uow_no_seq", 65536))


@pytest.mark.parametrize("step", ["send", "commit", "hand", "state", "conversation", "find"])
def test_a_unit_of_work_goes_on(broker: psycopg.Connection, reader: psycopg.Connection, connect: Connect,
                                own_database: str, held: Held, step: str) -> None:  # fmt: skip
    make_service(broker, SERVICE, deferred=True)
    client, server = Party(connect(dsn=own_database), "c"), Party(reader, "s").serve(SERVICE)
    talk = client.request(SERVICE, "bound", lifetime="1 year")["conversation"]
    assert server.text("new") == "bound"
    server.sync("commit")
    asked = client.send("first", talk, option="sync", lifetime="1 year", status_lifetime=254)["uow_id"]
    client.send("second", talk)
    client.sync("commit", asked)
    assert [server.text(talk), server.text(talk)] == ["first", "second"]
    answer = server.send("answer", talk)["uow_id"]
    number = int(talk[1:], 16)
    session = value(broker, "select max(session_id) from pgps_internal.session_hand where held <> '{}'")
    done: list[Any] = []
    steps: dict[str, Callable[[], object]] = {
        "send": lambda: server.send("more", talk)["uow_id"],
        "commit": lambda: len(server.both(talk)),
        "hand": lambda: value(reader, "select cardinality((pgps_internal.hand_of(%s)).held)", [session]),
        "state": lambda: value(reader, "select (pgps_internal.state_of(%s)).version", [number]),
        "conversation": lambda: value(reader, "select (pgps_internal.conversation_of(%s)).is_uow", [number]),
        "find": lambda: value(reader, "select pgps_internal.first_commit_at(%s) is not null", [number]),
    }
    with held(lambda: done.append(steps[step]()), **UNITS):
        pass
    expected = {"send": answer, "commit": 2, "hand": 1, "state": 1, "conversation": True, "find": True}
    assert done == [expected[step]]
