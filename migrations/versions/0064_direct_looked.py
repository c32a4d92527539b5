"""Direct clients: the batch up to which a worker has looked who is away."""

from pgps.install import run_sql

revision = "0064"
down_revision = "0063"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0064_direct_looked.sql")
