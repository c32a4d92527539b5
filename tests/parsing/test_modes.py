"""Installing, removing, restoring and linking where the client parses, and going from one way to the other."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import psycopg
import pytest

from pgps import install, parsing
from pgps.errors import InstallError
from tests.fix_server import Server
from tests.links.rig import Broker, filters_from, linked, received, settle

pytestmark = pytest.mark.timeout(600)

FILTER = "select pgps.subscribe('dear', 'quote', filter => 'price > 100')"


def make_quote(connection: psycopg.Connection) -> None:
    parsing.define(connection, "select pgps.create_event_type('quote', 'symbol text not null, price numeric')")
    connection.execute("select pgps.advertise('quote')")


def subscribe_with_a_callback(connection: psycopg.Connection) -> None:
    connection.execute("create function \"Noted\"(n numeric) returns void language sql as ''")
    parsing.define(
        connection, "select pgps.subscribe('noted', 'quote', filter => 'price > 7', execute => '\"Noted\"(price)')"
    )


def deliver(connection: psycopg.Connection, price: int) -> list[tuple[object, ...]]:
    """Publish an event and return what the subscription receives."""
    connection.execute("insert into pgps_event.quote (symbol, price) values ('IBM', %s)", [price])
    connection.execute("select pgps.dispatch()")
    rows = connection.execute("select (payload ->> 'price')::integer from pgps.receive('dear')").fetchall()
    connection.execute("select pgps.ack('dear')")
    return rows


def test_a_broker_goes_from_server_to_client_and_back(own_database: str) -> None:
    with psycopg.connect(own_database, autocommit=True) as connection:
        make_quote(connection)
        connection.execute(FILTER)
        subscribe_with_a_callback(connection)
        before = install.status(own_database)
        assert before.parser == "server"
        after = install.install(own_database, parser="client")
        assert (after.parser, after.up_to_date) == ("client", True)
        # Nothing of pgps needs the language any more.
        connection.execute("drop extension plpython3u")
        assert install.install(own_database).up_to_date
        assert deliver(connection, 120) == [(120,)]
        # What the subscription needs was parsed when the broker changed.
        connection.execute("select pgps.seek('dear', 'now')")
        parsing.define(connection, "select pgps.subscribe('cheap', 'quote', filter => 'price < 5')")
        assert install.install(own_database, parser="server") == before
        connection.execute("select pgps.subscribe('middle', 'quote', filter => 'price between 5 and 100')")
        connection.execute("select pgps.seek('cheap', 'earliest')")
        assert deliver(connection, 130) == [(130,)]
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="this server parses itself"):
            parsing.store(connection, [parsing.Question.of("parse_callback", "f")])


def test_composite_events_keep_a_broker_from_changing(own_database: str) -> None:
    with psycopg.connect(own_database, autocommit=True) as connection:
        make_quote(connection)
        connection.execute("select pgps.create_composite_event('pair', 'quote ; quote')")
    with pytest.raises(InstallError, match="there are composite events, which need PL/Python in the server: pair"):
        install.install(own_database, parser="client")
    assert install.status(own_database).parser == "server"


def test_uninstalling_leaves_nothing_and_needs_no_language(bare: str) -> None:
    with psycopg.connect(bare, autocommit=True) as connection:
        make_quote(connection)
        parsing.define(connection, FILTER)
    install.uninstall(bare)
    assert not install.status(bare).installed
    with psycopg.connect(bare) as connection:
        left = "select count(*) from pg_namespace where nspname like 'pgps%'"
        assert connection.execute(left).fetchone() == (0,)


def test_a_dump_is_restored_with_what_was_parsed(bare_server: Server, bare: str, tmp_path: Path) -> None:
    with psycopg.connect(bare, autocommit=True) as connection:
        make_quote(connection)
        parsing.define(connection, FILTER)
        subscribe_with_a_callback(connection)
    dump = tmp_path / "dump"
    subprocess.run(["pg_dump", "--format=custom", f"--file={dump}", bare], check=True)
    with psycopg.connect(bare_server.base, autocommit=True) as connection:
        connection.execute("create database restored template template0")
    restored = bare_server.dsn("restored")
    subprocess.run(["pg_restore", "--exit-on-error", f"--dbname={restored}", dump], check=True)
    assert install.status(restored).up_to_date
    with psycopg.connect(restored, autocommit=True) as connection:
        assert deliver(connection, 150) == [(150,)]
        connection.execute("select pgps.seek('dear', 'earliest')")
        connection.execute("update pgps_internal.installation set value = 'older' where key = 'code_digest'")
    # An upgrade notes anew which functions callbacks name.
    assert install.upgrade(restored).up_to_date
    with psycopg.connect(restored, autocommit=True) as connection:
        connection.execute('alter function "Noted"(numeric) rename to "Noted, too"')
        connection.execute("call pgps.run_subscribers()")
        query = "select callback from pgps_internal.subscription where name = 'noted'"
        assert connection.execute(query.encode()).fetchone() == ('public."Noted, too"',)
    bare_server.drop("restored")


def test_a_database_of_the_release_before_changes_with_an_upgrade(own_database: str) -> None:
    """`upgrade` takes the option, too, and keeps it."""
    assert install.upgrade(own_database, parser="client").parser == "client"
    assert install.upgrade(own_database).parser == "client"


def broker(server: Server, name: str, connections: contextlib.ExitStack) -> Broker:
    """Make a broker on a server without PL/Python, with an event type."""
    dsn = server.clone(f"linked_{name}")
    connections.callback(server.drop, f"linked_{name}")
    admin = connections.enter_context(psycopg.connect(dsn, autocommit=True))
    admin.execute("select pgps.configure('broker', %s)", [name])
    parsing.define(admin, "select pgps.create_event_type('tick', 'n integer')")
    admin.execute("select pgps.advertise('tick')")
    return Broker(name, dsn, admin)


def test_a_filter_that_only_the_neighbour_has_parsed_is_not_asked_and_everything_is_sent(bare_server: Server) -> None:
    with contextlib.ExitStack() as connections:
        a, b, c = (broker(bare_server, name, connections) for name in "abc")
        with linked([(a, b), (a, c)]) as links:
            settle([a, b, c], links)
            for other in (b, c):
                parsing.define(
                    other.admin, "select pgps.subscribe('over', 'tick', filter => 'n > 5', scope => 'global')"
                )
            settle([a, b], links)
            assert filters_from(a, "b") == [None]
            a.admin.execute("insert into pgps_event.tick values (2), (7)")
            settle([a, b, c], links)
            assert [[n for _, n in received(each, "over")] for each in (b, c)] == [[7], [7]]


def test_a_filter_of_a_neighbour_that_was_parsed_before_is_asked(bare_server: Server) -> None:
    with contextlib.ExitStack() as connections:
        a, b = (broker(bare_server, name, connections) for name in "ab")
        parsing.store(a.admin, [parsing.Question.of("parse_filter", "n > 5", "tick", ["n"])])
        with linked([(a, b)]) as links:
            settle([a, b], links)
            parsing.define(b.admin, "select pgps.subscribe('over', 'tick', filter => 'n > 5', scope => 'global')")
            settle([a, b], links)
            assert filters_from(a, "b") == ["n > 5"]
