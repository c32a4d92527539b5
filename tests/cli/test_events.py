"""`pgps event`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import psycopg
import pytest

from pgps.cli.events import GIVEN
from tests.cli.conftest import Pgps
from tests.fix_broker import call, make_type, rows

Done = Callable[..., str]


@pytest.fixture
def event(admin: psycopg.Connection, name: Callable[..., str]) -> str:
    kind = name("reading")
    make_type(admin, kind, "patient text, glucose integer")
    made = f"{kind}_high"
    expression = f"{kind} (glucose > 5) a ; (not({kind} (glucose < 2))[{kind} b, {kind} c])"
    options = {
        "partition_by": "patient", "attributes": "patient text = a.patient", "start": "earliest", "handler": "any",
        "persistent": False, "auditable": True, "reliability": "non-guaranteed",
    }  # fmt: skip
    call(admin, "create_composite_event", made, expression, **options)
    rows(admin, f"insert into pgps_event.{kind} values ('A', 9)")
    rows(admin, "select pgps.dispatch()")
    return made


def test_a_composite_event_is_listed_shown_and_paused(pgps: Pgps, done: Done, event: str) -> None:
    listed = next(row for row in pgps("event", "ls", "--json").json if row["name"] == event)
    assert (listed["state"], listed["keys"], listed["detected"]) == ("active", 1, 0)
    shown = pgps("event", "show", event, "--json").json
    assert shown["nodes"][0]["open"] == 1
    assert event in done("event", "show", event)
    done("event", "pause", event)
    assert pgps("event", "show", event, "--json").json["state"] == "paused"
    done("event", "resume", event)
    assert pgps("event", "show", event, "--json").json["state"] == "active"
    gone = pgps("event", "show", "no_such_event")
    assert (gone.status, "does not exist" in gone.err) == (1, True)


def test_its_graph_is_drawn_as_text_as_mermaid_and_as_svg(pgps: Pgps, done: Done, event: str, tmp_path: Path) -> None:
    text = done("event", "draw", event)
    assert f"{event}: 0 detected" in text
    assert "1 open" in text
    mermaid = done("event", "draw", event, "--mermaid")
    assert mermaid.startswith("flowchart BT")
    # The sequence has two parts, the absence three; a leaf that is the same in both would be one.
    assert mermaid.count(" --> ") == 5
    picture = tmp_path / "graph.svg"
    done("event", "draw", event, "--svg", str(picture))
    root = ET.fromstring(picture.read_text())
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert f"{event}: 0 detected" in texts
    assert len(list(root.iter("{http://www.w3.org/2000/svg}line"))) == 5
    both = pgps("event", "draw", event, "--mermaid", "--svg", str(picture))
    assert both.status == 2
    assert "Choose one of --json" in both.err


def test_definitions_go_into_a_file_and_come_back(
    admin: psycopg.Connection, pgps: Pgps, done: Done, event: str, tmp_path: Path
) -> None:
    file = tmp_path / "events.json"
    file.write_text(done("event", "export", event))
    assert [one["name"] for one in json.loads(file.read_text())["composite_events"]] == [event]
    before = pgps("event", "show", event, "--json").json
    call(admin, "drop_event_type", event, True)
    done("event", "import", str(file))
    after = pgps("event", "show", event, "--json").json
    for key in GIVEN:
        assert after[key] == before[key]
    assert "nothing to create" in pgps("event", "import", str(file)).err
    assert after["settings"] == before["settings"]
    file.write_text("[]")
    wrong = pgps("event", "import", str(file))
    assert "is no file of definitions" in wrong.err


def test_an_imported_clock_ticks_as_the_exported_one(
    admin: psycopg.Connection, pgps: Pgps, done: Done, name: Callable[..., str], tmp_path: Path
) -> None:
    made, plain, file = name("daily"), name("plain"), tmp_path / "events.json"
    with admin.transaction():
        rows(admin, "set local timezone = 'Pacific/Chatham'")
        rows(admin, "set local datestyle = 'German'")
        call(admin, "create_composite_event", made, "cron('0 8 * * *')")
    file.write_text(done("event", "export", made))
    given = json.loads(file.read_text())
    # As an older release has written it: it takes the settings of who imports it.
    given["composite_events"].append({"name": plain, "expression": "cron('0 9 * * *')"})
    file.write_text(json.dumps(given))
    call(admin, "drop_event_type", made, True)
    done("event", "import", str(file))
    kept = "select c.given ->> 'zone', c.environment ->> 'datestyle' from pgps_internal.composite c"
    query = f"{kept} join pgps_internal.event_type t using (type_id) where t.name = %s"
    try:
        assert rows(admin, query, [made]) == [("Pacific/Chatham", "German, DMY")]
        assert rows(admin, query, [plain])[0][0] != "Pacific/Chatham"
    finally:
        call(admin, "drop_event_type", plain, True)
        call(admin, "drop_event_type", made, True)
