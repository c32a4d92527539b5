"""What mends of broken promises keep."""

from pgps.install import run_sql

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0018_mends.sql")
