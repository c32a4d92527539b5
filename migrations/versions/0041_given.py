"""How many events a consumer was given."""

from pgps.install import run_sql

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0041_given.sql")
