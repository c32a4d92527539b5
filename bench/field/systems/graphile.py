"""graphile-worker: a table of jobs for Node; fan-out is a job for each consumer, made by the producer in one call."""

from __future__ import annotations

from bench.field.systems.packaged import FromNpm


class Graphile(FromNpm):
    """A job queue from npm."""

    name = "graphile"
    title = "graphile-worker"
    # Later versions do not run with Node 20.
    packages = ("graphile-worker@0.16.6", "pg@8")
