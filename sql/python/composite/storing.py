"""The state of a step as rows of the ledgers."""

import json
from json.encoder import encode_basestring as quoted
from typing import Any

from composite.detector import Changes
from composite.keys import live_ranges, write_ranges
from composite.rows import HELD
from composite.subjects import ROW_BYTES, Subject


def rows_of_open(subject: Subject, changes: Changes) -> list[tuple[Any, ...]]:
    """Return the rows of what has been opened."""
    found = []
    for row in changes.opened:
        data = written(row.data)
        subject.size += len(data) + ROW_BYTES
        serial = None if row.slot == HELD else row.serial
        found.append((subject.state_id, stored(row.key), row.node, row.slot, serial, row.start, data))
    return found


def written(data: list[Any]) -> str:
    """Return an open occurrence as JSON."""
    if len(data) == 7 and data[4] is not None and data[5] is not None and isinstance(data[6], str):
        serial, start, end, node, event_id, origin, payload = data
        return f'[{serial},{start},{end},"{node}",{event_id},{quoted(origin)},{quoted(payload)}]'
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def rows_of_keys(subject: Subject, changes: Changes, born: int) -> list[tuple[Any, ...]]:
    """Return the rows of keys, and note what is stored of them."""
    state = subject.state
    assert state is not None
    closed: dict[Any, list[int]] = {}
    for gone in changes.closed:
        if gone.slot != HELD:
            closed.setdefault(gone.key, []).append(gone.serial)
    found: list[tuple[Any, ...]] = []
    for one in changes.keys:
        name = stored(one.key)
        before = subject.keys.get(name)
        if before is None:
            before = subject.keys[name] = {"born": born, "serial": 0, "live": []}
            subject.size += ROW_BYTES
        # What of its open occurrences still counts is told by their serials.
        serials = [occurrence[0] for opened in state.keys[one.key].slots.values() for occurrence in opened]
        if len(serials) == 1:
            live = [(serials[0], serials[0] + 1)]
        else:
            serials.sort()
            live = live_ranges(before["live"], closed.get(one.key, []), before["serial"], one.serial, serials)
        before["serial"], before["live"] = one.serial, live
        found.append(
            (subject.state_id, name, before["born"], one.version, one.serial, one.clock, one.ticked, one.due,
                write_ranges(live))
        )  # fmt: skip
    found += [
        (subject.state_id, stored(key), born, 0, 0, 0, None, None, "{}")
        for key in changes.dropped
        if subject.keys.pop(stored(key), None) is not None
    ]
    return found


def row_of_step(subject: Subject, changes: Changes, keys: int) -> tuple[Any, ...]:
    """Return the row of a step, with the totals up to it; keys: how many more there are."""
    job = subject.job
    added = {
        "open": len(changes.opened) - len(changes.closed),
        "keys": keys,
        "detected": subject.detections,
        "late": len(changes.late),
        "given_up": len(changes.given_up),
    }
    ordering = changes.ordering | {"in_place": subject.in_place}
    return (
        subject.id,
        subject.share,
        subject.state_id,
        job["upto"],
        json.dumps(ordering if subject.taken is None else ordering | {"taken": subject.taken}),
        None if subject.heard is None else json.dumps(subject.heard),
        subject.idle_at,
        *((job[name] or 0) + more for name, more in added.items()),
    )


def fault_of(changes: Changes) -> str:
    """Return the last error of a condition; there is one."""
    last = changes.faults[-1]
    return f"{last.error} (in the filter: {last.text})"


def stored(key: Any) -> str:
    """Return a key as it is stored; without a partition there is one."""
    return "[]" if key == () else str(key)


def unstored(key: str, subject: Subject) -> Any:
    """Return a stored key as the detector has it."""
    return key if subject.partitioned else ()
