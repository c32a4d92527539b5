"""Events from files and streams."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from pgps.cli._sources import Event, Format, Source, chunks, document, open_source
from pgps.errors import BadArgument


def read(text: str | bytes, name: str = "x.ndjson", file_format: Format | None = None) -> list[Event]:
    data = text.encode() if isinstance(text, str) else text
    return list(Source(io.BytesIO(data), name=name, format=file_format, size_bytes=len(data)))


def test_ndjson_is_passed_on_as_it_stands_with_its_lines() -> None:
    assert read('{"a": 1.10}\n\n{"a": 2}\r\n') == [Event('{"a": 1.10}', 1), Event('{"a": 2}', 3)]


def test_csv_fields_are_text_and_empty_ones_null() -> None:
    events = read('symbol,price\nIBM,79.5\n"a ""b"", c",\n', "x.csv")
    assert [json.loads(event.text) for event in events] == [
        {"symbol": "IBM", "price": "79.5"},
        {"symbol": 'a "b", c', "price": None},
    ]
    assert [event.line for event in events] == [2, 3]


def test_a_packed_file_is_unpacked_and_its_progress_is_known(tmp_path: Path) -> None:
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"a\n1\n2\n"))
    with open_source(str(path), format=None) as source:
        assert [json.loads(event.text) for event in source] == [{"a": "1"}, {"a": "2"}]
        assert source.position() == source.size_bytes == path.stat().st_size


def test_a_byte_order_mark_is_no_part_of_the_first_name() -> None:
    assert json.loads(read("\ufeffa\n1\n", "x.csv")[0].text) == {"a": "1"}


@pytest.mark.parametrize("text", ['{"a": 1}\n{"a": 2}\n', '[{"a": 1}, {"a": 2}]', '[\n {"a": 1},\n {"a": 2}\n]'])
def test_stdin_may_be_a_document_or_a_stream(text: str) -> None:
    assert [json.loads(event.text) for event in read(text, "stdin", Format.JSON)] == [{"a": 1}, {"a": 2}]


def test_an_object_may_take_many_lines() -> None:
    assert len(read('{\n "a": 1\n}\n', "stdin", Format.JSON)) == 1


def test_numbers_of_an_array_keep_their_digits() -> None:
    text = '[{"n": 12345678901234567890.123456789, "s": "a\\u00e9\\"", "l": [1.0, null, true]}]'
    assert document(text)[0].text == '{"n": 12345678901234567890.123456789, "s": "aé\\"", "l": [1.0, null, true]}'


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ('{"a": 1}\n{"a": \n', "x.ndjson", "line 2 is not JSON"),
        ("[1]\n", "x.ndjson", "line 1 is not a JSON object"),
        ("[1]", "x.json", "not an object"),
        ("3", "x.json", "line 1 is not a JSON object"),
        ("a,b\n1\n", "x.csv", "line 2 has fewer fields"),
        ("a,b\n1,2,3\n", "x.csv", "line 2 has more fields"),
        (b"a\n\xff\xfe\n", "x.csv", "not UTF-8"),
        ("a,b\n1,2\n", "x.txt", "does not tell the format"),
        (b"not packed", "x.csv.gz", "x.csv.gz"),
    ],
)
def test_bad_input_is_refused_with_its_place(text: str | bytes, name: str, message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        read(text, name)


def test_events_are_sent_in_chunks() -> None:
    assert [len(chunk) for chunk in chunks([Event("{}", n) for n in range(5)], 2)] == [2, 2, 1]
