"""Roles whose filters hold up the dispatcher."""

from pgps.install import run_sql

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0042_held_up.sql")
