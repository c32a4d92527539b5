"""What was counted under filters is compared by the places of events alone."""

from pgps.install import run_sql

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0028_recounts.sql")
