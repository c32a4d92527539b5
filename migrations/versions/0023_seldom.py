"""What there seldom is: a sequence says that there never was a row."""

from pgps.install import run_sql

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0023_seldom.sql")
