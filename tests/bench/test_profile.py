"""The parts of `make profile`: stacks are folded and drawn, and the processes of a server are found."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench import flames
from bench.loads import LOADS
from bench.profile import family

_SCRIPT = """\
postgres    41
\t    55d0c8f2a1b0 ExecInsert
\t    55d0c8f2a100 standard_ExecutorRun
\t    7f1122334455 [unknown]
\t    55d0c8f2a000 main

postgres    41
\t    55d0c8f2a1b4 ExecInsert
\t    55d0c8f2a108 standard_ExecutorRun
\t    55d0c8f2a000 main

wal writer  7
\t    ffffffff8110 operator< <int>(a, b)

"""
_SVG = "{http://www.w3.org/2000/svg}"


def test_samples_of_perf_are_folded_by_process_from_the_outermost_frame_on() -> None:
    folded = flames.of_perf(_SCRIPT, {41: "publisher"})
    assert folded == {
        ("publisher", "main", "standard_ExecutorRun", "ExecInsert"): 2,
        ("wal writer", "operator< <int>(a, b)"): 1,
    }
    assert flames.to_text(folded) == (
        "publisher;main;standard_ExecutorRun;ExecInsert 2\nwal writer;operator< <int>(a, b) 1\n"
    )


def test_samples_of_py_spy_get_the_name_of_their_process() -> None:
    raw = "<module> (a.py:1);run (a b.py:2) 7\n<module> (a.py:1) 3\n"
    folded = flames.of_py_spy(raw, "worker")
    assert folded == {("worker", "<module> (a.py:1)", "run (a b.py:2)"): 7, ("worker", "<module> (a.py:1)"): 3}


def test_the_graph_is_valid_and_its_frames_are_as_wide_as_they_have_samples() -> None:
    graph = ET.fromstring(flames.draw(flames.of_perf(_SCRIPT, {41: "publisher"}), "publish: server <&>"))
    frames = {
        str(frame.findtext(f"{_SVG}title")).rpartition(" (")[0]: (
            float(frame.attrib["data-x"]), float(frame.attrib["data-w"]), int(frame.attrib["data-d"])
        )
        for frame in graph.iter(f"{_SVG}g")
    }  # fmt: skip
    assert frames["publisher"] == pytest.approx((0, 2 / 3, 0), abs=1e-5)
    assert frames["ExecInsert"] == pytest.approx((0, 2 / 3, 3), abs=1e-5)
    assert frames["operator< <int>(a, b)"] == pytest.approx((2 / 3, 1 / 3, 1), abs=1e-5)
    assert "publish: server <&>: 3 samples" in "".join(graph.itertext())


def test_nothing_sampled_is_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        flames.draw(flames.of_perf("", {}), "publish")


def test_the_children_of_a_server_are_found() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.pid in family(os.getpid())
        assert family(child.pid) == [child.pid]
        child.communicate(b"\n")


def test_each_path_stands_in_the_help_and_in_contributing() -> None:
    root = Path(__file__).parents[2]
    told = next(line for line in (root / "Makefile").read_text().splitlines() if line.startswith("profile:"))
    section = (root / "CONTRIBUTING.md").read_text().partition("## Profiles\n")[2].partition("\n## ")[0]
    assert [name for name in LOADS if name not in told or f"`{name}`" not in section] == []
