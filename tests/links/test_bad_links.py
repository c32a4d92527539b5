"""Links that cannot work: a clear state, error and remedy for each, and the others go on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgps_worker.health import _metrics
from pgps_worker.links import keeper
from pgps_worker.links.pump import Size
from tests.fix_broker import Rows, call, column, make_type, publish, refused, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect, wait_until
from tests.links.horizon_stage import Scene
from tests.links.rig import Broker, received
from tests.links.serving import served

Brokers = Callable[[int], list[Broker]]
# Another link protocol, as a later release would have.
LATER = """
    create or replace function pgps.link_identity() returns jsonb language sql as
    $$ select pgps._call('link_identity', '{}') || '{"protocol": 2, "version": "9.0"}' $$
"""


@pytest.fixture
def bad(brokers: Brokers, role: Callable[..., str], tmp_path: Path) -> tuple[Broker, Broker, dict[str, str]]:
    """Broker a, a sound one that it may link to, and connection strings that lead nowhere good."""
    a, b, later, twin = brokers(4)
    rows(later.admin, LATER)
    linker = role("linker", "pgps_link")
    stranger = role("stranger")
    # Over TCP: passwords are asked for there.
    tcp = make_conninfo(b.dsn, host="127.0.0.1", port=b.admin.info.port, user=linker, password="")
    twin_name = conninfo_to_dict(twin.dsn)["dbname"]
    return (
        a,
        b,
        {
            "unreachable": "host=127.0.0.1 port=1 dbname=x connect_timeout=2",
            "password": make_conninfo(tcp, password="wrong"),
            "passfile": make_conninfo(tcp, passfile=str(tmp_path / "missing")).replace("password=''", ""),
            "service": "service=nowhere",
            "syntax": "host=h dbname",
            "database": make_conninfo(b.dsn, dbname="nowhere"),
            "bare": make_conninfo(b.dsn, dbname="postgres"),
            "rights": make_conninfo(b.dsn, user=stranger, password="test"),
            "later": later.dsn,
            "itself": a.dsn,
            "first": make_conninfo(twin.dsn),
            "second": make_conninfo(twin.dsn, dbname=str(twin_name), application_name="x"),
        },
    )


EXPECTED = {
    # link: state, in the error, in the hint
    "unreachable": ("waiting", "127.0.0.1", "psql"),
    "password": ("waiting", "password", "pg_hba.conf"),
    "passfile": ("waiting", "password", "passfile="),
    "service": ("waiting", "nowhere", "psql"),
    "syntax": ("blocked", "malformed", "libpq string"),
    "database": ("waiting", "nowhere", "psql"),
    "bare": ("waiting", "pgps", "pgps install"),
    "rights": ("waiting", "permission denied", "grant pgps_link"),
    "later": ("blocked", "protocol 2", "pgps upgrade"),
    "itself": ("blocked", "itself", "pgps.alter_link"),
}


def say_why(found: dict[str, tuple[str, str, str | None]]) -> bool:
    """Whether each link says what is wrong with it; one that could not connect in time says that, and tries again."""
    return all(
        found[name][0] == state and error in (found[name][1] or "") and hint in (found[name][2] or "")
        for name, (state, error, hint) in EXPECTED.items()
    )


def test_each_bad_link_says_what_is_wrong_and_what_to_do_and_the_good_one_carries(
    bad: tuple[Broker, Broker, dict[str, str]],
) -> None:
    a, b, conninfos = bad
    make_type(a.admin, "tick", "n integer, s text default 'kept'")
    make_type(b.admin, "tick", "n integer check (n <> 13), s text")
    call(a.admin, "create_link", "good", b.dsn)
    malformed = conninfos["syntax"]
    with refused("22023", "syntax"):
        call(a.admin, "create_link", "syntax", malformed)
    for name, conninfo in conninfos.items():
        call(a.admin, "create_link", name, b.dsn if name == "syntax" else conninfo)
    # As an earlier release took it.
    rows(a.admin, "update pgps_internal.link set conninfo = %s where name = 'syntax'", [malformed])
    with served(a, b) as (vitals, _):
        query = "select name, state, last_error, hint from pgps.links where name <> 'good'"
        found: dict[str, tuple[str, str, str | None]] = {}

        def all_were_tried() -> bool:
            found.update({name: (state, error, hint) for name, state, error, hint in rows(a.admin, query)})
            return not {state for state, *_ in found.values()} & {"defined", "connecting"} and say_why(found)

        wait_until(all_were_tried, what=f"all were tried, and say why: {EXPECTED}")
        for name, (state, error, hint) in EXPECTED.items():
            assert found[name][0] == state, (name, found[name])
            assert error in found[name][1], (name, found[name])
            assert hint in (found[name][2] or ""), (name, found[name])
        twins = "select state, last_error, hint from pgps.links where name in ('first', 'second') order by 1"
        pair: Rows = []

        def one_is_up() -> bool:
            pair[:] = rows(a.admin, twins)
            return [state for state, *_ in pair] == ["blocked", "up"]

        wait_until(one_is_up, what="one of the two is up")
        assert "leads to broker" in pair[0][1]
        assert "pgps.drop_link" in pair[0][2]

        call(b.admin, "subscribe", "all", "tick", scope="global")
        # That a has the filter is not enough: what it publishes before b hears from when on it is in force is skipped.
        wait_until(lambda: value(b.admin, "select count(*) from pgps_internal.activation") == 1, what="in force")
        publish(a.admin, "tick", 12, 13, 14)
        waiting = "select depth from pgps.subscriptions where name = 'all'"
        wait_until(lambda: value(b.admin, waiting) == 2, what="two arrive")
        assert [n for _, n in received(b, "all")] == [12, 14]
        exceptions = rows(b.admin, "select subscription, state, payload from pgps.exceptions")
        assert exceptions == [("link a", "refused", {"n": 13, "s": "kept"})]
        # The worker counts when the other side has them.
        wait_until(lambda: vitals.link("good").out.events == 3, what="the worker has counted them")
        assert vitals.link("good").out.bytes > 0
        # Looked at every few seconds.
        wait_until(lambda: vitals.link("good").lag_events == 0, what="the worker sees that all has arrived")
        wait_until(lambda: not missing(_metrics(vitals)), what=f"{missing(_metrics(vitals))} in the metrics")
        assert "127.0.0.1" not in _metrics(vitals)

        # Mended, each comes up at once.
        call(a.admin, "drop_link", "second", cascade=True)
        call(a.admin, "alter_link", "itself", conninfo=conninfos["unreachable"])
        said = "select last_error from pgps.links where name = 'itself'"
        wait_until(lambda: "127.0.0.1" in (value(a.admin, said) or ""))


def missing(text: str) -> list[str]:
    """Return which of the lines that links ought to have are not in the metrics."""
    wanted = [
        'pgps_link_up{link="good"} 1',
        'pgps_link_up{link="password"} 0',
        'pgps_link_state{link="later",state="blocked"} 1',
        'pgps_link_last_error{link="later",code="0A000"} 1',
        'pgps_link_events_total{link="good",way="out"} 3',
        'pgps_link_events_total{link="good",way="in"} 0',
        'pgps_link_reconnects_total{link="good"} 0',
        'pgps_link_lag_events{link="good"} 0',
        'pgps_link_gaps{link="good"} 0',
        "# TYPE pgps_link_bytes_total counter",
    ]
    return [line for line in wanted if line not in text]


def test_a_link_that_waits_is_tried_at_once_when_somebody_resumes_it(
    brokers: Brokers, role: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = brokers(2)
    stranger = role("stranger")
    monkeypatch.setattr(keeper, "_FIRST_PAUSE", 600.0)
    call(a.admin, "create_link", "far", make_conninfo(b.dsn, user=stranger, password="test"))
    state = "select state from pgps.links where name = 'far'"
    with served(a, b):
        wait_until(lambda: value(a.admin, state) == "waiting", what="it may not connect")
        rows(b.admin, f"grant pgps_link to {stranger}")
        call(a.admin, "alter_link", "far", enabled=True)
        wait_until(lambda: value(a.admin, state) == "up", what="it is up ten minutes early")


def test_a_connection_string_that_is_none_is_refused_at_once(brokers: Brokers) -> None:
    (a,) = brokers(1)
    for conninfo in ("", "nonsense", "/tmp"):
        with refused("22023", "connection string"):
            call(a.admin, "create_link", "far", conninfo)
    assert rows(a.admin, "select * from pgps.links") == []


def test_both_brokers_define_the_link_and_whoever_is_left_serves_it(brokers: Brokers) -> None:
    a, b = made = brokers(2)
    for broker in made:
        make_type(broker.admin, "tick")
    call(a.admin, "create_link", "to_b", b.dsn)
    call(b.admin, "create_link", "to_a", a.dsn)

    def states() -> set[str]:
        return {state for broker in made for state in column(broker.admin, "select state from pgps.links")}

    def arrive(*numbers: int) -> None:
        for broker in made:
            publish(broker.admin, "tick", *numbers)
            broker.settle()
        waiting = "select depth from pgps.subscriptions where name = 'all'"
        for broker in made:
            wait_until(lambda of=broker: of.settle() or value(of.admin, waiting) == 2 * len(numbers))  # type: ignore[misc]
            assert sorted(received(broker, "all")) == [(name, n) for name in "ab" for n in numbers]

    with served(a, b):
        wait_until(lambda: states() == {"up"}, what="up")
        for broker in made:
            call(broker.admin, "subscribe", "all", "tick", scope="global")
        known = "select count(*) from pgps_internal.activation"
        wait_until(lambda: [value(one.admin, known) for one in made] == [1, 1], what="both are asked")
        arrive(1, 2)
        held = "select count(*) from pgps_internal.link_session"
        wait_until(lambda: [value(one.admin, held) for one in made] == [2, 2], what="one of them serves it")
    for survivor in made:
        with served(survivor):
            wait_until(lambda: states() == {"up"}, what=f"{survivor.name} serves it alone")
            arrive(3, 4)


def test_batches_grow_while_they_are_quick_and_shrink_when_they_are_slow() -> None:
    size = Size()
    size.note(10, 0.01)
    assert size.events == 1000, "a batch that was not full says nothing"
    for _ in range(20):
        size.note(size.events, 0.1)
    assert size.events == size.most
    size.note(size.events, 0.5)
    assert size.events == size.most, "as long as somebody would wait"
    for _ in range(20):
        size.note(size.events, 2.0)
    assert size.events == size.least


def test_a_neighbour_that_does_not_answer_what_it_has_of_an_origin_is_shown(brokers: Brokers) -> None:
    (here,) = brokers(1)
    with ExitStack() as stack:
        s = Scene(here, stack)
        s.ready()
        clock = Clock(here.admin)

        def shown() -> list[tuple[str, str]]:
            """The link to c, two minutes later."""
            clock.advance("2 minutes")
            return rows(here.admin, "select state, last_error from pgps.links where neighbour = 'c'")

        assert shown() == [("up", "")]
        two = s.turn_to_c()
        assert rows(here.admin, "select state from pgps.links where neighbour = 'c'") == [("up",)]
        assert shown() == [("incomplete", 'it has not answered for a minute what it has of broker "x"')]
        s.c.say(s.c.data(s.x, two, 4, 4))
        assert shown() == [("up", "")]


def test_two_sessions_that_make_subscriptions_skip_events_of_several_types_do_not_wait_for_each_other(
    brokers: Brokers, connect: Connect
) -> None:
    (here,) = brokers(1)
    with ExitStack() as stack:
        s = Scene(here, stack)
        make_type(here.admin, "tock")
        for kind in ("tick", "tock"):
            call(here.admin, "subscribe", f"{kind}s", kind, scope="global")
        s.b.say(s.b.ad(s.x, types=("tick", "tock")))
        s.seen()  # or the dispatcher judges, and not they
        one, two = connect(autocommit=False, dsn=here.dsn), connect(autocommit=False, dsn=here.dsn)

        def skip(session: Connection, kind: str) -> None:
            """Let them skip events 7 and 8, as a session does that receives an item before their filter is in force."""
            rows(
                session,
                "select pgps_internal.skip_early(o.origin_id, 3, '{[7,9)}', array[t.type_id])"
                " from pgps_internal.origin o, pgps_internal.event_type t where o.name = 'x' and t.name = %s",
                [kind],
            )

        def both(session: Connection, *kinds: str) -> None:
            for kind in kinds:
                skip(session, kind)
            session.commit()

        rows(two, "set lock_timeout = '20s'")
        skip(one, "tick")
        both(two, "tock", "tick")
        both(one, "tock")
        publish(here.admin, "tick", 1)
        here.settle()
        skipped = "select count(*) from pgps_internal.member where skip = '{[7,9)}'"
        assert value(here.admin, skipped) == 2
