"""Odds and ends."""

from pgps.install import run_sql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0015_leftovers.sql")
