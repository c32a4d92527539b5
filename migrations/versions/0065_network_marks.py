"""Networks: what the message under a number was, so that a sender that was put back is noticed."""

from pgps.install import run_sql

revision = "0065"
down_revision = "0064"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0065_network_marks.sql")
