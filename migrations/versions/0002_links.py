"""Links between brokers: identity, neighbours, what was told and received."""

from pgps.install import run_sql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0002_links.sql")
