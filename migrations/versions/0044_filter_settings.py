"""Settings of a composite event's filter."""

from pgps.install import run_sql

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0044_filter_settings.sql")
