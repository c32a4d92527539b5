"""What is rolled back moves nothing: a spool with which it was tried ends as its twin, with which it was not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, rows, value
from tests.fix_db import Connect
from tests.fix_spools import Member, Spool

Name = Callable[..., str]

CALLS = {
    "spool": """spool('{spool}', 7, '"tried"', keys => '{{"K": 1}}', keywords => '{{tried}}')""",
    "spool for another": """spool('{spool}', 7, '"tried"', sender => 'pgps_worker')""",
    "spool for a network": """spool('{spool}', 7, '"tried"', network => '{network}')""",
    "spool_many": """spool_many('{spool}', '[{{"entry": 7, "message": 1}}, {{"entry": 7, "message": 2}}]')""",
    "spool_and_discard": """spool_and_discard('{spool}', 7, '"tried"', discard => '{{"keys": {{"K": [1, 1]}}}}')""",
    "prepend_and_discard": """prepend_and_discard('{spool}', 7, '"tried"')""",
    "spool_discard": "spool_discard('{spool}')",
    "spool_discard by a pattern": """spool_discard('{spool}', keys => '{{"K": [1, 1]}}')""",
    "spool_replay": "spool_replay('{spool}')",
    "spool_set_replay_pointer": "spool_set_replay_pointer('{spool}', 5)",
    "spool_set_checkpoint_pointer": "spool_set_checkpoint_pointer('{spool}', 2)",
    "spool_play_through": "spool_play_through('{spool}', false)",
    "spool_cancel": "spool_cancel({request})",
    "spool_cancel of what waits": "spool_cancel({waiting})",
    "spool_advise": "spool_advise('{spool}', max_messages => 2, on_limit => 'drop_oldest')",
    "grant_spool": "grant_spool('{spool}', 'replay', 'pgps_worker')",
    "revoke_spool": "revoke_spool('{spool}', 'spool', 'pgps_worker')",
    "drop_spool": "drop_spool('{spool}')",
    "create_spool": "create_spool('{made}')",
    "join_group": "join_group('{spool}', '{idle}')",
    "join_group with a replay": "join_group('{spool}', '{member}', replay => true)",
    "leave_group": "leave_group('{spool}', '{member}')",
    "group_ready": "group_ready('{spool}', '{hesitant}')",
    "receive_spooled": "receive_spooled('{spool}', '{idler}')",
    "ack_spooled": "ack_spooled('{spool}', '{member}', null)",
    "create_network": "create_network('{made}', '{{host=127.0.0.1 port=1 dbname=none}}')",
    "alter_network": "alter_network('{network}', '{{host=127.0.0.1 port=2 dbname=none}}')",
    "drop_network": "drop_network('{network}', cascade => true)",
    "set_network_role": "set_network_role('{broker}', 'pgps_worker')",
}
"""A call of each function, where it does something."""
READING = {"spool_getseqn", "spool_inquire", "spool_wait"}
STANDING = (
    "first_seqn, last_seqn, replay_pointer, checkpoint_pointer, replayable, new, discarded, members, operational, "
    "play_through, max_messages, on_limit"
)
WORKERS = {"serve_networks", "network_open", "network_next", "network_reached", "network_take", "note_contact"}


@dataclass
class World:
    """A spool with messages, pointers, requests that wait, members in different states, and a network."""

    spool: Spool
    connection: psycopg.Connection
    members: dict[str, Member]
    names: dict[str, Any]

    def try_out(self, what: str) -> None:
        rows(self.connection, f"select pgps.{CALLS[what].format(**self.names)}")

    def spool_one(self, message: str) -> None:
        call(self.connection, "spool", self.spool.name, 1, f'"{message}"')

    def picture(self) -> dict[str, Any]:
        """Dispatch, and return all that can be seen, and what each member gets; ids and names aside."""
        name, network = self.names["spool"], self.names["network"]
        admin = self.spool.connection
        self.spool.dispatch()
        seen = {
            view: sorted(rows(admin, f"select {columns} from {view} where {key} = %s", [of]), key=repr)
            for view, key, of, columns in (
                ("pgps.spools", "name", name, STANDING),
                ("pgps.spooled_messages", "spool", name, "seqn, entry, message, keys, keywords, sender, replayed"),
                ("pgps.spool_gaps", "spool", name, "first_seqn, last_seqn, messages, reason"),
                (
                    "pgps.group_members",
                    "group_name",
                    name,
                    "split_part(member, '_', 1), present, ready, phase, acked_seqn",
                ),
                ("pgps.networks", "name", network, "contacts, state, waiting"),
                ("pgps.network_origins", "name", network, "role"),
                ("pgps_internal.spool", "name", name, "spoolers, replayers"),
            )
        }
        for view in ("pgps.spools", "pgps.networks"):
            seen[f"made in {view}"] = rows(admin, f"select true from {view} where name = %s", [self.names["made"]])
        for request in ("request", "waiting"):
            query = "select pgps.spool_inquire(%s), pgps.spool_getseqn(%s)"
            seen[request] = rows(admin, query, [self.names[request]] * 2)
        for what, member in self.members.items():
            seen[f"what {what} gets"] = self.got(member)
        return seen

    def got(self, member: Member) -> Any:
        try:
            given = member.received(3)
            return [given, member.ack(), member.received()]
        except psycopg.Error as error:
            return error.sqlstate


@pytest.fixture
def make_world(admin: psycopg.Connection, connect: Connect, name: Name) -> Iterator[Callable[[], World]]:
    """Make worlds that are equal but for names and ids."""
    made: list[World] = []

    def world() -> World:
        names: dict[str, Any] = {
            what: name(what) for what in ("spool", "network", "made", "idle", "member", "hesitant", "idler")
        }
        call(admin, "create_spool", names["spool"])
        call(admin, "grant_spool", names["spool"], "spool", "pgps_worker")
        call(admin, "create_network", names["network"], ["host=127.0.0.1 port=1 dbname=nowhere"])
        query = """
            insert into pgps_internal.network_origin (broker_id, network_id, network, epoch, name)
            values (gen_random_uuid(), 1, 'here', 1, %s) returning broker_id
            """
        names["broker"] = value(admin, query, [names["network"]])
        spool, connection = Spool(admin, names["spool"]), connect()
        for n in range(1, 5):
            call(admin, "spool", spool.name, 1, str(n), keys=f'{{"K": {n % 2}}}')
        spool.dispatch()
        spool.pointer(3)
        members = {what: Member(connection, spool, names[what], join=False) for what in ("member", "hesitant", "idler")}
        Member(connection, spool, names["idle"], join=False)
        members["member"].join(replay=True)
        members["hesitant"].join(ready=False)
        members["idler"].join()
        assert len(members["member"].received()) == 5
        (names["request"],) = spool.spool(5)
        names["waiting"] = call(admin, "spool", spool.name, 1, "6")
        made.append(World(spool, connection, members, names))
        return made[-1]

    yield world
    for one in made:
        rows(admin, "delete from pgps_internal.spool where name = any(%s)", [[one.names["spool"], one.names["made"]]])
        rows(
            admin,
            "delete from pgps_internal.spool where network_id in (select network_id from pgps_internal.network "
            "where name = any(%s))",
            [[one.names["network"], one.names["made"]]],
        )
        rows(
            admin, "delete from pgps_internal.network where name = any(%s)", [[one.names["network"], one.names["made"]]]
        )
        rows(admin, "delete from pgps_internal.network_origin where name = %s", [one.names["network"]])
        clients = [one.names[what] for what in ("idle", "member", "hesitant", "idler")]
        rows(admin, "delete from pgps_internal.client where name = any(%s)", [clients])


def test_all_functions_are_tried() -> None:
    room = Path(__file__).parents[3] / "sql" / "code" / "spools"
    text = "".join(path.read_text() for path in sorted(room.glob("*.sql")))
    public = set(re.findall(r"function pgps\.([a-z]\w*)\(", text)) - READING - WORKERS
    assert {what.split()[0] for what in CALLS} == public


@pytest.mark.parametrize("what", CALLS)
def test_what_is_rolled_back_moves_nothing(make_world: Callable[[], World], what: str) -> None:
    tried, twin = make_world(), make_world()
    with tried.connection.transaction(force_rollback=True):
        tried.spool_one("gone")
        tried.try_out(what)
    for world in (tried, twin):
        with world.connection.transaction():
            world.spool_one("before")
            with world.connection.transaction(force_rollback=True):
                if world is tried:
                    world.try_out(what)
            world.spool_one("after")
    assert tried.picture() == twin.picture()


@pytest.mark.parametrize("what", CALLS)
def test_what_is_committed_can_be_seen(make_world: Callable[[], World], what: str) -> None:
    """Show of each of these calls that it does something: otherwise nothing would follow from the test above."""
    tried, twin = make_world(), make_world()
    tried.try_out(what)
    if what == "receive_spooled":
        # It hands out, and its member alone knows how far.
        assert tried.members["idler"].ack() > 0 == twin.members["idler"].ack()
    else:
        assert tried.picture() != twin.picture()


def test_what_only_reads_changes_nothing(make_world: Callable[[], World]) -> None:
    tried, twin = make_world(), make_world()
    for function in sorted(READING):
        call(tried.connection, function, tried.names["request"])
    assert tried.picture() == twin.picture()
