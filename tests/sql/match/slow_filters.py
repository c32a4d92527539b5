"""Steps of tests about filters that take long: making one slow, and who asks it then."""

from __future__ import annotations

import psycopg

from tests.fix_broker import column, publish, rows, value

_PLACE = "select asked_in from pgps.classes where subscription = %s"
# What was measured, but no more than what `slow` has put in.
_SLEPT = r"""
    create function public.slept(signature_id bigint, took interval) returns interval language sql stable
    return least(took, make_interval(secs => coalesce((
        select substring(p.prosrc from 'pg_sleep\(([0-9.]+)\)')::float8 from pg_catalog.pg_proc p
        where p.oid = to_regproc(format('pgps_internal.match_%s', signature_id))), 0)))
"""


def count_sleeps(session: psycopg.Connection) -> None:
    """Of what a filter takes, have the dispatcher count only how long `slow` lets it sleep.

    Any filter takes 50 ms when the machine halts, and would be asked elsewhere than a test says.
    """
    rows(session, _SLEPT)
    text = str(value(session, "select pg_get_functiondef('pgps_internal.match_type'::regproc)"))
    measured = "clock_timestamp() - v_entered"
    assert text.count(measured) == 1
    rows(session, text.replace(measured, f"public.slept(v_signature.signature_id, {measured})"))


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
