"""Subscriptions to a prefix join event types later that somebody is changing."""

from pgps.install import run_sql

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0031_late.sql")
