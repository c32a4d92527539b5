"""An exchange of plain units of work looks up and writes less."""

from pgps.install import run_sql

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0030_plain.sql")
