"""The clock."""

from pgps.install import run_sql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0014_clock.sql")
