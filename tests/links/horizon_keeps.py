"""Scenes for what a child has had without a break, and wants kept, when it turns to another parent."""

from __future__ import annotations

from tests.fix_broker import call, make_type, rows
from tests.links.horizon_stage import Scene, wants_all
from tests.links.peer import Origin, kinds


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
