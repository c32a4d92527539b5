"""Composite events."""

from pgps.install import run_sql

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0019_composite.sql")
