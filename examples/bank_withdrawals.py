"""The bank: its manager hears of each large withdrawal when it is tried, and afterwards whether it succeeded.

After Hanson et al. 1994, section 3.2: an immediate event, which is out even
if its transaction rolls back, and an event that confirms it.
"""

from __future__ import annotations

import psycopg

from pgps.client import Client

SCHEMA = """
    create table account (owner text primary key, balance numeric check (balance >= 0));
    insert into account values ('alice', 50000), ('bob', 900);
    select pgps.create_event_type('withdrawal', 'owner text, amount numeric', visibility => 'immediate');
    select pgps.create_event_type('withdrawal_ended', 'withdrawal bigint, succeeded boolean');
    select pgps.advertise('withdrawal');
    select pgps.advertise('withdrawal_ended');
    select pgps.link_confirm_event('withdrawal_ended', 'withdrawal');
"""


def withdraw(client: Client, owner: str, amount: int) -> None:
    """Take money from an account, or fail because there is not enough."""
    try:
        with client.transaction() as connection:
            if amount >= 10_000:
                client.publish("withdrawal", {"owner": owner, "amount": amount}, connection=connection)
            connection.execute("update account set balance = balance - %s where owner = %s", [amount, owner])
    except psycopg.errors.CheckViolation:
        pass  # the transaction is rolled back, the event is not


def main(dsn: str) -> None:
    """Withdraw three times; print what the manager is told."""
    with Client(dsn, name="bank") as bank, Client(dsn, name="manager", poll=0.5) as office:
        bank.execute(SCHEMA)
        with office.identify("manager") as manager:
            manager.register("withdrawal*")  # both types, in the order in which they are delivered
            withdraw(bank, "alice", 20_000)
            withdraw(bank, "bob", 15_000)
            withdraw(bank, "bob", 100)  # too small to be told
            tried: dict[int, str] = {}
            ended: dict[str, bool] = {}
            while len(ended) < 2:
                event = manager.get_event(timeout=30.0)
                assert event is not None
                for payload in event:
                    if event.event_type == "withdrawal":
                        tried[event.event_id] = f"{payload['owner']}, {payload['amount']}"
                        print(f"tried: {tried[event.event_id]}")
                    else:
                        ended[tried[payload["withdrawal"]]] = payload["succeeded"]
                        print(f"{'paid' if payload['succeeded'] else 'refused'}: {tried[payload['withdrawal']]}")
            manager.commit_event()
    assert ended == {"alice, 20000": True, "bob, 15000": False}


if __name__ == "__main__":
    from broker import broker

    with broker() as dsn:
        main(dsn)
