"""The events of a step: each is read once, as one place of arrays, and handed to all leaves that have got it."""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, NamedTuple, Optional

from composite.keys import key_of, key_of_text
from composite.points import Event, point_of
from composite.queries import STATEMENTS, Queries

EVENT_BITS = 48  # of a position; above them is the number of the batch
KEYS_KEPT, KEY_LENGTH = 100_000, 100  # so they take 50 MB at most
READINGS_KEPT = 2000
NEAR, RUN = 4, 16
PORTION = 1024

# Where a composite event begins and ends, as points; one from elsewhere has only the time of its end.
Span = Optional[tuple[int, Optional[int], Optional[int]]]
# An event that a leaf has got: position, number of the leaf, key, place in the events of its type, these events.
Gathered = tuple[int, int, Any, int, "Events"]
# The same of what a neighbour has detected; its key is in it.
PartArrival = tuple[int, int, int, "Events"]
# For an event type, as long as it does not change: what that depends on, the queries for hits, ranges of ids, and ids.
Reading = tuple[str, str, str, str]


class Events:
    """Hold events of one type as arrays, in order of their ids.

    keys: for lists of attributes, the keys of the events. times: when they were published. known: by id, their places,
    once they are asked for.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.ids: list[int] = []
        self.xids: list[int] = []
        self.payloads: list[str] = []
        self.times: list[Optional[int]] = []
        self.origins: list[str] = []
        self.clients: list[Optional[str]] = []
        self.keys: dict[tuple[str, ...], list[str]] = {}
        self.event_times: list[Optional[int]] = []
        self.spans: list[Span] = []
        self.known: dict[int, int] = {}

    def places(self, hits: "Hits") -> Iterable[int]:
        """Return the places of the events that a class has got."""
        ids = self.ids
        found: list[int] = []
        for low, high in zip(hits.lows, hits.highs):
            found.extend(range(bisect_left(ids, low), bisect_left(ids, high)))
        if hits.ids:
            known = self.known = self.known or {one: place for place, one in enumerate(ids)}
            found += [known[one] for one in hits.ids if one in known]
        for low, high in zip(hits.skip_lows, hits.skip_highs):
            found = [place for place in found if not low <= ids[place] < high]
        return found


WANTED = ("composites", "leaves", "after", "upto", "subjects")
WANTED_TYPES = ["bigint[]", "integer[]", "bigint[]", "bigint[]", "bigint[]"]


class Hits(NamedTuple):
    """Hold what a class has got in a batch: ids of events, and ranges of ids, less those to skip."""

    batch_id: int
    subjects: list[int]
    leaves: list[int]
    ids: list[int]
    lows: list[int]
    highs: list[int]
    skip_lows: list[int]
    skip_highs: list[int]


# What classes have got, by the number of the event type.
Got = dict[int, list[Hits]]


def gather(
    queries: Queries, memory: dict[str, Any], sources: list[dict[str, Any]], subjects: dict[int, Any], broker: str,
    bounded: Callable[[Got], Got], late: Optional[dict[str, Any]] = None,
) -> None:  # fmt: skip
    """Add the events of event types to the composite events that they are leaves of; subjects: by their number.

    bounded: leaves out what is too much for a step. late: see pgps_internal.came_late.
    """
    late = late or {}
    columns = {source["type_id"]: columns_of(source, subjects) for source in sources}
    readings = {one["type_id"]: reading_of(queries, memory, one, columns[one["type_id"]]) for one in sources}
    found: Got = {}
    # What classes have got is asked of all types at once, but for those where the moment of an event counts.
    for query in {reading[1]: None for reading in readings.values()}:
        alike = [source for source in sources if readings[source["type_id"]][1] == query]
        wanted = [[value for source in alike for value in source[name]] for name in WANTED]
        for source in alike if late else ():
            add_late(wanted, source, subjects, late.get(str(source["type_id"]), ()))
        for row in queries.plan(query, WANTED_TYPES).execute(wanted):
            lists = (row[name] or [] for name in Hits._fields[3:])
            hits = Hits(row["batch_id"], row["subjects"], row["leaves"], *lists)
            found.setdefault(row["type_id"], []).append(hits)
    for number in found if late else ():
        found[number] = put_in_place(found[number], subjects, dict(late.get(str(number), ())))
    found = bounded(found)
    for source in sources:
        number = source["type_id"]
        if number in found:
            events = Events(source["type"])
            read_events(queries, memory, events, readings[number][2:], columns[number], found[number])
            add_statements(queries, events, number, broker)
            for one in found[number]:
                places = events.places(one)
                base = one.batch_id << EVENT_BITS
                for subject, leaf in zip(one.subjects, one.leaves):
                    hand_over(subjects[subject], leaf, base, places, events)


def add_late(wanted: list[list[Any]], source: dict[str, Any], subjects: dict[int, Any], late: Any) -> None:
    """Ask for what comes behind the end of a step, too, and was set aside out of one of its batches."""
    for composite, leaf, number in zip(source["composites"], source["leaves"], source["subjects"]):
        subject = subjects[number]
        for batch, held in late:
            if batch > subject.job["upto"] and subject.place_of(batch, held) == held:
                for column, one in zip(wanted, (composite, leaf, batch - 1, batch, number)):
                    column.append(one)


def put_in_place(group: list[Hits], subjects: dict[int, Any], late: dict[int, int]) -> list[Hits]:
    """Return what classes have got with what was set aside in the batch that it was taken out of."""
    found: list[Hits] = []
    for hits in group:
        held = late.get(hits.batch_id)
        if held is None:
            found.append(hits)
            continue
        for place in (held, hits.batch_id):
            here = [
                i for i, number in enumerate(hits.subjects) if subjects[number].place_of(hits.batch_id, held) == place
            ]
            if here:
                numbers, leaves = [hits.subjects[i] for i in here], [hits.leaves[i] for i in here]
                found.append(hits._replace(batch_id=place, subjects=numbers, leaves=leaves))
    return found


def columns_of(source: dict[str, Any], subjects: dict[int, Any]) -> list[tuple[str, ...]]:
    """Return the attributes that are partition keys of the leaves of an event type, each list of them once."""
    known = {number: subjects[number].known.columns for number in set(source["subjects"])}
    # What neighbours detect is a leaf behind the others, and has its key in itself.
    found = {known[n][leaf] for n, leaf in zip(source["subjects"], source["leaves"]) if leaf < len(known[n])}
    return sorted(columns for columns in found if columns)


def reading_of(
    queries: Queries, memory: dict[str, Any], source: dict[str, Any], columns: list[tuple[str, ...]]
) -> Reading:
    """Return how an event type is read; columns: its partition keys."""
    known: dict[tuple[int, str], Reading] = memory.setdefault("readings", {})
    mark = (source["type_id"], json.dumps(columns))
    found = known.get(mark)
    if found is None or found[0] != source["version"]:
        if len(known) > READINGS_KEPT:
            known.clear()
        found = known[mark] = queries.reading(*mark)
    return found


def hand_over(subject: Any, leaf: int, base: int, places: Iterable[int], events: Events) -> None:
    """Add events of one batch to a leaf of a composite event."""
    ids = events.ids
    if leaf >= len(subject.known.columns):
        subject.part_arrivals += [(base | ids[i], leaf, i, events) for i in places]
        return
    sources = subject.job["sources"]  # null where no leaf asks for one
    wanted = sources[leaf] if sources else None
    if wanted:
        broker, client = wanted["broker"], wanted["client"]
        origins, clients = events.origins, events.clients
        places = [i for i in places if origins[i] == broker and client in (None, clients[i])]
    columns = subject.known.columns[leaf]
    if columns:
        keys = events.keys[columns]
        subject.arrivals += [(base | ids[i], leaf, keys[i], i, events) for i in places]
    else:
        subject.arrivals += [(base | ids[i], leaf, (), i, events) for i in places]


def read_events(
    queries: Queries, memory: dict[str, Any], events: Events, texts: tuple[str, str], columns: list[tuple[str, ...]],
    hits: list[Hits],
) -> None:  # fmt: skip
    """Read the events of a type that somebody has got; texts: the queries for ranges of ids, and for ids."""
    raw: list[list[Any]] = [[] for _ in columns]
    single: set[int] = set()  # keys that are one text
    for row in portions_read(queries, texts, hits):
        events.ids += row["ids"]
        events.xids += row["xids"]
        events.payloads += row["payloads"]
        for number in range(len(columns)):
            name = f"text_{number}"
            if name in row:
                single.add(number)
            raw[number] += row[name] if name in row else row[f"key_{number}"]
        if "event_times" in row:
            events.event_times += row["event_times"]
        if "start_times" in row:
            bounds = (row[name] for name in ("start_points", "end_points", "start_times", "end_times"))
            events.spans += map(span_of, *bounds)
    if events.ids != sorted(events.ids):
        put_in_order(events, raw)
    for names, values, number in zip(columns, raw, range(len(columns))):
        events.keys[names] = keys_of(memory, values, is_text=number in single)


def portions_read(queries: Queries, texts: tuple[str, str], hits: list[Hits]) -> list[dict[str, Any]]:
    """Return the rows of the queries for ranges of ids, and for ids."""
    dense, ids = runs_of(sorted({one for group in hits for one in group.ids}))
    ranges = merged([*dense, *(range_ for one in hits for range_ in zip(one.lows, one.highs))])
    lows = [low for low, _ in ranges]
    found: list[dict[str, Any]] = []
    if ranges:
        ids = [one for one in ids if not covered(ranges, lows, one)]
        portions = portions_of(ranges)
        plan = queries.plan(texts[0], ["bigint[]", "bigint[]"])
        found += plan.execute([[low for low, _ in portions], [high for _, high in portions]])
    if ids:
        found += queries.plan(texts[1], ["bigint[]"]).execute([ids])
    return found


def put_in_order(events: Events, raw: list[list[Any]]) -> None:
    """Sort what was read by the ids of the events."""
    ids = events.ids
    order = sorted(range(len(ids)), key=ids.__getitem__)
    for column in (events.xids, events.payloads, events.event_times, events.spans, *raw, ids):
        if column:
            column[:] = [column[i] for i in order]  # type: ignore[index]


def keys_of(memory: dict[str, Any], texts: list[Any], *, is_text: bool) -> list[str]:
    """Return the keys that events have, each made once: of one text or of the text of an array."""
    kept: tuple[dict[Any, str], dict[Any, str]] = memory.setdefault("keys", ({}, {}))
    if len(kept[0]) + len(kept[1]) > KEYS_KEPT:
        kept[0].clear()
        kept[1].clear()
    known = kept[is_text]
    long: dict[Any, str] = {}
    for text in set(texts).difference(known):
        key = key_of_text(text) if is_text else key_of(text)
        (known if text is None or len(text) <= KEY_LENGTH else long)[text] = key
    return [long[text] if text in long else known[text] for text in texts] if long else [known[text] for text in texts]


def span_of(start: Optional[str], end: Optional[str], start_time: Optional[int], end_time: Optional[int]) -> Span:
    """Return where a composite event begins and ends; None for an event without times."""
    if start is not None and end is not None:
        return int(start), int(end), None
    return None if start_time is None else (point_of(start_time, 0), None, end_time)


def runs_of(ids: list[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """Return ids that lie close to each other as ranges, and the others: a range is read faster than its ids."""
    ranges: list[tuple[int, int]] = []
    rest: list[int] = []
    begin = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or ids[end] > ids[end - 1] + NEAR:
            if end - begin < RUN:
                rest += ids[begin:end]
            else:
                ranges.append((ids[begin], ids[end - 1] + 1))
            begin = end
    return ranges, rest


def portions_of(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges of ids in portions: what is read of one is an array, whose size is limited."""
    return [(at, min(at + PORTION, high)) for low, high in ranges for at in range(low, high, PORTION)]


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges without those that overlap."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(set(ranges)):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found


def covered(ranges: list[tuple[int, int]], lows: list[int], one: int) -> bool:
    """Tell whether a number lies in one of some ranges that do not overlap."""
    place = bisect_left(lows, one + 1) - 1
    return place >= 0 and one < ranges[place][1]


def add_statements(queries: Queries, events: Events, type_id: int, broker: str) -> None:
    """Add what is known of the statements that published the events: when, and where they come from."""
    ids, xids = events.ids, events.xids
    count = len(ids)
    events.times, events.origins, events.clients = [None] * count, [broker] * count, [None] * count
    firsts = dict(zip(reversed(xids), reversed(ids)))
    lasts = dict(zip(xids, ids))
    found = queries.rows(
        STATEMENTS, [str(xid) for xid in firsts], [*firsts.values()], [lasts[xid] for xid in firsts],
        [type_id] * len(firsts),
    )  # fmt: skip
    for row in found:
        low, high = bisect_left(ids, row["lo"]), bisect_left(ids, row["hi"] + 1)
        xid, time, origin, client = row["xid"], row["published"], row["origin"] or broker, row["client"]
        if xids[low:high].count(xid) == high - low:
            size = high - low
            events.times[low:high] = [time] * size
            events.origins[low:high] = [origin] * size
            events.clients[low:high] = [client] * size
            continue
        for place in range(low, high):
            if xids[place] == xid:
                events.times[place], events.origins[place], events.clients[place] = time, origin, client


def as_events(arrivals: list[Gathered], nodes: list[str], *, by_arrival: bool) -> list[Event]:
    """Return arrivals, which are in order, as the detector takes events: each once, with all leaves that it matches."""
    found: list[Event] = []
    last = -1
    for position, leaf, key, i, events in arrivals:
        match = (nodes[leaf], key)
        if position == last:
            # Leaves that differ in their alias alone are one node.
            matches = found[-1].matches
            assert matches is not None
            if match not in matches:
                matches.append(match)
            continue
        last = position
        span = None
        bounds = events.spans[i] if events.spans else None
        if bounds is not None:
            start, end, end_time = bounds
            span = (start, point_of(end_time or 0, position) if end is None else end)
        time = events.times[i] if by_arrival else events.event_times[i] if events.event_times else None
        found.append(
            Event(
                position, time, events.kind, events.payloads[i], events.ids[i], events.origins[i], events.xids[i], None,
                [match], span,
            )
        )  # fmt: skip
    return found


def part_events(arrivals: list[PartArrival], parts: dict[str, list[str]]) -> list[Event]:
    """Return what neighbours have detected as the detector takes it, unless the owner may not see what that is made of.

    What was detected at one point is taken at one point, too: that of the first that came.
    """
    found: list[Event] = []
    points: dict[tuple[int, ...], int] = {}
    for position, leaf, i, events in sorted(arrivals, key=itemgetter(0, 1)):
        nodes = parts.get(str(leaf))
        if nodes:
            place, key, point, told = json.loads(events.payloads[i])["constituents"]
            at = points.setdefault((leaf, *point), position)
            matches = [(nodes[place], () if key is None else key)]
            found.append(
                Event(at, point[0], "", None, events.ids[i], events.origins[i], None, None, matches, None, told)
            )
    return found
