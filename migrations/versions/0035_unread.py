"""What filters do not read."""

from pgps.install import run_sql

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0035_unread.sql")
