"""A restored broker, and a copy of one that lives on: recognised, stopped, and resumed by one command."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fix_broker import call, make_type, publish, refused
from tests.fix_db import Connect
from tests.fix_server import Server
from tests.links.rig import Broker, linked, open_link, received, settle

Brokers = Callable[[int], list[Broker]]


@pytest.fixture
def copied(server: Server, connect: Connect) -> Iterator[Callable[[Broker], Broker]]:
    """Copy a broker's database, as a backup taken now would be restored beside it."""
    made: list[Broker] = []

    def copy(broker: Broker) -> Broker:
        source = str(conninfo_to_dict(broker.dsn)["dbname"])
        broker.admin.close()
        with psycopg.connect(server.base, autocommit=True) as connection:
            connection.execute(f'create database "{source}_copy" template "{source}"'.encode())
        broker.admin = connect(dsn=broker.dsn)
        dsn = server.dsn(f"{source}_copy")
        made.append(Broker(broker.name, dsn, connect(dsn=dsn)))
        return made[-1]

    yield copy
    for broker in made:
        broker.admin.close()
        server.drop(str(conninfo_to_dict(broker.dsn)["dbname"]))


def test_a_restored_broker_is_recognised_and_gets_again_what_it_has_lost(
    brokers: Brokers, copied: Callable[[Broker], Broker]
) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        publish(a.admin, "tick", 1, 2, 3)
        settle([a, b], links)
        links[0].close()
        backup = copied(b)
        links[0] = open_link(a, b, "to_b")
        publish(a.admin, "tick", 4, 5)
        settle([a, b], links)
        links[0].close()
        with refused("55000", "restored", "resume_links"):
            open_link(a, backup, "to_b")
        call(backup.admin, "resume_links", "restored")
        links[0] = open_link(a, backup, "to_b")
        settle([a, backup], links)
        publish(a.admin, "tick", 6)
        settle([a, backup], links)
        assert [n for _, n in received(backup, "all")] == [1, 2, 3, 4, 5, 6]


def test_a_copy_of_a_broker_becomes_one_of_its_own(brokers: Brokers, copied: Callable[[Broker], Broker]) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        links[0].close()
        copy = copied(b)
        links[0] = open_link(a, b, "to_b")
        call(copy.admin, "resume_links", "clone")
        assert copy.identity()["broker"] != b.identity()["broker"]
        call(a.admin, "create_link", "to_copy", copy.dsn)
        links.append(open_link(a, copy, "to_copy"))
        settle([a, b, copy], links)
        for broker in (b, copy):
            call(broker.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b, copy], links)
        publish(a.admin, "tick", 1, 2)
        settle([a, b, copy], links)
        assert received(b, "all") == received(copy, "all") == [("a", 1), ("a", 2)]
