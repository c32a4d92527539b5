"""A step of a composite event asks less of its definition."""

from pgps.install import run_sql

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0029_steps.sql")
