"""Links: up to where those had come that this broker has dropped, so that they can be made anew."""

from pgps.install import run_sql

revision = "0067"
down_revision = "0066"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0067_former_links.sql")
