"""Errors are told apart by SQLSTATE and carry what PostgreSQL said."""

from __future__ import annotations

import psycopg
import pytest

from pgps import errors


@pytest.mark.parametrize(
    ("sqlstate", "expected"),
    [
        ("08006", errors.ConnectionLost),
        ("22023", errors.BadArgument),
        ("23502", errors.ConstraintViolated),
        ("25P02", errors.BrokerError),
        ("25P03", errors.ConnectionLost),
        ("25P04", errors.ConnectionLost),
        ("40001", errors.TryAgain),
        ("40P01", errors.TryAgain),
        ("42501", errors.NotPermitted),
        ("42601", errors.BadDefinition),
        ("42703", errors.UnknownName),
        ("42704", errors.UnknownName),
        ("42710", errors.AlreadyExists),
        ("42804", errors.BadDefinition),
        ("53300", errors.ConnectionLost),
        ("54000", errors.LimitExceeded),
        ("55000", errors.WrongState),
        ("57014", errors.BrokerError),
        ("57P01", errors.ConnectionLost),
        ("P0001", errors.BrokerError),
    ],
)
def test_the_sqlstate_decides_the_class(sqlstate: str, expected: type[errors.BrokerError]) -> None:
    original = psycopg.errors.lookup(sqlstate)("said so")
    error = errors.from_database(original)
    assert type(error) is expected
    assert (error.message, error.sqlstate) == ("said so", sqlstate)


def test_an_error_of_the_server_keeps_its_message_and_hint(admin: psycopg.Connection) -> None:
    statement = """
        do $$ begin
            raise 'event type "x" does not exist' using errcode = '42704', hint = 'Do this.';
        end $$
    """
    with pytest.raises(psycopg.Error) as raised:
        admin.execute(statement)
    error = errors.from_database(raised.value)
    assert isinstance(error, errors.UnknownName)
    assert str(error) == 'event type "x" does not exist\nHINT:  Do this.'


def test_a_server_that_is_not_reached_is_a_lost_connection() -> None:
    with pytest.raises(psycopg.Error) as raised:
        psycopg.connect("host=/nonexistent")
    assert isinstance(errors.from_database(raised.value), errors.ConnectionLost)


def test_a_mistake_on_this_side_is_not_a_lost_connection() -> None:
    assert type(errors.from_database(psycopg.ProgrammingError("wrong use"))) is errors.BrokerError


def test_everything_raised_is_one_family() -> None:
    classes = [getattr(errors, name) for name in errors.__all__ if isinstance(getattr(errors, name), type)]
    assert all(issubclass(one, errors.PgpsError) for one in classes)
