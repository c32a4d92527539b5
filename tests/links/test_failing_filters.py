"""Filters and policies that raise on the way to a neighbour, and links told to begin anew."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fix_broker import call, make_type, publish, refused, rows, value
from tests.fix_db import Connect
from tests.links.rig import Broker, linked, open_link, received, settle
from tests.sql.match.slow_filters import slow

Brokers = Callable[[int], list[Broker]]
RAISES = "10 / n > 1"  # n = 0


def failed(broker: Broker) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = rows(broker.admin, "select subscription, sqlstate, state from pgps.exceptions")
    return found


@pytest.mark.parametrize("matched_together", [True, False])
def test_an_event_on_which_a_neighbours_filter_raises_is_an_exception_at_home(
    brokers: Brokers, matched_together: bool
) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(a.admin, "subscribe", "mine", "tick", filter=RAISES)
        call(b.admin, "subscribe", "all", "tick", filter=RAISES, scope="global")
        settle([a, b], links)
        if not matched_together:
            publish(a.admin, "tick", 0)
            settle([a, b], links)
        publish(a.admin, "tick", *([1, 0, 2] if matched_together else [1, 2]), 20)
        settle([a, b], links)
        assert [n for _, n in received(b, "all")] == [1, 2]
        assert failed(b) == [("all", "22012", "failed")]
        assert failed(a) == [("mine", "22012", "failed")], "nobody else's concern here"
        assert [n for _, n in received(a, "mine")] == [1, 2]
        assert value(b.admin, "select count(*) from pgps_internal.tick_log") == 3


def test_a_filter_that_keeps_failing_is_taken_as_none_and_nothing_is_lost(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    call(a.admin, "configure", "filter_failures", "3")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", filter=RAISES, scope="global")
        settle([a, b], links)
        for n in range(1, 6):
            publish(a.admin, "tick", 0, 1, 10 * n)
            a.settle()
        settle([a, b], links)
        publish(a.admin, "tick", 2, 0)
        settle([a, b], links)
        assert [n for _, n in received(b, "all")] == [1, 1, 1, 1, 1, 2]
        assert len(failed(b)) == 6
        assert failed(a) == []
        call(b.admin, "unsubscribe", "all")
        settle([a, b], links)
        assert value(a.admin, "select count(*) from pgps_internal.class") == 0, "nothing is left behind"


@pytest.mark.parametrize("is_locked", [False, True])
def test_a_filter_that_holds_up_the_dispatcher_is_taken_as_none(
    brokers: Brokers, role: Callable[..., str], connect: Connect, is_locked: bool
) -> None:
    """Who has the same filter here as the neighbour's role is asked in that role's lane, and never suspended."""
    a, b = brokers(2)
    guest = role("guest", "pgps_link")
    make_type(a.admin, "tick")
    call(a.admin, "configure", "dispatch_filter_timeout", "50 milliseconds")
    call(a.admin, "create_link", "to_b", b.dsn, role=guest)
    link = open_link(a, b, "to_b")
    try:
        settle([a, b], [link])
        call(b.admin, "subscribe", "all", "tick", filter="n > 1", scope="global")
        settle([a, b], [link])
        call(connect(guest, dsn=a.dsn), "subscribe", "same", "tick", filter="n > 1")
        slow(a.admin, "same")
        holding = connect(None, False, dsn=a.dsn)
        if is_locked:
            rows(holding, "select from pgps_internal.wanted for update")
        publish(a.admin, "tick", 1, 2)
        a.settle()
        publish(a.admin, "tick", 1, 3)
        a.settle()
        assert value(a.admin, "select count(*) from pgps_internal.unasked") == int(is_locked)
        holding.rollback()
        call(a.admin, "reclaim")
        publish(a.admin, "tick", 4)
        settle([a, b], [link])
        assert [n for _, n in received(b, "all")] == [2, 3, 4]
        rows(a.admin, "call pgps.run_lanes()")
        assert [n for _, n in received(a, "same")] == [2, 3, 4]
        call(b.admin, "unsubscribe", "all")
        settle([a, b], [link])
        left = "select count(*) from pgps_internal.member m join pgps_internal.subscription s using (subscription_id)"
        assert value(a.admin, f"{left} where s.kind = 'link'") == 0
    finally:
        link.close()


def test_what_an_attachment_asks_for_is_sent_whole_when_its_filter_raises(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", filter=RAISES, scope="global")
        settle([a, b], links)
        publish(a.admin, "tick", 1, 0, 30)
        a.settle()
        call(b.admin, "resync_link", "a")
        settle([a, b], links)
        publish(a.admin, "tick", 2)
        settle([a, b], links)
        assert [n for _, n in received(b, "all")] == [1, 2]


def test_a_policy_that_raises_blocks_the_link_until_it_is_mended(brokers: Brokers, role: Callable[..., str]) -> None:
    a, b = brokers(2)
    guest = role("guest")
    make_type(a.admin, "tick")
    call(a.admin, "create_policy", "tick", "low", guest, "10 / n > 1")
    call(a.admin, "create_link", "to_b", b.dsn, role=guest)
    link = open_link(a, b, "to_b")
    try:
        settle([a, b], [link])
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], [link])
        publish(a.admin, "tick", 1)
        settle([a, b], [link])
        publish(a.admin, "tick", 2, 0, 3)
        a.settle()
        with refused("55000", "blocked", "policy", "tick"):
            link.move()
        state, hint = rows(a.admin, "select state, hint from pgps.links")[0]
        assert state == "blocked"
        assert "resync_link" in hint
        call(a.admin, "drop_policy", "tick", "low")
        call(a.admin, "create_policy", "tick", "low", guest, "n < 3")
        call(a.admin, "resync_link", "to_b")
        settle([a, b], [link])
        publish(a.admin, "tick", 1)
        settle([a, b], [link])
        assert [n for _, n in received(b, "all")] == [1, 2, 0, 1]
    finally:
        link.close()


def test_resync_attaches_anew_and_loses_and_repeats_nothing(brokers: Brokers) -> None:
    a, b, c = made = brokers(3)
    make_type(a.admin, "tick")
    with linked([(a, b), (b, c)]) as links:
        settle(made, links)
        call(b.admin, "subscribe", "odd", "tick", filter="n % 2 = 1", scope="global")
        call(c.admin, "subscribe", "all", "tick", scope="global")
        settle(made, links)
        number = value(b.admin, "select attachment from pgps_internal.origin where name = 'a'")
        for n in range(0, 12, 2):
            publish(a.admin, "tick", n, n + 1)
            a.settle()
            if n % 4 == 0:
                links[0].out.move()
                b.settle()
            call(b.admin, "resync_link", "a")
            call(b.admin, "resync_link", "to_c")
            call(c.admin, "resync_link", "b")
        settle(made, links)
        publish(a.admin, "tick", 12)
        settle(made, links)
        assert value(b.admin, "select attachment from pgps_internal.origin where name = 'a'") > number
        assert received(c, "all") == [("a", n) for n in range(13)]
        assert received(b, "odd") == [("a", n) for n in range(1, 12, 2)]
