"""The detector in the server: reads what a step of the history concerns, runs it, and writes what has changed, as sets.

One call takes a step of each of several composite events, in the caller's transaction. `job` says which; all that is
kept is in tables (sql/schema/0019_composite.sql); what stays with the session only saves reading.
"""

import gc
import json
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, Optional

from composite.codetime import CodeTime
from composite.described import tests_of
from composite.detector import State, detect, detect_sequence
from composite.effort import Effort
from composite.event_time import Ordering
from composite.gathering import Gathered, as_events, gather, part_events
from composite.heavy import TooHeavyError, bounded, weigh_open
from composite.keys import EVERYTHING, read_ranges
from composite.limits import MADE, TICKS, TooMuch, combinations_allowed
from composite.memo import Memo
from composite.points import BEFORE, EVENT, TIME_BITS, Idle, point_of
from composite.publishing import publish
from composite.queries import DUE_KEYS, HELD_ROWS, KEYS, OPEN_IS_LARGE, OPEN_ROWS, Queries
from composite.rows import HELD, KeyRow, Row
from composite.sequence import Moment, as_found
from composite.storing import fault_of, row_of_step, rows_of_keys, rows_of_open, stored, unstored
from composite.subjects import ROW_BYTES, Subject, keep, learn, recall, unknown_of

TICKS_AT_ONCE = 20_000


def take_steps(db: Any, memory: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Take a step of each composite event of a job and publish what is detected.

    Return whether more is left, and whether one has stayed behind where the job would have it go.
    """
    # A step makes a hundred thousand tuples and no cycles: looking for these takes a quarter of its time.
    collects = gc.isenabled()
    gc.disable()
    try:
        queries = Queries(db, memory)
        last: Optional[int] = None
        while True:
            try:
                return take_all(queries, memory, job, last)
            except TooHeavyError as error:
                # Nothing has been written yet.
                last = error.last
    except TooMuch as error:
        # Another code than that of other limits: a shorter step may make less.
        db.error(error.message, sqlstate="54001", hint=error.hint)
        raise
    finally:
        if collects:
            gc.enable()


def take_all(
    queries: Queries, memory: dict[str, Any], job: dict[str, Any], last: Optional[int] = None
) -> dict[str, Any]:
    """Do the same, with the statements of the session, and up to the position `last` at most."""
    queries.time = CodeTime(job["code_seconds"], job["pace"])
    queries.is_careful = job["is_careful"]
    unknown = unknown_of(memory, job["composites"])
    if unknown:
        learn(memory, job, queries.given(unknown), queries.intervals())
    numbered = {one["subject"]: Subject({**one}, memory["graphs"][one["composite_id"]]) for one in job["composites"]}
    subjects = [*numbered.values()]
    uptos = [subject.job["upto"] for subject in subjects]
    for subject in subjects:
        recall(memory, subject)
    fits = partial(bounded, queries, job["types"], numbered, last)
    gather(queries, memory, job["types"], numbered, job["broker"], fits, job["late"])
    for subject in subjects:
        order(subject, job)
        subject.note_cut()
    load_keys(queries, subjects, last)
    born = queries.value("select nextval('pgps_internal.composite_row_seq') as value")
    left = MADE
    effort = Effort(queries.time.seconds if queries.time.is_quick else None, subjects, queries.end_too_slow)
    for subject in subjects:
        left = run(queries, subject, left, effort)
    keep(memory, subjects, write(queries, subjects, born))
    publish(queries, subjects, job["broker"])
    return {
        "more": any(subject.more for subject in subjects),
        "stayed": any(subject.job["upto"] != upto for subject, upto in zip(subjects, uptos)),
    }


def order(subject: Subject, job: dict[str, Any]) -> None:
    """Put the events in order of delivery, note who has been silent for too long, and find how far this will lead."""
    if subject.is_sequence:
        order_sequence(subject)
        return
    subject.arrivals.sort(key=itemgetter(0, 1))
    subject.events = as_events(subject.arrivals, subject.known.nodes, by_arrival=subject.by_arrival)
    if subject.part_arrivals:
        subject.events += part_events(subject.part_arrivals, subject.job["parts"])
        subject.events.sort(key=position_of_event)
    subject.leave_taken()
    subject.leave_others()
    frame = subject.known.graph.frame
    ordering = Ordering(frame.time_basis, frame.lateness)
    if subject.ordering is not None:
        ordering.load(subject.ordering)
    else:
        ordering.frontier = subject.job["since"] if subject.by_arrival else None
        subject.ordering = ordering.dump()
    before = ordering.frontier
    limit_ticks(subject, before)
    subject.stream = [*subject.events]
    if not subject.by_arrival:
        subject.stream += silent_sources(subject, ordering, job)
    copy = Ordering(frame.time_basis, frame.lateness)
    copy.load(subject.ordering)
    copy.take(subject.stream)
    if subject.by_arrival and subject.job["now"] is not None:
        copy.reach(subject.job["now"])
    subject.job["from"] = before
    subject.job["to"] = copy.frontier


def order_sequence(subject: Subject) -> None:
    """Put the events of a sequence in order of delivery, each with its point; the second operand first, where both."""
    job = subject.job
    if subject.taken is not None:
        subject.arrivals = [arrival for arrival in subject.arrivals if arrival[0] > subject.taken]
    arrivals = subject.arrivals
    arrivals.sort(key=last_leaf_first if subject.known.is_of_one else first_of)
    clock = subject.ordering["frontier"] if subject.ordering is not None else job["since"]
    if subject.ordering is None:
        subject.ordering = {"frontier": clock, "sources": [], "idle": []}
    job["from"] = clock
    alone = subject.shares == 1
    moments: list[Moment] = []
    for position, leaf, key, i, events in arrivals:
        time: int = events.times[i]  # type: ignore[assignment]
        if clock is None or time > clock:
            clock = time
        if alone or subject.owns(key):
            point = clock << TIME_BITS | position << 2 | EVENT
            moments.append((point, leaf, key, events.ids[i], events.origins[i], events.payloads[i]))
    if job["now"] is not None and (clock is None or job["now"] > clock):
        clock = job["now"]
    job["to"] = clock
    subject.moments = moments


first_of = itemgetter(0)
position_of_event = attrgetter("position")


def last_leaf_first(arrival: Gathered) -> tuple[int, int]:
    """Return by what arrivals of one event are put in order."""
    return arrival[0], -arrival[1]


def limit_ticks(subject: Subject, since: Optional[int]) -> None:
    """Let time pass only so far that a step has a bounded number of ticks; what is later waits for the next step."""
    job = subject.job
    period, now = job["period"], job["now"]
    if since is None and subject.events:
        since = subject.beginning if subject.has_one_clock else subject.events[0].time
    if period is None or since is None or not subject.by_arrival:
        return
    # Each event may open a window.
    windows = (job["open"] or 0) + len(subject.events)
    most = since + period * max(1, TICKS_AT_ONCE // max(1, windows))
    if subject.leave_later(most) or (now is not None and most < now):
        job["now"] = most
        subject.more = True


def silent_sources(subject: Subject, ordering: Ordering, job: dict[str, Any]) -> list[Idle]:
    """Return which sources have been silent for longer than allowed, and note when others will have been."""
    heard = dict(subject.heard or {})
    latest: dict[tuple[Optional[str], str], int] = dict(ordering.sources)
    for event in subject.events:
        if event.time is not None:
            source = (event.origin, event.type)
            heard[json.dumps(source)] = job["now"]
            latest[source] = max(latest.get(source, event.time), event.time)
    limit = heard_of_up_to(subject, job) - job["idle_source"]
    known_idle = {json.dumps(source) for source in ordering.idle}
    fresh = {json.dumps((event.origin, event.type)) for event in subject.events}
    gone = [name for name, at in heard.items() if at < limit and (name not in known_idle or name in fresh)]
    waiting = [at for name, at in heard.items() if name not in gone and (name not in known_idle or name in fresh)]
    subject.heard = heard
    subject.idle_at = min(waiting) + job["idle_source"] + 1 if waiting else None
    most = max(latest.values(), default=0)
    if not waiting and ordering.lateness:
        # All are silent: what has come is taken, whatever may still come late.
        most += ordering.lateness + 1
    return [Idle(origin, kind, most) for origin, kind in map(json.loads, sorted(gone))]


def heard_of_up_to(subject: Subject, job: dict[str, Any]) -> int:
    """Return up to when a source would have been heard of: of what a step leaves to the next, some may be its."""
    if subject.job["now"] is not None:
        now: int = job["now"]
        return now
    published = [events.times[place] for _, _, _, place, events in subject.arrivals]
    published += [events.times[place] for _, _, place, events in subject.part_arrivals]
    return max((time for time in published if time is not None), default=EVERYTHING)


def load_keys(queries: Queries, subjects: list[Subject], last: Optional[int]) -> None:
    """Read the keys that have events, or something to do, and what is open in them; see weigh_open."""
    wanted = {
        (subject.state_id, stored(key)): subject
        for subject in subjects
        if not subject.is_whole
        for key in subject.touched_keys()
        if stored(key) not in subject.keys
    }
    # What no key divides has one clock: a step that nothing touches and no tick is due in would begin it anew.
    wanted |= {
        (subject.state_id, stored(())): subject
        for subject in subjects
        if subject.has_one_clock and not subject.is_whole and stored(()) not in subject.keys
    }
    timed = [subject for subject in subjects if subject.job["to"] is not None and subject.job["timed"]]
    by_state: dict[int, list[Subject]] = {}
    for subject in timed:
        by_state.setdefault(subject.state_id, []).append(subject)
    spans = [[one.state_id, EVERYTHING if one.job["from"] is None else one.job["from"], one.job["to"]] for one in timed]
    for row in queries.rows(DUE_KEYS, *(list(part) for part in zip(*spans))) if spans else ():
        for subject in by_state[row["state_id"]]:
            if subject.owns(row["key"]) and row["key"] not in subject.keys:
                wanted[row["state_id"], row["key"]] = subject
    if not wanted:
        return
    pairs = sorted(wanted)
    found = queries.rows(KEYS, [state for state, _ in pairs], [key for _, key in pairs])
    if len(found) > 1 and queries.value(OPEN_IS_LARGE):
        weigh_open(queries, subjects, found, last)
    held: list[tuple[int, str, int, int]] = []
    for row in found:
        key = row["key"]
        subject = wanted[row["state_id"], key]
        subject.keys[key] = {"born": row["born"], "serial": row["serial"], "live": read_ranges(row["live"])}
        rest = (row["version"], row["serial"], int(row["clock"]), row["ticked"], row["due"])
        subject.loaded.append(KeyRow(unstored(key, subject), *rest))
        subject.size += ROW_BYTES
        if not subject.by_arrival:
            reached = subject.ordering["frontier"]
            late = subject.known.graph.frame.lateness == 0
            bound = 0 if reached is None else point_of(reached + late, 0, BEFORE)
            held.append((row["state_id"], key, row["born"], bound))
    open_rows = [
        *queries.rows(OPEN_ROWS, *([row[name] for row in found] for name in ("state_id", "key", "born", "live"))),
        *(queries.rows(HELD_ROWS, *(list(column) for column in zip(*held))) if held else ()),
    ]
    for row in open_rows:
        data = json.loads(row["data"])
        serial, start = (row["serial"], data[1]) if row["slot"] != HELD else (data[1], int(row["start_at"]))
        subject = wanted[row["state_id"], row["key"]]
        subject.size += len(row["data"]) + ROW_BYTES
        subject.rows.append(Row(unstored(row["key"], subject), row["node"], row["slot"], serial, start, data[2], data))


def run(queries: Queries, subject: Subject, left: int, effort: Effort) -> int:
    """Run the detector, as often as it asks for conditions whose answer is not known yet.

    left: how many combinations it may make beside those of its own events. Return how many of them it leaves to others:
    what all of a step have made is in memory at once.
    """
    job, graph = subject.job, subject.known.graph
    memo = Memo(tests_of(graph))

    def heed() -> None:
        queries.heed()
        effort.heed(subject)

    while True:
        effort.begin()
        state = subject.kept or State(graph, memo.callbacks())
        state.step.heed = heed
        # By arrival the clock stops before there are many, and goes on with the next step; see limit_ticks.
        state.step.most_ticks = None if subject.by_arrival else TICKS
        most = state.step.most = combinations_allowed(subject.size_of_batch, len(graph.nodes), left)
        state.load(subject.ordering, subject.loaded, subject.rows)
        if subject.has_one_clock:
            state.start(subject.beginning, at_latest=subject.job["since"] is None)
        sequence = state.sequence
        if subject.moments is not None and sequence is not None:
            subject.changes, subject.pairs = detect_sequence(state, subject.moments, job["to"])
            if job["binds"]:
                subject.found, subject.pairs = as_found(sequence, subject.pairs), []
        else:
            now = job["now"] if subject.by_arrival else None
            subject.changes, subject.found = detect(state, subject.stream, now)
        subject.state = state
        effort.count(subject)
        if not memo.asked:
            return min(left, most - state.step.spent)
        memo.learn(queries.answers(job, memo.asked))


def write(queries: Queries, subjects: list[Subject], born: int) -> dict[tuple[int, int], int]:
    """Write what has changed; return the numbers of the steps."""
    keys: list[tuple[Any, ...]] = []
    opened: list[tuple[Any, ...]] = []
    late: list[tuple[Any, ...]] = []
    errors: list[tuple[Any, ...]] = []
    steps: list[tuple[Any, ...]] = []
    for subject in subjects:
        changes = subject.changes
        assert changes is not None
        before = len(subject.keys)
        keys += rows_of_keys(subject, changes, born)
        opened += rows_of_open(subject, changes)
        late += [(subject.id, one.event.type, one.event.id, one.event.time, one.reason) for one in changes.late]
        if changes.faults:
            errors.append((subject.id, fault_of(changes)))
        steps.append(row_of_step(subject, changes, len(subject.keys) - before))
    return queries.write(keys, opened, late, errors, steps)
