"""Each rule of the horizon (docs/internals/links.md): a scene that it decides, and the proof that it does.

A scene is played twice: as pgps is, and once more for each way to take the rule out of a scratch broker, where it must
fail. So the suite says itself that every rule is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, publish, rows, value
from tests.links.peer import Item, Origin, Peer, kinds
from tests.links.rig import Broker, received


@dataclass(frozen=True)
class Taken:
    """A rule taken out: some text of a function, and what stands in its place."""

    function: str
    text: str
    instead: str

    def out_of(self, broker: Broker) -> None:
        source = value(
            broker.admin,
            "select pg_get_functiondef(p.oid) from pg_proc p where p.proname = %s"
            " and p.pronamespace = 'pgps_internal'::regnamespace",
            [self.function],
        )
        assert source.count(self.text) == 1, f"{self.function} has not, or not once: {self.text}"
        rows(broker.admin, source.replace(self.text, self.instead))


class Scene:
    """A broker with a global subscription `all`, and neighbours b and c, which both offer the origin x."""

    def __init__(self, broker: Broker, stack: ExitStack) -> None:
        self.here, self.stack = broker, stack
        self.x = Origin("x")
        make_type(broker.admin, "tick")
        self.b, self.c = self.peer("b"), self.peer("c")

    def peer(self, name: str) -> Peer:
        made = Peer(self.here, name, broker=f"{ord(name):08x}-0000-4000-8000-000000000000")
        self.stack.callback(made.hears.close)
        self.stack.callback(made.says.close)
        return made

    def again(self, peer: Peer) -> None:
        peer.open()
        self.stack.callback(peer.hears.close)
        self.stack.callback(peer.says.close)

    def subscribe(self, name: str = "all", filter: str | None = None) -> None:  # noqa: A002
        call(self.here.admin, "subscribe", name, "tick", filter=filter, scope="global")

    def ready(self) -> str:
        """Both offer x, b is the parent; the filter of `all` is in force from batch 4 on; return its key."""
        for peer in (self.b, self.c):
            peer.say(peer.ad(self.x))
        self.subscribe()
        self.b.hear()
        self.c.hear()
        key = self.b.key(self.x)
        one = self.b.attachment(self.x)["attachment"]
        self.b.say(self.b.data(self.x, one, 0, 4), self.b.active(self.x, key, one, 4))
        self.b.hear()
        return key

    def number(self, peer: Peer) -> int:
        return int(peer.attachment(self.x)["attachment"])

    def turn_to_c(self) -> int:
        """B goes away, and c becomes the parent; return the attachment."""
        self.b.close()
        self.c.hear()
        return self.number(self.c)

    def got(self, name: str = "all") -> list[int]:
        self.here.settle()
        return [n for _, n in received(self.here, name)]


def path(s: Scene) -> None:
    """Rule 1: a path that leads through this broker is none."""
    me = s.here.identity()["broker"]
    s.subscribe()
    s.b.say(s.b.ad(s.x, me))
    assert "attach" not in kinds(s.b.hear())


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


def attached(s: Scene) -> tuple[Origin, str]:
    """Make c a child for what this broker publishes: every event of more than 5; return origin and filter."""
    me = Origin("here", s.here.identity()["broker"])
    s.c.say(
        s.c.message("sub", key="k", filter="n > 5", constant_types=["integer"], environment={}, type="tick"),
        s.c.message("attach", **me.key, attachment=1, horizon=0, keep=[]),
    )
    s.c.hear()
    return me, "k"


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


def wants_all(s: Scene, peer: Peer, key: str, horizon: int, *, attachment: int = 1) -> list[Item]:
    """Make a peer a child for x that has every event up to a batch; return what it asks with."""
    every = peer.message("sub", key=key, filter=None, constant_types=None, environment={}, type="tick")
    return [every, peer.message("attach", **s.x.key, attachment=attachment, horizon=horizon, keep=[key])]


def few(s: Scene) -> int:
    """Events of 5 and more are in force from batch 4 on; c, which has every event up to batch 8, becomes a child."""
    s.subscribe("few", "n >= 5")
    s.b.say(s.b.ad(s.x))
    s.b.hear()
    s.c.hear()
    key, one = s.b.key(s.x), s.number(s.b)
    s.b.say(s.b.data(s.x, one, 0, 4), s.b.active(s.x, key, one, 4))
    s.c.say(*wants_all(s, s.c, "every", 8))
    # The parent is told what c wants, and is asked again then.
    for peer in (s.c, s.b, s.c, s.b):
        peer.hear()
    assert s.number(s.b) > one
    return s.number(s.b)


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
    s.here.settle()
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


Step = Callable[[Scene], object]
_ATTACHMENT = "(admit_item.item ->> 'attachment')::integer"
_PREVIOUS = "(admit_item.item ->> 'previous')::bigint > v_place"
_UNCONFIRMED = "update pgps_internal.activation a set is_confirmed = false\n        from"
_UNWANTED = "where not exists (select from pgps_internal.interest i where i.origin_id = a.origin_id and i.key = a.key)"
_OF_WHAT_WAS_TOLD = (
    "and exists (select from pgps_internal.told t",
    "and true or exists (select from pgps_internal.told t",
)
_BREAK_BEGINS = ("where w.message = 'unsub')", "where false)")
_NOT_AHEAD = "v_start := least(v_start, pgps_internal.horizon(v_id));"
_MISSING = Taken("do_link_begin", "elsif (args ->> 'after')::bigint > v_last then", "elsif false then")
_MISSING_AT_THE_END = Taken(
    "require_next",
    "if (require_next.batch ->> 'after')::bigint is distinct from require_next.last then",
    "if false then",
)

# For each scene the ways to take its rule out.
RULES: list[tuple[Step, list[list[Taken]]]] = [
    (path, [[Taken("hear_ad", "v_me.broker_id = any (v_path) or ", "")]]),
    (older_attachment, [[Taken("admit_item", f"v_origin.attachment <> {_ATTACHMENT}", "false")]]),
    (
        other_neighbour,
        [
            [
                Taken("admit_item", f"v_origin.attachment <> {_ATTACHMENT}", "false"),
                Taken("admit_item", "v_origin.parent is distinct from (admit_item.neighbour).neighbour_id", "false"),
            ]
        ],
    ),
    (
        late_active,
        [
            [
                Taken("hear_active", "o.parent = (hear_active.neighbour).neighbour_id", "true"),
                Taken("hear_active", "o.attachment = (hear_active.body ->> 'attachment')::integer", "true"),
                Taken("hear_active", *_OF_WHAT_WAS_TOLD),
            ]
        ],
    ),
    (
        repeat,
        [
            [
                Taken("admit_item", "if v_upto > v_place then", "if true then"),
                Taken("admit_item", "if v_upto <= v_horizon then", "if false then"),
            ]
        ],
    ),
    (gap, [[Taken("admit_item", _PREVIOUS, "false")]]),
    (silence, [[Taken("be_silent", "where x.upto > x.sent", "where false")]]),
    (
        rewind,
        [
            [Taken("go_live", "where c.since is null or c.since > v_attached.horizon", "where false")],
            [Taken("admit_rewound", "set skip = m.skip + (v_ids - v_known)", "set skip = m.skip")],
        ],
    ),
    (kept, [[Taken("choose_parents", _UNCONFIRMED, "delete from pgps_internal.activation a\n        using")]]),
    (
        forgotten,
        [
            [
                Taken("activate", _UNWANTED, _UNWANTED.replace("not exists", "false and not exists")),
                Taken("note_breaks", *_BREAK_BEGINS),
            ]
        ],
    ),
    (child_ahead, [[Taken("rewind", _NOT_AHEAD, "")]]),
    (
        child_ahead_at_rest,
        [[Taken("admit_item", "v_origin.rewind_from is not null and v_upto >= v_horizon", "v_upto > v_horizon")]],
    ),
    (told_once_more, [[Taken("hear_active", *_OF_WHAT_WAS_TOLD)]]),
    (wanted_again_at_once, [[Taken("note_breaks", *_BREAK_BEGINS)]]),
    (says_active_again, [[Taken("should_know", "'told', nullif(w.told, 0)", "'told', null")]]),
    (unheard_keep, [[Taken("go_live", "and cardinality(a.missing) = 0", "")]]),
    (poorer_path, [[Taken("choose_parents", "and (g.parent is not distinct from n.neighbour_id", "and (true")]]),
    (richer_path, [[Taken("choose_parents", "r.types_carried desc, ", "")]]),
    (detached_at_rest, [[Taken("admit_item", "v_origin.answered is distinct from v_origin.attachment", "false")]]),
    (
        early,
        [
            [
                Taken(
                    "admit_item",
                    "if not isempty(v_ids) and not (v_origin.is_settled",
                    "if false and not (v_origin.is_settled",
                )
            ]
        ],
    ),
    (withdrawal, [[Taken("is_held", "pgps_internal.is_awaited(is_held.neighbour, is_held.key)", "false")]]),
    (detached, [[Taken("is_held", "where o.origin_id = is_held.key::integer and", "where false and")]]),
    (
        last,
        [
            [Taken("admit_batch", "and pgps_internal.last_received((admit_batch.neighbour).neighbour_id)", "and 9e9")],
            [Taken("do_link_begin", "if (args ->> 'after')::bigint < v_last then", "if false then"), _MISSING],
        ],
    ),
    (missing, [[_MISSING, _MISSING_AT_THE_END]]),
    (told_gap, [[Taken("be_silent", "g.upto > q.sent and g.upto <= q.upto", "false")]]),
    (withdrawn_keep, [[Taken("hear_unsub", "and not a.is_live", "and false")]]),
    (
        covered_keep,
        [[Taken("still_kept", "where c.by_key = w.key and c.key = any (still_kept.keep)", "where false")]],
    ),
    (broken_for_child, [[Taken("answer_again", "set is_live = false", "set is_live = true")]]),
]
TAKEN = [(scene, taken) for scene, mutations in RULES for taken in mutations]


@pytest.fixture
def stage(brokers: Callable[[int], list[Broker]]) -> Iterator[Callable[[], Scene]]:
    with ExitStack() as stack:
        yield lambda: Scene(brokers(1)[0], stack)


@pytest.mark.parametrize("scene", [scene for scene, _ in RULES], ids=lambda scene: scene.__name__)
def test_the_rule_holds(stage: Callable[[], Scene], scene: Step) -> None:
    scene(stage())


@pytest.mark.parametrize(("scene", "taken"), TAKEN, ids=[f"{s.__name__}-{t[0].function}" for s, t in TAKEN])
def test_without_the_rule_it_fails(stage: Callable[[], Scene], scene: Step, taken: list[Taken]) -> None:
    made = stage()
    for rule in taken:
        rule.out_of(made.here)
    with pytest.raises((AssertionError, psycopg.Error, pytest.fail.Exception)):
        scene(made)


@pytest.mark.parametrize("joins", ["before", "after"])
def test_what_comes_before_a_filter_of_a_new_type_is_in_force_is_not_for_a_subscription_to_its_prefix(
    brokers: Callable[[int], list[Broker]], joins: str
) -> None:
    (here,) = brokers(1)
    with ExitStack() as stack:
        b, x = Peer(here, "b"), Origin("x")
        stack.callback(b.close)
        call(here.admin, "subscribe", "some", "t*", filter="n < 100", scope="global")
        b.say(b.ad(x, types=("tick",)))
        b.hear()
        make_type(here.admin, "tick")
        if joins == "before":
            # Its lane joins it to the new type, and nobody has been told of its filter yet.
            here.settle()
        # Another subscription has what comes of the new type.
        call(here.admin, "subscribe", "other", "tick", filter="n > 5", scope="global")
        b.hear(settle=False)
        subs = {i["body"]["filter"]: i["body"]["key"] for i in b.all_heard if i["kind"] == "sub"}
        one = int(b.attachment(x)["attachment"])
        b.say(b.active(x, subs["n > 5"], one, 0), b.data(x, one, 0, 3, (1, 7), (2, 8)))
        b.hear()
        b.say(b.data(x, one, 3, 4, (3, 9)))
        subs |= {i["body"]["filter"]: i["body"]["key"] for i in b.all_heard if i["kind"] == "sub"}
        b.say(b.active(x, subs["n < 100"], one, 4), b.data(x, one, 4, 5, (4, 6)))
        here.settle()
        assert [n for _, n in received(here, "other")] == [7, 8, 9, 6]
        assert [n for _, n in received(here, "some")] == [6]
