"""Who may call which function of spools, and see which view: every function with every kind of role."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, refused, rows, value
from tests.fix_db import Connect

Name = Callable[..., str]
Role = Callable[..., str]

REPLAYING = {"reader", "member", "other", "owner"}
ADMIN, MEMBER, OWNER = {"admin"}, {"member"}, {"owner"}
FOLLOWING = REPLAYING | {"sender"}

CALLS: dict[str, set[str]] = {
    """spool('{spool}', 1, '"secret"')""": {"sender", "owner"},
    """spool('{spool}', 1, '"secret"', network => '{network}')""": {"sender", "owner"},
    """spool_many('{spool}', '[{{"entry": 1, "message": "secret"}}]')""": {"sender", "owner"},
    """spool_and_discard('{spool}', 1, '"secret"')""": OWNER,
    """prepend_and_discard('{spool}', 1, '"secret"')""": OWNER,
    "spool_discard('{spool}')": REPLAYING,
    "spool_replay('{spool}')": REPLAYING,
    "spool_set_replay_pointer('{spool}', 1)": REPLAYING,
    "spool_set_checkpoint_pointer('{spool}', 1)": REPLAYING,
    "spool_play_through('{spool}', false)": REPLAYING,
    "spool_cancel({request})": FOLLOWING,
    "spool_advise('{spool}', max_messages => 7)": OWNER | ADMIN,
    "grant_spool('{spool}', 'replay', 'public')": OWNER | ADMIN,
    "revoke_spool('{spool}', 'replay', 'public')": OWNER | ADMIN,
    "drop_spool('{spool}')": OWNER | ADMIN,
    "create_spool('{fresh}')": ADMIN,
    "create_network('{fresh}', '{{host=127.0.0.1 port=1 dbname=none}}')": ADMIN,
    "alter_network('{network}', '{{host=127.0.0.1 port=2 dbname=none}}')": ADMIN,
    "drop_network('{network}')": ADMIN,
    "set_network_role('{broker}', 'pgps_link')": ADMIN,
    "join_group('{spool}', '{client}')": MEMBER,
    "join_group('{spool}', '{client}', session => {session})": MEMBER,
    "leave_group('{spool}', '{client}')": MEMBER,
    "leave_group('{spool}', '{client}', session => {session})": MEMBER,
    "group_ready('{spool}', '{client}')": MEMBER,
    "group_ready('{spool}', '{client}', session => {session})": MEMBER,
    "receive_spooled('{spool}', '{client}')": MEMBER,
    "receive_spooled('{spool}', '{client}', session => {session})": MEMBER,
    "ack_spooled('{spool}', '{client}', null)": MEMBER,
    "ack_spooled('{spool}', '{client}', null, session => {session})": MEMBER,
    "serve_networks()": ADMIN,
    "network_open(-1)": ADMIN,
    "note_contact(-1, 'up')": ADMIN,
}
"""Who may make a call; everybody else is refused."""
ELSEWHERE = {"network_next", "network_reached", "network_take"}
"""A worker's, whose session has opened a connection first: see tests/sql/spools/test_long_haul.py."""
ANSWERS: dict[str, tuple[set[str], Any, Any]] = {
    "spool_getseqn({request})": (FOLLOWING, 2, 0),
    "spool_inquire({request})": (FOLLOWING, 0, None),
    "spool_wait({request})": (FOLLOWING, 0, None),
}
"""Who is told the truth, what that is, and what the others are told."""
VIEWS: dict[str, tuple[str, set[str]]] = {
    "spools": ("name = '{spool}'", FOLLOWING | ADMIN),
    "spooled_messages": ("spool = '{spool}'", REPLAYING),
    "spool_gaps": ("spool = '{spool}'", FOLLOWING | ADMIN),
    "group_members": ("group_name = '{spool}'", REPLAYING | ADMIN),
    "networks": ("name = '{network}'", ADMIN),
    "network_contacts": ("network = '{network}'", ADMIN),
    "network_origins": ("name = '{network}'", ADMIN),
}


class World:
    """A spool with a message and a gap, a member of its group, a network, and a session of each kind of role."""

    def __init__(self, admin: psycopg.Connection, connect: Connect, name: Name, role: Role) -> None:
        self.names: dict[str, Any] = {what: name(what) for what in ("spool", "network", "fresh", "client", "another")}
        roles = {who: role(who) for who in ("stranger", "reader", "sender", "member", "other")}
        roles |= {who: role(who, "pgps_admin") for who in ("owner", "admin")}
        self.sessions = {who: connect(roles[who]) for who in roles}
        spool = self.names["spool"]
        call(self.sessions["owner"], "create_spool", spool, max_messages=1, on_limit="drop_oldest")
        # Whoever owns a spool need not be an administrator any more.
        rows(admin, f"revoke pgps_admin from {roles['owner']}")
        for who, privilege in (("reader", "replay"), ("member", "replay"), ("other", "replay"), ("sender", "spool")):
            call(self.sessions["owner"], "grant_spool", spool, privilege, roles[who])
        call(self.sessions["admin"], "create_network", self.names["network"], ["host=127.0.0.1 port=1 dbname=none"])
        # As if a broker of another network had spooled here.
        query = """
            insert into pgps_internal.network_origin (broker_id, network_id, network, epoch, name)
            values (gen_random_uuid(), 1, 'here', 1, %s) returning broker_id
            """
        self.names["broker"] = value(admin, query, [self.names["network"]])
        self.names["session"] = self.join("member", self.names["client"])
        self.join("other", self.names["another"])
        for n in (1, 2):
            self.names["request"] = call(self.sessions["sender"], "spool", spool, 1, f'"secret {n}"')
        rows(admin, "select pgps.dispatch()")

    def join(self, who: str, client: str) -> int:
        session: int = value(self.sessions[who], "select session from pgps.connect_client(%s)", [client])
        call(self.sessions[who], "join_group", self.names["spool"], client)
        return session

    def refusal(self, call_of: str, who: str) -> psycopg.Error | None:
        """Try a call as a kind of role, take it back, and return the error with which it was refused."""
        session = self.sessions[who]
        try:
            with session.transaction(force_rollback=True):
                rows(session, f"select pgps.{call_of.format(**self.names)}")
        except psycopg.Error as error:
            return error
        return None


@pytest.fixture
def world(admin: psycopg.Connection, connect: Connect, name: Name, role: Role) -> Iterator[World]:
    made = World(admin, connect, name, role)
    yield made
    spools = (
        "delete from pgps_internal.spool where name = %s or network_id in (select network_id from {} where name = %s)"
    )
    rows(admin, spools.format("pgps_internal.network"), [made.names["spool"], made.names["network"]])
    for table, names in (
        ("network", ["network"]),
        ("network_origin", ["network"]),
        ("client", ["client", "another"]),
    ):
        rows(admin, f"delete from pgps_internal.{table} where name = any(%s)", [[made.names[what] for what in names]])


def test_all_functions_and_views_are_asked() -> None:
    room = Path(__file__).parents[2] / "sql" / "code" / "spools"
    text = "".join(path.read_text() for path in sorted(room.glob("*.sql")))
    asked = {one.partition("(")[0] for one in (*CALLS, *ANSWERS)} | ELSEWHERE
    assert asked == set(re.findall(r"function pgps\.([a-z]\w*)\(", text))
    assert set(VIEWS) == set(re.findall(r"view pgps\.([a-z]\w*)", text))


def test_who_may_call_what(world: World) -> None:
    refusals = {one: {who: world.refusal(one, who) for who in world.sessions} for one in CALLS}
    found = {one: {who for who, error in by.items() if error is None} for one, by in refusals.items()}
    assert found == CALLS
    errors = [error for by in refusals.values() for error in by.values() if error is not None]
    assert {error.sqlstate for error in errors} == {"42501"}
    assert not any("secret" in str(error) for error in errors)


def test_who_is_told_what_became_of_a_request(world: World) -> None:
    for one, (told, truth, silence) in ANSWERS.items():
        for who, session in world.sessions.items():
            answer = value(session, f"select pgps.{one.format(**world.names)}")
            assert answer == (truth if who in told else silence), (one, who)


def test_who_sees_which_view(world: World) -> None:
    for view, (which, seeing) in VIEWS.items():
        query = f"select count(*) > 0 from pgps.{view} where {which.format(**world.names)}"
        assert {who for who, session in world.sessions.items() if value(session, query)} == seeing, view


def test_nobody_reads_the_tables(world: World, admin: psycopg.Connection) -> None:
    query = """
        select c.oid::regclass::text from pg_class c
        where c.relnamespace = 'pgps_internal'::regnamespace and c.relkind in ('r', 'p', 'S')
            and c.relname ~ '^(pgps_)?(spool|network)'
        """
    tables = [table for (table,) in rows(admin, query)]
    assert len(tables) > 20
    for session in world.sessions.values():
        for table in tables:
            with refused("42501"):
                rows(session, f"select 1 from {table}")
