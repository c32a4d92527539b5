"""Installing, upgrading and removing where a statement may take a millisecond only."""

from __future__ import annotations

import contextlib

import psycopg
import pytest
from psycopg import sql

from pgps import _timeouts, install
from tests.fix_db import Connect, wait_until

pytestmark = pytest.mark.timeout(600)


def test_a_short_timeout_of_the_database_does_not_cut_it_off(empty_database: str, connect: Connect) -> None:
    admin = connect(dsn=empty_database)
    limit = sql.SQL("alter database {} set statement_timeout = '1ms'")
    admin.execute(limit.format(sql.Identifier(admin.info.dbname)))
    assert install.install(empty_database).up_to_date
    admin.execute("update pgps_internal.installation set value = 'older' where key = 'code_digest'")
    assert not install.status(empty_database).up_to_date
    assert install.upgrade(empty_database).up_to_date
    install.uninstall(empty_database)
    assert not install.status(empty_database).installed


def test_no_timeout_runs_while_the_settings_of_a_session_are_changed(connect: Connect) -> None:
    """One that ended with their message struck the next, of a session without a limit: 64 times in 27,313 sessions."""
    session: psycopg.Connection = connect(autocommit=True)
    session.execute("set statement_timeout = '1ms'")
    _timeouts.settle(session, "select pg_catalog.pg_sleep(0.1)")

    def is_limited() -> bool:
        # Which may take longer than the limit.
        with contextlib.suppress(psycopg.errors.QueryCanceled):
            return session.execute("show statement_timeout").fetchone() == ("1ms",)
        return False

    wait_until(is_limited, what="the limit is as it was")
    _timeouts.lift(session)
    assert session.execute("select 7 from pg_catalog.pg_sleep(0.1)").fetchone() == (7,)
