"""What is counted of spools that are not persistent; dropping a spool holds up nobody."""

from pgps.install import run_sql

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0053_counted.sql")
