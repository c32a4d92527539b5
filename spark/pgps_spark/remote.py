"""Where the JVM of Spark is: in this process, or at a server of Spark Connect."""

from __future__ import annotations

__all__ = ["is_connect"]


def is_connect(thing: object) -> bool:
    """Say whether a session or a DataFrame is one of Spark Connect, whose JVM is elsewhere."""
    return type(thing).__module__.startswith("pyspark.sql.connect.")
