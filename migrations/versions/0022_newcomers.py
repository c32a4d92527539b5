"""Newcomers: who subscribes holds up nobody who receives from other brokers."""

from pgps.install import run_sql

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0022_newcomers.sql")
