"""Whoever floods a channel with notifications has the services that hear it look now and then, and not all the time.

Every role may NOTIFY, whatever and as often as it likes. A service looks as often as it is rung, so a flood would have
it ask the server without a pause.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Damper"]

log = logging.getLogger(__name__)

FLOOD = 1000
"""So many notifications on one channel in a second are a flood: a batch notifies a channel once."""
_SPAN = 1.0
_LATE = 0.1
"""Seconds between rings while a channel is flooded; nothing is lost, since who is rung looks for all there is."""


class Damper:
    """Rings for each notification at once, or, where a channel is flooded, once for all that come within a while."""

    def __init__(self, ring: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ring = ring
        self._clock = clock
        self._since = clock()
        self._told: Counter[str] = Counter()
        self._flooded: set[str] = set()
        self._late: dict[str, asyncio.TimerHandle] = {}

    def note(self, channel: str) -> None:
        """Take note of a notification; called in the event loop."""
        now = self._clock()
        if now > self._since + _SPAN:
            self._flooded = {one for one, count in self._told.items() if count > FLOOD}
            self._since = now
            self._told.clear()
        self._told[channel] += 1
        if self._told[channel] > FLOOD and channel not in self._flooded:
            log.warning("listener: channel %s is flooded with notifications; who hears it looks now and then", channel)
            self._flooded.add(channel)
        if channel not in self._flooded:
            self._ring(channel)
        elif channel not in self._late:
            self._late[channel] = asyncio.get_running_loop().call_later(_LATE, self._ring_late, channel)

    def close(self) -> None:
        """Ring no more."""
        for timer in self._late.values():
            timer.cancel()
        self._late.clear()

    def _ring_late(self, channel: str) -> None:
        del self._late[channel]
        self._ring(channel)
