"""One Spark session for all tests here, in one process: starting it takes half a minute on a small machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgps.errors import ConfigError
from tests.fix_broker import call, quoted, rows
from tests.fix_db import Connect
from tests.fix_worker import workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["workers"]

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give them time for the session, and leave PySpark's own warnings to itself."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.timeout(900))
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session", autouse=True)
def _java_that_compiles_little() -> Iterator[None]:
    """A session of a test is over before code that the second compiler has made would pay."""
    little = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", little)  # of the programs
        patch.setenv("SPARK_LAUNCHER_OPTS", little)  # of what starts them
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session; tasks may fail three times, and who has to fetch a result may be a while about it."""
    from pgps_spark.sessions import driver_jar, require_java, require_spark, session

    try:
        require_spark()
        require_java()
        driver_jar()
    except ConfigError as error:
        pytest.skip(str(error))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = session(
            "tests",
            master="local[2,4]",
            driver_memory="1g",
            spark__ui__enabled="false",
            spark__ui__showConsoleProgress="false",
            spark__python__authenticate__socketTimeout="600s",
            spark__sql__shuffle__partitions="2",
            spark__sql__session__timeZone="UTC",
        )
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


class Broker:
    """An event type of its own for a test, seen by a role with a password over TCP, as a cluster's executors would."""

    def __init__(self, admin: psycopg.Connection, connect: Connect, role: str, make: Callable[..., str]) -> None:
        self.admin = admin
        self.role = role
        self.dsn = make_conninfo(admin.info.dsn, host="127.0.0.1", user=role, password="test")
        self.connection = connect(role)
        self.make = make

    def type(self, attributes: str = "n integer not null, text text", **options: Any) -> str:
        name = self.make("event")
        call(self.admin, "create_event_type", name, attributes, **options)
        rows(self.admin, f"grant insert, select on pgps_event.{quoted(name)} to {self.role}")
        call(self.connection, "advertise", name)
        call(self.admin, "subscribe", f"all_{name}", name)
        return name

    def subscribe(self, event_type: str, **options: Any) -> str:
        name = self.make("reader")
        call(self.connection, "subscribe", name, event_type, **options)
        return name

    def dispatch(self) -> None:
        rows(self.admin, "select pgps.dispatch()")

    def depth(self, subscription: str) -> int:
        found = rows(self.connection, "select depth from pgps.subscriptions where name = %s", [subscription])
        return int(found[0][0])

    def received(self, event_type: str, column: str = "n") -> list[Any]:
        """Return an attribute of all events that subscribers get, in order; they can be asked for again."""
        self.dispatch()
        query = "select payload -> %s from pgps.receive(%s, 1000000)"
        return [v for (v,) in rows(self.admin, query, [column, f"all_{event_type}"])]

    def stream(self, spark: SparkSession, subscription: str, schema: str | None = None, **options: str) -> DataFrame:
        """Return what a subscription has; that of a query that has just ended may be its own for a moment more."""
        reader = spark.readStream.format("pgps").option("dsn", self.dsn).option("subscription", subscription)
        reader = reader.option("patience", "60").options(**options)
        return (reader if schema is None else reader.schema(schema)).load()


@pytest.fixture
def broker(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], name: Callable[..., str]
) -> Iterator[Broker]:
    """The broker of this test process, with a role of its own that publishes and subscribes."""
    made = Broker(admin, connect, role("spark"), name)
    yield made
    rows(
        admin,
        "select pgps.unsubscribe(s.name) from pgps_internal.subscription s"
        " where s.owner = %s::regrole or s.name ^@ 'all_'",
        [made.role],
    )
