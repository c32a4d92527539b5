"""What alembic runs: the missing revisions, then the replaceable code, in one transaction."""

from alembic import context
from sqlalchemy import Connection

from pgps import config, install


def run(connection: Connection) -> None:
    """Upgrade over a connection that is in a transaction; whoever began it commits it."""
    driver = install.driver_connection(connection)
    given = context.config.attributes
    had_language = install.before_revisions(driver, stop=given.get("stop", False))
    context.configure(connection=connection, version_table_schema="pgps_internal")
    with context.begin_transaction():
        context.run_migrations()
    install.after_revisions(driver, had_language=had_language, parser=given.get("parser"))


connected = context.config.attributes.get("connection")
if context.is_offline_mode():
    raise SystemExit("alembic --sql is not supported; to read the SQL: pgps upgrade --dry-run --show-sql")
if connected is not None:
    run(connected)
else:
    with install.engine(config.load().dsn).begin() as own:
        run(own)
