"""Composite events: roles whose events are slow to detect, whatever code they run."""

from pgps.install import run_sql

revision = "0057"
down_revision = "0056"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0057_wholly_slow.sql")
