"""What every broker counts of what it sends and receives."""

from pgps.install import run_sql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0012_audit.sql")
