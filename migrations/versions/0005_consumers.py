"""What consumers name themselves by, and where they are."""

from pgps.install import run_sql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0005_consumers.sql")
