"""Newcomers: which transaction has changed what those who receive go by."""

from pgps.install import run_sql

revision = "0061"
down_revision = "0060"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0061_who_knows.sql")
