"""Each example runs, and checks for itself what it says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fix_broker import value
from tests.fix_db import Connect, wait_until
from tests.fix_server import Server
from tests.fix_worker import Workers

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHARDED = EXAMPLES / "sharded_accounts.py"
POLLING = EXAMPLES / "polling_client.py"


@pytest.mark.parametrize(
    "path", sorted(set(EXAMPLES.glob("*.py")) - {EXAMPLES / "broker.py", SHARDED, POLLING}), ids=lambda path: path.stem
)
def test_an_example_runs(path: Path, own_database: str, workers: Workers, capsys: pytest.CaptureFixture[str]) -> None:
    workers(own_database)
    _loaded(path).main(own_database)
    assert capsys.readouterr().out, "it tells what it does"


def test_a_client_that_polls_crashes_and_begins_again(
    own_database: str, connect: Connect, workers: Workers, capsys: pytest.CaptureFixture[str]
) -> None:
    """It leaves when nothing has come for a second, and begins again at once."""
    workers(own_database)
    admin = connect(dsn=own_database)
    example = _loaded(POLLING)
    run = example.run
    ready = """
        select (select coalesce(sum(waiting), 0) = 0 from pgps.activity)
            and not exists (select from pgps.clients where connected)
    """

    def run_when_ready(dsn: str, **named: Any) -> Any:
        # On a busy machine the worker may need longer than it waits, and the server to notice that it has gone.
        wait_until(lambda: value(admin, ready), what="all is dispatched, and the client before has gone")
        return run(dsn, **named)

    example.run = run_when_ready
    example.main(own_database)
    assert capsys.readouterr().out, "it tells what it does"


def test_an_event_type_is_sharded_over_four_brokers(
    server: Server, own_database: str, workers: Workers, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [f"{conninfo_to_dict(own_database)['dbname']}_{number}" for number in range(3)]
    try:
        dsns = [own_database, *map(server.clone, others)]
        for dsn in dsns:
            workers(dsn)
        _loaded(SHARDED).main(dsns)
        assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [f"shard {n}" for n in range(4)]
    finally:
        for other in others:
            server.drop(other)


def _loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
