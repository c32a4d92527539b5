"""Errors of tasks come back from Spark's text as they were raised."""

from __future__ import annotations

import traceback

import psycopg
import pytest

from pgps.errors import BadArgument, ConstraintViolated, PgpsError, WrongState
from pgps_spark.errors import carried, database_errors, text_of, told


def _as_spark_tells(error: BaseException) -> Exception:
    text = "".join(traceback.format_exception(error))
    return RuntimeError(
        f"[PYTHON_EXCEPTION] An exception was thrown:\n  {text}\n\n\tat org.apache.spark.Some(Some:1)\n"
    )


def test_an_error_of_the_server_comes_back_with_all_its_fields(admin: psycopg.Connection) -> None:
    with pytest.raises(ConstraintViolated) as raised, database_errors():
        admin.execute(
            "create temporary table few (n integer constraint positive check (n > 0)); insert into few values (0)"
        )
    for given in (raised.value, _as_spark_tells(raised.value)):
        found = told(given)
        assert type(found) is ConstraintViolated
        assert (found.message, found.sqlstate, found.constraint) == (raised.value.message, "23514", "positive")
        assert found.detail == "Failing row contains (0)."


@pytest.mark.parametrize("hint", [None, "Do this.\nOr that: {}."])
def test_an_error_of_ours_comes_back_with_each_line_of_it(hint: str | None) -> None:
    error = WrongState('the "first" line\nand a second', hint=hint, sqlstate="55000")
    with pytest.raises(WrongState) as raised, carried(), carried():
        raise error
    assert len(raised.value.__notes__) == 1
    found = told(_as_spark_tells(raised.value))
    assert type(found) is WrongState
    assert (found.message, found.hint, found.sqlstate) == (error.message, hint, "55000")
    found = told(
        RuntimeError(f"[USER_RAISED_EXCEPTION] {text_of(error)} SQLSTATE: P0001\n\tat org.apache.spark.Some(Some:1)")
    )
    assert (type(found), str(found)) == (WrongState, str(error))


def test_a_note_of_another_error_says_nothing_of_the_first() -> None:
    first, second = BadArgument("first", hint="Do this."), WrongState("second", sqlstate="55000")
    found = told(RuntimeError(f"pgps.errors.BadArgument: {first}\n\tat org.apache\nCaused by: {text_of(second)}\n"))
    assert (type(found), str(found), found and found.sqlstate) == (BadArgument, str(first), None)
    assert told(RuntimeError("something else")) is None
    assert isinstance(told(RuntimeError("org.postgresql.util.PSQLException: ERROR: no\n  Hint: Do.\n")), PgpsError)
