"""Spools: one message, many, a replay by key, and three members, beside what they are made of.

Figures are processor time of the server process that does the work, since others use the machine. One message is
spooled, in a transaction of its own, in turn with an INSERT into an endpoint of the same attributes; 10,000 in one call
in turn with an `INSERT … SELECT` from the same JSON. Of 1,000,000 messages one value of a numeric key selects 1 %:
it is replayed, received and acknowledged, in one call and in portions, in turn with a `SELECT` from a plain table with
an index on that number.
Three members receive and acknowledge messages, a thousand at a time, in turn with three subscriptions.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, LiteralString

from bench.figures import Figure, Target, compare
from bench.house import alternate, opened

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from bench.house import House

TITLE = "spools"
_SPOOL: LiteralString = """select pgps.spool('work', 1, '{"name": "Richard Nixon"}', keys => '{"SP_ID": 17}')"""
_INSERT: LiteralString = """
    insert into pgps_event.work (entry, message, keys) values (1, '{"name": "Richard Nixon"}', '{"SP_ID": 17}')
"""
_MESSAGES: LiteralString = """
    select jsonb_agg(jsonb_build_object('entry', 1, 'message', jsonb_build_object('name', 'n' || n),
        'keys', jsonb_build_object('K', n %% 100)))::text from generate_series(1, %s) n
"""
_FROM_JSON: LiteralString = """
    insert into pgps_event.work (entry, message, keys)
    select (e ->> 'entry')::integer, e -> 'message', e -> 'keys' from jsonb_array_elements(%s::jsonb) e
"""
_RECEIVE: LiteralString = "select seqn, message, keys, id from pgps.receive_spooled('work', %s, %s)"


def run(house: House) -> list[Figure]:
    """Measure it."""
    with house.database() as dsn, opened(dsn) as connection:
        connection.prepare_threshold = 0
        connection.execute("select pgps.create_spool('work')")
        connection.execute("select pgps.create_event_type('work', 'entry integer, message jsonb, keys jsonb')")
        connection.execute("select pgps.advertise('work')")
        return [*_publish(house, connection), _members(house, connection), *_replay(house, connection)]


def _publish(house: House, connection: psycopg.Connection) -> list[Figure]:
    calls = house.scale(2000, 500)
    mine, theirs, many, inserted = [], [], [], []

    def times(query: LiteralString) -> Callable[[], None]:
        def work() -> None:
            for _ in range(calls):
                connection.execute(query)

        return work

    def one(query: LiteralString) -> float:
        connection.execute(query)
        return calls / _used(connection, times(query))

    def all_at_once(query: LiteralString) -> float:
        return 10_000 / _used(connection, lambda: connection.execute(query, [text]))

    text = _messages(connection, 10_000)
    for number in house.pairs():
        first, second = alternate(number, lambda: one(_SPOOL), lambda: one(_INSERT))
        mine.append(first)
        theirs.append(second)
        first, second = alternate(
            number, lambda: all_at_once("select pgps.spool_many('work', %s::jsonb)"), lambda: all_at_once(_FROM_JSON)
        )
        many.append(first)
        inserted.append(second)
        connection.execute("select pgps.dispatch()")
    note = "against INSERT into an endpoint; messages a second of processor time"
    return [
        compare(f"{TITLE}: one message", mine, theirs, unit="/s", target=Target("at least", 0.9), note=note),
        compare(f"{TITLE}: 10,000 in one call", many, inserted, unit="/s", note=note),
    ]


def _members(house: House, connection: psycopg.Connection) -> Figure:
    messages = house.scale(20_000, 5000)
    mine, theirs = [], []
    for name in ("m1", "m2", "m3"):
        connection.execute("select pgps.connect_client(%s)", [name])
        connection.execute("select pgps.join_group('work', %s)", [name])
        connection.execute("select pgps.subscribe(%s, 'work')", [name])

    def received() -> None:
        for name in ("m1", "m2", "m3"):
            while connection.execute(_RECEIVE, [name, 1000]).fetchall():
                connection.execute("select pgps.ack_spooled('work', %s, null)", [name])

    def subscribed() -> None:
        for name in ("m1", "m2", "m3"):
            while connection.execute("select * from pgps_queue.work_receive(array[%s], 1000)", [name]).fetchall():
                connection.execute("select pgps.ack(%s)", [name])

    text = _messages(connection, messages)
    for number in house.pairs():
        connection.execute("select pgps.spool_many('work', %s::jsonb)", [text])
        connection.execute(_FROM_JSON, [text])
        connection.execute("select pgps.dispatch()")
        first, second = alternate(number, lambda: _used(connection, received), lambda: _used(connection, subscribed))
        mine.append(3 * messages / first)
        theirs.append(3 * messages / second)
    note = "against three subscriptions; deliveries a second of processor time"
    return compare(f"{TITLE}: three members", mine, theirs, unit="/s", target=Target("at least", 0.9), note=note)


def _replay(house: House, connection: psycopg.Connection) -> list[Figure]:
    part, parts = 20_000, house.scale(50, 5)
    connection.execute("create table plain (seqn bigint, message jsonb, keys jsonb, k integer)")
    connection.execute("select pgps.create_spool('big')")
    text = _messages(connection, part)
    for _ in range(parts):
        connection.execute("select pgps.spool_many('big', %s::jsonb)", [text])
        connection.execute("select pgps.dispatch()")
    connection.execute(
        "insert into plain select seqn, message, keys, (keys ->> 'K')::integer from pgps.spooled_messages"
        " where spool = 'big'"
    )
    connection.execute("create index on plain (k, seqn)")
    connection.execute("vacuum analyze")
    connection.execute("select pgps.spool_set_replay_pointer('big', %s)", [part * parts])
    connection.execute("select pgps.dispatch()")
    connection.execute("select pgps.join_group('big', 'm1')")
    wanted = part * parts // 100

    def replayed(portion: int) -> None:
        connection.execute("""select pgps.spool_replay('big', keys => '{"K": [7, 7]}')""")
        query: LiteralString = "select seqn, message, keys, id from pgps.receive_spooled('big', 'm1', %s)"
        received = 0
        while found := connection.execute(query, [portion]).fetchall():
            received += len(found)
            connection.execute("select pgps.ack_spooled('big', 'm1', null)")
        assert received == wanted + 1, received

    def selected() -> None:
        found = connection.execute("select seqn, message, keys, k from plain where k = 7 order by seqn").fetchall()
        assert len(found) == wanted

    note = "with receiving and acknowledging, against SELECT from an indexed table; messages a second of processor time"

    def portions(portion: int, target: Target | None) -> Figure:
        mine, theirs = [], []
        for number in house.pairs():
            first, second = alternate(
                number,
                lambda: _used(connection, lambda: replayed(portion)),
                lambda: _used(connection, selected),
            )
            mine.append(wanted / first)
            theirs.append(wanted / second)
        title = f"{TITLE}: replay of 1 % of {part * parts:,}, {portion:,} a call"
        return compare(title, mine, theirs, unit="/s", target=target, note=note)

    return [portions(wanted + 1, Target("at least", 0.5)), portions(1000, None), portions(100, None)]


def _used(connection: psycopg.Connection, work: Callable[[], object]) -> float:
    """Return the seconds of processor time that the server process of a connection needs for some work."""
    before = _spent(connection)
    work()
    return _spent(connection) - before


def _spent(connection: psycopg.Connection) -> float:
    return int(Path(f"/proc/{connection.info.backend_pid}/schedstat").read_text().split()[0]) / 1e9


def _messages(connection: psycopg.Connection, count: int) -> str:
    """Return so many messages, as the argument of pgps.spool_many."""
    row = connection.execute(_MESSAGES, [count]).fetchone()
    assert row is not None
    return str(row[0])


def steps(house: House) -> int:
    """Return how many times the progress advances."""
    return 5 * house.runs
