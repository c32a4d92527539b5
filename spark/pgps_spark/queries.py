"""Starting streaming queries, and waiting for their end."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["start", "to_end"]

_TOO_SLOW = "Python worker failed to connect back"
_EVERY = 0.05


def start(writer: Any, *, tries: int = 10) -> Any:
    """Start a streaming query from its writer; return it once its source is there.

    Spark gives the Python process of a source ten seconds to start, however busy the machine is. A
    query that ended for that reason has done nothing; it is started again, `tries` times in all.
    Raises whatever else has ended the query.
    """
    while True:
        query = writer.start()
        while query.isActive and str(query.status["message"]).startswith("Initializing"):
            time.sleep(_EVERY)
        error = query.exception()
        if error is None:
            return query
        tries -= 1
        if tries <= 0 or _TOO_SLOW not in str(error) or query.recentProgress:
            raise error


def to_end(writer: Any) -> Any:
    """Start a query and wait for its end, or for Ctrl-C; return it. Raises what has ended it."""
    query = start(writer)
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    return query
