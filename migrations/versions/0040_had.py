"""From which batch on the subscriptions here have had what a filter wants."""

from pgps.install import run_sql

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0040_had.sql")
