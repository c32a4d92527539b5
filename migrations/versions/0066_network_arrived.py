"""Networks: which messages have arrived, so that a sender that was put back repeats none."""

from pgps.install import run_sql

revision = "0066"
down_revision = "0065"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0066_network_arrived.sql")
