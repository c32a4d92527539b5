"""Neighbours: what had been published when one said that it drops the link."""

from pgps.install import run_sql

revision = "0062"
down_revision = "0061"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0062_drain_heard.sql")
