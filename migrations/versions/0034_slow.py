"""Owners of composite events whose code is slow."""

from pgps.install import run_sql

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0034_slow.sql")
