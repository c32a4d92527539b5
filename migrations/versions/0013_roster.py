"""What takes part in what, by kind."""

from pgps.install import run_sql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0013_roster.sql")
