"""`pgps publish`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Pgps

Name = Callable[..., str]


@pytest.fixture
def quote(name: Name, done: Callable[..., str]) -> str:
    """An advertised event type."""
    made = name("quote")
    done("type", "create", made, "symbol text not null, price numeric", "--advertise")
    return made


def published(pgps: Pgps, quote: str) -> list[Any]:
    """Return what is in the in queue, oldest first, as [symbol, price]."""
    events = pgps("queue", "show", f"{quote}_in", "--limit", "1000000", "--json").json["events"]
    return [[event["symbol"], event["price"]] for event in reversed(events)]


def test_an_object_or_an_array_is_published(pgps: Pgps, quote: str) -> None:
    told = pgps("publish", quote, '{"symbol": "A", "price": 1.50}', "--json").json
    assert told["events"] == 1
    assert pgps("publish", quote, '[{"symbol": "B"}, {"symbol": "C", "price": 3}]').status == 0
    assert published(pgps, quote) == [["A", 1.5], ["B", None], ["C", 3]]


def test_no_digit_is_lost_on_the_way(pgps: Pgps, quote: str) -> None:
    number = "12345678901234567890.10000000000000000001"
    pgps("publish", quote, f'[{{"symbol": "A", "price": {number}}}]')
    assert number in pgps("queue", "show", f"{quote}_in", "--json").out


@pytest.mark.parametrize(
    "text",
    [
        '{"symbol": "A"}\n{"symbol": "B"}\n',
        '[{"symbol": "A"},\n {"symbol": "B"}]',
        '{"symbol": "A"}\n\n{"symbol": "B"}',
    ],
)
def test_stdin_is_published(pgps: Pgps, quote: str, text: str) -> None:
    assert (
        pgps(
            "publish",
            quote,
            "-",
            stdin=text,
        ).status
        == 0
    )
    assert published(pgps, quote) == [["A", None], ["B", None]]


def test_a_file_is_published_in_chunks(pgps: Pgps, quote: str, tmp_path: Path) -> None:
    path = tmp_path / "quotes.csv"
    path.write_text("symbol,price\n" + "".join(f"S{n},{n}.25\n" for n in range(25)) + "LAST,\n")
    told = pgps("publish", quote, "--file", str(path), "--chunk", "10", "--json").json
    assert told["events"] == 26
    assert published(pgps, quote) == [*([f"S{n}", n + 0.25] for n in range(25)), ["LAST", None]]


def test_a_file_sent_again_under_a_producers_name_is_published_once(pgps: Pgps, quote: str, tmp_path: Path) -> None:
    path = tmp_path / "quotes.ndjson"
    lines = [json.dumps({"symbol": f"S{n}"}) for n in range(25)]
    path.write_text("\n".join(lines[:20]))
    send = ("publish", quote, "-f", str(path), "--chunk", "7", "--producer", "loader")
    assert pgps(*send).status == 0
    path.write_text("\n".join(lines))
    assert pgps(*send).status == 0
    assert len(published(pgps, quote)) == 25


def test_what_fails_is_told_with_its_lines_and_what_came_before(pgps: Pgps, quote: str, tmp_path: Path) -> None:
    path = tmp_path / "quotes.csv"
    path.write_text("symbol,price\nA,1\nB,2\nC,oops\n")
    result = pgps("publish", quote, "--file", str(path), "--chunk", "2")
    assert result.status == 1
    assert "lines 4 to 4); what comes before is published: 2 events" in result.err
    assert published(pgps, quote) == [["A", 1], ["B", 2]]


def test_what_cannot_be_read_does_not_hide_what_came_before(pgps: Pgps, quote: str, tmp_path: Path) -> None:
    path = tmp_path / "quotes.ndjson"
    path.write_text('{"symbol": "A"}\n{"symbol": "B"}\noops\n')
    result = pgps("publish", quote, "--file", str(path), "--chunk", "2")
    assert result.status == 1
    assert result.err.startswith("error: ")
    assert "what comes before is published: 2 events" in result.err
    assert published(pgps, quote) == [["A", None], ["B", None]]


def test_a_damaged_archive_or_a_header_with_a_name_twice_is_refused(pgps: Pgps, quote: str, tmp_path: Path) -> None:
    path = tmp_path / "quotes.ndjson.gz"
    packed = bytearray(gzip.compress(b'{"symbol": "A"}\n' * 100_000))
    packed[len(packed) // 2 :] = bytes(len(packed) - len(packed) // 2)
    path.write_bytes(packed)
    result = pgps("publish", quote, "--file", str(path), "--atomic")
    assert (result.status, result.err[:7]) == (1, "error: ")
    twice = tmp_path / "quotes.csv"
    twice.write_text("symbol,price,symbol\nA,1,B\n")
    result = pgps("publish", quote, "--file", str(twice))
    assert (result.status, '"symbol" twice' in result.err) == (1, True)
    assert published(pgps, quote) == []


def test_atomic_is_all_or_nothing(pgps: Pgps, quote: str, tmp_path: Path) -> None:
    path = tmp_path / "quotes.csv"
    path.write_text("symbol,price\nA,1\nB,2\nC,oops\n")
    result = pgps("publish", quote, "--file", str(path), "--chunk", "2", "--atomic")
    assert result.status == 1
    assert "are published" not in result.err
    assert published(pgps, quote) == []


def test_a_dry_run_publishes_nothing_and_shows_how(pgps: Pgps, quote: str) -> None:
    result = pgps("publish", quote, '{"symbol": "it\'s"}', "--dry-run", "--show-sql")
    assert result.status == 0
    assert "'{\"symbol\": \"it''s\"}'::jsonb" in result.out
    assert published(pgps, quote) == []


@pytest.mark.parametrize("option", ["--dry-run", "--atomic"])
def test_what_cannot_be_taken_back_is_not_tried(pgps: Pgps, name: Name, option: str) -> None:
    """Immediate by the option, or by the type."""
    alarm = name("alarm")
    assert pgps("type", "create", alarm, "n integer", "--visibility", "immediate", "--advertise").status == 0
    for given in ([], ["--visibility", "immediate"]):
        result = pgps("publish", alarm, '{"n": 1}', option, *given)
        assert result.status == 2, result.err
        assert "cannot be taken back" in result.err
    assert pgps("queue", "show", f"{alarm}_in", "--json").json["events"] == []
    assert pgps("publish", alarm, '{"n": 1}', option, "--visibility", "deferred").status == 0


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ("{", "is not JSON"),
        ("[1]", "not an object"),
        ('{"symbl": "A"}', "symbl"),
        ('{"price": 1}', "null value"),
        ('{"symbol": "A", "price": "much"}', "much"),
    ],
)
def test_a_bad_event_is_refused(pgps: Pgps, quote: str, payload: str, told: str) -> None:
    result = pgps("publish", quote, payload)
    assert result.status == 1
    assert result.err.startswith("error: ")
    assert told in result.err


def test_an_unknown_type_and_a_missing_file_are_told_of(pgps: Pgps, quote: str) -> None:
    assert "does not exist" in pgps("publish", "no_such_type", "{}").err
    result = pgps("publish", quote, "--file", "/no/such/file.csv")
    assert (result.status, result.err) == (1, "error: /no/such/file.csv: No such file or directory\n")
