"""Policies whose tables have to stay plain."""

from pgps.install import run_sql

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0037_plain_tables.sql")
