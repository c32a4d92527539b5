"""Clients: sessions, registrations, direct events, confirming events, requests and replies."""

from pgps.install import run_sql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("schema/0003_clients.sql")
