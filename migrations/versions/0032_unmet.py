"""Subscriptions to a prefix meet event types that are made at the same time."""

from pgps.install import run_sql

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0032_unmet.sql")
