"""What a neighbour says of filters: nobody waits while it is heard, and it begins with one batch of the dispatcher."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.fix_broker import call, column, publish, refused, rows, value
from tests.fix_db import Connect, wait_until
from tests.links.rig import received
from tests.links.test_hostile_neighbours import WAITS, Stranger, stranger, sub

__all__ = ["stranger"]

LAST = "select max(batch_id) from pgps_internal.batch"
BEGINS = "select m.from_batch from pgps_internal.member m join pgps_internal.neighbour n using (subscription_id)"


def unsub(asked: dict[str, object]) -> dict[str, object]:
    """Withdraw what was asked."""
    body = asked["body"]
    assert isinstance(body, dict)
    return {"kind": "unsub", "body": {"key": body["key"]}}


@contextmanager
def hearing(stranger: Stranger, connect: Connect, *items: dict[str, object]) -> Iterator[None]:
    """While this lasts the broker is in the middle of what the neighbour says."""
    boss = connect(dsn=stranger.here.dsn, autocommit=False)
    rows(boss, "lock table pgps_internal.attached in share mode")
    thread = threading.Thread(target=stranger.take, args=items)
    thread.start()
    try:
        wait_until(lambda: value(stranger.here.admin, WAITS, [stranger.pid]) == 1, what="it waits")
        yield
    finally:
        boss.rollback()
        thread.join(60)
    assert not thread.is_alive()


def test_events_are_dispatched_while_filters_are_heard(stranger: Stranger, connect: Connect) -> None:
    here = stranger.here
    call(here.admin, "subscribe", "all", "tick")
    rows(here.admin, "set lock_timeout = '20s'")
    asked = sub(here, "n > 2", types=["integer"])
    with hearing(stranger, connect, asked):
        publish(here.admin, "tick", 1)
        here.settle()
        assert received(here, "all") == [("a", 1)]
        before = value(here.admin, LAST)
    assert column(here.admin, BEGINS) == [before], "it holds from the next batch on"


def test_a_filter_that_is_replaced_ends_when_the_other_begins(stranger: Stranger, connect: Connect) -> None:
    here = stranger.here
    former, new = (sub(here, text, types=["integer"]) for text in ("n > 1", "n > 2"))
    stranger.take(former)
    rows(here.admin, "set lock_timeout = '20s'")
    with hearing(stranger, connect, unsub(former), new):
        publish(here.admin, "tick", 1)
        here.settle()
        last = value(here.admin, LAST)
    gone = "select gone_batch from pgps_internal.wanted where gone_batch is not null"
    assert column(here.admin, gone) == [last]
    assert max(column(here.admin, BEGINS)) == last


def test_a_form_that_the_dispatcher_gives_up_meanwhile_is_taken_as_no_filter(
    stranger: Stranger, connect: Connect
) -> None:
    here = stranger.here
    stranger.take(sub(here, "n > 1", types=["integer"]))
    rows(here.admin, "set lock_timeout = '20s'")
    with hearing(stranger, connect, sub(here, "n > 2", types=["integer"])):
        rows(
            here.admin,
            "insert into pgps_internal.unasked (signature_id, from_batch) select signature_id, 0"
            " from pgps_internal.signature",
        )
    forms = "select c.signature_id is null from pgps_internal.wanted w join pgps_internal.class c using (class_id)"
    assert sorted(column(here.admin, forms)) == [False, True]
    members = "select count(*) from pgps_internal.wanted w join pgps_internal.neighbour n using (neighbour_id)"
    members += " join pgps_internal.member m using (subscription_id, class_id)"
    assert value(here.admin, members) == 2


def test_more_than_one_broker_sends_at_once_is_refused(stranger: Stranger) -> None:
    said: dict[str, object] = {"kind": "unsub", "body": {"key": "none"}}
    with refused("54000", "1001 items"):
        stranger.take(*[said] * 1001)
    stranger.take(*[said] * 1000)


def test_of_thousands_of_ranges_not_every_pair_is_kept(stranger: Stranger) -> None:
    here = stranger.here
    pairs = "select count(*) from pgps_internal.cover"
    stranger.take(*[sub(here, f"n > {n}", types=["integer"]) for n in range(4)])
    assert value(here.admin, pairs) == 6
    rows(
        here.admin,
        "insert into pgps_internal.link_filter select md5(k::text), f.type_id, f.filter, f.constant_types,"
        " f.environment, f.shape, array[k::text], f.bounds, f.family"
        " from (select * from pgps_internal.link_filter limit 1) f, generate_series(1000, 1500) k",
    )
    stranger.take(sub(here, "n > 500", types=["integer"]))
    assert value(here.admin, pairs) == 6
    call(here.admin, "subscribe", "own", "tick", "n > 600", scope="global")
    rows(here.admin, "select pgps_internal.push_filters()")
    assert value(here.admin, pairs) > 500, "of its own filters a broker keeps all"


@pytest.mark.parametrize("filter", ["n > 1", None])
def test_what_was_said_twice_is_matched_once(stranger: Stranger, filter: str | None) -> None:  # noqa: A002
    here = stranger.here
    types = ["integer"] if filter else None
    stranger.take(sub(here, filter, types=types), sub(here, filter, types=types))
    stranger.take(sub(here, filter, types=types))
    assert value(here.admin, "select count(*) from pgps_internal.wanted") == 3
    members = "select count(*) from pgps_internal.member m join pgps_internal.neighbour n using (subscription_id)"
    assert value(here.admin, members) == 1
