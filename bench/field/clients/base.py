"""What the Python client programs share: they read commands from standard input, one JSON object a line.

The first line is the configuration. A publisher is told `publish`, a subscriber `begin` and then `collect`: both write
what they saw, event numbers and wall-clock times, to a file, and answer with a line. `stop` ends either.
This module imports nothing that the environment of another system lacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

__all__ = ["Seen", "event", "main"]

_LINGER = 0.3
"""Seconds in which what is sent twice would arrive."""

Config = dict[str, Any]
Publish = Callable[[list[int]], Awaitable[None]]


class Seen:
    """What one subscriber has received."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.numbers = array("q")
        self.times = array("d")
        self._wanted = sys.maxsize
        self._reached = asyncio.Event()
        self.refused: set[int] = set()
        self.active = asyncio.Event()
        """Between rounds who polls stands still, lest it slow down whose turn it is."""

    def add(self, number: int) -> None:
        """Record an event with the current time."""
        self.numbers.append(number)
        self.times.append(time.time())
        if len(self.numbers) >= self._wanted:
            self._reached.set()

    def refuse(self, number: int) -> bool:
        """Record an event; return whether it came for the first time."""
        if number in self.refused:
            return False
        self.refused.add(number)
        return True

    async def until(self, wanted: int) -> None:
        """Wait for so many events."""
        self._wanted = wanted
        if len(self.numbers) < wanted:
            await self._reached.wait()

    def take(self) -> bytes:
        """Return the records, and begin again without any."""
        taken = array("q", [self.index, len(self.numbers)]).tobytes() + self.numbers.tobytes() + self.times.tobytes()
        del self.numbers[:], self.times[:]
        self._wanted = sys.maxsize
        self._reached.clear()
        return taken


def event(config: Config, number: int) -> dict[str, Any]:
    """Return the StockQuote of a number."""
    return {"n": number, "symbol": f"S{number % config['plan']['symbols']}", "price": number % 1000, "volume": number}


def main(
    publishers: Callable[[Config], AbstractAsyncContextManager[list[Publish]]],
    subscribers: Callable[[Config, list[Seen]], AbstractAsyncContextManager[None]],
) -> None:
    """Serve one configuration: both arguments are context managers that set up, and clean up at the end."""
    asyncio.run(_serve(publishers, subscribers))


async def _serve(publishers: Any, subscribers: Any) -> None:
    lines = await _stdin()
    config = json.loads(await lines.readline())
    if config["role"] == "publisher":
        async with publishers(config) as publish:
            _say(ready=True)
            async for command in _commands(lines):
                _say(**await _publish(config, publish, command))
    else:
        seen = [Seen(index) for index in config["subscribers"]]
        async with subscribers(config, seen):
            _say(ready=True)
            async for command in _commands(lines):
                for one in seen:
                    one.active.set()
                if command["do"] == "collect":
                    _say(**await _collect(seen, command))
                    for one in seen:
                        one.active.clear()


async def _collect(seen: list[Seen], command: dict[str, Any]) -> dict[str, Any]:
    waiting = (one.until(wanted) for one, wanted in zip(seen, command["expect"], strict=True))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.gather(*waiting), command["timeout"])
    await asyncio.sleep(_LINGER)
    counts = [len(one.numbers) for one in seen]
    _write(command["file"], b"".join(one.take() for one in seen))
    return {"received": counts}


async def _publish(config: Config, publish: list[Publish], command: dict[str, Any]) -> dict[str, Any]:
    """Publish events first, first + step, … by all publishers of this process; at `rate` a second in all."""
    numbers, times = array("q"), array("d")
    together, rate = config["plan"]["together"], command.get("rate")
    began = time.time()

    async def one(index: int, send: Publish) -> None:
        mine = range(command["first"] + index, command["first"] + command["count"], config["publishers"])
        for start in range(0, len(mine), together):
            chunk = list(mine[start : start + together])
            if rate:
                await asyncio.sleep(max(0.0, began + (chunk[0] - command["first"]) / rate - time.time()))
            numbers.extend(chunk)
            times.extend([time.time()] * len(chunk))
            await send(chunk)

    mine = zip(config["indexes"], publish, strict=True)
    await asyncio.gather(*(one(index, send) for index, send in mine))
    ended = time.time()
    _write(command["file"], array("q", [0, len(numbers)]).tobytes() + numbers.tobytes() + times.tobytes())
    return {"published": len(numbers), "began": began, "ended": ended}


async def _stdin() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def _commands(lines: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    while line := await lines.readline():
        command = json.loads(line)
        if command["do"] == "stop":
            return
        yield command


def _write(file: str, data: bytes) -> None:
    Path(file).write_bytes(data)


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)
