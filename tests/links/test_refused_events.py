"""What came over a link and is no event here: refused by constraints, or a gap; retried, discarded, and told of."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cli.conftest import Pgps, pgps, pgps_without_database  # noqa: F401 - fixtures
from tests.fix_broker import call, make_type, publish, refused, rows, value
from tests.links.conftest import brokers  # noqa: F401 - a fixture
from tests.links.rig import Broker, Link, linked, received, settle

Brokers = Callable[[int], list[Broker]]
WHICH = "select event_type, event_id, subscription, sqlstate, state, attempts from pgps.exceptions"


@pytest.fixture
def line(brokers: Brokers) -> Iterator[tuple[list[Broker], list[Link]]]:  # noqa: F811
    """Brokers a, b, c in a line; b refuses 13; b and c want all that a publishes."""
    made = a, b, c = brokers(3)
    make_type(a.admin, "tick")
    make_type(b.admin, "tick", "n integer constraint lucky check (n <> 13)")
    with linked([(a, b), (b, c)]) as links:
        settle(made, links)
        for broker in (b, c):
            call(broker.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        yield made, links


def test_a_refused_event_is_retried_discarded_and_shown(line: tuple[list[Broker], list[Link]], pgps: Pgps) -> None:  # noqa: F811
    (a, b, c), links = line
    made = [a, b, c]
    publish(a.admin, "tick", 12, 13, 14)
    publish(a.admin, "tick", 13)
    settle(made, links)
    first, second = [n for (n,) in rows(a.admin, "select event_id from pgps_internal.tick_log where n = 13 order by 1")]
    assert sorted(rows(b.admin, WHICH)) == [("tick", n, "link a", "23514", "refused", 1) for n in (first, second)]
    assert value(b.admin, "select refused from pgps.links where name = 'a'") == 2
    assert value(b.admin, "select depth from pgps.queues where queue = 'tick_exception'") == 2
    shown = pgps("exceptions", "show", "tick", str(first), "--json", dsn=b.dsn)
    assert shown.json[0]["payload"] == {"n": 13}

    assert call(b.admin, "retry_exception", "tick") == 0, "it is still refused"
    assert value(b.admin, "select min(attempts) from pgps.exceptions") == 2
    publish(a.admin, "tick", 15)
    settle(made, links)
    call(b.admin, "subscribe", "late", "tick", scope="global")
    settle(made, links)
    rows(b.admin, "alter table pgps_internal.tick_log drop constraint lucky")
    assert pgps("exceptions", "retry", "tick", str(first), "--sub", "link a", dsn=b.dsn).status == 0
    settle(made, links)
    assert received(b, "all") == [("a", 12), ("a", 14), ("a", 15), ("a", 13)]
    assert value(b.admin, "select pgps_origin_event from pgps_internal.tick_log where n = 13") == first
    assert received(b, "late") == [("a", 13)], "it is published now"
    assert received(c, "all") == [("a", 12), ("a", 14), ("a", 15)], "who is behind has not"

    assert call(b.admin, "discard_exception", "tick", second) == 1
    assert rows(b.admin, WHICH) == []
    publish(a.admin, "tick", 16)
    settle(made, links)
    assert received(b, "all") == received(c, "all") == [("a", 16)]


def test_a_gap_is_an_alarm_until_it_is_acknowledged(
    line: tuple[list[Broker], list[Link]],
    pgps: Pgps,  # noqa: F811
    role: Callable[..., str],
) -> None:
    (_, b, _), _ = line
    rows(
        b.admin,
        """
        insert into pgps_internal.rejected
            (neighbour_id, neighbour, publisher, origin_id, origin_batch, sqlstate, error)
        select n.neighbour_id, n.name, n.role, o.origin_id, 7, '58030', 'batches 1 to 7 of broker "a" were trimmed'
        from pgps_internal.neighbour n, pgps_internal.origin o where n.name = 'a' and o.name = 'a'
        """,
    )
    assert rows(b.admin, WHICH) == [(None, None, "link a", "58030", "gap", 1)]
    assert value(b.admin, "select gaps from pgps.links where name = 'a'") == 1
    found = pgps("doctor", "--json", dsn=b.dsn).json
    assert [one["level"] for one in found if one["check"] == "gaps"] == ["problem"]
    assert pgps("status", "--json", dsn=b.dsn).json["gaps"] == 1
    assert "1 gap" in pgps("top", "--once", dsn=b.dsn).out
    with refused("55000", "gap", "discard_exception(null)"):
        call(b.admin, "retry_exception", None)
    rows(b.admin, f"set session authorization {role('nobody')}")
    with refused("42501", "settle exceptions of links"):
        call(b.admin, "discard_exception", None)
    assert rows(b.admin, WHICH) == []
    rows(b.admin, "reset session authorization")
    assert pgps("exceptions", "discard", "--gaps", "--sub", "link c", "--yes", dsn=b.dsn).status == 0
    assert len(rows(b.admin, WHICH)) == 1
    assert pgps("exceptions", "discard", "tick", "--gaps", dsn=b.dsn).status == 2
    assert "1 gap acknowledged" in pgps("exceptions", "discard", "--gaps", "--yes", dsn=b.dsn).err
    assert rows(b.admin, WHICH) == []
