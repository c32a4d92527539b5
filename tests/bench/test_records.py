"""Raw results as text."""

import json

from bench import report
from bench.records import dumps


def test_a_record_is_a_line() -> None:
    document = {"date": "today", "runs": {"a": {"figures": [{"n": 1, "samples": [1, 2]}, {"n": 2}], "notes": ["é"]}}}
    text = dumps(document)
    assert json.loads(text) == document
    assert text == (
        '{\n "date": "today",\n "runs": {\n  "a": {\n   "figures": [\n    {"n": 1, "samples": [1, 2]},\n    {"n": 2}\n'
        '   ],\n   "notes": ["é"]\n  }\n }\n}\n'
    )


def test_what_is_kept_is_written_so_and_counts() -> None:
    kept = sorted(report.RESULTS.glob("*.json"))
    assert [path.name for path in kept if path.read_text() != dumps(json.loads(path.read_text()))] == []
    # Of each line the newest: what a later run has measured again is gone.
    lines = [path.stem.partition("-")[2] for path in kept]
    assert sorted(lines) == sorted(set(lines))
