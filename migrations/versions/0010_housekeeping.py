"""Large transactions and segments."""

from pgps.install import run_sql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0010_housekeeping.sql")
