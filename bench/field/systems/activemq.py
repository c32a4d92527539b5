"""ActiveMQ with its JDBC store in PostgreSQL: durable topic subscriptions, persistent messages."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.field import peers
from bench.field.crew import ROOT, Program
from bench.field.systems.base import Session, System, daemon, database, directory, free_port, listens

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bench.field.plan import Plan
    from bench.field.systems.base import Database
    from bench.house import House

_PACKAGES = ("activemq", "libpostgresql-jdbc-java", "libcommons-dbcp2-java", "libjaxb-api-java")
# Without jaxb-api the store cannot prepare a distributed transaction.
_MORE = ("postgresql", "commons-dbcp2", "commons-pool2", "commons-logging", "jaxb-api", "slf4j-nop")
_SOURCES = tuple(ROOT / "bench/field/clients" / name for name in ("Broker.java", "Jms.java"))


class ActiveMQ(System):
    """The system that the paper compares with."""

    name = "activemq"
    title = "ActiveMQ, JDBC store"
    ordered = True

    def missing(self) -> str | None:
        """Fetch the packages, compile broker and clients."""
        if shutil.which("javac") is None:
            return "sudo apt-get install default-jdk-headless"
        try:
            _compiled()
        except peers.Missing as missing:
            return str(missing)
        return None

    def version(self) -> str:
        """Return the packages' versions."""
        return f"activemq {peers.debian_version('activemq')}, pgjdbc {peers.debian_version('libpostgresql-jdbc-java')}"

    @contextlib.contextmanager
    def open(self, house: House, plan: Plan) -> Iterator[Session]:
        """Run a broker whose store is the application's database."""
        with database(house, plan) as known, broker(known) as (port, _, jdbc, pid):
            program = Program([*_java("-Xmx1g"), "Jms"], _config(port, jdbc, known.tcp))
            yield Session(program, known.app, [pid])


@contextlib.contextmanager
def broker(known: Database) -> Iterator[tuple[int, int, str, int]]:
    """Run a broker whose store is a database; yield its ports, for JMS and for STOMP, the store, and its process id."""
    port, stomp = free_port(), free_port()
    jdbc = f"jdbc:postgresql://{known.tcp['host']}:{known.tcp['port']}/{known.tcp['dbname']}"
    with directory() as place:
        command = [
            *_java("-Xmx1g"), "Broker", str(place), str(port), jdbc,
            known.tcp["user"], known.tcp["password"], str(stomp),
        ]  # fmt: skip
        with daemon(command, lambda: listens(port) and listens(stomp), home=place, timeout=180) as pid:
            yield port, stomp, jdbc, pid


def _config(port: int, jdbc: str, tcp: Mapping[str, str]) -> dict[str, str]:
    return {"broker": f"tcp://127.0.0.1:{port}", "jdbc": jdbc, "user": tcp["user"], "password": tcp["password"]}


def _java(*options: str) -> list[str]:
    path = os.pathsep.join([str(_compiled()), _class_path(peers.debian(*_PACKAGES))])
    return [shutil.which("java") or "java", *options, "-cp", path]


def _compiled() -> Path:
    """Compile broker and clients into the cache, unless that has been done with these sources."""
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in _SOURCES)).hexdigest()[:16]
    place = peers.cache() / f"java-{digest}"
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=peers.cache(), ignore_cleanup_errors=True) as made:
            command = ["javac", "-cp", _class_path(peers.debian(*_PACKAGES)), "-d", made, *map(str, _SOURCES)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise peers.Missing(f"javac: {done.stderr.strip()[-500:]}")
            # The unprivileged user that the broker runs as reads these files.
            Path(made).chmod(0o755)
            # Another run may have made the directory first.
            with contextlib.suppress(OSError):
                Path(made).rename(place)
    return place


def _class_path(root: Path) -> str:
    """Return the jars of the packaged broker; those that the system has are not below the root."""
    shared = Path("usr/share")
    listed = sorted((root / shared / "activemq/lib").glob("*.jar"))
    listed += [root / shared / "java" / f"{name}.jar" for name in _MORE]
    found = []
    for jar in listed:
        if jar.exists():
            found.append(jar)
        else:
            # The jar is a link to a file of the system, or its package is installed in the system.
            name = jar.readlink().name if jar.is_symlink() else jar.name
            found.append(Path("/usr/share/java") / name)
    return os.pathsep.join(str(jar) for jar in found)
