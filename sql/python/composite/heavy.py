"""Events that are large: a step takes as many as have so many bytes, and what is published at once has as many."""

from collections.abc import Iterable
from typing import Any, Optional

from composite.gathering import EVENT_BITS, Got, Hits
from composite.limits import TooMuch
from composite.queries import Queries
from composite.storing import stored
from composite.subjects import Subject

MOST_BYTES = 64_000_000  # that a step reads; what is made of it is several times as much
SMALL = 4000  # of an event; 20,000 of these are a step
NEVER = (1 << 63) - 1
MOST_WHOLE = 1_000_000  # events of a step that takes whole transactions: a small one needs 1 KB

WHOLE_UPTO = "select pgps_internal.whole_upto($1, $2) as upto"

TOASTED = """
select w.type_id
from unnest($1::integer[], $2::text[], $3::bigint[], $4::bigint[]) w(type_id, name, low, high)
where pgps_internal.is_toasted(w.name, w.low, w.high)"""
EVENT_BYTES = """
select b.event_id, b.bytes from pgps_internal.event_bytes($1, $2) b where b.bytes > $3"""
# By key, without reading it: a compressed value may be 20 times as long.
OPEN_BYTES = """
select w.state_id, w.key, sum(o.bytes)::bigint as bytes
from (select w.*, lower(r) as low, upper(r) as high
    from unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[]) w(state_id, key, born, live)
    cross join lateral unnest(w.live::int8multirange) r offset 0) w
cross join lateral (select pg_column_size(o.data)::bigint
        * case when pg_column_compression(o.data) is null then 1 else 20 end as bytes
    from pgps_internal.composite_open o
    where o.state_id = w.state_id and o.key = w.key and o.serial >= w.low and o.serial < w.high
        and o.row_id >= w.born offset 0) o
group by w.state_id, w.key"""


class TooHeavyError(Exception):
    """Have a step taken again that goes only up to an event, whose position is `last`."""

    def __init__(self, last: int) -> None:
        super().__init__(f"up to {last}")
        self.last = last


def bounded(
    queries: Queries, sources: list[dict[str, Any]], subjects: dict[int, Subject], last: Optional[int], found: Got
) -> Got:
    """Return what leaves have got, as far as a step goes; last: a position behind which nothing is taken anyway.

    Those that go less far are told so.
    """
    cut = last_fitting(queries, sources, found, subjects)
    if cut is None or (last is not None and last < cut):
        cut = last
    if cut is None:
        return found
    less: Got = {}
    for number, group in found.items():
        for hits in group:
            rest = up_to(hits, cut)
            if rest is not hits:
                for subject in hits.subjects:
                    subjects[subject].stop_behind(cut)
            if rest is not None:
                less.setdefault(number, []).append(rest)
    return less


def last_fitting(
    queries: Queries, sources: list[dict[str, Any]], found: Got, subjects: dict[int, Subject]
) -> Optional[int]:
    """Return the position of the last event that fits into a step: one before the next large one; None: all fit."""
    count = sum(map(count_of, (hits for group in found.values() for hits in group)))
    if count < 2:
        return None
    if count > MOST_WHOLE:
        check_whole(found, subjects)
    names = {source["type_id"]: source["type"] for source in sources}
    spans = [(number, names[number], *span_of_ids(group)) for number, group in found.items()]
    large: list[tuple[int, int]] = []
    for row in queries.rows(TOASTED, *map(list, zip(*spans))):
        large += large_ones(queries, row["type_id"], found[row["type_id"]], subjects)
    large.sort()
    size = 0
    for place, (position, bytes_) in enumerate(large):
        size += bytes_
        if size > MOST_BYTES and place:
            return end_before(queries, position, large[0][0], subjects.values())
    return None


def check_whole(found: Got, subjects: dict[int, Subject]) -> None:
    """Raise TooMuch where a step that takes whole transactions has too many events."""
    counts = {number: 0 for number, subject in subjects.items() if subject.known.graph.transactional}
    for group in found.values():
        for hits in group:
            for number in counts.keys() & set(hits.subjects):
                counts[number] += count_of(hits)
    if max(counts.values(), default=0) > MOST_WHOLE:
        raise TooMuch(f"{MOST_WHOLE:,} events of whole transactions")


def end_before(queries: Queries, position: int, first: int, subjects: Iterable[Subject]) -> int:
    """Return where a step ends that is not to take an event, but a first one."""
    whole = [subject for subject in subjects if subject.takes_whole_batches]
    if not whole:
        return position - 1
    batch, least = position >> EVENT_BITS, first >> EVENT_BITS
    end = batch - (batch > least)
    if any(subject.known.graph.transactional for subject in whole):
        end = whole_upto(queries, end, end)
        if end < least:
            end = whole_upto(queries, least, NEVER)
    return (end + 1 << EVENT_BITS) - 1


def whole_upto(queries: Queries, batch: int, last: int) -> int:
    """Return up to which batch a step goes that takes whole transactions; see pgps_internal.whole_upto."""
    return queries.plan(WHOLE_UPTO, ["bigint", "bigint"]).execute([batch, last])[0]["upto"]  # type: ignore[no-any-return]


def large_ones(
    queries: Queries, type_id: int, group: list[Hits], subjects: dict[int, Subject]
) -> list[tuple[int, int]]:
    """Return the positions of large events of a type that are to be taken, and how many bytes they have."""
    plan = queries.plan(EVENT_BYTES, ["integer", "bigint[]", "bigint"])
    ids = {one for hits in group for one in ids_of(hits)}
    bytes_ = {row["event_id"]: row["bytes"] for row in plan.execute([type_id, sorted(ids), SMALL])}
    found: dict[int, int] = {}
    for hits in group:
        taken = min(subjects[subject].taken or 0 for subject in hits.subjects)
        base = hits.batch_id << EVENT_BITS
        for one in ids_of(hits):
            if one in bytes_ and base | one > taken:
                found[base | one] = bytes_[one]
    return [*found.items()]


def count_of(hits: Hits) -> int:
    """Return how many events these are, those to be skipped too."""
    return len(hits.ids) + sum(hits.highs) - sum(hits.lows)


def ids_of(hits: Hits) -> Iterable[int]:
    """Return the ids of events."""
    yield from hits.ids
    for low, high in zip(hits.lows, hits.highs):
        yield from range(low, high)


def span_of_ids(group: list[Hits]) -> tuple[int, int]:
    """Return the first and the last id."""
    return (
        min(min((*hits.ids, *hits.lows)) for hits in group),
        max(max((*hits.ids, *(high - 1 for high in hits.highs))) for hits in group),
    )


def up_to(hits: Hits, last: int) -> Optional[Hits]:
    """Return what is there up to a position: the same, less, or None for nothing."""
    batch, event_id = last >> EVENT_BITS, last & ((1 << EVENT_BITS) - 1)
    if hits.batch_id < batch:
        return hits
    if hits.batch_id > batch:
        return None
    ids = [one for one in hits.ids if one <= event_id]
    ranges = [(low, min(high, event_id + 1)) for low, high in zip(hits.lows, hits.highs) if low <= event_id]
    lows, highs = [low for low, _ in ranges], [high for _, high in ranges]
    if (len(ids), lows, highs) == (len(hits.ids), hits.lows, hits.highs):
        return hits
    return hits._replace(ids=ids, lows=lows, highs=highs) if ids or lows else None


def weigh_open(queries: Queries, subjects: list[Subject], found: list[dict[str, Any]], last: Optional[int]) -> None:
    """Look how much is open in keys that are to be read; TooHeavyError when a step has to go less far than `last`."""
    columns = ([row[name] for row in found] for name in ("state_id", "key", "born", "live"))
    bytes_ = {(row["state_id"], row["key"]): row["bytes"] for row in queries.rows(OPEN_BYTES, *columns)}
    size = sum(bytes_.values())
    if size <= MOST_BYTES:
        return
    touched = [
        (position, (subject.state_id, stored(key))) for subject in subjects for position, key in subject.first_touches()
    ]
    touched.sort()
    # Of keys that only time touches, nothing can be left for later.
    size -= sum(bytes_.get(name, 0) for name in {name for _, name in touched})
    for position, name in touched:
        size += bytes_.pop(name, 0)
        if size > MOST_BYTES and position > touched[0][0]:
            end = end_before(queries, position, touched[0][0], subjects)
            if last is None or end < last:
                raise TooHeavyError(end)
            return
