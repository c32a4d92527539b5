"""A neighbour that tells times which no clock shows: they fail whoever reads them, or reckons with them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest

from pgps.client import Client
from tests.fix_broker import call, make_type, publish, rows, value
from tests.links.rig import Broker, linked, settle

Brokers = Callable[[int], list[Broker]]
SENSELESS = ("infinity", "-infinity", "290000-01-01 00:00+00", "10000-01-01 00:00+00", "4000-01-01 00:00+00 BC")


@pytest.mark.parametrize("ways", [(True, False), (False, False), (False, True)], ids=["rows", "straight", "staged"])
def test_a_time_of_publication_that_no_clock_shows_fails_no_consumer_and_no_view(
    brokers: Brokers, ways: tuple[bool, bool]
) -> None:
    a, b = made = brokers(2)
    with_rows, staged = ways
    for broker in made:
        make_type(broker.admin, "tick")
    with linked([(a, b)]) as links:
        settle(made, links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        lane = links[0].out
        lane.with_rows = 1000 * with_rows
        for n, time in enumerate(SENSELESS):
            publish(a.admin, "tick", n)
            a.settle()
            batch = lane.next()
            (wire,) = batch["types"]
            assert ("rows" in wire) == with_rows
            wire["runs"] = [{**run, "published_at": time} for run in wire["runs"]]
            lane.carry(batch, staged=staged)
            # Before version 17 of the server no infinite time can be subtracted.
            waits = value(
                b.admin, "select (pgps._clock() - oldest_waiting)::text from pgps.activity where event_type = 'tick'"
            )
            assert waits
        settle(made, links)
        with Client(b.dsn) as client, client.subscribe("all") as subscription:
            got = subscription.receive()
            subscription.ack()
        assert [event.payload["n"] for event in got] == list(range(len(SENSELESS)))
        assert {event.published_at.year for event in got} == {1, 9999}
        assert all(isinstance(event.published_at, dt.datetime) for event in got)
        assert rows(b.admin, "select depth from pgps.subscriptions where name = 'all'") == [(0,)]
