"""Filters that read more than the event, matched beside the dispatcher."""

from pgps.install import run_sql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0009_lanes.sql")
