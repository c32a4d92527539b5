"""What is said of a subscription that is suspended agrees with what is to be done."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from tests.fix_broker import call, column, endpoint, make_type, queue, refused, rows, value
from tests.fix_db import Connect

Name = Callable[..., str]


def test_one_that_goes_on_by_itself_is_not_to_be_mended(
    admin: psycopg.Connection, connect: Connect, role: Callable[..., str], name: Name
) -> None:
    kind, table = name("kind"), name("list")
    make_type(admin, kind)
    owner = role("alice")
    alice = connect(owner)
    rows(admin, f"grant create on schema public to {owner}")
    rows(alice, f"create table {table} (n integer)")
    call(alice, "subscribe", kind, kind, f"n in (select l.n from {table} l)")
    rows(admin, f"insert into {endpoint(kind)} values (1)")
    rows(alice, f"drop table {table}")
    rows(admin, "select pgps.dispatch()")
    rows(admin, "call pgps.run_lanes()")
    reads = [
        f"select from pgps.receive('{kind}')",
        f"select from {queue(kind, 'receive')}(array['{kind}'])",
    ]
    for query in reads:
        with refused("55000", "Mend the cause, then: select pgps.resume("):
            rows(alice, query)
    rows(admin, f"insert into {endpoint(kind)} values (1)")
    rows(admin, "select pgps.dispatch()")
    rows(alice, f"create table {table} as select 1 as n")
    # Its filter is not the administrator's to run: the lane asks it.
    call(admin, "resume", kind)
    for query in reads:
        with refused("55000", "goes on by itself", "pgps.run_lanes()") as error:
            rows(alice, query)
        assert "Mend" not in str(error.value.diag.message_hint)
    call(alice, "pause", kind)
    assert value(admin, "select last_error from pgps.subscriptions where name = %s", [kind]) is None
    call(admin, "resume", kind)
    rows(admin, "select pgps.dispatch()")
    rows(admin, "call pgps.run_lanes()")
    assert column(alice, f"select payload ->> 'n' from pgps.receive('{kind}')") == ["1"]
