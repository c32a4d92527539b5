"""What others have written is in a worker's log, and is text there: it begins no line, and drives no terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

_PROGRAM = """
import logging
from pgps_worker import logs
logs.set_up("info", as_json={as_json}, worker="w")
log = logging.getLogger("tester")
said = "one" + chr(0x1b) + "[2J" + chr(13) + chr(10) + "2026 INFO forged" + chr(0x9b) + "2J" + chr(0x202e) + "ä"
log.warning("it says %s", said, extra=logs.about(error=said))
try:
    raise ValueError(said)
except ValueError:
    log.exception("it fails")
"""


@pytest.mark.parametrize("kind", ["plain", "terminal", "json"])
def test_control_characters_of_an_error_are_shown_and_not_obeyed(kind: str) -> None:
    colours = {"FORCE_COLOR": "1", "COLUMNS": "400"} if kind == "terminal" else {}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(as_json=kind == "json")],
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **colours},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    text = done.stderr
    assert not {"\x1b[2J", "\r", "\x9b", "\u202e"} & {text[i : i + n] for n in (1, 4) for i in range(len(text))}
    said = "one\x1b[2J\r\n2026 INFO forged\x9b2J\u202eä"
    if kind == "json":
        lines = [json.loads(line) for line in text.splitlines()]
        assert [line["message"] for line in lines] == [f"it says {said}", "it fails"]
        assert lines[0]["error"] == said
        assert said in lines[1]["exception"]
    else:
        text = re.sub(r"\x1b\[[0-9;]*m", "", text)  # the colours of the terminal
        assert "it says one\\x1b[2J\\r\\n2026 INFO forged\\x9b2J\\u202eä" in text
        # A traceback has lines of its own.
        assert "ValueError: one\\x1b[2J" in text
        assert "Traceback" in text
