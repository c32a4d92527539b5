"""Compare the brokers' audit with what this test worked out itself: which losses the audit reports, and which not."""

from __future__ import annotations

import time
from collections.abc import Iterable

from tests.fix_broker import rows, value
from tests.links.storm.truth import Finding
from tests.links.storm.world import World

INTERVALS = 1.0
"""Seconds: two of the intervals at which origins report how much they have published. The audit may not have compared
events that are younger than this."""
PATIENCE = 15.0

_FOUND = """
    select kind, what, neighbour, origin, event_type, after_batch, upto_batch, events_there, events_here
    from pgps.audit_findings
"""
_OPEN = "select count(*) from pgps.audit() where kind = 'end' and verdict = 'not yet compared'"


def compare(world: World, findings: list[Finding]) -> list[str]:
    """Return where the audit and the findings differ: false alarms, and losses that the audit has not found."""
    if any(one.kind == "missing" for one in findings):
        _wait(world)
    said = []
    for name, member in world.members.items():
        found = rows(member.admin, _FOUND)
        here = [one for one in findings if one.broker == name]
        said += [f"false alarm at {name}: {alarm}" for alarm in found if not _explains(alarm, findings)]
        told = {(alarm[3], alarm[4]) for alarm in found if alarm[0] == "end"}
        said += [f"the audit at {name} is blind: {_named(one)}" for one in _audited(world, here)
                 if (one.home, one.type) not in told]  # fmt: skip
    return said


def _explains(alarm: tuple[object, ...], findings: Iterable[Finding]) -> bool:
    """Return whether a finding at any broker can be the reason of an alarm."""
    return any(one.home == alarm[3] and one.type in (alarm[4], "*") for one in findings)


def _audited(world: World, findings: Iterable[Finding]) -> list[Finding]:
    """Return the losses that the audit promises to detect: every event of the type is wanted, and none is too young."""
    whole = {(one.broker, one.name) for one in world.subscriptions if one.filter == "any" and one.apart is None}
    until = max((event.at for event in world.truth.events.values()), default=0.0) - INTERVALS
    return [
        one
        for one in findings
        if one.kind == "missing" and (one.broker, one.subscription) in whole and one.home != one.broker
        and any(world.truth.events[n].at < until for n in one.ns)
    ]  # fmt: skip


def _named(one: Finding) -> str:
    return f"{len(one.ns)} of {one.type} from {one.home} are missing for {one.subscription}"


def _wait(world: World) -> None:
    """Wait until every broker has compared all origins; one that publishes nothing new is not compared again."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and any(value(member.admin, _OPEN) for member in world.members.values()):
        time.sleep(0.5)  # between two looks
