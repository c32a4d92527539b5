"""Tests that share something stay in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.together import TOGETHER, group_of

_ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("path", TOGETHER)
def test_what_stays_together_is_there(path: str) -> None:
    assert (_ROOT / path).exists()


def test_a_test_stays_with_its_group_and_others_are_free() -> None:
    assert group_of("tests/spark/test_read.py::test_a[1]") == group_of("tests/spark/test_kill.py::test_b")
    assert group_of("tests/unit/test_lexer.py::test_c") == "tests/unit/test_lexer.py::test_c"


def test_two_processes_do_not_share_a_group(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    # This test may itself run in a process of several.
    for variable in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.delenv(variable, raising=False)
    pytester.makeconftest("""
        from tests.together import pytest_xdist_make_scheduler

        def pytest_runtest_logreport(report):
            if report.when == "call" and hasattr(report, "node"):
                with open("ran", "a") as ran:
                    ran.write(f"{report.node.gateway.id} {report.nodeid}\\n")
    """)
    text = "import pytest\n@pytest.mark.parametrize('n', range(6))\ndef test_one(n): pass\n"
    for name in ("tests/spark/test_a.py", "tests/spark/test_b.py", "tests/unit/test_c.py"):
        path = pytester.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    arguments = ["-n2", "--dist=loadgroup", "--import-mode=importlib", "-p", "no:randomly"]
    pytester.runpytest_subprocess(*arguments).assert_outcomes(passed=18)
    ran = [line.split(maxsplit=1) for line in (pytester.path / "ran").read_text().splitlines()]
    assert len({process for process, test in ran if test.startswith("tests/spark/")}) == 1
