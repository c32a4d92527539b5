"""Each example runs, and checks for itself what it says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.fix_worker import Workers

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize(
    "path", sorted(set(EXAMPLES.glob("*.py")) - {EXAMPLES / "broker.py"}), ids=lambda path: path.stem
)
def test_an_example_runs(path: Path, own_database: str, workers: Workers) -> None:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    workers(own_database)
    module.main(own_database)
