"""Units of work look up and write in fewer statements."""

from pgps.install import run_sql

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0026_fewer.sql")
