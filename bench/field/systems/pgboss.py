"""pg-boss: a table of jobs for Node; its publish/subscribe makes a job in each subscribed queue."""

from __future__ import annotations

from bench.field.systems.packaged import FromNpm


class PgBoss(FromNpm):
    """A job queue from npm."""

    name = "pgboss"
    title = "pg-boss"
    # Version 10 is the last that runs with Node 20.
    packages = ("pg-boss@10.4.2",)
