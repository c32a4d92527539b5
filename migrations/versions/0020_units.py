"""Units of work: services, participants, conversations."""

from pgps.install import run_sql

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0020_units.sql")
