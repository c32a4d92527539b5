"""What lies at the edge: replays that wait, pointers ahead, depth, odd arguments."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import call, refused, rows, value
from tests.fix_db import Connect
from tests.fix_spools import Member, Spool

_NETWORK = ("create_network", "sweden", ["host=127.0.0.1 port=1 dbname=none"])


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    return connect(dsn=own_database)


@pytest.fixture
def own(broker: psycopg.Connection) -> Spool:
    """A spool of a broker where nobody else dispatches."""
    call(broker, "create_spool", "s")
    return Spool(broker, "s")


def test_a_replay_begins_behind_one_that_waits_for_dispatch(own_database: str, connect: Connect, own: Spool) -> None:
    own.spool(1, 2, 3)
    own.pointer(3)
    member = Member(connect(dsn=own_database), own, "m")
    asker = Spool(connect(dsn=own_database, autocommit=False), "s")
    call(own.connection, "spool_set_checkpoint_pointer", "s", 1)
    assert asker.replay(seqn="[1,1]") == 1
    own.dispatch()
    asker.connection.commit()
    assert own.replay(seqn="[2,2]") == 1
    got = []
    for _ in range(3):
        got += member.take()
        own.dispatch()
    assert got == [[1], "|", [2], "|"]


def test_a_checkpoint_pointer_ahead_of_all_repeats_nothing_that_comes(
    own_database: str, connect: Connect, own: Spool
) -> None:
    own.spool(1, 2, 3, 4, 5)
    own.pointer(3)
    own.checkpoint_at(6)
    member = Member(connect(dsn=own_database), own, "m", replay=True)
    own.spool(6)
    assert member.take() == ["|", 4, 5, 6]


def test_a_network_is_not_dropped_by_who_has_just_spooled_for_it(own_database: str, connect: Connect) -> None:
    session = connect(dsn=own_database, autocommit=False)
    call(session, *_NETWORK)
    session.commit()
    call(session, "spool", "s", 1, "1", network="sweden")
    with refused("2BP01", "1 messages", "sweden"):
        call(session, "drop_network", "sweden")


def test_networks_go_with_the_event_type_of_spools(broker: psycopg.Connection) -> None:
    call(broker, *_NETWORK)
    call(broker, "drop_event_type", "pgps_spool", cascade=True)
    call(broker, "create_spool", "s")
    with refused("42704", "sweden"):
        call(broker, "spool", "s", 1, "1", network="sweden")
    call(broker, *_NETWORK)
    assert call(broker, "spool", "s", 1, "1", network="sweden")
    call(broker, "drop_network", "sweden", cascade=True)
    assert rows(broker, "select name from pgps.networks") == []


def test_a_network_without_its_spool_can_be_dropped(broker: psycopg.Connection) -> None:
    call(broker, *_NETWORK)
    rows(broker, "delete from pgps_internal.spool")
    with refused("42704", "sweden", "drop_network"):
        call(broker, "spool", "s", 1, "1", network="sweden")
    call(broker, "drop_network", "sweden")


@pytest.mark.parametrize("shape", ['[{"a": %s}]', "%s"])
def test_no_message_is_nested_too_deep(own: Spool, shape: str) -> None:
    deep = shape % ("[" * 1200 + "]" * 1200)
    connection = own.connection
    for query in (
        "select pgps.spool('s', 1, %s::jsonb)",
        "select pgps.spool_and_discard('s', 1, %s::jsonb)",
        """select pgps.spool_many('s', jsonb_build_array('{"entry": 1.0, "message": 1}'::jsonb,
            jsonb_build_object('entry', 1, 'message', %s::jsonb)))""",
    ):
        with refused("54000", "1000 deep"):
            rows(connection, query, [deep])
    rows(connection, "select pgps.spool('s', 1, %s::jsonb)", ["[" * 900 + '"]"' + "]" * 900])


def test_a_checkpoint_that_is_too_large_drops_nothing(own: Spool) -> None:
    call(own.connection, "spool_advise", "s", max_bytes=100, on_limit="drop_oldest")
    own.spool(1, 2, 3)
    with refused("54000", "202 bytes", "100"):
        own.call("spool_and_discard", 1, f'"{"x" * 200}"')
    assert own.contents() == {1: 1, 2: 2, 3: 3}


@pytest.mark.parametrize(
    "more", [{"entry": 1.0}, {"network": "LOCAL"}, {"expires": "infinity"}, {"expires": "2096-01-31 12:00"}]
)
def test_arguments_count_by_their_value(own: Spool, more: dict[str, object]) -> None:
    call(own.connection, "spool_many", "s", Jsonb([{"entry": 1, "message": 7} | more]))
    own.dispatch()
    assert own.contents() == {1: 7}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"expires": "soon"}, "soon"),
        ({"expires": "2026-02-31T00:00:00Z"}, "2026-02-31"),
        ({"expires": 5}, "expires"),
        ({"sender": 5}, "sender 5"),
        ({"network": {}}, "network {}"),
    ],
)
def test_odd_arguments_of_the_second_message_are_refused_in_words(
    own: Spool, more: dict[str, object], said: str
) -> None:
    first = {"entry": 1234567890, "message": 1}
    with refused("22023", said):
        call(own.connection, "spool_many", "s", Jsonb([first, {"entry": 1, "message": 7} | more]))


@pytest.mark.parametrize("delivery", [0, -(2**63)])
def test_no_delivery_has_such_an_id(own_database: str, connect: Connect, own: Spool, delivery: int) -> None:
    member = Member(connect(dsn=own_database), own, "m")
    own.spool(1)
    member.received()
    with refused("22023", str(delivery)):
        value(member.connection, "select pgps.ack_spooled('s', 'm', %s::bigint)", [delivery])
