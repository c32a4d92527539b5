"""How long the code of an owner, filters and attributes, may take in a step."""

import contextlib
from collections.abc import Iterator
from time import monotonic
from typing import Any, Optional

TOO_SLOW = "PS002"  # beside others; never one of user's code, whose errors do not get so far
MUCH_OF_STEP = "PS003"  # the same of what the detector makes of events
TOO_LONG = "54000"
TOO_MUCH = "54001"  # a shorter step may take less
AT_LEAST = 0.1  # what each owner has in a quick step, whatever the others take: many that are quick are not slow


class CodeTime:
    """Limit the time that the code of the owners of composite events takes in a step.

    pace: quick, where others wait for it: seconds is what all have together, of which each has AT_LEAST some; else what
    each has, and a millisecond for each candidate. None: each set of candidates has what its job allows, and no more is
    counted.
    """

    def __init__(self, seconds: Optional[float], pace: Optional[str] = None) -> None:
        self.seconds = seconds
        self.is_quick = pace == "quick"
        self.used: dict[int, float] = {}
        self.of_owner: dict[int, int] = {}
        self.current: Optional[int] = None
        self.began = 0.0
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
        self.of_owner[owner] = job["composite_id"]
        left = self.seconds - used
        if self.is_quick:
            left = max(self.seconds - sum(self.used.values()), AT_LEAST - used)
        self.over_at = began + max(left, 0.001)
        self.used[owner], self.began, self.current = used, began, owner
        try:
            yield min(own, self.over_at)
        finally:
            self.used[owner] = used + monotonic() - began

    def left(self) -> Optional[float]:
        """Return how many seconds the owner has left whose code is evaluated; None: nobody counts."""
        return None if self.over_at is None else max(self.over_at - monotonic(), 0.001)

    def slowest(self) -> list[int]:
        """Return a composite event of each owner whose code has taken much of a quick step that is over."""
        now = monotonic() - self.began
        used = {owner: used + now if owner == self.current else used for owner, used in self.used.items()}
        much = max(AT_LEAST, max(used.values()) / 4)
        return sorted(self.of_owner[owner] for owner in used if owner == self.current or used[owner] >= much)

    @property
    def sqlstate(self) -> str:
        """Return what is wrong when the time that was given last is over."""
        if self.is_quick:
            return TOO_SLOW
        return TOO_LONG if self.seconds is None else TOO_MUCH
