"""pgqueuer: a table of jobs; fan-out is a job for each consumer, made by the producer in one call."""

from __future__ import annotations

from bench.field.systems.packaged import FromPyPI


class Pgqueuer(FromPyPI):
    """A job queue from PyPI."""

    name = "pgqueuer"
    title = "pgqueuer"
    packages = ("pgqueuer==1.6.0", "asyncpg==0.32.0")
