"""What the client has parsed, for servers without PL/Python."""

from pgps.install import run_sql

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0025_parsed.sql")
