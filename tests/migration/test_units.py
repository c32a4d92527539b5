"""Upgrades of a broker in which units of work are under way, from the revisions that know them.

No release has them yet. So today's code makes what is carried, and its rows are put into the tables of an earlier
revision, as that one had them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.config import Config

from pgps import _resources, install
from tests.fix_broker import column, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect
from tests.fix_units import Party, make_service

pytestmark = pytest.mark.timeout(300)

SERVICE = "shop/orders/book"
# The first one, the ones before each that changes their tables, and the last of them.
REVISIONS = ("0020", "0025", "0026", "0029", "0030")
_TABLES = (
    "service", "participant", "broker_life", "broker_life_mark", "participant_session", "participant_session_end",
    "serving", "conversation", "conversation_state", "unit", "unit_commit", "unit_state", "unit_message", "unit_note",
    "session_hand", "queue_low", "unit_count",
)  # fmt: skip
# Where the first message of a unit has no place in its row, it is in the ledger of messages, like those after it.
_FIRST_MESSAGES = """
    insert into pgps_internal.unit_message (at_no, unit_no, number, message)
    select u.at_no, u.unit_no, 1, u.message from pgps_internal.unit u where u.message is not null
"""


@dataclass
class Kept:
    """What is under way: the status of each unit, and those that their parties go on with."""

    statuses: dict[str, str]
    bound: str
    held: str
    unfinished: str


def _use(client: Party, server: Party, clock: Clock) -> Kept:
    """Begin all that is carried, two hours ago; one unit is over since."""
    options: dict[str, Any] = {"store": "broker", "status_lifetime": 254}
    bound = client.request(SERVICE, "first", **options)
    assert server.text("new") == "first"
    server.send("answer", bound["conversation"], store="broker")
    server.both(bound["conversation"])
    cancelled = client.request(SERVICE, "never", **options)
    client.sync("cancel", cancelled["uow_id"])
    given_up = client.send("half", to_service=SERVICE, **options)
    client.sync("backout", given_up["uow_id"])
    held = client.request(SERVICE, "one", "two", **options)
    assert server.text("new", user_status="begun") == "one"
    late = client.request(SERVICE, "late", lifetime="1 hour", store="broker", status_lifetime=254)
    second = client.send("second", bound["conversation"], option="commit", **options)
    waiting = [client.request(SERVICE, text, **options) for text in ("third", "fourth")]
    unfinished = client.send("unfinished", bound["conversation"], **options)
    statuses = {
        bound["uow_id"]: "PROCESSED", cancelled["uow_id"]: "CANCELLED", given_up["uow_id"]: "BACKEDOUT",
        held["uow_id"]: "DELIVERED", second["uow_id"]: "ACCEPTED", unfinished["uow_id"]: "RECEIVED",
        **{one["uow_id"]: "ACCEPTED" for one in waiting},
    }  # fmt: skip
    clock.advance("2 hours")
    assert client.status(late["uow_id"]) == "TIMEOUT"
    return Kept(statuses, bound["conversation"], held["uow_id"], unfinished["uow_id"])


def _install_revision(dsn: str, revision: str) -> None:
    configuration = Config()
    configuration.set_main_option("script_location", str(_resources.migrations_dir()))
    with install.engine(dsn).begin() as connection:
        configuration.attributes.update(connection=connection)
        command.upgrade(configuration, revision)


def _columns(connection: psycopg.Connection, table: str) -> list[str]:
    query = """
        select quote_ident(attname) from pg_attribute
        where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum
    """
    return column(connection, query, [f"pgps_internal.{table}"])


def _carry(source: psycopg.Connection, target: psycopg.Connection) -> None:
    """Put all about units of work into the tables of an earlier revision."""
    if "message" not in _columns(target, "unit"):
        rows(source, _FIRST_MESSAGES)
    for table in _TABLES:
        common = ", ".join(name for name in _columns(source, table) if name in _columns(target, table))
        with source.cursor().copy(f"copy (select {common} from pgps_internal.{table}) to stdout".encode()) as given:
            carried = list(given)
        with target.cursor().copy(f"copy pgps_internal.{table} ({common}) from stdin".encode()) as taken:
            for row in carried:
                taken.write(row)
    for (service_id,) in rows(target, "select service_id from pgps_internal.service"):
        for what in ("begun", "ended"):
            rows(target, f"create sequence pgps_internal.units_{what}_{service_id} as bigint minvalue 0 start 0")
    for name in ("uow_no_seq", "participant_session_seq", "service_service_id_seq", "participant_participant_id_seq"):
        last = value(source, f"select last_value from pgps_internal.{name}")
        rows(target, "select setval(%s::regclass, %s)", [f"pgps_internal.{name}", last])


def _go_on(party: Party, connection: psycopg.Connection) -> Party:
    """Have a connection speak for the session of a party, as if that had been this one."""
    session = value(party.connection, "select pgps._my_session()")
    query = """
        update pgps_internal.participant_session s set pid = a.pid, backend_start = a.backend_start
        from pg_stat_get_activity(pg_backend_pid()) a where s.session_id = %s
    """
    rows(connection, query, [session])
    rows(connection, "select setval('pgps_internal.participant_mark_seq', %s)", [session])
    return Party(connection, party.token, logon=False)


@pytest.mark.parametrize("revision", REVISIONS)
def test_units_of_work_are_carried_through_an_upgrade(
    revision: str, own_database: str, empty_database: str, connect: Connect, clock: Clock
) -> None:
    source = connect(dsn=own_database)
    clock.advance("-2 hours")
    make_service(source, SERVICE, deferred=True)
    client = Party(connect(dsn=own_database), "client")
    server = Party(connect(dsn=own_database), "server").serve(SERVICE)
    kept = _use(client, server, clock)
    _install_revision(empty_database, revision)
    target = connect(dsn=empty_database)
    assert value(target, "select value from pgps_internal.installation where key = 'schema_revision'") == revision
    _carry(source, target)
    client, server = (_go_on(party, connect(dsn=empty_database)) for party in (client, server))

    assert install.upgrade(empty_database).up_to_date

    assert {uow_id: client.status(uow_id) for uow_id in kept.statuses} == kept.statuses
    stands: dict[str, str] = dict(rows(target, "select uow_id, status from pgps.units_of_work"))
    assert {uow_id: stands[uow_id] for uow_id in kept.statuses} == kept.statuses
    assert "TIMEOUT" in stands.values()
    assert server.sync("query", kept.held)["user_status"] == "begun"
    # Both sessions go on where they were: with the unit that the one holds, and the one that the other sends.
    assert server.text("any") == "two"
    assert server.sync("commit")["status"] == "PROCESSED"
    client.send("finished", kept.bound)
    assert client.sync("commit", kept.unfinished)["status"] == "ACCEPTED"
    assert client.text(kept.bound) == "answer"
    client.sync("commit")
    _receive_the_rest(connect(dsn=empty_database), server, kept)
    assert client.status(kept.unfinished) == "PROCESSED"


def _receive_the_rest(connection: psycopg.Connection, server: Party, kept: Kept) -> None:
    """Another session of the server's token receives what is its own, and what is new, in the order of SYNCPOINT."""
    server.call("logoff")
    again = Party(connection, server.token).serve(SERVICE)
    for which, messages in (("old", ["second"]), ("old", ["unfinished", "finished"])):
        row = again.receive(which)
        assert row is not None
        assert (row["conversation"], bytes(row["message"]).decode()) == (kept.bound, messages[0])
        assert [again.text(kept.bound) for _ in messages[1:]] == messages[1:]
        assert again.sync("commit")["status"] == "PROCESSED"
    for text in ("third", "fourth"):
        assert again.text("new") == text
        assert again.sync("commit")["status"] == "PROCESSED"
    assert (again.receive("new"), again.receive("old")) == (None, None)
