"""One event type, sharded by key over four brokers: publish at any of them, each account is kept at exactly one.

The brokers are linked in a ring, so that one broken link stops nobody. Each
wants the payments of its own accounts, wherever they are published, and adds
them up in the transaction that takes them.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter

import psycopg

PAYMENTS = 400
SCHEMA = """
    create table balance (account bigint primary key, amount bigint not null, payments integer not null);
    select pgps.create_event_type('payment', 'account bigint, amount bigint');
    select pgps.advertise('payment');
"""
IN_FORCE = "select count(*) from pgps.routes where cardinality(filters_in_force) > 0"
TAKE = """
    with taken as (select (payload ->> 'account')::bigint, (payload ->> 'amount')::bigint from pgps.take('mine', 1000)),
    added as (
        insert into balance as b
        select t.account, sum(t.amount), count(*) from taken t(account, amount) group by t.account
        on conflict (account) do update
        set amount = b.amount + excluded.amount, payments = b.payments + excluded.payments
    )
    select count(*) from taken
"""


def main(dsns: list[str]) -> None:
    """Publish payments everywhere, and compare what the shards hold with what Python has added up."""
    brokers = [psycopg.connect(dsn, autocommit=True) for dsn in dsns]
    for broker in brokers:
        broker.execute(SCHEMA)
    for place, broker in enumerate(brokers):
        neighbour = (place + 1) % len(brokers)
        broker.execute("select pgps.create_link(%s, %s)", [f"to_{neighbour}", dsns[neighbour]])
        mine = f"account % {len(brokers)} = {place}"
        broker.execute("select pgps.subscribe('mine', 'payment', filter => %s, scope => 'global')", [mine])
    # A subscription gets what is published elsewhere from when its filter is in force there.
    until(lambda: all(count(broker, IN_FORCE) == len(brokers) - 1 for broker in brokers))

    expected: Counter[int] = Counter()
    payments: Counter[int] = Counter()
    accounts = itertools.cycle(range(1, 98))
    for number in range(PAYMENTS):
        account, amount = next(accounts), number
        expected[account] += amount
        payments[account] += 1
        brokers[number % len(brokers)].execute("insert into pgps_event.payment values (%s, %s)", [account, amount])

    taken = [0] * len(brokers)

    def all_taken() -> bool:
        for place, broker in enumerate(brokers):
            taken[place] += count(broker, TAKE)
        return sum(taken) >= PAYMENTS

    until(all_taken)
    for place, broker in enumerate(brokers):
        held = broker.execute("select account, amount, payments from balance").fetchall()
        assert held == [(each, expected[each], payments[each]) for each, *_ in held]
        assert {each for each, *_ in held} == {each for each in expected if each % len(brokers) == place}
        print(f"shard {place}: {taken[place]} payments of {len(held)} accounts")
        broker.close()


def count(broker: psycopg.Connection, query: str) -> int:
    """Return the only number of a query."""
    row = broker.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


def until(condition: object) -> None:
    """Wait until a condition holds."""
    assert callable(condition)
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "not within two minutes"
        time.sleep(0.05)


if __name__ == "__main__":
    from broker import brokers

    with brokers(4) as dsns:
        main(dsns)
