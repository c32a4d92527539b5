"""procrastinate: a table of jobs for Python; fan-out is a job for each consumer, made by the producer in one call."""

from __future__ import annotations

from bench.field.systems.packaged import FromPyPI


class Procrastinate(FromPyPI):
    """A task queue from PyPI."""

    name = "procrastinate"
    title = "procrastinate"
    packages = ("procrastinate==3.10.0", "psycopg[binary,pool]>=3.2")
