"""The pytest plugin for users: its fixtures in tests of theirs, and what is said of it in docs/how-to/testing.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from pgps.embedded import list_clusters
from pgps.errors import BadArgument, UnknownName
from pgps.testing import Broker
from tests.acceptance.documents import ROOT, blocks_of
from tests.fix_db import wait_until
from tests.fix_server import Server

DOCUMENT = "docs/how-to/testing.md"
Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, server: Server) -> Run:
    """Run tests as a user does, in a process of their own, at the server of this run unless told otherwise."""
    pytester.makeconftest('pytest_plugins = ["pgps.testing"]')

    def called(*arguments: str, given: bool = True, **modules: str) -> pytest.RunResult:
        pytester.makepyfile(**modules)
        chosen = [f"--pgps-dsn={server.base}"] if given else []
        return pytester.runpytest_subprocess("-p", "no:randomly", "-W", "error", *chosen, *arguments)

    return called


def databases(server: Server, pattern: str) -> list[str]:
    with psycopg.connect(server.base, autocommit=True) as connection:
        query = "select datname from pg_database where datname ~ %s order by 1"
        return [name for (name,) in connection.execute(query, [pattern])]


def test_what_the_document_tells_to_write_passes(run: Run, server: Server, pytester: pytest.Pytester) -> None:
    conftest, *tests = [block.text for block in blocks_of(ROOT / DOCUMENT) if block.kind == "python"]
    assert conftest == 'pytest_plugins = ["pgps.testing"]\n'
    result = run(**{f"test_{number}": text for number, text in enumerate(tests)})
    result.assert_outcomes(passed="\n".join(tests).count("def test_"))
    wait_until(lambda: databases(server, "^pgps_test_") == [], what="those of the tests are dropped")


def test_each_test_has_a_broker_of_its_own_and_leaves_nothing(run: Run) -> None:
    run(
        test_them="""
        import os
        import psycopg

        def test_one(pgps_broker):
            assert pgps_broker.event_type("reading") == "reading"
            assert os.environ["PGPS_DSN"] == pgps_broker.dsn

        def test_other(pgps_database, pgps_server):
            with pgps_server.database() as further:
                for dsn in (pgps_database, further):
                    with psycopg.connect(dsn) as connection:
                        assert connection.execute("select count(*) from pgps.event_types").fetchone() == (0,)
        """
    ).assert_outcomes(passed=2)


def test_several_processes_make_one_template(run: Run, server: Server) -> None:
    tests = "\n".join(f"def test_{n}(pgps_broker): pgps_broker.event_type('t')" for n in range(4))
    run("-n", "2", test_them=tests).assert_outcomes(passed=4)
    assert len(databases(server, "^pgps_testing_")) == 1


def test_without_a_server_it_makes_one_and_removes_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, embedded_home: Path
) -> None:
    home = embedded_home / "plugin"
    monkeypatch.setenv("PGPS_HOME", str(home))
    run(
        given=False,
        test_it="""
        def test_it(pgps_broker):
            pgps_broker.event_type("reading")
            assert pgps_broker.publish("reading") == [{}]
        """,
    ).assert_outcomes(passed=1)
    assert home.exists()
    assert list_clusters(home=home) == []


def test_the_server_may_be_named_in_the_configuration(run: Run, server: Server, pytester: pytest.Pytester) -> None:
    pytester.makeini(f"[pytest]\npgps_dsn = {server.base}\n")
    result = run(
        given=False,
        test_it=f"""
        from psycopg.conninfo import conninfo_to_dict

        def test_it(pgps_database):
            assert conninfo_to_dict(pgps_database)["host"] == conninfo_to_dict({server.base!r})["host"]
        """,
    )
    result.assert_outcomes(passed=1)


def test_a_failing_test_shows_and_its_database_goes(run: Run, server: Server) -> None:
    run(
        test_it="""
        def test_it(pgps_broker):
            pgps_broker.event_type("reading")
            pgps_broker.connection.execute("select pgps.subscribe('all', 'reading')")
            pgps_broker.publish("reading", n=1)
            assert pgps_broker.drain("all") == []
        """
    ).assert_outcomes(failed=1)
    # Other processes of this run may have some of their own for a moment.
    wait_until(lambda: databases(server, "^pgps_test_") == [], what="the database is dropped")


# -- the broker of a test, here


@pytest.fixture
def broker(own_database: str) -> Iterator[Broker]:
    with Broker(own_database) as made:
        yield made


def numbers(broker: Broker, subscription: str, attribute: str = "n") -> list[int]:
    return [event.payload[attribute] for event in broker.drain(subscription)]


def subscribe(broker: Broker, name: str, event_type: str, more: str = "") -> None:
    broker.connection.execute(f"select pgps.subscribe('{name}', '{event_type}'{more})".encode())


def test_drain_returns_what_a_subscription_gets_once_and_in_order(broker: Broker) -> None:
    broker.event_type("reading", "n integer not null")
    subscribe(broker, "all", "reading")
    subscribe(broker, "even", "reading", ", 'n % 2 = 0'")
    for number in range(1, 5):
        broker.publish("reading", n=number)
    assert numbers(broker, "all") == [1, 2, 3, 4]
    assert numbers(broker, "even") == [2, 4]
    assert numbers(broker, "all") == []
    broker.publish("reading", *({"n": n} for n in range(2500)))
    assert numbers(broker, "all") == list(range(2500))
    with pytest.raises(UnknownName):
        broker.drain("nobody")


def test_what_is_not_committed_is_not_there(broker: Broker) -> None:
    broker.event_type("reading")
    subscribe(broker, "all", "reading")
    with broker.client.transaction() as connection:
        broker.client.publish("reading", {"n": 1}, connection=connection)
        assert numbers(broker, "all") == []
    assert numbers(broker, "all") == [1]


def test_settle_does_what_callbacks_requests_and_filters_over_tables_bring_about(broker: Broker) -> None:
    broker.event_type("reading")
    broker.event_type("alarm")
    broker.connection.execute(
        "create function public.raise_alarm(e pgps_event.reading) returns void language sql as"
        " 'insert into pgps_event.alarm (n) values ((raise_alarm.e).n)'"
    )
    broker.connection.execute("create table public.wanted as select 2 as n")
    subscribe(broker, "calls", "reading", ", execute => 'public.raise_alarm'")
    subscribe(broker, "alarms", "alarm", ", 'n in (select w.n from public.wanted w)'")
    with broker.client.identify("somebody") as somebody:
        somebody.send("insert into pgps_event.reading (n) values (2)")
        broker.publish("reading", n=1)
        assert numbers(broker, "alarms") == [2]
        reply = somebody.receive_reply()
        assert reply is not None
        assert reply.status == "done"


def test_the_clock_makes_retries_due(broker: Broker) -> None:
    broker.event_type("reading")
    subscribe(broker, "all", "reading")
    broker.publish("reading", n=1)
    broker.settle()
    with broker.client.subscribe("all") as waiting:
        waiting.nack(waiting.receive(), "later", retry_in=600)
    assert numbers(broker, "all") == []
    broker.clock.advance("10 minutes")
    assert numbers(broker, "all") == [1]


def test_an_event_has_a_value_for_each_attribute_that_needs_one(broker: Broker) -> None:
    broker.connection.execute("create type public.mood as enum ('calm', 'cross')")
    broker.connection.execute("create domain public.code as character varying(4) not null")
    kinds = (
        "smallint, integer, bigint, numeric, numeric(10,2), real, double precision, boolean, text, varchar(3), char(2),"
        " bytea, date, time, time(3), timestamp, timestamp(3), timestamptz, timestamptz(0), interval, uuid, json,"
        " jsonb, inet, integer[], text[], public.mood, public.code"
    )
    listed = re.split(r", ", kinds)
    attributes = ", ".join(f"a{number} {kind} not null" for number, kind in enumerate(listed))
    broker.event_type("reading", f"{attributes}, free text, usual integer not null default 7")
    subscribe(broker, "all", "reading")
    sent = broker.publish("reading", {}, {"free": "x"}, a0=5)
    assert [set(one) for one in sent] == [{f"a{n}" for n in range(len(listed))}, {"free", *sent[0]}]
    got = [event.payload for event in broker.drain("all")]
    assert [(one["a0"], one["free"], one["usual"]) for one in got] == [(5, None, 7), (5, "x", 7)]
    different = [name for name in sent[0] if sent[0][name] != sent[1][name]]
    assert {"a1", "a3", "a8", "a12", "a17", "a20"} <= set(different), "another value each time"


def test_a_type_without_known_values_has_to_be_given_one(broker: Broker) -> None:
    broker.event_type("reading", "at point not null")
    with pytest.raises(BadArgument, match='"at" of event type "reading", of data type point') as told:
        broker.event("reading")
    assert "at=" in str(told.value.hint)
    assert broker.event("reading", at="(1,2)") == {"at": "(1,2)"}
    with pytest.raises(UnknownName, match='"nothing" does not exist'):
        broker.event("nothing")
