"""Event types that do not come over links any more."""

from pgps.install import run_sql

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0043_lacks.sql")
