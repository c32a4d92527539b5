"""Where composite events wait for the watermark."""

from pgps.install import run_sql

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0038_waiting.sql")
