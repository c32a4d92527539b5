"""pgps.classes: which subscriptions are asked about together, for whom it is."""

from __future__ import annotations

from collections.abc import Callable

from tests.fix_broker import call, make_type, rows
from tests.fix_db import Connect

_ALL = (
    "select subscription, subscriptions, asked_in, shape, classes from pgps.classes order by subscription, event_type"
)


def test_equal_filters_of_a_role_are_one_class_and_filters_of_one_shape_one_signature(
    own_database: str, connect: Connect
) -> None:
    admin = connect(dsn=own_database)
    make_type(admin, "tick", "n integer, word text")
    rows(admin, "create table public.wanted (n integer)")
    for name, condition in (
        ("a", "n > 5"),
        ("b", "n > 5"),
        ("c", "n > 6"),
        ("d", None),
        ("e", "n in (select w.n from public.wanted w)"),
    ):
        call(admin, "subscribe", name, "tick", condition)
    in_lane = rows(admin, "select shape from pgps.classes where subscription = 'e'")[0][0]
    assert "wanted" in in_lane
    assert rows(admin, _ALL) == [
        ("a", 2, "dispatch", '"tick"."n" > $1', 2),
        ("b", 2, "dispatch", '"tick"."n" > $1', 2),
        ("c", 1, "dispatch", '"tick"."n" > $1', 2),
        ("d", 1, None, None, None),
        ("e", 1, "lane", in_lane, 1),
    ]
    ids = "select count(distinct class_id), count(distinct signature_id) from pgps.classes where subscription in "
    assert rows(admin, ids + "('a', 'b')") == [(1, 1)]
    assert rows(admin, ids + "('a', 'c')") == [(2, 1)]
    call(admin, "unsubscribe", "b")
    assert rows(admin, _ALL)[0] == ("a", 1, "dispatch", '"tick"."n" > $1', 2)


def test_a_subscription_to_a_prefix_has_a_class_for_each_event_type(own_database: str, connect: Connect) -> None:
    admin = connect(dsn=own_database)
    for name in ("tick_a", "tick_b"):
        make_type(admin, name)
    call(admin, "subscribe", "all_ticks", "tick_*", "n > 1")
    assert rows(admin, "select event_type, asked_in from pgps.classes order by 1") == [
        ("tick_a", "lane"),
        ("tick_b", "lane"),
    ]


def test_classes_are_those_of_the_reader_and_all_for_an_administrator(
    own_database: str, connect: Connect, role: Callable[..., str]
) -> None:
    admin = connect(dsn=own_database)
    make_type(admin, "tick")
    alice, boss = role("alice"), role("boss", "pgps_admin")
    call(admin, "subscribe", "mine", "tick", "n > 1")
    call(connect(alice, dsn=own_database), "subscribe", "hers", "tick", "n > 1")
    # Equal filters of two roles are two classes: their rights differ.
    assert rows(connect(alice, dsn=own_database), _ALL) == [("hers", 1, "dispatch", '"tick"."n" > $1', 1)]
    assert [row[0] for row in rows(connect(boss, dsn=own_database), _ALL)] == ["hers", "mine"]
    assert rows(connect(role("eve"), dsn=own_database), _ALL) == []
