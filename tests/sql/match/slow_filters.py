"""Steps of tests about filters that take long: making one slow, and who asks it then."""

from __future__ import annotations

import psycopg

from tests.fix_broker import column, publish, rows, value

_PLACE = "select asked_in from pgps.classes where subscription = %s"


def slow(session: psycopg.Connection, subscription: str, *, seconds: float = 0.3) -> None:
    """Have the filter of a subscription take some time for each batch."""
    query = """select g.signature_id, pg_get_functiondef(format('pgps_internal.match_%%s', g.signature_id)::regproc)
        from pgps_internal.subscription s join pgps_internal.member m using (subscription_id)
        join pgps_internal.class c using (class_id) join pgps_internal.signature g using (signature_id)
        where s.name = %s"""
    for _, text in rows(session, query, [subscription]):
        begin = "\n            begin\n"
        assert text.count(begin) == 1
        rows(session, text.replace(begin, f"{begin} perform pg_catalog.pg_sleep({seconds});"))


def dispatch(session: psycopg.Connection, *numbers: int) -> None:
    publish(session, "tick", *numbers)
    rows(session, "select pgps.dispatch_batch()")


def taken(session: psycopg.Connection, subscription: str) -> list[int]:
    return column(session, "select (payload -> 'n')::integer from pgps.take(%s)", [subscription])


def place(session: psycopg.Connection, subscription: str) -> str:
    return str(value(session, _PLACE, [subscription]))
