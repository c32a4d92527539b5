"""The Spark session, with what pgps needs: Java, PostgreSQL's JDBC driver, the data source `pgps`."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pgps.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["driver_jar", "java_version", "register", "require_java", "require_spark", "session"]

OLDEST_JAVA = 17
_JARS = ("/usr/share/java", "/usr/share/pgsql", "/usr/local/share/java", "/opt/java")
_REDACTED = "spark.sql.redaction.options.regex"
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def require_spark() -> None:
    """Raise ConfigError when PySpark 4.2 or newer is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError("PySpark is not installed", hint="pip install 'pgps[spark]'")
    from pyspark import __version__  # noqa: PLC0415 - may be missing

    if tuple(int(part) for part in re.findall(r"\d+", __version__)[:2]) < (4, 2):
        raise ConfigError(f"PySpark {__version__} is too old", hint="pip install 'pgps[spark]': 4.2 or newer is needed")


def java_version() -> int | None:
    """Return the major version of the Java that Spark will use, None when there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return None
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found.group(1)) if found else None


def require_java() -> None:
    """Raise ConfigError when Spark would find no Java, or one that is too old."""
    version = java_version()
    hint = "Install it: apt-get install openjdk-17-jre-headless; or let JAVA_HOME point to one."
    if version is None:
        raise ConfigError("no Java found, which Spark runs on", hint=hint)
    if version < OLDEST_JAVA:
        raise ConfigError(f"Java {version} is too old: Spark needs {OLDEST_JAVA} or newer", hint=hint)


def driver_jar() -> Path:
    """Return PostgreSQL's JDBC driver: PGPS_JDBC_JAR, or where Debian and others put it. Raises ConfigError."""
    given = os.environ.get("PGPS_JDBC_JAR")
    places = [Path(given)] if given else [Path(place) / "postgresql.jar" for place in _JARS]
    for place in places:
        if place.is_file():
            return place.resolve()
    raise ConfigError(
        f"no JDBC driver for PostgreSQL at {' or '.join(map(str, places))}",
        hint="apt-get install libpostgresql-jdbc-java; or set PGPS_JDBC_JAR, or Spark's spark.jars.packages.",
    )


def _companions(jar: Path) -> list[Path]:
    """Return jars beside the driver that it needs for SCRAM, where a distribution has taken them out of it."""
    names = ("scram-client.jar", "scram-common.jar", "saslprep.jar", "stringprep.jar")
    return [jar.parent / name for name in names if (jar.parent / name).is_file()]


def session(
    name: str = "pgps", *, master: str | None = None, driver_memory: str | None = None, **settings: str
) -> SparkSession:
    """Return a Spark session that can talk to brokers, with the data source `pgps` registered.

    `master` is None where spark-submit says it, or an address like `local[2]`,
    `spark://…`; `sc://…` is Spark Connect, whose server has jars of its own.
    `settings` are Spark's, with `__` for a dot. Raises ConfigError when PySpark,
    Java or the driver is missing.
    """
    require_spark()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - may be missing

    wanted = {key.replace("__", "."): value for key, value in settings.items()}
    builder = SparkSession.builder.appName(name).config(_PUSHDOWN, "true")
    remote = (master or os.environ.get("SPARK_REMOTE", "")).startswith("sc://")
    if remote:
        builder = builder.remote(master or os.environ["SPARK_REMOTE"])
    else:
        require_java()
        if master:
            builder = builder.master(master)
        if driver_memory:
            builder = builder.config("spark.driver.memory", driver_memory)
        if "spark.jars" not in wanted and "spark.jars.packages" not in wanted and not _submitted():
            jar = driver_jar()
            wanted["spark.jars"] = ",".join(map(str, [jar, *_companions(jar)]))
        if master is None and not _submitted():
            builder = builder.master("local[*]")
        if (master or "local").startswith("local"):
            _use_this_python()
    for key, value in wanted.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    register(made)
    return made


def _use_this_python() -> None:
    """Let tasks run in this Python; else it is whatever `python3` is, which may not have pgps."""
    wrapper = Path(__file__).with_name("python.sh")
    # A program that was started by another one may have the wrapper from it, and not what the wrapper starts.
    if os.environ.get("PYSPARK_PYTHON", str(wrapper)) != str(wrapper):
        return
    if "SPARK_HOME" in os.environ or not os.access(wrapper, os.X_OK):
        # Its PySpark may be another one than ours.
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:
        os.environ["PGPS_SPARK_PYTHON"] = sys.executable
        os.environ["PYSPARK_PYTHON"] = str(wrapper)


def _submitted() -> bool:
    """Say whether spark-submit has started the JVM, with jars and master as it was told."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("pgps")` and its kin known to a session of yours, and let filters be pushed down."""
    from pgps_spark.source import PgpsDataSource  # noqa: PLC0415 - needs pyspark

    spark.conf.set(_PUSHDOWN, "true")
    # A connection string may have a password in it, and Spark shows options in plans, tables and its pages.
    spark.conf.set(_REDACTED, f"{spark.conf.get(_REDACTED, '(?i)url')}|(?i)dsn")
    spark.dataSource.register(PgpsDataSource)
