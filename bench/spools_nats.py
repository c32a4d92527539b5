"""Spooling durably, beside NATS JetStream with file storage and acknowledged publication.

20 clients of pgbench spool one message a transaction; in turn 20 tasks of nats-py publish the same
message, each waiting for its acknowledgement. PostgreSQL has written and synchronized its log before it answers.
JetStream has only with `sync_interval: always`, which the server knows from 2.10 on; what an older one (Debian 12 has
2.9) acknowledges may be lost when the machine fails, so that the comparison is reported and has no target.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

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
        said = subprocess.run(["nats-server", "--version"], capture_output=True, text=True, check=True).stdout
        import nats  # noqa: F401, PLC0415 - of the benchmarks only
    except (OSError, ImportError):
        print("NATS is not installed (Debian: nats-server, PyPI: nats-py); its comparison is skipped")
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
    return figures


@contextlib.contextmanager
def _server(*, always: bool) -> Iterator[None]:
    """Run a server with an empty store."""
    with tempfile.TemporaryDirectory(prefix="pgps-nats-") as place:
        more = ", sync_interval: always" if always else ""
        config = Path(place) / "nats.conf"
        config.write_text(f'listen: "127.0.0.1:{_PORT}"\njetstream {{ store_dir: "{place}/store"{more} }}\n')
        process = subprocess.Popen(["nats-server", "-c", str(config)], stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


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
    return 2 * house.runs
