"""Links: what a broker says of its own origins counts for more than what others say of them."""

from pgps.install import run_sql

revision = "0059"
down_revision = "0058"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0059_own_word.sql")
