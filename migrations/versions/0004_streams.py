"""Streams and loads: readers and writers in many sessions."""

from pgps.install import run_sql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0004_streams.sql")
