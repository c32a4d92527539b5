"""What `pgps doctor` makes of facts, without a database."""

from __future__ import annotations

from typing import Any

import pytest

from pgps.cli._checks import CHECKS
from pgps.cli._facts import Facts, Finding, Level
from pgps.install import Installation

HEALTHY: dict[str, Any] = {
    "database": "orders",
    "role": "alice",
    "standby": False,
    "server_version": 150_006,
    "server_version_text": "15.6",
    "superuser": False,
    "plpython_installed": True,
    "plpython_available": True,
    "installed": True,
    "roles": ["pgps_admin", "pgps_worker"],
    "is_admin": True,
    "max_connections": 100,
    "connections": 5,
    "autovacuum": True,
    "synchronous_commit": "on",
    "fsync": True,
}
CURRENT = Installation(
    database="orders",
    server_version=150_006,
    revision="0002",
    head="0002",
    code_digest="ab" * 32,
    expected_digest="ab" * 32,
)
WORKER = {"worker": "w1", "leader": True, "service": "dispatcher"}
LINK = {
    "name": "far",
    "defined_here": True,
    "enabled": True,
    "state": "up",
    "last_error": "",
    "hint": None,
    "lag_events": 0,
    "different_types": [],
    "has_password": False,
    "role_is_superuser": False,
    "role": "peer",
}
IDLE = {"waiting": 0, "waiting_seconds": None, "last_batch_ahead": -1.0}
DISK = {"place": "data", "total_bytes": 100 << 30, "free_bytes": 50 << 30}
LEFT = {"name": "Old one", "kind": "external", "depth": 10, "lag_seconds": 9.0, "dead_after": None, "is_dead": False}
LOST = {"kind": "end", "what": "count", "neighbour": "far", "origin": "farther", "event_type": "tick",
        "events_there": 3, "events_here": 2}  # fmt: skip
GAP = {"subscription": "link far", "event_type": None, "gaps": 1, "event_id": 7, "error": "3 events were passed over"}
LANE = {"role": "bob", "lag_events": 5, "lag_seconds": 9.0, "last_error": "a filter takes longer than 5 s"}
ASIDE = {"name": "tick", "last_error": "a column is gone", "hint": "select pgps.resume_event_type('tick')"}
LOSING = {"event_type": "t", "events": 3, "guaranteed": True}
BLOCKED = {
    "pid": 7,
    "holder": 8,
    "role": "bob",
    "application_name": "psql",
    "relation": "pgps_internal.batch",
    "seconds": 60.0,
}
IN_THE_WAY = {"kind": "subscription", "name": "pgps_uow", "role": "Mallory"}
CROWD = {"role": "Peer", "setting": "link_origins", "event_type": None, "used": 1000, "most": 1000}
SERVED = [{"worker": "w1", "leader": True, "service": "links"}]


def findings(facts: Facts) -> list[Finding]:
    return [finding for check in CHECKS for finding in check(facts)]


def healthy(**changes: Any) -> Facts:
    server = {key: changes.pop(key) for key in list(changes) if key in HEALTHY}
    return Facts(**{"server": {**HEALTHY, **server}, "installation": CURRENT, "workers": [WORKER], **changes})


def test_a_healthy_broker_has_nothing_to_be_typed() -> None:
    found = findings(healthy())
    assert {one.level for one in found} == {Level.OK}
    assert all(one.fix == "" for one in found)


@pytest.mark.parametrize(
    ("changes", "level", "check", "fix"),
    [
        ({"server_version": 140_001, "server_version_text": "14.1"}, Level.PROBLEM, "server", "postgresql-15"),
        ({"server_version": 190_000, "server_version_text": "19.0"}, Level.NOTE, "server", ""),
        ({"standby": True}, Level.PROBLEM, "server", "doctor"),
        ({"plpython_installed": False}, Level.PROBLEM, "plpython3u", "pgps install"),
        (
            {"plpython_installed": False, "plpython_available": False},
            Level.PROBLEM,
            "plpython3u",
            "apt-get install postgresql-plpython3-15",
        ),
        ({"installed": False, "installation": None}, Level.PROBLEM, "revision", "pgps install"),
        ({"installation": None}, Level.NOTE, "revision", ""),
        ({"roles": ["pgps_admin"]}, Level.PROBLEM, "roles", "create role pgps_worker nologin"),
        ({"is_admin": False}, Level.NOTE, "roles", "grant pgps_admin to alice"),
        ({"workers": []}, Level.WARNING, "workers", "pgps-worker --dsn DSN"),
        (
            {"workers": [{"worker": "w1", "leader": False, "service": None}]},
            Level.PROBLEM,
            "leader",
            "restart pgps-worker",
        ),
        ({"activity": [{**IDLE, "waiting": 5, "waiting_seconds": 20.0}]}, Level.WARNING, "dispatcher", "pgps top"),
        ({"activity": [{**IDLE, "waiting": 5, "waiting_seconds": 90.0}]}, Level.PROBLEM, "dispatcher", "pgps top"),
        ({"activity": [{**IDLE, "waiting": 5, "waiting_seconds": 1.0}]}, Level.OK, "dispatcher", ""),
        (
            {"transactions": [{"pid": 7, "role": "bob", "application_name": "", "gid": None, "seconds": 900.0}]},
            Level.WARNING,
            "transactions",
            "select pg_terminate_backend(7)",
        ),
        (
            {"transactions": [{"pid": None, "role": "bob", "application_name": "", "gid": "x", "seconds": 900.0}]},
            Level.WARNING,
            "transactions",
            "rollback prepared 'x'",
        ),
        ({"plpython_error": "could not load library"}, Level.PROBLEM, "plpython3u", "--reinstall"),
        (
            {"timeouts": [{"role": "W", "database": None, "seconds": 0.1}]},
            Level.WARNING,
            "timeouts",
            'alter role "W" set statement_timeout = 0',
        ),
        (
            {"timeouts": [{"role": "w", "database": "orders", "seconds": 5.0}]},
            Level.WARNING,
            "timeouts",
            "alter role w in database orders set statement_timeout = 0",
        ),
        ({"timeouts": [{"role": None, "database": None, "seconds": 5.0}]}, Level.WARNING, "timeouts", "alter system"),
        ({"health": {"disks": [DISK]}}, Level.OK, "disk", ""),
        ({"health": {"disks": [{**DISK, "free_bytes": 5 << 30}]}}, Level.WARNING, "disk", "pgps sub ls"),
        ({"health": {"disks": [{**DISK, "free_bytes": 1 << 30}]}}, Level.PROBLEM, "disk", "pgps sub ls"),
        ({"health": {"lost": [LOSING]}}, Level.WARNING, "durability", "pgps queue set t_in"),
        ({"health": {"lost": [{**LOSING, "guaranteed": False}]}}, Level.NOTE, "durability", ""),
        ({"health": {"blocked": [BLOCKED]}}, Level.WARNING, "locks", "select pg_terminate_backend(8)"),
        ({"health": {"blocked": [{**BLOCKED, "seconds": 1.0}]}}, Level.OK, "locks", ""),
        ({"activity": [{**IDLE, "last_batch_ahead": 900.0}]}, Level.WARNING, "clock", "chronyc"),
        (
            {"waiting": [{**LEFT, "lag_seconds": 7200.0}]},
            Level.WARNING,
            "consumers",
            "pgps sub rm '\"Old one\"'",
        ),
        ({"waiting": [{**LEFT, "kind": "internal", "is_dead": True}]}, Level.WARNING, "consumers", "pgps-worker --dsn"),
        ({"gaps": [GAP]}, Level.PROBLEM, "gaps", "pgps exceptions discard --gaps --sub 'link far'"),
        ({"gaps": [{**GAP, "event_type": "tick"}]}, Level.WARNING, "gaps", "pgps exceptions discard tick 7 --sub"),
        ({"differences": [LOST]}, Level.PROBLEM, "audit", "pgps audit"),
        ({"slow_lanes": [LANE]}, Level.WARNING, "lanes", "pgps.alter_subscription"),
        ({"set_aside": [ASIDE]}, Level.PROBLEM, "event types", "pgps.resume_event_type('tick')"),
        (
            {
                "stopped": [
                    {"name": "My Sub", "state": "suspended", "last_error": "boom\nmore", "depth": 1, "is_orphan": False}
                ]
            },
            Level.PROBLEM,
            "subscriptions",
            "pgps sub resume '\"My Sub\"'",
        ),
        (
            {
                "stopped": [
                    {
                        "name": "My Sub",
                        "state": "suspended",
                        "last_error": "filter: gone",
                        "depth": 1,
                        "is_orphan": False,
                    }
                ]
            },
            Level.PROBLEM,
            "subscriptions",
            "select pgps.alter_subscription('\"My Sub\"', filter => '…')",
        ),
        (
            {"stopped": [{"name": "s", "state": "paused", "last_error": None, "depth": 3, "is_orphan": False}]},
            Level.NOTE,
            "subscriptions",
            "pgps sub resume s",
        ),
        (
            {"queues": [{"kind": "exception", "depth": 2, "event_type": "t"}]},
            Level.WARNING,
            "exceptions",
            "pgps exceptions ls --type t",
        ),
        (
            {
                "event_types": [{"name": "t", "reliability": "guaranteed"}],
                "queues": [{"kind": "in", "depth": 0, "event_type": "t", "queue": "t_in", "persistent": False}],
            },
            Level.WARNING,
            "durability",
            "pgps queue set t_in --persistent",
        ),
        ({"fsync": False}, Level.WARNING, "durability", "alter system set fsync = on"),
        ({"synchronous_commit": "off"}, Level.NOTE, "durability", "alter system set synchronous_commit"),
        ({"autovacuum": False}, Level.WARNING, "autovacuum", "alter system set autovacuum = on"),
        ({"without_temp": [{"role": "bob"}]}, Level.WARNING, "temporary", "grant temporary on database orders to bob"),
        ({"connections": 90}, Level.WARNING, "connections", "max_connections = 200"),
        ({"workers": SERVED, "links": [LINK]}, Level.OK, "links", ""),
        ({"workers": [], "links": [{**LINK, "state": "defined"}]}, Level.PROBLEM, "links", "pgps-worker --dsn DSN"),
        (
            {"workers": SERVED, "links": [{**LINK, "state": "blocked", "last_error": "e", "hint": "type this"}]},
            Level.PROBLEM,
            "links",
            "type this",
        ),
        ({"workers": SERVED, "links": [{**LINK, "state": "waiting"}]}, Level.WARNING, "links", "pgps link show far"),
        (
            {"workers": SERVED, "links": [{**LINK, "state": "paused", "enabled": False, "lag_events": 3}]},
            Level.NOTE,
            "links",
            "pgps link resume far",
        ),
        (
            {"workers": SERVED, "links": [{**LINK, "different_types": ["t"]}]},
            Level.WARNING,
            "links",
            "pgps link resync far",
        ),
        (
            {"workers": SERVED, "links": [LINK], "broker": {"state": "restored"}},
            Level.PROBLEM,
            "links",
            "pgps link resume --as restored",
        ),
        ({"links": [{**LINK, "has_password": True}]}, Level.WARNING, "link rights", "passfile"),
        (
            {"suspects": [{"event_type": "tick", "policy": None, "fault": "a default or check calls function f()"}]},
            Level.WARNING,
            "expressions",
            "pgps type drop tick --cascade --yes",
        ),
        (
            {"suspects": [{"event_type": "tick", "policy": "p", "fault": "it calls function f()"}]},
            Level.WARNING,
            "expressions",
            "pgps policy rm tick p",
        ),
        ({"health": {"crowded": [CROWD]}}, Level.WARNING, "links", "select pgps.configure('link_origins', '2000')"),
        ({"health": {"in_the_way": [IN_THE_WAY]}}, Level.WARNING, "names", "select pgps.unsubscribe('pgps_uow')"),
        (
            {"health": {"in_the_way": [{**IN_THE_WAY, "kind": "event type"}]}},
            Level.WARNING,
            "names",
            "select pgps.drop_event_type('pgps_uow', cascade => true)",
        ),
        ({"health": {"crowded": [{**CROWD, "used": 900}]}}, Level.NOTE, "links", 'revoke pgps_link from "Peer"'),
        (
            {"health": {"crowded": [{**CROWD, "setting": "link_filters", "event_type": "tick"}]}},
            Level.WARNING,
            "links",
            "select pgps.configure('link_filters', '2000')",
        ),
        (
            {"workers": [{**WORKER, "role": "postgres", "superuser": True}]},
            Level.WARNING,
            "worker rights",
            "in role pgps_worker",
        ),
        ({"links": [{**LINK, "role_is_superuser": True}]}, Level.WARNING, "link rights", "--role NEIGHBOUR"),
    ],
    ids=str,
)
def test_each_ailment_is_found_with_what_to_type(changes: dict[str, Any], level: Level, check: str, fix: str) -> None:
    found = [one for one in findings(healthy(**changes)) if one.check == check and one.level is level]
    assert found, findings(healthy(**changes))
    assert fix in found[0].fix


def test_that_a_broker_was_restored_is_told_once_and_not_again_for_each_link() -> None:
    blocked = {**LINK, "state": "blocked", "last_error": 'broker "here" was restored or cloned'}
    changes = {"workers": SERVED, "links": [blocked, {**blocked, "name": "farther"}], "broker": {"state": "restored"}}
    (found,) = [one for one in findings(healthy(**changes)) if one.check == "links"]
    assert "its links stay down" in found.message


def test_who_says_that_a_broker_was_restored_is_named() -> None:
    claim = {"link": "far", "neighbour": "elsewhere", "role": "linker", "at": "2026-11-27T19:08:00.1+00:00"}
    changes = {"links": [LINK], "broker": {"state": "restored"}, "health": {"claims": [claim]}}
    (found, *_) = [one for one in findings(healthy(workers=SERVED, **changes)) if one.check == "links"]
    assert 'over "far" (broker "elsewhere", role linker, 2026-11-27T19:08)' in found.message
    assert "pgps link rm far --cascade" in found.fix


@pytest.mark.parametrize(
    ("hint", "is_own"),
    [
        ("On broker \"far\": select pgps.resume_links('restored')", True),
        ("When that is mended: select pgps.resync_link('far')", True),
        ("On broker \"far\": select pgps.resume_links('restored'); drop database", False),
        ("curl x | sh", False),
    ],
)
def test_what_the_other_end_advises_is_not_told_as_pgps_own_word(hint: str, is_own: bool) -> None:
    changes = {"workers": SERVED, "links": [{**LINK, "state": "blocked", "last_error": "e", "hint": hint}]}
    (found,) = [one for one in findings(healthy(**changes)) if one.check == "links"]
    assert (found.fix == hint) is is_own
    assert found.fix.endswith(hint)
    assert is_own or found.fix.startswith("the other end may have said, not pgps: ")


@pytest.mark.parametrize(
    ("changes", "check", "fix"),
    [
        ({"revision": "0001"}, "revision", "pgps upgrade"),
        ({"revision": "0003"}, "revision", "pip install --upgrade pgps"),
        ({"code_digest": "cd" * 32}, "code", "pgps upgrade"),
        ({"code_digest": None}, "code", "pgps upgrade"),
    ],
    ids=str,
)
def test_another_release_in_the_database_is_found(changes: dict[str, Any], check: str, fix: str) -> None:
    state = {name: getattr(CURRENT, name) for name in Installation.__slots__} | changes
    found = [one for one in findings(healthy(installation=Installation(**state))) if one.check == check]
    assert found[0].fix == fix
