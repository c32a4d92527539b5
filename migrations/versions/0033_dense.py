"""Statements that say which ids are theirs."""

from pgps.install import run_sql

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0033_dense.sql")
