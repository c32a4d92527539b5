"""Faults of composite events, and how they are staged; see tests/cli/faults.py."""

from __future__ import annotations

from tests.cli.faults import Broker, Fault

__all__ = ["COMPOSITE_FAULTS"]


def _take_a_leaf_its_table(broker: Broker) -> None:
    broker.start_worker()
    broker.run(
        "create table public.bed as select 1 as n",
        "select pgps.create_composite_event('bedside', 'tick (n in (select b.n from public.bed b)) a')",
        "drop table public.bed",
        "insert into pgps_event.tick values (1)",
    )


def _leave(broker: Broker) -> None:
    broker.run(
        "create role leaver; grant select on pgps_event.tick to leaver",
        "set role leaver; select pgps.create_composite_event('left', 'tick a')",
        "reset role; drop owned by leaver; drop role leaver",
    )


COMPOSITE_FAULTS = [
    Fault(
        "the predicate of a composite event cannot be evaluated",
        _take_a_leaf_its_table,
        "composite events",
        '"bedside" is suspended: filter: ',
        repair=lambda broker: broker.run("create table public.bed as select 1 as n"),
        logged="composite event bedside is suspended",
        metric='pgps_composite_event_suspended{composite_event="bedside"} 1',
        alert="PgpsCompositeEventSuspended",
    ),
    Fault(
        "the owner of a composite event was dropped",
        _leave,
        "composite events",
        '"left" is suspended: its owner was dropped',
        logged="composite event left is suspended: its owner was dropped",
        metric='pgps_composite_event_suspended{composite_event="left"} 1',
        alert="PgpsCompositeEventSuspended",
    ),
]
