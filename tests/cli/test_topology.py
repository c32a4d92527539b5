"""`pgps topology`: what a broker knows of the network, as text, Mermaid, SVG and JSON."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pgps.cli._network import Network, as_mermaid, as_tree, network, write_svg
from tests.cli.conftest import Pgps
from tests.fix_broker import make_type
from tests.links.conftest import brokers  # noqa: F401 - a fixture
from tests.links.rig import Broker, linked, settle

Brokers = Callable[[int], list[Broker]]


@pytest.fixture
def line(brokers: Brokers) -> Iterator[list[Broker]]:  # noqa: F811
    """Brokers a - b - c; a publishes `tick`, c `tock`."""
    a, b, c = brokers(3)
    make_type(a.admin, "tick")
    make_type(c.admin, "tock")
    with linked([(a, b), (b, c)]) as links:
        settle([a, b, c], links)
        yield [a, b, c]


def test_the_text_shows_neighbours_origins_paths_and_types(pgps: Pgps, line: list[Broker]) -> None:
    text = pgps("topology", dsn=line[2].dsn).out
    assert "c: tock" in text
    assert "⇄ b (link b, up)" in text
    assert "a by b > a, cost 2: tick" in text


def test_the_json_has_links_routes_and_edges(pgps: Pgps, line: list[Broker]) -> None:
    found = pgps("topology", "--json", dsn=line[0].dsn).json
    assert found["broker"]["origin"] == "a"
    assert [(row["name"], row["neighbour"], row["state"]) for row in found["links"]] == [("to_b", "b", "up")]
    assert {(row["origin"], tuple(row["path"]), row["cost"], tuple(row["event_types"])) for row in found["routes"]} >= {
        ("c", ("b", "c"), 2, ("tock",))
    }
    assert [(edge["one"], edge["other"], edge["state"]) for edge in found["edges"]] == [
        ("a", "b", "up"),
        ("b", "c", None),
    ]


def test_a_broker_that_stands_alone_is_drawn(pgps: Pgps, own_database: str, tmp_path: Path) -> None:
    call_configure = "select pgps.configure('broker', 'alone')"
    assert pgps("sql", "-c", call_configure, dsn=own_database).status == 0
    assert "no links: pgps link add" in pgps("topology", dsn=own_database).out
    assert pgps("topology", "--mermaid", dsn=own_database).out.splitlines()[:2] == ["flowchart LR", '    b0["alone"]']


def test_an_svg_is_written(pgps: Pgps, line: list[Broker], tmp_path: Path) -> None:
    target = tmp_path / "net.svg"
    result = pgps("topology", "--svg", str(target), dsn=line[0].dsn)
    assert result.status == 0, result
    assert "3 brokers drawn" in result.err
    shown = texts_of(target)
    assert {"a", "b", "c", "tick", "tock", "to_b: up"} <= shown.keys()
    left, right = shown["a"], shown["c"]
    assert left < shown["b"] < right


def test_only_one_form_at_a_time(pgps: Pgps) -> None:
    assert pgps("topology", "--mermaid", "--svg", "x.svg").status == 2


def texts_of(path: Path) -> dict[str, float]:
    """The texts that can be seen in a drawing, and how far from the left they stand."""
    root = ET.parse(path).getroot()
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    found = {}
    for element in root.iter("{http://www.w3.org/2000/svg}text"):
        moved = re.search(r"translate\(([\d.-]+) ([\d.-]+)\)", element.get("transform", ""))
        x, y = moved.groups() if moved else (element.attrib["x"], element.attrib["y"])
        if 0 <= float(x) <= width and 0 <= float(y) <= height:
            found["".join(element.itertext())] = float(x)
    return found


def row(**changes: Any) -> dict[str, Any]:
    link = {
        "name": "l",
        "neighbour": "b",
        "direction": "both",
        "state": "up",
        "lag_events": 0,
        "lag_seconds": 0.0,
        "last_error": "",
        "hint": None,
    }
    return link | changes


def drawn(name: str = "a", **changes: Any) -> Network:
    """A ring a - b - c - a, and a link to nobody known yet."""
    links = [row(**changes), row(name="m", neighbour="c", state="waiting"), row(name="n", neighbour=None)]
    mine = {"origin": name, "is_self": True, "event_types": ["t"]}
    routes = [
        {
            "origin": o,
            "is_self": False,
            "neighbour": p[0],
            "path": p,
            "cost": len(p),
            "is_parent": True,
            "event_types": [],
        }
        for o, p in (("b", ["b"]), ("c", ["c"]), ("c", ["b", "c"]))
    ]
    return network(links, [mine, *routes])


def text_of(one: Network) -> str:
    console = Console(width=200, markup=False)
    with console.capture() as shown:
        console.print(as_tree(one))
    return shown.get()


def test_a_link_between_others_is_drawn_without_a_state() -> None:
    found = {(edge.one, edge.other): edge.state for edge in drawn().edges}
    assert found == {("a", "b"): "up", ("a", "c"): "waiting", ("a", "? (n)"): "up", ("b", "c"): ""}
    assert "b1 -.- b2" in as_mermaid(drawn())


def test_error_and_remedy_stand_below_their_link() -> None:
    text = text_of(
        drawn(state="blocked", last_error="restored\nmore", hint="select resume", lag_events=7, lag_seconds=9.0)
    )
    assert "blocked, 7 to send for 9.0 s" in text
    assert "restored" in text
    assert "select resume" in text


@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_link_of_one_way_is_an_arrow_that_way(direction: str) -> None:
    expected = {"in": 'b1 -->|"l: up"| b0', "out": 'b0 -->|"l: up"| b1'}
    assert expected[direction] in as_mermaid(drawn(direction=direction))


@pytest.mark.parametrize("name", ["x $y$ z", 'quo"te', "<script>", "[bold]b[/]", "end", "a;b|c", "\x1b[31m", "ü"])
def test_a_name_means_nothing_to_the_drawing(name: str, tmp_path: Path) -> None:
    one = drawn(name)
    assert "\x1b" not in text_of(one)
    assert text_of(one).startswith("\\x1b[31m: t" if "\x1b" in name else f"{name}: t")
    mermaid = as_mermaid(one)
    assert re.search(r'b0\["[\w #;.,:()?-]*<br/>t"\]', mermaid), mermaid
    write_svg(one, tmp_path / "n.svg")
    assert len(texts_of(tmp_path / "n.svg")) >= 4


def test_the_same_network_is_the_same_svg(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_svg(drawn(), tmp_path / name)
    assert (tmp_path / "one").read_text() == (tmp_path / "two").read_text()
