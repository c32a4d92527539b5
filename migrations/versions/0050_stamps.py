"""Units of work at other brokers are told apart by number and stamp."""

from pgps.install import run_sql

revision = "0050"
down_revision = "0044"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0050_stamps.sql")
