"""What the comparison after a story of churn says: each kind of fault is found, and nothing else is."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.churn import troubles
from tests.chaos.churn.__main__ import make_ready_fleet
from tests.chaos.churn.story import tell
from tests.chaos.churn.troubles import Said, Troubles
from tests.chaos.churn.truth import Event, Got, Kind, Life, Span, Truth

TICK, TOCK = Kind("pa", 1), Kind("pb", 2)
NEVER = float("inf")


def event(n: int) -> Event:
    """The n-th event is committed at the time n, by the first of two sessions as the second one of its two types."""
    return Event(n, TOCK if n % 2 else TICK, n % 2, n, n % 10, Span(n, n + 0.1))


def got(*ns: int | None) -> list[Got]:
    """What was processed, in order, each at the time when it could be at the earliest; None is a seek."""
    newest, made = 2.6, []
    for n in ns:
        newest = max(newest, float(n or 0))
        made.append(Got(n, (n or 0) * 10, newest + 0.5))
    return made


def life(*ns: int | None, filter_: str = "any") -> Life:
    """A subscription to both types that is made at 2.5 and has got this."""
    made = Span(2.4, 2.6)
    return Life(1, "s1", "p*", "all", "now", "churn_a", made, [(made, filter_)], got=got(*ns))


@pytest.fixture
def truth() -> Truth:
    made = Truth({n: event(n) for n in range(1, 11)})
    made.places = {n: (n // 3, n * 10) for n in made.events}
    return made


def kinds(one: Life, truth: Truth) -> set[tuple[str, tuple[int, ...]]]:
    return {(finding.kind, finding.ns) for finding in truth.check(one)}


ALL = tuple(range(3, 11))


def test_nothing_is_said_of_what_is_complete_and_in_order(truth: Truth) -> None:
    assert kinds(life(*ALL), truth) == set()
    assert kinds(life(3, 5, 7, 9, filter_="odd"), truth) == set()


def test_an_event_that_is_taken_out_is_missing(truth: Truth) -> None:
    assert kinds(life(*(n for n in ALL if n != 6)), truth) == {("missing", (6,))}
    assert kinds(life(*ALL[:-1]), truth) == {("missing", (10,))}


def test_an_event_that_comes_again_is_told_unless_the_subscription_was_set_back(truth: Truth) -> None:
    assert ("twice", (7,)) in kinds(life(*ALL, 7), truth)
    back = life(*ALL, None, 7, 8, 9, 10)
    assert ("twice", (7, 9)) in kinds(back, truth)
    back.seeks.append((Span(10.6, 10.7), "70"))
    assert kinds(back, truth) == set()


def test_events_that_change_places_are_told_unless_one_was_put_back(truth: Truth) -> None:
    swapped = life(3, 4, 5, 6, 9, 8, 7, 10)
    assert {("disorder", (8,)), ("disorder", (7,))} <= kinds(swapped, truth)
    swapped.put_back |= {7, 8}
    assert kinds(swapped, truth) == set()
    swapped.mode = "any"
    swapped.put_back.clear()
    assert kinds(swapped, truth) == set()


def test_events_of_a_session_that_change_places_within_a_batch_are_told(truth: Truth) -> None:
    del truth.places[6]
    assert kinds(life(3, 4, 5, 7, 8, 6, 9, 10), truth) == {("disorder", (6,))}


def test_what_was_published_before_it_was_made_is_too_early(truth: Truth) -> None:
    assert kinds(life(1, 2, *ALL), truth) == {("early", (1,)), ("early", (2,))}
    earliest = life(1, 2, *ALL)
    earliest.start = "earliest"
    assert kinds(earliest, truth) == set()


def test_what_nobody_committed_and_what_it_does_not_want_is_told(truth: Truth) -> None:
    assert ("unknown", (99,)) in kinds(life(*ALL, 99), truth)
    assert kinds(life(3, 4, 5, 7, 9, filter_="odd"), truth) == {("unwanted", (4,))}


def test_while_a_filter_changes_either_is_right(truth: Truth) -> None:
    altered = life(3, 5, 7, 8, 9, 10, filter_="odd")
    altered.filters.append((Span(6.3, 6.7), "any"))
    assert kinds(altered, truth) == set()
    altered.got = got(3, 5, 6, 7, 8, 9, 10)
    assert kinds(altered, truth) == set()
    altered.got = got(3, 5, 7, 9, 10)
    assert kinds(altered, truth) == {("missing", (8,))}


def test_what_was_passed_before_a_filter_changed_is_the_old_filters(truth: Truth) -> None:
    altered = life(3, 5, 8, 10, filter_="odd")
    altered.filters.append((Span(6.9, 7.2), "even"))
    assert kinds(altered, truth) == set()
    altered.got = got(5, 8, 10)
    assert kinds(altered, truth) == {("passed", (3,))}


def test_what_a_seek_to_now_skips_may_be_missing_and_what_comes_later_may_not(truth: Truth) -> None:
    moved = life(3, 4, None, 8, 9, 10)
    moved.seeks.append((Span(7.2, 7.6), "now"))
    assert kinds(moved, truth) == set()
    moved.got = got(3, 4, None, 9, 10)
    assert kinds(moved, truth) == {("missing", (8,))}


def test_what_a_seek_to_an_event_skips_may_be_missing_and_what_comes_later_may_not(truth: Truth) -> None:
    moved = life(3, 4, None, 8, 9, 10)
    moved.seeks.append((Span(8.2, 8.6), "80"))
    assert kinds(moved, truth) == set()
    moved.got = got(3, 4, None, 9, 10)
    assert kinds(moved, truth) == {("missing", (8,))}
    moved.got = got(4, None, 8, 9, 10)
    assert kinds(moved, truth) == {("passed", (3,))}
    # It comes after that event, though its id is lower.
    truth.places[6] = (3, 60)
    moved.got = got(3, 4, None, 8, 9, 10)
    assert kinds(moved, truth) == {("missing", (6,))}


def test_what_is_dropped_may_be_missing_from_the_drop_on(truth: Truth) -> None:
    truth.dropped[TICK] = Span(7.2, 7.6)
    assert kinds(life(3, 4, 5, 6, 7, 9), truth) == set()
    assert kinds(life(3, 5, 6, 7, 9), truth) == {("passed", (4,))}


def test_what_an_ended_subscription_had_passed_must_have_come(truth: Truth) -> None:
    ended = life(3, 4, 5)
    ended.ended = Span(7.2, 7.6)
    assert kinds(ended, truth) == set()
    ended.got = got(3, 5)
    assert kinds(ended, truth) == {("passed", (4,))}


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("42704", 'subscription "s1" does not exist', "own"),
        ("42P01", 'relation "pgps_event.p11" does not exist at character 13', "own"),
        ("42P01", 'relation "pgps_internal.p11_log" does not exist at character 883', "internal"),
        ("42883", "function pgps_internal.unfold_9(pgps_internal.received[]) does not exist", "internal"),
        ("23503", 'violates foreign key constraint "class_signature_id_fkey"', "internal"),
        ("XX000", "cache lookup failed for relation 7", "internal"),
        ("40P01", "deadlock detected", "deadlock"),
        ("57014", "canceling statement due to statement timeout", "late"),
    ],
)
def test_an_error_is_a_users_own_or_a_trouble(code: str, message: str, kind: str) -> None:
    assert Said("1", code, "consumer-s1-1", message).kind == kind


def test_a_deadlock_that_the_worker_was_told_of_is_tried_again() -> None:
    assert Said("1", "40P01", "pgps-worker/w1/subscriber-1", "deadlock detected").kind == "again"


def test_the_dispatcher_may_wait_for_who_dispatches_by_hand() -> None:
    told = Said("1", "55P03", "pgps-worker/w1/dispatcher", "canceling statement due to lock timeout")
    assert told.kind == "internal"
    below = f'CONTEXT: SQL statement "{troubles.BATCHES}" PL/pgSQL function pgps.dispatch_batch(integer) line 20'
    assert replace(told, below=[below]).kind == "own"
    assert replace(told, below=[below], who="consumer-s1-1").kind == "internal"


def test_errors_are_read_from_a_servers_log_with_what_stands_below(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        '2026-01-01 00:00:00.000 UTC [7] 42P01 consumer-s1-1 ERROR:  relation "pgps_internal.p11_log" does not exist\n'
        "2026-01-01 00:00:00.000 UTC [8] 00000 LOG:  checkpoint starting: time\n"
        "2026-01-01 00:00:00.000 UTC [7] 42P01 consumer-s1-1 STATEMENT:  select 1\n\tfrom x\n"
    )
    (said,) = troubles.read_log(log, 0)
    assert (said.code, said.who, said.below) == ("42P01", "consumer-s1-1", ["STATEMENT: select 1 from x"])
    found = Troubles()
    found.note_errors([said, replace(said, message='relation "pgps_internal.p12_log" does not exist')])
    assert found.bad == {'42P01 relation "pgps_internal.pN_log" does not exist (of consumer)': 2}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_short_story_loses_repeats_and_swaps_nothing(embedded_home: Path) -> None:
    """Play a short story; `make churn` plays long ones."""
    fleet = make_ready_fleet(embedded_home, f"churn-{os.environ.get('PYTEST_XDIST_WORKER', 'gw')}")
    try:
        outcome = tell(fleet, 1, seconds=8.0)
    finally:
        fleet.close()
    assert not outcome.findings, outcome.report()
    assert not outcome.problems, outcome.report()
    assert outcome.counts["events"] > 50
    if not outcome.is_clean:
        pytest.xfail(f"sessions were told what is none of their business: {outcome.result}")
