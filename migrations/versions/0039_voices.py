"""Which role speaks for a broker whose network spools here."""

from pgps.install import run_sql

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0039_voices.sql")
