"""Composite events in the broker: `a ; b` keyed by symbol, in the contexts that use up what they pair, and recent.

Events come in statements of 1,000, a and b in turn, and are dispatched 10,000 at a time. Compared is processor time of
the backend. Detecting is compared with delivering the same events to two internal subscriptions that take a batch;
publishing, dispatching and detecting, with a hand-written table, a row of state for each key and a window query that
pairs each b with the latest a before it, which is what the recent context does; 100,000 keys, with 1,000 for as many
events; 1,000 definitions that ask for one symbol each, with 10; 10,000 open windows, with 100. Occurrences are counted
on both sides.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.figures import Figure, Target
from bench.house import alternate, opened

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from bench.house import House

SYMBOLS = 1000
CONTEXTS = ("recent", "chronicle", "continuous", "cumulative")
STATEMENT = 1000
BATCH = 10_000
HANDWRITTEN = """
    create table quote (id bigint generated always as identity, kind text, symbol text, n integer);
    create index on quote (id);
    create table latest (symbol text primary key, n integer, id bigint);
    create table pair (symbol text, a integer, b integer);
    create table reached (id bigint);
    insert into reached values (0);
    create function detect() returns void language plpgsql as $$
    declare v_from bigint; v_upto bigint;
    begin
        select id into v_from from reached for update;
        select max(id) into v_upto from quote;
        with fresh as materialized (
            select q.*, max(q.id) filter (where q.kind = 'a') over w as id_of_a from quote q
            where q.id > v_from and q.id <= v_upto window w as (partition by q.symbol order by q.id)
        )
        insert into pair select f.symbol, coalesce(a.n, l.n), f.n
        from fresh f left join quote a on a.id = f.id_of_a left join latest l on l.symbol = f.symbol
        where f.kind = 'b' and coalesce(a.n, l.n) is not null;
        insert into latest select distinct on (q.symbol) q.symbol, q.n, q.id from quote q
        where q.id > v_from and q.id <= v_upto and q.kind = 'a' order by q.symbol, q.id desc
        on conflict (symbol) do update set n = excluded.n, id = excluded.id;
        update reached set id = v_upto;
    end $$;
"""


def run(house: House) -> list[Figure]:
    """Measure it."""
    events = house.scale(100_000, 20_000)
    most = house.scale(1000, 100)
    found: dict[str, list[float]] = {name: [] for name in (*CONTEXTS, "handwritten", "keys", "definitions", "windows")}
    for number in house.pairs():
        for context in CONTEXTS:
            mine, theirs = alternate(
                number,
                lambda context=context: detecting(house, events, context=context),  # type: ignore[misc]
                lambda: delivering(house, events),
            )
            found[context].append(mine / theirs)
        mine, theirs = alternate(
            number, lambda: detecting(house, events, whole=True), lambda: handwritten(house, events)
        )
        found["handwritten"].append(theirs / mine)
        many, few = alternate(
            number, lambda: detecting(house, events, symbols=100_000), lambda: detecting(house, events)
        )
        found["keys"].append(many / few)
        many, few = alternate(number, lambda: definitions(house, most, events), lambda: definitions(house, 10, events))
        found["definitions"].append(many / few)
        many, few = alternate(number, lambda: windows(house, 10_000), lambda: windows(house, 100))
        found["windows"].append(many / few)
    what = f"`a ; b` over {events:,} events"
    return [
        *(
            Figure(f"{what}, {name}, against two internal batch subscriptions", found[name], Target("at most", 2, "x"))
            for name in CONTEXTS
        ),
        Figure(f"{what} end to end: hand-written SQL over pgps", found["handwritten"], Target("at least", 1, "x")),
        Figure(f"{what}: 100,000 keys against 1,000", found["keys"], Target("at most", 1.2, "x")),
        Figure(
            f"{most:,} composite events over one stream against 10", found["definitions"], Target("at most", 3, "x")
        ),
        Figure("absence: 10,000 open windows against 100", found["windows"], Target("at most", 2, "x")),
    ]


def spent(connection: psycopg.Connection, step: Callable[[], object]) -> float:
    """Return the seconds of processor time that a step takes in the backend."""
    path = Path(f"/proc/{connection.info.backend_pid}/stat")

    def clock() -> float:
        fields = path.read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    before = clock()
    step()
    return clock() - before


def publish(connection: psycopg.Connection, into: Callable[[str], str], first: int, count: int, symbols: int) -> None:
    """Publish events of both types in turn; each symbol has an a before its b."""
    for at in range(first, first + count, STATEMENT):
        rows(
            connection,
            f"{into('ab'[at // STATEMENT % 2])} 's' || (g + %s) %% %s, g from generate_series(1, %s) g",
            [at // (2 * STATEMENT) * STATEMENT, symbols, STATEMENT],
        )


def rows(connection: psycopg.Connection, statement: str, given: list[Any] | None = None) -> list[Any]:
    """Run a statement; return its rows."""
    cursor = connection.execute(statement.encode(), given)
    return cursor.fetchall() if cursor.description else []


def value(connection: psycopg.Connection, query: str) -> Any:
    """Return the one value of a query."""
    return rows(connection, query)[0][0]


def call(connection: psycopg.Connection, function: str, *given: Any, **named: Any) -> None:
    """Call a function of pgps."""
    places = ["%s"] * len(given) + [f"{name} => %s" for name in named]
    rows(connection, f"select pgps.{function}({', '.join(places)})", [*given, *named.values()])


def endpoint_of(kind: str) -> str:
    return f"insert into pgps_event.{kind} (symbol, n) select"


def stream(connection: psycopg.Connection, events: int, symbols: int, step: str, *, whole: bool) -> float:
    """Publish and run a step for each batch; return the time of the step, with whole that of publishing, too."""
    total = 0.0
    for at in range(0, events, BATCH):
        published = spent(connection, lambda at=at: publish(connection, endpoint_of, at, BATCH, symbols))  # type: ignore[misc]
        total += published if whole else 0.0
        for statement in step.split(";"):
            total += spent(connection, lambda statement=statement: rows(connection, statement))  # type: ignore[misc]
    return total


def prepare(connection: psycopg.Connection) -> None:
    for kind in "ab":
        call(connection, "create_event_type", kind, "symbol text not null, n integer")
        call(connection, "advertise", kind)


def detecting(
    house: House, events: int, symbols: int = SYMBOLS, *, whole: bool = False, context: str = "recent"
) -> float:
    """Return what dispatching and detecting takes."""
    house.say(f"composite: {symbols:,} keys")
    with house.database() as dsn, opened(dsn) as connection:
        prepare(connection)
        limit = None if context == "recent" else 10
        options = {"partition_by": "symbol", "context": context, "max_open": limit}
        call(connection, "create_composite_event", "pair", "a ; b", **options)
        took = stream(connection, events, symbols, "select pgps.dispatch()", whole=whole)
        found = value(connection, "select detected from pgps.composite_events")
        assert found == events // 2, f"{found} of {events // 2}"
        return took


def delivering(house: House, events: int) -> float:
    """Return what dispatching, and handing out to batch callbacks, takes."""
    house.say("composite: batch subscriptions")
    with house.database() as dsn, opened(dsn) as connection:
        prepare(connection)
        rows(connection, "create table seen (n bigint)")
        for kind in "ab":
            rows(
                connection,
                f"create function see_{kind}(events pgps_event.{kind}[]) returns void language sql as "
                "$$ insert into seen select count(*) from unnest(events) $$",
            )
            call(connection, "subscribe", f"see_{kind}", kind, execute=f"see_{kind}")
        took = stream(connection, events, SYMBOLS, "select pgps.dispatch(); call pgps.run_subscribers()", whole=False)
        assert value(connection, "select sum(n) from seen") == events
        return took


def handwritten(house: House, events: int) -> float:
    """Return what the same takes in SQL that somebody has written for it."""
    house.say("composite: by hand")
    with house.database() as dsn, opened(dsn) as connection:
        rows(connection, HANDWRITTEN)

        def into(kind: str) -> str:
            return f"insert into quote (kind, symbol, n) select '{kind}',"

        took = 0.0
        for at in range(0, events, BATCH):
            took += spent(connection, lambda at=at: publish(connection, into, at, BATCH, SYMBOLS))  # type: ignore[misc]
            took += spent(connection, lambda: rows(connection, "select detect()"))
        assert value(connection, "select count(*) from pair") == events // 2
        return took


def definitions(house: House, count: int, events: int) -> float:
    """Return what many definitions take that ask for a symbol each."""
    house.say(f"composite: {count:,} definitions")
    with house.database() as dsn, opened(dsn) as connection:
        prepare(connection)
        for number in range(count):
            symbol = f"s{number}"
            call(
                connection, "create_composite_event", f"e{number}", f"a (symbol = '{symbol}') ; b (symbol = '{symbol}')"
            )
        took = stream(connection, events, count, "select pgps.dispatch()", whole=False)
        assert value(connection, "select sum(detected) from pgps.composite_events") == events // 2
        return took


def windows(house: House, count: int) -> float:
    """Return what 2,000 events take while windows are open."""
    house.say(f"composite: {count:,} windows")
    with house.database() as dsn, opened(dsn) as connection:
        prepare(connection)
        call(
            connection,
            "create_composite_event",
            "missing",
            "not(b)[a, + '1 day']",
            context="chronicle",
            max_open=20_000,
        )
        rows(connection, "insert into pgps_event.a select 's', g from generate_series(1, %s) g", [count])
        rows(connection, "select pgps.dispatch()")
        took = 0.0
        for _ in range(20):
            rows(connection, "insert into pgps_event.a select 's', g from generate_series(1, 100) g")
            took += spent(connection, lambda: rows(connection, "select pgps.dispatch()"))
        return took
