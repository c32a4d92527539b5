"""What somebody else has locked in an open transaction is not waited for."""

from pgps.install import run_sql

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0024_held.sql")
