"""What is counted again under a narrower filter is what the child takes, also when paths change, or nothing is said."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.fix_broker import call, make_type, rows, value
from tests.links.auditing import Brokers, findings
from tests.links.horizon_stage import Scene, wants_all
from tests.links.peer import Item, Origin, Peer


def _wants(peer: Peer, key: str, filter: str) -> Item:  # noqa: A002
    return peer.message(
        "sub", key=key, filter=filter, constant_types=["integer"], environment={}, type="tick", collation="C"
    )


def _counts(s: Scene, peer: Peer, after: int, upto: int, *events: int) -> Item:
    """What a peer says that the filters select in its log, by batch."""
    hashes = [int(value(s.here.admin, "select pgps_internal.place_hash(%s)", [n])) for n in events]
    stated = {"after": after, "upto": upto, "modulus": 1, "events": len(events), "places": sum(hashes) % 2**60}
    return peer.message("audit", **s.x.key, attachment=s.number(peer), recounts={"tick": stated})


def _stated(peer: Peer, *, horizon: int) -> list[tuple[int, int, int, int]]:
    """After, upto, events of each count that a child heard, and how many of these events it had taken by then.

    horizon: where it was when it attached; it takes nothing up to there.
    """
    stated: list[tuple[int, int, int, int]] = []
    taken: dict[int, int] = {}
    last = horizon
    for item in peer.all_heard:
        if item["kind"] in ("data", "silence") and item["upto"] > last:
            last = item["upto"]
            taken[last] = item["events"]
        elif item["kind"] == "audit" and "recounts" in item["body"]:
            one = item["body"]["recounts"]["tick"]
            took = sum(events for place, events in taken.items() if one["after"] < place <= one["upto"])
            stated.append((one["after"], one["upto"], one["events"], took))
    return stated


def _agree(peer: Peer, *, horizon: int) -> list[tuple[int, int, int, int]]:
    stated = _stated(peer, horizon=horizon)
    assert [there for _, _, there, _ in stated] == [took for *_, took in stated], stated
    return stated


def _in_force(s: Scene, child: Peer, filter: str, *, own: str = "n >= 5") -> None:  # noqa: A002
    """A child's filter is in force here for x from batch 4 on, beside one of this broker; the child is not attached."""
    s.subscribe("few", own)
    s.b.say(s.b.ad(s.x))
    s.b.hear()
    one = s.number(s.b)
    s.b.say(s.b.data(s.x, one, 0, 4), s.b.active(s.x, s.b.key(s.x), one, 4))
    child.say(_wants(child, "k", filter))
    child.hear()
    s.b.hear()
    s.b.say(s.b.active(s.x, s.b.key(s.x), one, 4))


@pytest.mark.parametrize("keep", [[], ["k"]])
def test_of_what_a_child_is_ahead_nothing_is_counted(brokers: Brokers, keep: list[str]) -> None:
    (here,) = brokers(1)
    with ExitStack() as stack:
        s = Scene(here, stack)
        _in_force(s, s.c, "n > 1", own="n > 1")
        s.c.say(s.c.message("attach", **s.x.key, attachment=1, horizon=8, keep=keep))
        s.c.hear()
        one = s.number(s.b)
        s.b.say(s.b.data(s.x, one, 4, 5, (50, 5)), s.b.data(s.x, one, 5, 9, (90, 9), (91, 7)))
        s.c.hear()
        s.b.say(s.b.data(s.x, one, 9, 10, (100, 3)))
        s.c.hear()
        assert [(upto, there) for _, upto, there, _ in _agree(s.c, horizon=8)] == [(9, 2), (10, 1)]


def test_what_is_fetched_again_for_one_child_is_counted_for_no_other(brokers: Brokers) -> None:
    (here,) = brokers(1)
    with ExitStack() as stack:
        s = Scene(here, stack)
        s.subscribe("few", "n >= 5")
        s.b.say(s.b.ad(s.x))
        s.b.hear()
        one = s.number(s.b)
        s.b.say(s.b.data(s.x, one, 0, 4), s.b.active(s.x, s.b.key(s.x), one, 4))
        # What c wants is not in force yet, and it was told that nothing matched.
        s.c.say(_wants(s.c, "k", "n < 3"), s.c.message("attach", **s.x.key, attachment=1, horizon=4, keep=[]))
        s.c.hear()
        call(here.admin, "configure", "link_report_interval", "1 hour")
        s.b.say(s.b.data(s.x, one, 4, 5, (50, 5)), s.b.data(s.x, one, 5, 6, (60, 6)))
        s.c.hear()
        d = s.peer("d")
        d.say(*wants_all(s, d, "every", 4))
        for peer in (d, s.b, d, s.b):
            peer.hear()
        two = s.number(s.b)
        assert (two, s.b.attachment(s.x)["horizon"]) == (2, 4)
        call(here.admin, "configure", "link_report_interval", "0 seconds")
        # The last batch that came, too, is one that it was told of.
        s.b.say(s.b.data(s.x, two, 4, 5, (50, 5), (51, 1)))
        s.c.hear()
        s.b.say(s.b.data(s.x, two, 5, 6, (60, 6), (61, 2)))
        s.c.hear()
        s.b.say(s.b.data(s.x, two, 6, 7, (70, 2)))
        s.c.hear()
        s.b.say(s.b.data(s.x, two, 7, 8, (80, 1), (81, 9)))
        s.c.hear()
        assert [(upto, there) for _, upto, there, _ in _agree(s.c, horizon=4)][-1] == (8, 1)


def test_what_is_fetched_for_another_child_may_come_behind_a_count_at_one_of_its_places(brokers: Brokers) -> None:
    (here,) = brokers(1)
    with ExitStack() as stack:
        s = Scene(here, stack)
        y = Origin("y")
        s.subscribe("few", "n >= 5")
        s.b.say(s.b.ad(s.x), s.b.ad(y))
        s.b.hear()
        one = s.number(s.b)
        s.b.say(s.b.data(s.x, one, 0, 4), s.b.active(s.x, s.b.key(s.x), one, 4))
        s.c.say(_wants(s.c, "k", "n < 3"), s.c.message("attach", **s.x.key, attachment=1, horizon=4, keep=[]))
        s.c.hear()
        s.b.say(s.b.data(s.x, one, 4, 5, (50, 5)), s.b.data(s.x, one, 5, 6, (60, 6)))
        here.settle()
        # An event of y waits for dispatch, so c is told no silence of x, though its batches are counted.
        s.b.say(s.b.data(y, s.b.attachment(y)["attachment"], 0, 1, (1, 9)))
        s.c.hear(settle=False)
        d = s.peer("d")
        d.say(*wants_all(s, d, "every", 4))
        for peer in (d, s.b, d, s.b):
            peer.hear(settle=False)
        two = s.number(s.b)
        s.b.say(s.b.data(s.x, two, 4, 5, (50, 5)), s.b.data(s.x, two, 5, 6, (60, 6), (61, 2)))
        assert [(item["upto"], item["events"]) for item in s.c.hear() if item["kind"] == "data"] == [(6, 1)]
        assert _agree(s.c, horizon=4) == [(4, 6, 0, 0)]


def test_what_was_left_out_while_a_child_waited_for_its_answer_is_not_counted(brokers: Brokers) -> None:
    """A filter of another type broke, and the child withdrew it before it was in force again."""
    (here,) = brokers(1)
    with ExitStack() as stack:
        s = Scene(here, stack)
        make_type(here.admin, "tock")
        s.subscribe("few", "n < 5")
        s.b.say(s.b.ad(s.x, types=("tick", "tock")))
        s.b.hear()
        one = s.number(s.b)
        s.b.say(s.b.data(s.x, one, 0, 4), s.b.active(s.x, s.b.key(s.x), one, 4))
        tocks = _wants(s.c, "k", "n < 3")
        tocks["body"]["type"] = "tock"
        s.c.say(tocks, s.c.message("attach", **s.x.key, attachment=1, horizon=4, keep=[]))
        s.c.hear()
        s.b.hear()
        s.b.say(s.b.active(s.x, s.b.key(s.x), one, 4))
        s.c.say(_wants(s.c, "other", "n > 8"))
        s.c.hear()
        s.b.say(s.b.data(s.x, one, 4, 5, (50, 9)))
        s.c.hear()
        call(here.admin, "configure", "link_report_interval", "1 hour")
        rows(here.admin, "select pgps_internal.answer_again(o.origin_id, f.key) from pgps_internal.origin o,"
             " pgps_internal.link_filter f where o.name = 'x' and f.filter = 'n < 3'")  # fmt: skip
        live = "select is_live from pgps_internal.attached join pgps_internal.origin using (origin_id) where name = 'x'"
        assert value(here.admin, live) is False
        s.b.say(s.b.data(s.x, one, 5, 6, (60, 9)))
        here.settle()
        call(s.c.hears, "link_next", s.c.heard, 1000, False)
        s.c.say(s.c.message("unsub", key="k"))
        s.c.hear()
        assert value(here.admin, live) is True
        call(here.admin, "configure", "link_report_interval", "0 seconds")
        for n in (7, 8):
            s.b.say(s.b.data(s.x, one, n - 1, n, (10 * n, 9)))
            s.c.hear()
        assert [(upto, there) for _, upto, there, _ in _agree(s.c, horizon=4)][-1] == (8, 1)


def test_an_event_that_was_refused_and_is_published_behind_a_child_is_not_counted(brokers: Brokers) -> None:
    (here,) = brokers(1)
    with ExitStack() as stack:
        s = Scene(here, stack)
        rows(here.admin, "alter table pgps_internal.tick_log add constraint lucky check (n <> 13)")
        _in_force(s, s.c, "n > 1", own="n > 1")
        s.c.say(s.c.message("attach", **s.x.key, attachment=1, horizon=4, keep=["k"]))
        s.c.hear()
        one = s.number(s.b)
        s.b.say(s.b.data(s.x, one, 4, 5, (50, 5)))
        s.c.hear()
        call(here.admin, "configure", "link_report_interval", "1 hour")
        batch, events = s.b.batch(s.b.data(s.x, one, 5, 6, (60, 6), (61, 13)), s.b.data(s.x, one, 6, 7, (70, 7)))
        s.b.carry(batch, events, staged=True)
        s.b.said = batch["upto"]
        s.c.hear()
        rows(here.admin, "alter table pgps_internal.tick_log drop constraint lucky")
        assert call(here.admin, "retry_exception", "tick") == 1
        s.c.hear()
        call(here.admin, "configure", "link_report_interval", "0 seconds")
        for n in (8, 9):
            s.b.say(s.b.data(s.x, one, n - 1, n, (10 * n, n)))
            s.c.hear()
        assert [(upto, there) for _, upto, there, _ in _agree(s.c, horizon=4)][-1] == (9, 1)


@pytest.mark.parametrize("lost", [False, True])
def test_what_comes_behind_a_count_is_not_compared_with_it(brokers: Brokers, lost: bool) -> None:
    (here,) = brokers(1)
    with ExitStack() as stack:
        s = Scene(here, stack)
        s.subscribe("few", "n >= 5")
        s.b.say(s.b.ad(s.x))
        s.b.hear()
        one = s.number(s.b)
        s.b.say(s.b.data(s.x, one, 0, 4), s.b.active(s.x, s.b.key(s.x), one, 4))
        counted = (5, 5) if lost else (5,)
        s.b.say(
            s.b.data(s.x, one, 4, 5, (50, 5)), _counts(s, s.b, 4, 6, *counted), s.b.data(s.x, one, 5, 6, (60, 6))
        )  # fmt: skip
        assert findings(here) == ([("log", "count", "b", "x", 2, 1)] if lost else [])
        s.b.say(s.b.data(s.x, one, 6, 7, (70, 7)), _counts(s, s.b, 6, 7, 7))
        assert len(findings(here)) == lost


@pytest.mark.parametrize("counted", [(5, 6, 7, 8), (6, 8), (5, 5, 6, 6, 7, 7, 8)])
def test_what_came_by_another_path_is_compared_with_no_count(brokers: Brokers, counted: tuple[int, ...]) -> None:
    """The new parent was behind: it counts what the old one had sent, and which of these, nobody can compare."""
    (here,) = brokers(1)
    with ExitStack() as stack:
        s = Scene(here, stack)
        for peer in (s.b, s.c):
            peer.say(peer.ad(s.x))
        s.subscribe("few", "n >= 5")
        s.b.hear()
        s.c.hear()
        one = s.number(s.b)
        s.b.say(s.b.data(s.x, one, 0, 4), s.b.active(s.x, s.b.key(s.x), one, 4))
        s.b.say(s.b.data(s.x, one, 4, 5, (50, 5)), _counts(s, s.b, 4, 5, 5))
        s.b.say(s.b.data(s.x, one, 5, 6, (60, 6)), _counts(s, s.b, 5, 6, 6))
        s.b.say(s.b.data(s.x, one, 6, 7, (70, 7)))
        two = s.turn_to_c()
        s.c.say(s.c.data(s.x, two, 7, 8, (80, 8)), _counts(s, s.c, 4, 8, *counted))
        assert findings(here) == []
        s.c.say(s.c.data(s.x, two, 8, 9, (90, 9)), _counts(s, s.c, 8, 9, 9))
        assert (s.got("few"), findings(here)) == ([5, 6, 7, 8, 9], [])
        s.c.say(s.c.data(s.x, two, 9, 10, (100, 10)), _counts(s, s.c, 9, 10, 10, 10))
        assert findings(here) == [("log", "count", "c", "x", 2, 1)]
