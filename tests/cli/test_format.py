"""How values read, and how JSON is written."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pgps.cli import _format
from pgps.cli._output import Column, Output, RawJson, _aligned, dumps, table


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.0123, "12 ms"), (1.25, "1.2 s"), (59.6, "60 s"), (150, "2 min"), (7_200, "2 h"), (400_000, "5 d")],
)
def test_a_duration_is_in_its_largest_sensible_unit(seconds: float | None, text: str) -> None:
    assert _format.duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(None, ""), (0, "0 B"), (8_192, "8192 B"), (81_920, "80 kB"), (10**9, "954 MB")]
)
def test_a_size_has_at_most_four_digits(size: int | None, text: str) -> None:
    assert _format.size(size) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(None, ""), (0, "0.0/s"), (0.123, "0.12/s"), (12.34, "12.3/s"), (12_345, "12,345/s")]
)
def test_a_rate_has_as_many_digits_as_are_worth_reading(rate: float | None, text: str) -> None:
    assert _format.rate(rate) == text


def test_data_cannot_drive_the_terminal() -> None:
    assert _format.printable("a\x1b[2J\x07\u202eb\nc") == "a\\x1b[2J\\x07\\u202eb\\nc"
    assert _format.printable("a\nb", keep="\n") == "a\nb"
    assert _format.printable("naïve 🎉 日本") == "naïve 🎉 日本"


@pytest.mark.parametrize(("name", "typed"), [("quote", "quote"), ("My Sub", "'\"My Sub\"'"), ('a"b', '\'"a""b"\'')])
def test_a_name_in_a_hint_can_be_typed_as_it_stands(name: str, typed: str) -> None:
    assert _format.argument(name) == typed


def test_json_keeps_every_digit_of_a_payload() -> None:
    payload = RawJson('{"n": 1.10000000000000000001}')
    assert dumps({"payload": payload, "d": Decimal("0.10")}) == '{"payload": {"n": 1.10000000000000000001}, "d": 0.10}'


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_comes_back_as_it_went(value: Any) -> None:
    assert json.loads(dumps(value)) == value


def test_times_are_iso_in_json() -> None:
    assert dumps(dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)) == '"2024-02-29T12:00:00+00:00"'


def test_a_table_in_a_pipe_is_aligned_without_rules_or_trailing_blanks() -> None:
    columns = [Column("name"), Column("n", format=_format.count, right=True), Column("note")]
    rows = [{"name": "日本", "n": 1_000, "note": ""}, {"name": "a", "n": 7, "note": "x"}]
    assert list(_aligned(columns, rows)) == ["name      n  note", "日本  1,000", "a         7  x"]


def _shown(rows: list[dict[str, str]], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    columns = [Column("queue"), Column("oldest"), Column("persistent"), Column("retention")]
    console.print(table(columns, rows, width=width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


_QUEUES = [
    {"queue": "admission_exception", "oldest": "113 min ago", "persistent": "yes", "retention": ""},
    {"queue": "bed_in", "oldest": "2 h ago", "persistent": "no", "retention": "7 days"},
]


@pytest.mark.parametrize("width", range(35, 80))
def test_on_a_narrow_terminal_no_word_of_a_table_is_broken_as_long_as_the_words_fit(width: int) -> None:
    shown = _shown(_QUEUES, width)
    assert max(len(line.rstrip()) for line in shown) <= width
    words = " ".join(shown).split()
    for word in ("admission_exception", "bed_in", "113", "min", "yes", "days"):
        assert word in words, word
    # Headings are broken only where nothing else can be.
    assert ("persistent" in words) == (width >= 50)


def test_a_word_that_is_wider_than_the_terminal_is_shown_in_parts() -> None:
    shown = _shown([{"queue": "x" * 100, "oldest": "", "persistent": "yes", "retention": ""}], 60)
    assert sum(line.count("x") for line in shown) == 100


def _printed(width: int) -> str:
    out = Output()
    out.stdout = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    out.table([Column("queue"), Column("oldest"), Column("persistent"), Column("retention")], _QUEUES)
    assert isinstance(out.stdout.file, io.StringIO)
    return out.stdout.file.getvalue()


def test_a_terminal_too_narrow_for_the_words_of_a_line_gets_records() -> None:
    records = [[line.split(maxsplit=1) for line in one.splitlines()] for one in _printed(30).split("\n\n")]
    assert records == [
        [["queue", "admission_exception"], ["oldest", "113 min ago"], ["persistent", "yes"], ["retention"]],
        [["queue", "bed_in"], ["oldest", "2 h ago"], ["persistent", "no"], ["retention", "7 days"]],
    ]
    assert not any(line.startswith("oldest") for line in _printed(43).splitlines()), "a table, since the words fit"


def test_what_is_counted_reads_well() -> None:
    assert [_format.counted(n, "event") for n in (0, 1, 2000)] == ["0 events", "1 event", "2,000 events"]
    assert _format.counted(2, "failed delivery", "failed deliveries") == "2 failed deliveries"
