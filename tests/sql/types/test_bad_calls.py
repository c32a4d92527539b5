"""Bad input that only a call shows to be bad: names in quotes, a callback that drops itself, the last number of all."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, endpoint, numbers, publish, refused, rows, value
from tests.sql.types.test_bad_input import quote, witness

__all__ = ["quote", "witness"]

QUOTED = [
    ("select pgps.subscribe('x', '\"No Such\"')", "event type"),
    ("select pgps.publish('\"No Such\"', '{}')", "event type"),
    ("select pgps.pause('\"No Such\"')", "subscription"),
    ("select pgps.alter_queue('\"No Such\"', auditable => true)", "queue"),
    ("select pgps.find_queued('\"No Such\"')", "queue"),
    ("select pgps.find_exceptions(subscription => '\"No Such\"')", "subscription"),
    ("select pgps.retry_exception('{t}', subscription => '\"No Such\"')", "subscription"),
    ("select pgps.drop_rule('\"No Such\"')", "rule"),
    ("select pgps.drop_link('\"No Such\"')", "link"),
    ("select pgps.drop_spool('\"No Such\"')", "spool"),
    ("select pgps.drop_network('\"No Such\"')", "network"),
    ("select pgps.disconnect_client('\"No Such\"')", "client"),
    ("select pgps.reset_composite_event('\"No Such\"')", "composite event"),
]


@pytest.mark.parametrize(("statement", "what"), QUOTED)
def test_a_quoted_name_is_quoted_once(admin: psycopg.Connection, quote: str, statement: str, what: str) -> None:
    with refused("42704", f'{what} "No Such" does not exist'):
        rows(admin, statement.replace("{t}", quote))


@pytest.mark.parametrize("batch", [[2], [1, 2, 3]])
def test_a_callback_that_drops_its_own_subscription_fails_for_that_event(
    admin: psycopg.Connection, quote: str, witness: str, name: Callable[..., str], batch: list[int]
) -> None:
    function, found = name("f"), name("s")
    rows(
        admin,
        f"create function public.{function}(e {endpoint(quote)}) returns void language plpgsql as "
        f"$$ begin if (e).n = 2 then perform pgps.unsubscribe('{found}'); end if; end $$",
    )
    call(admin, "subscribe", found, quote, execute=f"public.{function}", max_attempts=1)
    publish(admin, quote, *batch)
    rows(admin, "select pgps.dispatch()")
    rows(admin, "call pgps.run_subscribers()")
    ((sqlstate, error),) = rows(admin, "select sqlstate, error from pgps.exceptions where subscription = %s", [found])
    assert (sqlstate, error) == ("55000", f'the callback has dropped its own subscription "{found}"')
    assert value(admin, "select state from pgps.subscriptions where name = %s", [found]) == "active"


def test_the_highest_number_of_a_producer_is_one_whichever_way(
    admin: psycopg.Connection, quote: str, witness: str
) -> None:
    highest = 9223372036854775807
    insert = f"insert into {endpoint(quote)} (n, _producer, _producer_seq) values (1, 'inserts', {highest})"
    for _ in range(2):
        rows(admin, insert)
    for visibility, producer in (("deferred", "here"), ("immediate", "apart")):
        given = [
            value(
                admin,
                "select pgps.publish(%s, '{\"n\": 2}', %s, producer => %s, producer_seq => %s)",
                [quote, visibility, producer, highest],
            )
            for _ in range(2)
        ]
        assert given[0] is not None
        assert given[0] == given[1], "published once"
    two = 'select pgps.publish(%s, \'[{"n": 3}, {"n": 3}]\', producer => %s, producer_seq => %s)'
    assert value(admin, two, [quote, "two", highest - 1]) is not None
    with refused("22023", "there are no 2 numbers", str(highest)):
        rows(admin, two, [quote, "none", highest])
    rows(admin, "select pgps.dispatch()")
    assert numbers(admin, witness) == [1, 2, 2, 3, 3]
    call(admin, "ack", witness)
