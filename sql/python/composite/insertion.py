"""The statement that puts detections into the log of a composite event."""

from collections.abc import Sequence
from typing import Any

INSERT = """
insert into {log} (event_id, starts_at, ends_at, detected_at, pgps_start_at, pgps_end_at, constituents)
select i.event_id, pgps_internal.moment(i.starts), pgps_internal.moment(i.{ends}), pgps_internal.moment(i.detected),
    i.start_point, i.end_point, i.constituents::jsonb
from (select {ids} as event_id, unnest($2) as starts, {sets}unnest($4) as detected,
    unnest($5) as start_point, unnest($6) as end_point, unnest($7) as constituents) i"""
# The same, with the attributes that are made of what the last parameter has.
INSERT_MADE = """
insert into {log} (event_id, starts_at, ends_at, detected_at, pgps_start_at, pgps_end_at, constituents, {names})
select i.event_id, pgps_internal.moment(i.starts), pgps_internal.moment(i.{ends}), pgps_internal.moment(i.detected),
    i.start_point, i.end_point, i.constituents::jsonb, {values}
from (select {ids} as event_id, unnest($2) as starts, {sets}unnest($4) as detected,
    unnest($5) as start_point, unnest($6) as end_point, unnest($7) as constituents,
    unnest(pgps_internal.composite_made_{composite_id}($8)) as made) i"""

# Owner, event type, first and last event of what one composite event has published, and whether there is no other
# event between them.
Statement = tuple[int, int, int, int, bool]


def insertion_of(ids: Sequence[int], columns: list[list[Any]]) -> tuple[dict[str, str], list[Any]]:
    """Return the parts of a statement that puts detections into the log, and its values.

    A set of which the server can make another, or which is a range, is not handed over: that takes as long as making
    what is made of it.
    """
    is_range, is_at_end = isinstance(ids, range), columns[1] is columns[2]
    starts, ends, *others = columns
    parts = {
        "ids": "generate_series($1[1], $1[2])" if is_range else "unnest($1)",
        "ends": "detected" if is_at_end else "ends",
        "sets": "" if is_at_end else "unnest($3) as ends, ",
    }
    return parts, [[ids[0], ids[-1]] if is_range else ids, starts, None if is_at_end else ends, *others]


def statement_of(job: dict[str, Any], ids: Sequence[int]) -> Statement:
    """Return what is to be recorded of events that were put into a log; their ids are in ascending order."""
    return job["owner"], job["type_id"], ids[0], ids[-1], ids[-1] - ids[0] + 1 == len(ids)
