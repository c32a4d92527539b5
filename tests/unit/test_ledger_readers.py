"""Who reads a ledger of which rows are carried over locks it before its snapshot is taken (decision 105).

A STABLE function reads with the snapshot of who calls it, which is older than the lock that it waits for: reclaim may
have truncated what that snapshot shows, and what it has written instead is not in it. A VOLATILE function locks first.
"""

from __future__ import annotations

import re

from pgps._resources import sql_dir

_CODE = sorted((sql_dir() / "code").rglob("*.sql"))
_OTHERS = {"batch_type": "only totals are carried over", "producer": "read by the dispatcher", "delivery": "archived"}
"""Ledgers of which nothing is written again that anybody looks for."""

_SHOWS = "shows what is there, and decides nothing"
_EVENTS = "what is carried over has no events, and rows with events are there while somebody needs them"
_BEHIND = "called when last_sent or last_received has locked the ledger in this transaction"
_TURN = "in the turn of detection, without which reclaim does not begin"
_RECLAIM = "for reclaim, of which there is one; elsewhere what it finds too low refuses something for a moment"
_UNCONFIRMED = "rows that are not confirmed, which stay"

STABLE = {
    "audit_rows": _SHOWS,
    "explain_origin": _SHOWS,
    "explain_skip": _SHOWS,
    "backlogs_of": _SHOWS,
    "rates_of": _SHOWS,
    "is_pending": _SHOWS,
    "least_pending": _SHOWS,
    "open_of_out": _SHOWS,
    "step_of": _SHOWS,
    "write_queue_in": "writes a view, which shows",
    "write_queue_out": "writes a view, which shows",
    "pending_subscribers": "names one too many, of which run_subscriber finds nothing",
    "lanes_with_work": "names one too many, of which the lane's step finds nothing",
    "backlog_of": _RECLAIM,
    "position_seen": _RECLAIM,
    "low_of_lanes": _RECLAIM,
    "kept_for_answers": _RECLAIM,
    "needed_rows": _RECLAIM,
    "needed_commits": _RECLAIM,
    "needed_conversations": _RECLAIM,
    "needed_units": _RECLAIM,
    "sent": _BEHIND,
    "horizon_seen": "called when be_silent has locked the ledger in this transaction",
    "arrivals_behind": _BEHIND,
    "compare_recounts": _BEHIND,
    "in_other_epochs": _BEHIND,
    "next_occurrence": "called when last_mark has locked the ledger in this transaction, or by has_news, which shows",
    "came": _EVENTS,
    "from_elsewhere": _EVENTS,
    "is_drained": _EVENTS,
    "item": _EVENTS,
    "items_between": _EVENTS,
    "open_arrivals": _EVENTS,
    "published_here": _EVENTS,
    "parts": _UNCONFIRMED,
    "plain_runs": _UNCONFIRMED,
    "shipments_after": _UNCONFIRMED,
    "write_sent_rows": _UNCONFIRMED,
    "are_as_seen": _TURN,
    "composites_due": _TURN,
    "may_divide": _TURN,
    "step_job": _TURN,
    "commit{slot}_as_seen": "inlined: the statement that calls it locks",
}
"""Functions that may be STABLE, and why."""


def _ledgers() -> set[str]:
    carried = re.findall(r"\('carry_over', '(\w+)'", (sql_dir() / "code" / "roster.sql").read_text())
    (units,) = re.findall(
        r"foreach v_ledger in array array\[(.*?)\]", (sql_dir() / "code/units/reclaim.sql").read_text(), re.DOTALL
    )
    return {*carried, *re.findall(r"'(\w+)'", units)} - _OTHERS.keys()


def _reading(names: set[str]) -> re.Pattern[str]:
    """Match what reads one of these tables or views, or a segment of it."""
    alternatives = "|".join(sorted(re.escape(name) for name in names))
    return re.compile(
        rf"\b(?:from|join)\s+(?:only\s+)?pgps_internal\.(?:{alternatives})(?:_\d|_?\{{\w+\}}|_%\d\$s)?(?![\w(])"
    )


def _texts() -> list[str]:
    return [re.sub(r"^\s*--.*$", "", path.read_text(), flags=re.MULTILINE) for path in _CODE]


def _functions() -> list[tuple[str, str]]:
    """Return the functions: the name, and all from the parenthesis on."""
    pattern = r"create or replace function (?:pgps|pgps_internal)\.([\w{}]+)\((.*?)(?=\ncomment on function|\Z)"
    return [found for text in _texts() for found in re.findall(pattern, text, re.DOTALL)]


def _readers() -> list[tuple[str, str]]:
    """Return what reads such a ledger, itself or through views: the name of each function, its header."""
    names = _ledgers()
    views = {
        name.replace("{slot}", ""): body
        for text in _texts()
        for name, body in re.findall(r"create or replace view pgps_internal\.(\S+)(.*?);\n", text, re.DOTALL)
    }
    while found := {name for name, body in views.items() if name not in names and _reading(names).search(body)}:
        names |= found
    reading = _reading(names)
    return [
        (name, re.split(r"\bas \$|\bbegin atomic|\nreturn ", body)[0])
        for name, body in _functions()
        if reading.search(body)
    ]


def test_who_reads_what_is_carried_over_locks_before_the_snapshot() -> None:
    readers = _readers()
    assert len(readers) > 150, "found by the pattern"
    stable = {name for name, head in readers if re.search(r"\b(stable|immutable)\b", head)}
    assert stable - STABLE.keys() == set(), "declare it VOLATILE, or say here why it may be STABLE"
    assert STABLE.keys() - stable == set()


def test_the_newest_rows_are_read_by_volatile_functions() -> None:
    """As far as names are known: the pattern above must not lose them."""
    readers = dict(_readers())
    for name in ("position_of", "lane_position", "last_sent", "horizon", "state_of", "hand_of", "low_of", "mark_of"):
        assert "volatile" in readers[name]


def test_what_has_to_see_one_picture_asks_nobody_who_sees_more() -> None:
    """What is kept for positions and for shipments; up to where nothing waits, and what waits."""
    functions = dict(_functions())
    kept = ("low_of_subscriptions", "kept_for_answers", "reclaim_links")
    for name in (*kept, "be_silent", "settled_place", "recount_windows"):
        assert not re.search(r"pgps_internal\.(position_of|horizon|reached)\(", functions[name]), name
