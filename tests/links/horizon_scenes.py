"""Scenes for the rules of the horizon: what brokers say to each other, and what then has to be true."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_broker import call, column, publish, rows, value
from tests.links.horizon_stage import Scene, attached, few, wants_all
from tests.links.peer import kinds


def older_attachment(s: Scene) -> None:
    """Rule 2: items of an older attachment are dropped: they answer for other filters."""
    s.ready()
    s.turn_to_c()
    s.again(s.b)
    s.c.close()
    s.b.hear()
    three = s.number(s.b)
    s.b.say(s.b.data(s.x, 1, 4, 6, (60, 6)))
    s.b.say(s.b.data(s.x, three, 4, 5, (50, 5)), s.b.data(s.x, three, 5, 6, (60, 6)))
    assert s.got() == [5, 6]


def other_neighbour(s: Scene) -> None:
    """Rule 2: items of a neighbour that is the parent no more are dropped."""
    s.ready()
    two = s.turn_to_c()
    s.again(s.b)
    s.b.say(s.b.data(s.x, 1, 4, 6, (60, 6)))
    s.c.say(s.c.data(s.x, two, 4, 5, (50, 5)), s.c.data(s.x, two, 5, 6, (60, 6)))
    assert s.got() == [5, 6]


def late_active(s: Scene) -> None:
    """Rule 2: that a filter is in force counts only from the parent, for the present attachment."""
    s.ready()
    s.subscribe("low", "n < 100")
    s.b.hear()
    two = s.turn_to_c()
    # The narrower one is not sent, being implied: so ask for what only c can say.
    call(s.here.admin, "unsubscribe", "all")
    s.c.hear()
    key = s.c.key(s.x)
    s.again(s.b)
    s.b.say(s.b.active(s.x, key, 1, 4))
    before = rows(s.here.admin, "select is_confirmed from pgps_internal.activation where key = %s", [key])
    assert (True,) not in before
    s.c.say(s.c.active(s.x, key, two, 4))
    assert rows(s.here.admin, "select is_confirmed from pgps_internal.activation where key = %s", [key]) == [(True,)]


def repeat(s: Scene) -> None:
    """Rule 3: what is at or behind the horizon is here already."""
    s.ready()
    s.b.say(s.b.data(s.x, 1, 4, 5, (50, 5)))
    s.b.say(s.b.data(s.x, 1, 4, 5, (50, 5)))
    assert s.got() == [5]


def gap(s: Scene) -> None:
    """Rule 3: an item that leaves something open is not taken; the parent is asked again, from the horizon."""
    s.ready()
    s.b.say(s.b.data(s.x, 1, 5, 6, (60, 6)))
    s.b.hear()
    asked = s.b.attachment(s.x)
    if asked["attachment"] > 1:
        assert asked["horizon"] == 4
        two = asked["attachment"]
        s.b.say(s.b.data(s.x, two, 4, 5, (50, 5)), s.b.data(s.x, two, 5, 6, (60, 6)))
    else:
        s.b.say(s.b.data(s.x, 1, 4, 5, (50, 5)))
    assert s.got() == [5, 6]


def silence(s: Scene) -> None:
    """Rule 3: who wants nothing of what comes is told how far nothing matched."""
    attached(s)
    publish(s.here.admin, "tick", 1)
    publish(s.here.admin, "tick", 2)
    heard = [item for item in s.c.hear() if "upto" in item]
    last = value(s.here.admin, "select max(batch_id) from pgps_internal.batch")
    assert [item["upto"] for item in heard][-1:] == [last]


def rewind(s: Scene) -> None:
    """Rule 4: a child that was ahead with another parent gets what this broker never asked for."""
    key = s.ready()
    s.c.close()
    d = s.peer("d")
    d.say(
        d.message("sub", key=key, filter=None, constant_types=None, environment={}, type="tick"),
        d.message("attach", **s.x.key, attachment=1, horizon=2, keep=[key]),
    )
    answered = kinds(d.hear())
    assert "silence" not in answered
    s.b.hear()
    asked = s.b.attachment(s.x)
    assert (asked["attachment"], asked["horizon"]) == (2, 2)
    s.b.say(s.b.data(s.x, 2, 2, 3, (30, 3)), s.b.data(s.x, 2, 3, 4), s.b.data(s.x, 2, 4, 5, (50, 5)))
    answer = [(i["previous"], i["upto"], i["events"]) for i in d.hear() if "upto" in i]
    assert [a for a in answer if a[2]] == [(2, 3, 1), (3, 5, 1)]
    assert s.got() == [5], "what was fetched for the child is not for those here"


def child_ahead(s: Scene) -> None:
    """Rule 4: for a child that is ahead the parent is asked from the own horizon: what lies between is not here yet."""
    two = few(s)
    assert s.b.attachment(s.x)["horizon"] == 4
    s.b.say(s.b.data(s.x, two, 4, 6, (60, 6)), s.b.data(s.x, two, 6, 9, (90, 9), (91, 1)))
    assert s.got("few") == [6, 9]
    answer = [(i["previous"], i["upto"], i["events"]) for i in s.c.hear() if "upto" in i]
    assert [a for a in answer if a[2]] == [(8, 9, 2)]


def child_ahead_at_rest(s: Scene) -> None:
    """Rule 4: the parent's answer ends it, also when nothing is published any more."""
    two = few(s)
    s.b.say(s.b.data(s.x, two, 4, 4))
    assert "silence" in kinds(s.c.hear())


def told_once_more(s: Scene) -> None:
    """Rule 2: a filter taken back and told again is in force when the parent says so of the second telling."""
    s.ready()
    s.subscribe("low", "n < 100")
    s.b.hear()
    first = s.b.key(s.x), [i["body"] for i in s.b.all_heard if i["kind"] == "sub"][-1]
    for name in ("low", "all"):
        call(s.here.admin, "unsubscribe", name)
    s.b.hear()
    s.subscribe("again")
    s.b.hear()
    second = [i["body"] for i in s.b.all_heard if i["kind"] == "sub"][-1]
    assert second["told"] > first[1]["told"]
    key = second["key"]
    told = "select count(*) from pgps_internal.activation where key = %s"
    assert value(s.here.admin, told, [key]) == 0
    stale, fresh = (s.b.active(s.x, key, s.number(s.b), 4) for _ in range(2))
    stale["body"]["told"], fresh["body"]["told"] = second["told"] - 1, second["told"]
    s.b.say(stale)
    assert value(s.here.admin, told, [key]) == 0
    s.b.say(fresh)
    assert value(s.here.admin, told, [key]) == 1


def wanted_again_at_once(s: Scene) -> None:
    """Rule 5: who unsubscribes and subscribes again before anybody looks is not in force from where it was."""
    wide = s.ready()
    call(s.here.admin, "unsubscribe", "all")
    batch = call(s.b.hears, "link_next", s.b.heard, 1000, True)
    assert "unsub" in kinds(batch["items"])
    s.subscribe("again")
    s.b.hear()
    assert value(s.here.admin, "select count(*) from pgps_internal.activation where key = %s", [wide]) == 0


def says_active_again(s: Scene) -> None:
    """Rule 2, the parent's side: it says of a filter that was taken back and told again that it is in force again."""
    me, _ = attached(s)
    s.c.hear()
    again = s.c.message("sub", key="k", told=7, filter="n > 5", constant_types=["integer"], environment={}, type="tick")
    s.c.say(s.c.message("unsub", key="k"), again)
    said = [i["body"] for i in s.c.hear() if i["kind"] == "active"]
    assert [(body["broker"], body["told"]) for body in said] == [(me.broker, 7)]


def unheard_keep(s: Scene) -> None:
    """Rule 4: no answer before all filters that are to be kept are known: without one it would look complete."""
    key = s.ready()
    s.c.close()
    d = s.peer("d")
    every, attach = wants_all(s, d, key, 4)
    d.say(attach)
    assert "silence" not in kinds(d.hear())
    d.say(every)
    assert "silence" in kinds(d.hear())


def poorer_path(s: Scene) -> None:
    """Rule 1: a path that does not carry what is in force is not taken: what comes on it would look complete."""
    key = s.ready()
    s.c.say(s.c.ad(s.x, types=()))
    s.b.close()
    assert "attach" not in kinds(s.c.hear())
    s.c.say(s.c.ad(s.x))
    s.c.hear()
    assert s.c.attachment(s.x)["keep"] == [key]


def richer_path(s: Scene) -> None:
    """Rule 1: the path that carries more is the better one, whatever it costs."""
    s.subscribe()
    s.b.say(s.b.ad(s.x, types=()))
    s.c.say(s.c.ad(s.x, "0000000f-0000-4000-8000-000000000000"))
    assert "attach" not in kinds(s.b.hear())
    assert "attach" in kinds(s.c.hear())


def detached_at_rest(s: Scene) -> None:
    """Rule 2: that there is nothing new is an answer, too."""
    s.ready()
    two = s.turn_to_c()
    s.again(s.b)
    assert "detach" not in kinds(s.b.hear())
    s.c.say(s.c.data(s.x, two, 4, 4))
    assert "detach" in kinds(s.b.hear())


def kept(s: Scene) -> None:
    """Rule 5: a filter's `since` is kept over a change of parent: the new one must give all from the horizon on."""
    key = s.ready()
    s.turn_to_c()
    asked = s.c.attachment(s.x)
    assert (asked["keep"], asked["horizon"]) == ([key], 4)


def forgotten(s: Scene) -> None:
    """Rule 5: `since` goes with its filter: of what came meanwhile nobody knows."""
    s.ready()
    call(s.here.admin, "unsubscribe", "all")
    assert "unsub" in kinds(s.b.hear())
    s.b.hear()
    s.subscribe("new")
    s.turn_to_c()
    assert s.c.attachment(s.x)["keep"] == []


def early(s: Scene) -> None:
    """Rule 5: what comes before a filter is in force is there for others, and not for its subscription."""
    s.ready()
    s.subscribe("low", "n < 100")
    s.seen()
    rows(s.here.admin, "update pgps_internal.origin set is_settled = false")
    s.b.say(s.b.data(s.x, 1, 4, 5, (50, 5)))
    s.b.hear()
    s.b.say(s.b.data(s.x, 1, 5, 6, (60, 6)))
    assert s.got("low") == [6]
    assert s.got() == [5, 6]


def withdrawal(s: Scene) -> None:
    """What a filter implied is sent, and in force, before the filter is taken back."""
    wide = s.ready()
    s.subscribe("low", "n < 100")
    s.b.hear()
    call(s.here.admin, "unsubscribe", "all")
    assert kinds(s.b.hear()) == ["sub"]
    s.b.say(s.b.active(s.x, s.b.key(s.x), 1, 4))
    gone = [i["body"]["key"] for i in s.b.hear() if i["kind"] == "unsub"]
    assert gone == [wide]


def detached(s: Scene) -> None:
    """Rule 2: the old parent is let go when the new one has answered."""
    s.ready()
    two = s.turn_to_c()
    s.again(s.b)
    assert "detach" not in kinds(s.b.hear())
    s.c.say(s.c.data(s.x, two, 4, 5))
    assert "detach" in kinds(s.b.hear())


def last(s: Scene) -> None:
    """The position is stored with what a batch does: after it the batch is a repeat, and nothing is done with it."""
    s.b.say(s.b.ad(s.x))
    s.b.said -= 1
    batch, events = s.b.batch(s.b.ad(s.x))
    assert "copies" not in s.b.carry(batch, events)


def missing(s: Scene) -> None:
    """A batch before which another one is missing is refused."""
    s.b.said += 1
    batch, events = s.b.batch(s.b.ad(s.x))
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        s.b.carry(batch, events)


def told_gap(s: Scene) -> None:
    """What is trimmed is an exception here, and no silence for children."""
    key = s.ready()
    s.c.close()
    d = s.peer("d")
    d.say(
        d.message("sub", key=key, filter=None, constant_types=None, environment={}, type="tick"),
        d.message("attach", **s.x.key, attachment=1, horizon=4, keep=[key]),
    )
    d.hear()
    s.b.say(s.b.message("gap", **s.x.key, attachment=1, after=4, upto=8), s.b.data(s.x, 1, 8, 9))
    assert column(s.here.admin, "select sqlstate from pgps.exceptions") == ["58030"]
    told = [item for item in d.hear() if item["kind"] in ("gap", "silence")]
    assert [item["kind"] for item in told] == ["gap", "silence"]
    assert (told[0]["body"]["after"], told[0]["body"]["upto"]) == (4, 8)


def broken_for_child(s: Scene) -> None:
    """A child is not told how far nothing matched while its filter was not in force here without a break."""
    s.subscribe("high", "n > 5")
    s.b.say(s.b.ad(s.x))
    s.b.hear()
    one = s.number(s.b)
    s.b.say(s.b.data(s.x, one, 0, 4), s.b.active(s.x, s.b.key(s.x), one, 4))
    low = s.c.message("sub", key="low", filter="n < 3", constant_types=["integer"], environment={}, type="tick")
    s.c.say(low, s.c.message("attach", **s.x.key, attachment=1, horizon=4, keep=[]))
    s.b.hear()
    key = s.b.key(s.x)
    s.b.say(s.b.active(s.x, key, one, 4))
    s.c.hear()
    s.b.say(s.b.data(s.x, one, 4, 5, (50, 1)))
    assert [i["upto"] for i in s.c.hear() if i["kind"] == "data"] == [5]
    # The child offers another way to the origin, and becomes the parent while b is away: nobody asks it for what it
    # wants itself.
    s.c.say(s.c.ad(s.x, "00000000-0000-4000-8000-00000000000f"))
    s.turn_to_c()
    s.again(s.b)
    s.b.hear()
    again = s.b.attachment(s.x)
    assert key not in again["keep"], "b is not asked to have had it in force since before"
    s.b.say(s.b.data(s.x, again["attachment"], 5, 8))
    assert [i["upto"] for i in s.c.hear() if i["kind"] == "silence" and i["upto"] > 5] == []
    # Once b has said what there was, the child gets it.
    for peer in (s.b, s.c, s.b):
        peer.hear()
    last = s.b.attachment(s.x)
    assert (last["horizon"], key in last["keep"]) == (5, True)
    s.b.say(s.b.data(s.x, last["attachment"], 5, 7, (70, 2)), s.b.data(s.x, last["attachment"], 7, 8))
    assert [(i["previous"], i["upto"]) for i in s.c.hear() if "upto" in i][:2] == [(5, 7), (7, 8)]
