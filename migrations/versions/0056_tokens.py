"""Clients: whose program has continued a session, and where a statement's events end."""

from pgps.install import run_sql

revision = "0056"
down_revision = "0053"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0056_tokens.sql")
