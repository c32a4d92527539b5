"""Links: who has said that a link is refused, or that this broker was restored, and when."""

from pgps.install import run_sql

revision = "0060"
down_revision = "0059"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0060_whose_word.sql")
