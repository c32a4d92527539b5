"""One word for one thing: internal names."""

from pgps.install import run_sql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0017_names.sql")
