"""What could be written down, but neither indexed nor read where a batch is cut: it would hold up all spools."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import call, refused, rows, value
from tests.fix_spools import Spool

# Random, so that it cannot be compressed.
_LETTERS = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", k=9000))
_DIGITS = "1" + "".join(random.Random(1).choices("0123456789", k=20_000))
# 144 kB, of which each number has 131 kB as text.
_WIDE = "[" + ",".join(["1e131071"] * 9000) + "]"


def refused_at_once(spool: Spool, said: str, message: str, keys: str | None, keywords: list[str] | None) -> None:
    """Refused by each way in, and another message is numbered."""
    with refused("54000", said):
        rows(
            spool.connection,
            "select pgps.spool(%s, 1, %s::jsonb, %s::jsonb, %s::text[])",
            [spool.name, message, keys, keywords],
        )
    query = """
        select pgps.spool_many(%s, jsonb_build_array(jsonb_build_object('entry', 1, 'message', 1),
            jsonb_build_object('entry', 1, 'message', %s::jsonb, 'keys', %s::jsonb, 'keywords', %s::text[])))
    """
    with refused("54000", said):
        rows(spool.connection, query, [spool.name, message, keys, keywords])
    with refused("54000", said):
        rows(
            spool.connection,
            "select pgps.spool_and_discard(%s, 1, %s::jsonb, %s::jsonb, %s::text[])",
            [spool.name, message, keys, keywords],
        )
    spool.spool(7)
    assert spool.contents() == {1: 7}


@pytest.mark.parametrize("keys", [f'{{"{_LETTERS}": 1}}', f'{{"K": {_DIGITS}}}'])
def test_keys_that_no_index_takes_are_refused(spool: Spool, keys: str) -> None:
    refused_at_once(spool, "the keys of a message have", "1", keys, None)


def test_keywords_without_measure_are_refused(spool: Spool) -> None:
    refused_at_once(spool, "the keywords of a message have", "1", None, [_LETTERS] * 120)


def test_a_small_message_with_a_long_text_is_refused(spool: Spool) -> None:
    refused_at_once(spool, "more than 200000000 bytes", _WIDE, None, None)


@pytest.mark.parametrize("message", ["1e131071", "[" + ",".join(["1e131071"] * 900) + "]", '{"a": {"b": [1e15000]}}'])
def test_a_message_that_is_far_longer_as_text_is_refused(spool: Spool, message: str) -> None:
    refused_at_once(spool, "numbers in a message have too many digits", message, None, None)


def test_keys_that_are_far_longer_as_text_are_refused(spool: Spool) -> None:
    refused_at_once(spool, "numbers in a message have too many digits", "1", '{"K": 1e131071}', None)


def test_every_float_can_be_spooled(spool: Spool) -> None:
    message: list[Any] = [1.7976931348623157e308, -1.7976931348623157e308, 5e-324, 2.2250738585072014e-308, 1e308, 0]
    for one in (*message, message, message * 100, "\u0001" * 100, [True] * 100, [[]] * 100, ["\x7f"], {}, None):
        call(spool.connection, "spool", spool.name, 1, Jsonb(one))
    spool.dispatch()
    assert spool.standing("last_seqn") == 14


def test_a_message_from_a_table_is_measured_as_it_is_read(spool: Spool) -> None:
    # Stored compressed, in less than 3 kB.
    spool.connection.execute("create temporary table long_text (message jsonb, keys jsonb)")
    spool.connection.execute("insert into long_text select %s::jsonb, %s::jsonb", [_WIDE, f'{{"{"x" * 9000}": 1}}'])
    assert value(spool.connection, "select pg_column_size(message) < 8000 from long_text")
    for arguments, said in (("message", "200000000"), ("'1', keys", "the keys")):
        with refused("54000", said):
            rows(spool.connection, f"select pgps.spool(%s, 1, {arguments}) from long_text", [spool.name])
    spool.connection.execute("drop table long_text")


def test_what_is_long_and_can_be_read_is_spooled(spool: Spool) -> None:
    messages: list[Any] = ["x" * 1_000_000, list(range(20_000)), {"a": "y" * 15_000}]
    for message in messages:
        call(spool.connection, "spool", spool.name, 1, Jsonb(message))
    rows(
        spool.connection,
        "select pgps.spool(%s, 1, '4', %s::jsonb, %s::text[])",
        [spool.name, Jsonb({f"{n}{_LETTERS[:150]}": n for n in range(9)}), [_LETTERS] * 100],
    )
    spool.call("spool", 1, "5", Jsonb({"K": 1e300, "L": -1e-300}))
    assert list(spool.contents().values()) == [*messages, 4, 5]


def test_ages_that_reach_before_all_times_are_refused(spool: Spool, admin: psycopg.Connection) -> None:
    with refused("22023", "retention", "1000 years"):
        call(admin, "spool_advise", spool.name, retention="10000 years")
    with refused("22023", "retention", "1000 years"):
        call(admin, "create_spool", "of_old", retention="10000 years")
    call(admin, "spool_advise", spool.name, retention="1000 years")
    spool.spool(1)
    rows(admin, "select pgps.reclaim(1000000)")
    assert spool.contents() == {1: 1}
    with refused("22023", "spooled_ago"):
        spool.replay(spooled_ago=["10000 years", "0"])


@pytest.mark.parametrize("pointer", [2**63 - 1, -(2**63)])
def test_a_checkpoint_pointer_at_the_end_of_all_numbers_stops_nobody(spool: Spool, pointer: int) -> None:
    spool.spool(1, keys='{"K": 1}')
    spool.spool(2, keys='{"K": 2}')
    spool.call("spool_set_replay_pointer", 2)
    spool.call("spool_set_checkpoint_pointer", pointer)
    expected = 1 if pointer < 0 else 0
    assert spool.replay(keys='{"K": [1, 1]}') == expected
    assert spool.replay() == 2 * expected
    with spool.connection.transaction():
        spool.connection.execute("select pgps.spool_set_checkpoint_pointer(%s, %s)", [spool.name, pointer])
        assert spool.replay(keys='{"K": [1, 1]}') == expected
    spool.spool(3)
    assert spool.contents() == {1: 1, 2: 2, 3: 3}
