"""Scenes for what a child has had without a break, and wants kept, when it turns to another parent."""

from __future__ import annotations

from tests.fix_broker import call, make_type, rows
from tests.links.horizon_stage import Scene, wants_all
from tests.links.peer import Origin, kinds

# A broker between a neighbour and the origin: the path through it costs more.
FAR = "0000000f-0000-4000-8000-000000000000"


def withdrawn_keep(s: Scene) -> None:
    """A child that takes back what it wanted kept is answered, and not fetched for without end."""
    key = s.ready()
    s.c.close()
    d = s.peer("d")
    wanted = d.message("sub", key="other", filter="n < 7", constant_types=["integer"], environment={}, type="tick")
    every = d.message("sub", key=key, filter=None, constant_types=None, environment={}, type="tick")
    d.say(wanted, every, d.message("attach", **s.x.key, attachment=1, horizon=4, keep=["other", key]))
    d.say(d.message("unsub", key="other"))
    assert "silence" in kinds(d.hear())


def covered_keep(s: Scene) -> None:
    """A child that tells a wider filter in place of the one it wanted kept still lacks the events of that one."""
    key = s.ready()
    s.c.close()
    d = s.peer("d")
    high = d.message("sub", key="high", filter="n > 5", constant_types=["integer"], environment={}, type="tick")
    d.say(high, d.message("attach", **s.x.key, attachment=1, horizon=2, keep=["high"]))
    d.hear()
    s.b.hear()
    every = d.message("sub", key=key, filter=None, constant_types=None, environment={}, type="tick")
    d.say(every, d.message("unsub", key="high"))
    assert "silence" not in kinds(d.hear())
    # The parent is asked again, from where the child is, and for the wider one.
    two = s.number(s.b)
    s.b.say(s.b.data(s.x, two, 2, 3, (30, 30)), s.b.data(s.x, two, 3, 4))
    for peer in (d, s.b, d, s.b):
        peer.hear()
    asked = s.b.attachment(s.x)
    assert (asked["horizon"], asked["keep"]) == (2, [key])
    last = asked["attachment"]
    s.b.say(s.b.data(s.x, last, 2, 3, (30, 30)), s.b.data(s.x, last, 3, 4))
    d.hear()
    answer = [(i["previous"], i["upto"], i["events"]) for i in d.all_heard if "upto" in i]
    assert answer[:2] == [(2, 3, 1), (3, 4, 0)]


def unpublished_keep(s: Scene) -> None:
    """A child that keeps a filter of a type that the origin does not publish is answered, with what it lacks.

    The child was linked to the origin itself, which says of every filter that it is in force.
    """
    make_type(s.here.admin, "tock")
    _keeps_tocks(s, s.ready())


def unpublished_and_covered(s: Scene) -> None:
    """The same where the parent has been told a wider filter of the type, for another origin."""
    make_type(s.here.admin, "tock")
    key = s.ready()
    s.b.say(s.b.ad(Origin("y"), types=("tock",)))
    call(s.here.admin, "subscribe", "tocks", "tock", scope="global")
    s.b.hear()
    s.b.say(s.b.active(s.x, s.b.key(s.x), 1, 4))
    _keeps_tocks(s, key)


def _keeps_tocks(s: Scene, key: str) -> None:
    s.c.close()
    d = s.peer("d")
    every, attach = wants_all(s, d, key, 4)
    tocks = d.message("sub", key="k", filter="n > 5", constant_types=["integer"], environment={}, type="tock")
    attach["body"]["keep"] = [key, "k"]
    d.say(every, tocks, attach)
    for peer in (d, s.b, d, s.b, d, s.b):
        peer.hear()
    last = s.number(s.b)
    s.b.say(s.b.data(s.x, last, 4, 5, (50, 5)))
    for peer in (d, s.b, d, s.b):
        peer.hear()
    assert s.number(s.b) == last, "the parent is asked once more at most"
    assert [(i["previous"], i["upto"], i["events"]) for i in d.all_heard if i["kind"] == "data"] == [(4, 5, 1)]


def stale_offer(s: Scene) -> None:
    """What was in force is kept when the parent is gone for good, and who is left has not offered the type yet."""
    make_type(s.here.admin, "tock")
    s.b.say(s.b.ad(s.x, types=("tick", "tock")))
    s.c.say(s.c.ad(s.x))
    for name in ("tick", "tock"):
        call(s.here.admin, "subscribe", name, name, scope="global")
    s.b.hear()
    keys = {i["body"]["type"]: i["body"]["key"] for i in s.b.all_heard if i["kind"] == "sub"}
    one = s.number(s.b)
    s.b.say(s.b.data(s.x, one, 0, 4), *(s.b.active(s.x, key, one, 4) for key in keys.values()))
    s.b.hear()
    s.b.close()
    call(s.here.admin, "drop_link", "b", True)
    for _ in range(2):
        s.c.hear()
    asked = s.c.attachment(s.x)
    assert (asked["horizon"], sorted(asked["keep"])) == (4, sorted(keys.values()))
    s.c.say(s.c.data(s.x, asked["attachment"], 4, 5, (50, 5)), s.c.ad(s.x, types=("tick", "tock")))
    s.c.hear()
    since = "select distinct since from pgps_internal.activation a join pgps_internal.origin o using (origin_id)"
    assert rows(s.here.admin, f"{since} where o.name = 'x'") == [(4,)]


def _ticks_and_tocks(s: Scene) -> tuple[int, dict[str, str]]:
    """Events of two types come from x by way of b, and the filters of both are in force; return attachment and keys.

    C has a better path, which does not carry the second type. It is barred.
    """
    make_type(s.here.admin, "tock")
    s.b.say(s.b.ad(s.x, FAR, types=("tick", "tock")))
    for name in ("tick", "tock"):
        call(s.here.admin, "subscribe", name, name, scope="global")
    s.b.hear()
    keys = {i["body"]["type"]: i["body"]["key"] for i in s.b.all_heard if i["kind"] == "sub"}
    one = s.number(s.b)
    s.b.say(s.b.data(s.x, one, 0, 4), *(s.b.active(s.x, key, one, 4) for key in keys.values()))
    s.b.hear()
    return one, keys


def promised_again(s: Scene) -> None:
    """A path that may not be able to bring a type is not taken while nobody promises it: it may be promised again."""
    one, _ = _ticks_and_tocks(s)
    # A broker that would not bring tocks, or that does not know the question.
    s.c.say(s.c.ad(s.x))
    s.b.say(s.b.ad(s.x, FAR))
    s.b.hear()
    assert "attach" not in kinds(s.c.hear())
    s.c.say(s.c.ad(s.x, is_open=False))
    assert "attach" not in kinds(s.c.hear())
    # What b brings meanwhile, and when it promises tocks again, is for the filters that have been in force.
    s.b.say(s.b.data(s.x, one, 4, 5, (50, 5)), s.b.ad(s.x, FAR, types=("tick", "tock")))
    s.b.hear()
    assert "attach" not in kinds(s.c.hear())
    assert s.number(s.b) == one
    assert s.got("tick") == [5]


def never_promised(s: Scene) -> None:
    """A path that would bring every type is taken, though it does not carry one of which a filter is in force.

    Nobody carries that. The new parent is asked to keep it, and asks for it in turn.
    """
    _, keys = _ticks_and_tocks(s)
    s.b.say(s.b.ad(s.x, FAR))
    s.b.hear()
    s.c.say(s.c.ad(s.x, is_open=True))
    s.c.hear()
    asked = s.c.attachment(s.x)
    assert (asked["horizon"], sorted(asked["keep"])) == (4, sorted(keys.values()))


def promised_is_not_left(s: Scene) -> None:
    """A path that would bring every type, and does not carry one that another one promises, is not taken for it."""
    _ticks_and_tocks(s)
    s.c.say(s.c.ad(s.x, is_open=True))
    s.b.close()
    assert "attach" not in kinds(s.c.hear())


def unused_offer(s: Scene) -> None:
    """A path that is not in use is offered to the parent only when this broker would take it itself."""
    _ticks_and_tocks(s)
    s.c.say(s.c.ad(s.x, is_open=True))
    s.c.hear()
    assert s.c.broker not in _offered(s), "the two would choose each other, and wait for each other"
    s.c.say(s.c.ad(s.x, FAR, types=("tick", "tock")))
    s.c.hear()
    assert s.c.broker in _offered(s)


def unpromised_events(s: Scene) -> None:
    """What comes of a type that nobody promises any more is not for a filter that is not in force yet."""
    make_type(s.here.admin, "tock")
    y = Origin("y")
    s.b.say(s.b.ad(s.x, types=("tock",)), s.b.ad(y))
    for name in ("tick", "tock"):
        call(s.here.admin, "subscribe", name, name, scope="global")
    s.seen()
    s.b.hear()
    keys = {i["body"]["type"]: i["body"]["key"] for i in s.b.all_heard if i["kind"] == "sub"}
    one, other = s.number(s.b), int(s.b.attachment(y)["attachment"])
    s.b.say(s.b.active(y, keys["tick"], other, 0), s.b.active(s.x, keys["tock"], one, 0), s.b.data(s.x, one, 0, 3))
    s.b.hear()
    # B has been told of ticks because of y, and sends those of x, too. It says then that x publishes them.
    s.b.say(s.b.data(s.x, one, 3, 4, (1, 7)), s.b.ad(s.x, types=("tick", "tock")))
    s.b.hear()
    s.b.say(s.b.data(s.x, one, 4, 5, (2, 8)), s.b.active(s.x, keys["tick"], one, 5))
    s.b.hear()
    s.b.say(s.b.data(s.x, one, 5, 6, (3, 9)))
    assert s.got("tick") == [9], "from one moment on everything"


def parent_that_is_dropped(s: Scene) -> None:
    """A neighbour that becomes the parent when no filters are told to it any more is not asked without them."""
    key = s.ready()
    s.turn_to_c()
    s.again(s.b)
    assert [i["body"]["key"] for i in s.b.hear() if i["kind"] == "unsub"] == [key]
    # C has not answered, and b, which is dropping its link, is the only one left.
    s.c.say(s.c.message("unad", **s.x.key))
    s.c.hear()
    s.b.say(s.b.message("drain"))
    assert "attach" not in kinds(s.b.hear()), "it would be answered with silence"
    d = s.peer("d")
    d.say(d.ad(s.x))
    d.hear()
    asked = d.attachment(s.x)
    assert (asked["horizon"], asked["keep"]) == (4, [key])


def _offered(s: Scene) -> list[str]:
    """By whom b has been offered x last."""
    s.b.hear()
    said = [i for i in s.b.all_heard if i["kind"] in ("ad", "unad") and i["body"]["broker"] == s.x.broker]
    return said[-1]["body"]["path"] if said and said[-1]["kind"] == "ad" else []


def both_are_dropped(s: Scene) -> None:
    """A broker whose only two links are dropped does not turn from the one to the other, which it cannot ask."""
    y = Origin("y")
    s.b.say(s.b.ad(s.x, FAR))
    s.c.say(s.c.ad(y))
    s.subscribe()
    for peer in (s.b, s.c):
        peer.hear()
    one, key = s.number(s.b), s.b.key(s.x)
    s.b.say(s.b.data(s.x, one, 0, 4), s.b.active(s.x, key, one, 4))
    first = s.c.attachment(y)["attachment"]
    s.c.say(s.c.data(y, first, 0, 4), s.c.active(y, s.c.key(y), first, 4))
    # Y is to come by b, which has not answered yet, when the link to b is dropped, too.
    s.b.say(s.b.ad(y))
    s.c.say(s.c.message("drain"))
    for peer in (s.c, s.b):
        peer.hear()
    assert s.b.attachment(y)["attachment"] > first
    s.b.say(s.b.message("drain"))
    s.c.say(s.c.ad(s.x))
    for peer in (s.b, s.c):
        peer.hear()
    again = s.c.attachment(y)["attachment"]
    s.c.say(s.c.data(y, again, 4, 4))
    for peer in (s.b, s.c, s.b):
        peer.hear()
    assert "drain" in kinds(s.b.all_heard)
    assert "drain" in kinds(s.c.all_heard)
