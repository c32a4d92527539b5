"""Rows and tables that take turns, in place of advisory locks."""

from pgps.install import run_sql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0008_locks.sql")
