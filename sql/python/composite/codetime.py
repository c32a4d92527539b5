"""How long the code of an owner, filters and attributes, may take in a step."""

import contextlib
from collections.abc import Iterator
from time import monotonic
from typing import Any, Optional

TOO_SLOW = "PS002"  # beside others; never one of user's code, whose errors do not get so far
MUCH_OF_STEP = "PS003"  # the same of what the detector makes of events
TOO_LONG = "54000"
TOO_MUCH = "54001"  # a shorter step may take less


class CodeTime:
    """Share out the time of a step among the owners of composite events.

    seconds: how much each has; None: each set of candidates has what its job allows, and no more is counted. pace:
    quick, where others wait for it; else a millisecond is added for each candidate.
    """

    def __init__(self, seconds: Optional[float], pace: Optional[str] = None) -> None:
        self.seconds = seconds
        self.is_quick = pace == "quick"
        self.used: dict[int, float] = {}
        self.over_at: Optional[float] = None

    @contextlib.contextmanager
    def of(self, job: dict[str, Any], count: int) -> Iterator[Optional[float]]:
        """Yield until when a set of candidates may be evaluated, and count what it takes; None: for ever."""
        began = monotonic()
        own = began + job["limit"] + count / 1000 if "limit" in job else None
        self.over_at = None
        if own is None or self.seconds is None:
            yield own
            return
        owner = job["owner"]
        used = self.used.get(owner, 0.0)
        if not self.is_quick:
            used -= count / 1000
        self.over_at = began + max(self.seconds - used, 0.001)
        try:
            yield min(own, self.over_at)
        finally:
            self.used[owner] = used + monotonic() - began

    def left(self) -> Optional[float]:
        """Return how many seconds the owner has left whose code is evaluated; None: nobody counts."""
        return None if self.over_at is None else max(self.over_at - monotonic(), 0.001)

    @property
    def sqlstate(self) -> str:
        """Return what is wrong when the time that was given last is over."""
        if self.is_quick:
            return TOO_SLOW
        return TOO_LONG if self.seconds is None else TOO_MUCH
