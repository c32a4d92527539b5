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

from tests.fix_broker import call, make_type, rows, value
from tests.links.horizon_keeps import (
    both_are_dropped,
    covered_keep,
    never_promised,
    parent_that_is_dropped,
    promised_again,
    promised_is_not_left,
    stale_offer,
    unpromised_events,
    unpublished_and_covered,
    unpublished_keep,
    unused_offer,
    withdrawn_keep,
)
from tests.links.horizon_scenes import (
    broken_for_child,
    child_ahead,
    child_ahead_at_rest,
    detached,
    detached_at_rest,
    early,
    forgotten,
    gap,
    kept,
    last,
    late_active,
    missing,
    older_attachment,
    other_neighbour,
    poorer_path,
    repeat,
    rewind,
    richer_path,
    says_active_again,
    silence,
    told_gap,
    told_once_more,
    unheard_keep,
    wanted_again_at_once,
    withdrawal,
)
from tests.links.horizon_stage import Scene, path, wants_all
from tests.links.peer import Origin, Peer
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


Step = Callable[[Scene], object]
_ATTACHMENT = "(admit_item.item ->> 'attachment')::integer"
_PREVIOUS = "(admit_item.item ->> 'previous')::bigint > v_place"
_UNCONFIRMED = "update pgps_internal.activation a set is_confirmed = false\n        from"
_UNWANTED = "where (a.origin_id, a.key) not in (select i.origin_id, i.key from unnest(activate.interests) i)"
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

_ASKED_ANYHOW = Taken("interests", "where o.parent is not null and not exists", "where false and not exists")

_NEVER = "or false and not exists (select from pgps_internal.told"
_CARRIED_BY_NOBODY = (
    "(exists (select from carried c where c.origin_id = o.origin_id and c.type_id = i.type_id)",
    "(false",
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
            [Taken("go_live", "(c.since is null or c.since > v_attached.horizon)", "false")],
            [Taken("skip_here", "skip_here.ids);", "'{}');")],
            [Taken("apply_skips", "m.skip + w.ids", "m.skip")],
        ],
    ),
    (kept, [[Taken("choose_parents", _UNCONFIRMED, "delete from pgps_internal.activation a\n        using")]]),
    (
        forgotten,
        [
            [
                Taken("activate", _UNWANTED, _UNWANTED.replace("where", "where false and")),
                Taken("note_breaks", *_BREAK_BEGINS),
            ]
        ],
    ),
    (child_ahead, [[Taken("rewind", _NOT_AHEAD, "")]]),
    (
        child_ahead_at_rest,
        [[Taken("move_rewind", "move_rewind.upto >= move_rewind.horizon", "move_rewind.upto > move_rewind.horizon")]],
    ),
    (told_once_more, [[Taken("hear_active", *_OF_WHAT_WAS_TOLD)]]),
    (wanted_again_at_once, [[Taken("note_breaks", *_BREAK_BEGINS)]]),
    (says_active_again, [[Taken("should_know", "'told', nullif(w.told, 0)", "'told', null")]]),
    (unheard_keep, [[Taken("go_live", "and cardinality(a.missing) = 0", "")]]),
    (poorer_path, [[Taken("weigh_paths", "and (g.parent is not distinct from n.neighbour_id", "and (true")]]),
    (richer_path, [[Taken("choose_parents", "f.types_carried desc, ", "")]]),
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
            [Taken("note_last", "and pgps_internal.last_received((note_last.neighbour).neighbour_id)", "and 9e9")],
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
    (stale_offer, [[_ASKED_ANYHOW]]),
    (unpublished_keep, [[_ASKED_ANYHOW]]),
    (unpublished_and_covered, [[_ASKED_ANYHOW]]),
    (never_promised, [[Taken("weigh_paths", "o.is_open and", "false and")]]),
    (
        promised_again,
        [
            [Taken("weigh_paths", "and not (o.is_open", "and false and not (o.is_open")],
            [Taken("weigh_paths", "o.is_open and", "")],
        ],
    ),
    (promised_is_not_left, [[Taken("weigh_paths", *_CARRIED_BY_NOBODY)]]),
    (
        parent_that_is_dropped,
        [[Taken("last_words", "where a.origin_id = o.origin_id and not", "where false and not")]],
    ),
    (
        # Each of the two lets them go.
        both_are_dropped,
        [
            [
                Taken("weigh_paths", "or not exists (select from pgps_internal.told", _NEVER),
                Taken("last_words", "and not p.is_draining", ""),
            ]
        ],
    ),
    (unpromised_events, [[Taken("admit_item", "and not v_origin.unpromised && v_types", "")]]),
    (unused_offer, [[Taken("ads_for", "or f.is_usable)", "or pgps_internal.is_up(f.neighbour_id))")]]),
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


def test_what_a_rewind_brings_once_more_is_neither_published_nor_noted_for_subscriptions(
    stage: Callable[[], Scene],
) -> None:
    s = stage()
    key = s.ready()
    s.b.say(s.b.data(s.x, 1, 4, 5, (50, 5)), s.b.data(s.x, 1, 5, 6, (60, 6)))
    assert s.got() == [5, 6]
    s.c.close()
    d = s.peer("d")
    d.say(*wants_all(s, d, key, 2))
    d.hear()
    s.b.hear()
    two = s.number(s.b)
    assert s.b.attachment(s.x)["horizon"] == 2
    s.b.say(s.b.data(s.x, two, 2, 3, (30, 3)), s.b.data(s.x, two, 3, 4), s.b.data(s.x, two, 4, 5, (50, 5), (51, 7)))
    # A lock of a row shows in xmax, and another version of it in the others.
    members = (
        "select m.ctid::text, m.xmin::text, m.xmax::text from pgps_internal.member m"
        " join pgps_internal.subscription s using (subscription_id) where s.kind <> 'link' order by 1"
    )
    before = rows(s.here.admin, members)
    assert before
    s.b.say(s.b.data(s.x, two, 5, 6, (60, 6)))
    assert rows(s.here.admin, members) == before, "the item is here already, and members are not written for it"
    answer = [(i["previous"], i["upto"], i["events"]) for i in d.hear() if "upto" in i]
    assert [a for a in answer if a[2]] == [(2, 3, 1), (3, 5, 2), (5, 6, 1)]
    assert s.got() == [], "what was fetched for the child is not for those here"
    skipped = "select sum(upper(r) - lower(r)) from pgps_internal.member m, unnest(m.skip) r"
    assert value(s.here.admin, skipped) == 2, "events 30 and 51, which were not here"
