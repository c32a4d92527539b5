"""Versions of generated code."""

from pgps.install import run_sql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0016_generator.sql")
