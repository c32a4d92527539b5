"""Spools: messages for a group that may be away."""

from pgps.install import run_sql

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0021_spools.sql")
