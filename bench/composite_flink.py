"""`a ; b` over a million events that lie in PostgreSQL, beside MATCH_RECOGNIZE of Flink.

Both find the pairs of a and b of the same symbol, 1,000 symbols, with a and b in turn; pgps detects in the database
that has the events, in two sessions that share out the keys, beside one that dispatches. Flink gets them with COPY as a
file of comma separated values, since its connector to databases is not among its packages from PyPI, and what it finds
goes back with COPY; its job runs in batch mode with two tasks in a virtual machine that is already up, after a first
job over a thousand events. Both are timed by the clock, from the first event read to the last pair stored, and the
pairs are compared.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.composite import STATEMENT, SYMBOLS, call, endpoint_of, prepare, publish, rows, value
from bench.field import peers
from bench.figures import Target, compare
from bench.house import alternate, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from bench.figures import Figure
    from bench.house import House

_FLINK = "apache-flink-libraries"
_SESSIONS = 2
"""As many as the tasks of Flink's job."""
# Flink's serializers look into these packages of Java, which are closed to them by default.
_OPEN = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.time", "java.util")]
_SETTINGS = {"parallelism.default": "2", "taskmanager.memory.managed.size": "512m"}
_FILES = "with ('connector' = 'filesystem', 'format' = 'csv', 'path' = 'file://{}')"
_EVENTS = (
    "create temporary table quote (id bigint, kind string, symbol string, n int, made as to_timestamp_ltz(id, 3),"
    " watermark for made as made) "
)
_PAIRS = "create temporary table pair (symbol string, a int, b int) "
_MATCH = """
    insert into pair select * from quote match_recognize (
        partition by symbol order by made
        measures first_event.n as a, second_event.n as b
        one row per match after match skip past last row
        pattern (first_event second_event)
        define first_event as first_event.kind = 'a', second_event as second_event.kind = 'b')
"""


def run(house: House) -> list[Figure]:
    """Measure it; nothing where Flink cannot be fetched or Java is missing."""
    try:
        from py4j.protocol import Py4JNetworkError  # noqa: PLC0415 - comes with Spark, of the benchmarks only

        libraries = next(peers.python(_FLINK).parent.parent.glob("lib/python*/site-packages/pyflink/lib"))
    except (ImportError, peers.Missing, StopIteration) as error:
        print(f"Flink is skipped: {error}")
        return []
    events = house.scale(1_000_000, 40_000)
    mine, theirs = [], []
    try:
        with _flink(libraries) as flink:
            for number in house.pairs():
                found: dict[str, list[tuple[str, int, int]]] = {}
                one, other = alternate(
                    number,
                    lambda found=found: _pgps(house, events, found),  # type: ignore[misc]
                    lambda found=found: _matched(house, flink, events, found),  # type: ignore[misc]
                )
                assert len(found["pgps"]) == events // 2, f"{len(found['pgps'])} of {events // 2} pairs"
                assert found["pgps"] == found["flink"], "pgps and Flink found different pairs"
                mine.append(events / one)
                theirs.append(events / other)
    except (OSError, Py4JNetworkError) as error:
        print(f"Flink is skipped: {error}")
        return []
    version = next(libraries.glob("flink-dist-*.jar")).stem.removeprefix("flink-dist-")
    note = f"against Flink {version}, MATCH_RECOGNIZE in batch mode, two tasks; the same pairs"
    what = f"`a ; b` over {events:,} stored events"
    return [compare(what, mine, theirs, unit="/s", target=Target("at least", 1), note=note)]


def _pgps(house: House, events: int, found: dict[str, list[tuple[str, int, int]]]) -> float:
    house.say("composite: pgps detects")
    with house.database() as dsn, opened(dsn) as connection:
        prepare(connection)
        attributes = "symbol text = b.symbol, a int = a.n, b int = b.n"
        call(connection, "create_composite_event", "pair", "a ; b", partition_by="symbol", attributes=attributes)
        call(connection, "subscribe", "pairs", "pair")
        publish(connection, endpoint_of, 0, events, SYMBOLS)
        house.checkpoint()
        began = time.monotonic()
        with ThreadPoolExecutor(_SESSIONS) as pool:
            sessions = [pool.submit(_detect, dsn, events // 2) for _ in range(_SESSIONS)]
            while value(connection, "select pgps.dispatch_batch()"):
                pass
            for session in sessions:
                session.result()
        took = time.monotonic() - began
        rows(connection, "select pgps.dispatch()")
        payload = "payload ->> 'symbol', (payload ->> 'a')::int, (payload ->> 'b')::int"
        found["pgps"] = sorted(rows(connection, f"select {payload} from pgps.receive('pairs', %s)", [events]))
        return took


def _detect(dsn: str, wanted: int) -> None:
    """Take steps of what was dispatched, beside other sessions, until so many pairs are found."""
    with opened(dsn) as connection:
        while value(connection, "select detected from pgps.composite_events") < wanted:
            if not value(connection, "select pgps.detect(true)"):
                time.sleep(0.002)  # what is left is the other session's


def _matched(house: House, flink: Any, events: int, found: dict[str, list[tuple[str, int, int]]]) -> float:
    house.say("composite: Flink matches")
    with house.database("template1") as dsn, opened(dsn) as connection, tempfile.TemporaryDirectory() as place:
        rows(connection, "create table quote (id bigint generated always as identity, kind text, symbol text, n int)")
        rows(connection, "create table pair (symbol text, a int, b int)")
        publish(connection, lambda kind: f"insert into quote (kind, symbol, n) select '{kind}',", 0, events, SYMBOLS)
        _job(connection, flink, Path(place) / "first", 2 * STATEMENT)
        rows(connection, "truncate pair")
        house.checkpoint()
        began = time.monotonic()
        _job(connection, flink, Path(place) / "all", events)
        took = time.monotonic() - began
        found["flink"] = sorted(rows(connection, "select * from pair"))
        return took


def _job(connection: psycopg.Connection, flink: Any, place: Path, events: int) -> None:
    """Bring the first events to Flink, let it match, bring what it found back."""
    place.mkdir()
    with (
        (place / "quote.csv").open("wb") as file,
        connection.cursor() as cursor,
        cursor.copy("copy (select * from quote where id <= %s) to stdout (format csv)", [events]) as lines,
    ):
        for line in lines:
            file.write(line)
    session = flink.TableEnvironment.create(flink.EnvironmentSettings.newInstance().inBatchMode().build())
    for name, setting in _SETTINGS.items():
        session.getConfig().set(name, setting)
    session.executeSql(_EVENTS + _FILES.format(place / "quote.csv"))
    session.executeSql(_PAIRS + _FILES.format(place / "pairs"))
    getattr(session.executeSql(_MATCH), "await")()  # a word of Python
    with connection.cursor() as cursor, cursor.copy("copy pair from stdin (format csv)") as into:
        for path in (place / "pairs").rglob("*"):
            if path.is_file() and not path.name.startswith("."):
                into.write(path.read_bytes())


@contextlib.contextmanager
def _flink(libraries: Path) -> Iterator[Any]:
    """Run a virtual machine with Flink's libraries; yield its package of tables."""
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway  # noqa: PLC0415
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415

    path = ":".join(str(jar) for jar in sorted(libraries.glob("*.jar")))
    options = ["-Xmx3g", "-Dlog4j2.level=ERROR", *_OPEN]
    port, machine = launch_gateway(classpath=path, die_on_exit=True, javaopts=options, return_proc=True)
    try:
        yield JavaGateway(gateway_parameters=GatewayParameters(port=port)).jvm.org.apache.flink.table.api
    except Py4JJavaError as error:
        raise RuntimeError(str(error)) from None  # the text is fetched from the machine, which is about to go
    finally:
        machine.kill()
        machine.wait()
