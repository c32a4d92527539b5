"""What a detected occurrence is for its user: what it is made of, and what its filter and attributes may name."""

from collections.abc import Iterator
from typing import Any, Optional

from composite.definition import Definition
from composite.points import (
    END,
    GROUPS,
    NODE,
    ORIGIN,
    PAYLOAD,
    START,
    Occurrence,
    position_of,
    tick_point,
    tick_times,
    time_of,
)
from composite.syntax import Expression
from composite.wire import broker_of
from lexer import SqlTextError

MAX_CONSTITUENTS = 100_000


def named_parts(expression: Expression, occurrence: Occurrence) -> Iterator[tuple[Optional[Expression], Occurrence]]:
    """Return the events and ticks of an occurrence with the leaves of the expression that they stand at."""
    stack: list[tuple[Expression, Occurrence]] = [(expression, occurrence)]
    while stack:
        part, found = stack.pop()
        if len(found) == 7:
            yield part, found
            continue
        for role, group in enumerate(found[GROUPS]):
            for member in group:
                if member[NODE] is None:
                    yield None, member
                else:
                    stack.append((part.parts[role], member))


def constituents(definition: Definition, occurrence: Occurrence, *, in_runs: bool = False) -> list[dict[str, Any]]:
    """Return what an occurrence is made of, in order of time; `at` and `tick` are microseconds since 1970.

    An event is {as, event_type, origin, event_id, at, payload}, a tick {as, tick}; `as` is the alias, else the type
    or the operator. Of an event that never came here, event_id is its number at a broker, which is named, too.
    in_runs: ticks of a window are one {as, tick, last, ticks}: the first, the last, and how many there are.
    Raises SqlTextError 54000 for more than 100,000.
    """
    found: list[tuple[int, dict[str, Any]]] = []
    for part, one in named_parts(definition.expression, occurrence):
        if part is None:
            times = tick_times(one)
            if in_runs:
                told = {"as": "tick", "tick": times[0], "last": times[-1], "ticks": len(times)}
                found.append((tick_point(times[0]), told))
                continue
            if len(times) + len(found) > MAX_CONSTITUENTS:
                what = f"an occurrence of {definition.name}" if definition.name else "an occurrence"
                message = f"{what} has more than {MAX_CONSTITUENTS:,} constituents"
                raise SqlTextError(message, 1, "Make its window shorter, or its ticks rarer.", sqlstate="54000")
            found += [(tick_point(time), {"as": "tick", "tick": time}) for time in times]
        elif part.op == "leaf":
            origin, broker = broker_of(one[ORIGIN])
            told = {"as": part.name, "event_type": part.type, "origin": origin, "event_id": one[4]}
            elsewhere = {} if broker is None else {"broker": broker}
            found.append((one[END], told | {"at": time_of(one[END]), "payload": one[PAYLOAD]} | elsewhere))
        elif part.op in ("begin_transaction", "commit"):
            found.append((one[END], {"as": part.op, "event_type": part.op, "at": time_of(one[END])}))
        else:
            found.append((one[END], {"as": part.op, "tick": time_of(one[END])}))
    return [told for _, told in sorted(found, key=lambda item: item[0])]


def bind(definition: Definition, occurrence: Occurrence) -> dict[str, Any]:
    """Return for each name of the definition a payload, None where it is not bound, or a list of payloads."""
    names = {(alias.name, alias.type): alias for alias in definition.aliases if alias.name}
    bound: dict[str, Any] = {alias.name: [] if alias.many else None for alias in names.values()}
    parts = sorted(
        (
            (one[START], position_of(one[END]), part, one)
            for part, one in named_parts(definition.expression, occurrence)
        ),
        key=lambda item: item[:2],
    )
    for _, _, part, one in parts:
        alias = names.get((part.name, part.type)) if part is not None and part.op == "leaf" else None
        if alias is not None and alias.many:
            bound[alias.name].append(one[PAYLOAD])
        elif alias is not None:
            bound[alias.name] = one[PAYLOAD]
    return bound
