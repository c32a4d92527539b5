"""An occurrence at hand for each registration of a client."""

from pgps.install import run_sql

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0051_at_hand.sql")
