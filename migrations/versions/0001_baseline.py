"""The tables, types, indexes and roles of the first release."""

from pgps.install import run_sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0001_baseline.sql")
