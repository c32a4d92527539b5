"""Links: what of a rewind is held already is asked at once for a whole batch."""

from pgps.install import run_sql

revision = "0058"
down_revision = "0057"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0058_held_at_once.sql")
