"""PL/Python functions import modules from a table, compiled once for all sessions."""

import psycopg
import pytest

from tests.fix_db import Connect

FILTER = "select pgps.parse_filter('price > 100', 'quote', '{price}') ->> 'text'"


def texts_of(connection: psycopg.Connection) -> list[tuple[str]]:
    return connection.execute(FILTER.encode()).fetchall()


def test_all_modules_are_compiled_for_this_server(admin: psycopg.Connection) -> None:
    query = "select count(*) filter (where code is not null), count(*) from pgps_internal.python_module"
    compiled, all_ = admin.execute(query).fetchall()[0]
    assert compiled == all_ > 20


def test_where_the_server_has_another_python_sessions_compile_the_source(connect: Connect) -> None:
    usual = texts_of(connect())
    session = connect(autocommit=False)
    session.execute("update pgps_internal.python_module set magic = 'old', code = 'broken'")
    assert texts_of(session) == usual
    session.rollback()


def test_a_transaction_that_is_older_than_the_upgrade_has_to_be_begun_again(connect: Connect) -> None:
    session = connect(autocommit=False)
    session.execute("update pgps_internal.python_module set digest = 'of another release'")
    with pytest.raises(psycopg.errors.SerializationFailure) as caught:
        texts_of(session)
    assert "pgps was upgraded after this transaction had begun" in str(caught.value.diag.message_primary)
    assert caught.value.diag.message_hint == "Begin the transaction again."
    session.rollback()
    assert texts_of(session)
    session.rollback()


def test_everybody_may_load_them(connect: Connect, role: object) -> None:
    session = connect(role())  # type: ignore[operator]
    assert texts_of(session) == texts_of(connect())
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        session.execute("select * from pgps_internal.python_module")
