"""Slow lanes: a batch is asked about in parts."""

from pgps.install import run_sql

revision = "0063"
down_revision = "0062"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0063_lane_parts.sql")
