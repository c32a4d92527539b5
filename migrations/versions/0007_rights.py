"""What runs as whom."""

from pgps.install import run_sql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0007_rights.sql")
