"""${message}."""

from pgps.install import run_sql

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/${up_revision}_${message.lower().replace(" ", "_")}.sql")
