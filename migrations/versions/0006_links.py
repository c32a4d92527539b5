"""What links need to be right while paths change."""

from pgps.install import run_sql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0006_links.sql")
