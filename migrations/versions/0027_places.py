"""New conversations are as old as their first unit of work."""

from pgps.install import run_sql

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0027_places.sql")
