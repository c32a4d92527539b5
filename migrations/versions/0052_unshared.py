"""What is shared out later: whose it is, and how far it has been."""

from pgps.install import run_sql

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0052_unshared.sql")
