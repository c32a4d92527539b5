"""What failed, seen."""

from pgps.install import run_sql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0011_failures.sql")
