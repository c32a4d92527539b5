"""Attempts: how often an event has come already."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, publish, queue, rows

Name = Callable[..., str]


def ready(admin: psycopg.Connection, tick: str, *given: int) -> None:
    publish(admin, tick, *given)
    rows(admin, "select pgps.dispatch()")


@pytest.mark.parametrize("rows_function", [False, True])
@pytest.mark.parametrize("handler", ["all", "any"])
def test_the_attempt_says_whether_an_event_comes_for_the_first_time_however_many_are_asked_for(
    admin: psycopg.Connection, name: Name, handler: str, rows_function: bool
) -> None:
    made = name()
    make_type(admin, made)
    call(admin, "subscribe", made, made, handler=handler)
    ready(admin, made, *range(6))
    query = "select attempt from pgps.receive(%s, %s)"
    if rows_function:
        query = f"select pgps_attempt from {queue(made, 'receive')}(array[%s]::text[], %s)"

    def attempts(most: int) -> list[int]:
        return column(admin, query, [made, most])

    assert [attempts(most) for most in (4, 2, 5)] == [[1] * 4, [2] * 2, [2] * 4 + [1]]
    assert attempts(1) == [2]
    assert call(admin, "ack", made) == 1
    assert attempts(9) == [2] * 4 + [1]
    assert attempts(2) == [2] * 2
    assert column(admin, "select attempt from pgps.take(%s, 1)", [made]) == [2]
    assert attempts(9) == [2] * 4
