"""Spark for pgps: publish DataFrames, read queues and subscriptions, run pipelines.

`session()` makes a Spark session that can talk to brokers, `register(spark)` makes one of yours do so;
`publish(df, event_type)` and `publish_stream(df, event_type)` publish;
`detect(stream, expression)` detects composite events; `start(writer)` starts a stream. Nothing here needs Java until it
is called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgps_spark.connection import jdbc_options
    from pgps_spark.detecting.detect import detect
    from pgps_spark.publishing import Published, publish, publish_stream
    from pgps_spark.queries import start
    from pgps_spark.sessions import register, session

__all__ = ["Published", "detect", "jdbc_options", "publish", "publish_stream", "register", "session", "start"]

_WHERE = {
    "Published": "publishing",
    "detect": "detecting.detect",
    "jdbc_options": "connection",
    "publish": "publishing",
    "publish_stream": "publishing",
    "register": "sessions",
    "session": "sessions",
    "start": "queries",
}


def __getattr__(name: str) -> Any:
    """Import a module when it is first used, so that only what needs PySpark complains if it is missing."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in {"session", "jdbc_options"}:
        from pgps_spark.sessions import require_spark  # noqa: PLC0415 - see above

        require_spark()
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
