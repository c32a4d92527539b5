"""Events that come over a link are published here, too: direct clients hear, and who dispatches is woken."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import psycopg

from tests.fix_broker import call, make_type, publish, rows, value
from tests.fix_clients import Client
from tests.fix_db import Connect, notifications
from tests.links.conftest import brokers  # noqa: F401 - a fixture
from tests.links.horizon_scenes import rewind
from tests.links.horizon_stage import Scene
from tests.links.rig import Broker, linked, received, settle

Brokers = Callable[[int], list[Broker]]
DIRECT = "select (payload ->> 'n')::integer, origin, raiser from pgps.fetch_direct(%s, %s) order by note, event_id"


def heard(client: Client) -> list[tuple[int, str, str | None]]:
    """Return the direct events that have been told of: attribute n, their origin, who raised them."""
    return rows(client.connection, DIRECT, [client.name, client.notes()])


def test_direct_clients_hear_of_what_comes_over_a_link(brokers: Brokers, connect: Connect) -> None:  # noqa: F811
    made = a, b = brokers(2)
    for broker in made:
        make_type(broker.admin, "tick")
    with linked([(a, b)]) as links:
        settle(made, links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        client = Client(connect(dsn=b.dsn), "watcher")
        client.register("tick", "direct")
        links[0].out.with_rows = 65536
        publish(a.admin, "tick", 1, 2)
        settle(made, links)
        assert heard(client) == [(1, "a", None), (2, "a", None)], "in the answer"
        links[0].out.with_rows = 0
        publish(a.admin, "tick", 3)
        publish(a.admin, "tick", 4)
        settle(made, links)
        assert heard(client) == [(3, "a", None), (4, "a", None)], "copied"
        publish(b.admin, "tick", 5)
        assert heard(client) == [(5, "b", None)]
        settle(made, links)
        assert received(b, "all") == [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 5)]


def test_direct_clients_hear_of_what_was_refused_and_is_taken_now(brokers: Brokers, connect: Connect) -> None:  # noqa: F811
    made = a, b = brokers(2)
    make_type(a.admin, "tick")
    make_type(b.admin, "tick", "n integer constraint lucky check (n <> 13)")
    with linked([(a, b)]) as links:
        settle(made, links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        client = Client(connect(dsn=b.dsn), "watcher")
        client.register("tick", "direct")
        publish(a.admin, "tick", 13, 14)
        settle(made, links)
        assert heard(client) == [(14, "a", None)]
        rows(b.admin, "alter table pgps_internal.tick_log drop constraint lucky")
        assert call(b.admin, "retry_exception", "tick") == 1
        assert heard(client) == [(13, "a", None)]


def woken(connection: psycopg.Connection) -> bool:
    return bool(notifications(connection))


def test_what_comes_over_a_link_wakes_a_dispatcher_that_sleeps_and_no_other(brokers: Brokers, connect: Connect) -> None:  # noqa: F811
    made = a, b = brokers(2)
    for broker in made:
        make_type(broker.admin, "tick")
    with linked([(a, b)]) as links:
        settle(made, links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        leader = connect(dsn=b.dsn)
        leader.execute("listen pgps_dispatch")
        publish(a.admin, "tick", 1)
        settle(made, links)
        assert not woken(leader), "nobody leads"
        assert value(leader, "select pgps.try_lead()")
        assert value(leader, "select pgps.stay_awake()")
        publish(a.admin, "tick", 2)
        settle(made, links)
        assert not woken(leader), "it is awake"
        publish(a.admin, "tick", 3)
        value(leader, "select pgps.fall_asleep()")
        # As if it said so each second, as a worker does: else publishers believe it for five seconds.
        rows(leader, "select setval('pgps_internal.wake_seq', last_value + 3600) from pgps_internal.wake_seq")
        settle(made, links)
        assert woken(leader)


def test_direct_clients_do_not_hear_of_what_was_fetched_for_another_broker(brokers: Brokers, connect: Connect) -> None:  # noqa: F811
    (here,) = brokers(1)
    with ExitStack() as stack:
        scene = Scene(here, stack)
        client = Client(connect(dsn=here.dsn), "watcher")
        client.register("tick", "direct")
        rewind(scene)
        told = [number for number, _, _ in heard(client)]
        assert 5 in told
        assert 3 not in told
