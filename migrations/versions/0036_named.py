"""Who has named a broker."""

from pgps.install import run_sql

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0036_named.sql")
