"""A restored broker, and a copy of one that lives on: recognised, stopped, and resumed by one command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
import pytest

from pgps_worker.links.keeper import Keeper
from tests.fix_broker import call, make_type, meanwhile, publish, refused, rows, value
from tests.fix_db import Connect, wait_until
from tests.links.rig import Broker, linked, names, open_link, received, settle
from tests.links.serving import served

Brokers = Callable[[int], list[Broker]]


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


def test_a_copy_gets_nothing_again_that_the_original_had_published_before(
    brokers: Brokers, copied: Callable[[Broker], Broker]
) -> None:
    """Although the broker between the two has it only afterwards."""
    a, b = brokers(2)
    make_type(a.admin, "tick")
    call(a.admin, "subscribe", "all", "tick", scope="global")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        publish(a.admin, "tick", 1)
        settle([a, b], links)
        links[0].close()
        publish(a.admin, "tick", 2, 3)
        a.settle()
        copy = copied(a)
        call(copy.admin, "resume_links", "clone")
        call(b.admin, "create_link", "to_copy", copy.dsn)
        links.append(open_link(b, copy, "to_copy"))
        settle([b, copy], links[1:])
        links[0] = open_link(a, b, "to_b")
        settle([a, b, copy], links)
        publish(a.admin, "tick", 4)
        settle([a, b, copy], links)
        for broker in (a, b, copy):
            assert [n for _, n in received(broker, "all")] == [1, 2, 3, 4]


@dataclass
class PutBack:
    """Broker a, broker b whose files were put back, and the error with which a refuses what b has received."""

    a: Broker
    b: Broker
    was: dict[str, Any]
    error: psycopg.Error

    def opened(self) -> psycopg.Connection:
        """Open a session at b that receives from a."""
        session = psycopg.connect(self.b.dsn, autocommit=True)
        call(session, "link_open", json.dumps(self.a.identity()), "receive")
        return session

    def note(self, session: psycopg.Connection) -> None:
        """Tell b what a has said, as a worker does."""
        said = self.error.diag
        call(session, "link_refused", said.message_primary, said.message_hint, said.message_detail)

    def resume(self, administrator: psycopg.Connection) -> None:
        call(administrator, "resume_links", "restored")


@pytest.fixture
def put_back(brokers: Brokers, copied: Callable[[Broker], Broker]) -> PutBack:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        links[0].close()
        backup = copied(b)
        links[0] = open_link(a, b, "to_b")
        publish(a.admin, "tick", 1, 2)
        settle([a, b], links)
        links[0].close()
        # The same database of the same server, as it finds itself.
        rows(backup.admin, "update pgps_internal.broker set incarnation = pgps_internal.link_incarnation()")
        links[0] = open_link(a, backup, "to_b")
        with refused("55000", "was restored", "resume_links") as caught:
            links[0].out.next(refresh=False)
        links[0].close()
    return PutBack(a, backup, backup.identity(), caught.value)


def is_well_again(found: PutBack) -> bool:
    """True when the link carries, and what b had lost has come."""
    link = open_link(found.a, found.b, "to_b")
    try:
        settle([found.a, found.b], [link])
    finally:
        link.close()
    return found.b.identity()["state"] == "active" and [n for _, n in received(found.b, "all")] == [1, 2]


def test_who_tries_again_is_told_by_both_what_to_type_and_where(put_back: PutBack) -> None:
    with put_back.opened() as session:
        put_back.note(session)
    name = value(put_back.b.admin, "select pgps_internal.broker_name()")
    for one, other in ((put_back.a, put_back.b), (put_back.b, put_back.a)):
        with psycopg.connect(one.dsn, autocommit=True) as session, refused("55000", "was restored") as caught:
            call(session, "link_open", json.dumps(other.identity()), "receive")
        assert caught.value.diag.message_hint == f"On broker \"{name}\": select pgps.resume_links('restored')"


def test_what_is_noticed_before_the_administrator_comes_stops_the_broker_until_then(put_back: PutBack) -> None:
    with put_back.opened() as session:
        put_back.note(session)
    assert put_back.b.identity()["state"] == "restored"
    put_back.resume(put_back.b.admin)
    assert is_well_again(put_back)


def test_what_was_noticed_before_and_told_after_the_administrator_came_is_no_news(put_back: PutBack) -> None:
    with put_back.opened() as session:
        put_back.resume(put_back.b.admin)
        with refused("55000", "not opened a link"):
            put_back.note(session)
    assert is_well_again(put_back)


def test_what_is_told_by_a_session_that_was_opened_after_the_administrator_came_is_no_news(put_back: PutBack) -> None:
    put_back.resume(put_back.b.admin)
    with put_back.opened() as session:
        put_back.note(session)
    assert is_well_again(put_back)


def test_what_is_told_while_the_administrator_resumes_is_no_news(put_back: PutBack, connect: Connect) -> None:
    administrator = connect(dsn=put_back.b.dsn, autocommit=False)

    def note() -> None:
        with refused("55000", "not opened a link"):
            put_back.note(session)

    with put_back.opened() as session:
        put_back.resume(administrator)
        with meanwhile(put_back.b.admin, session, note):
            administrator.commit()
    assert is_well_again(put_back)


def test_who_resumes_while_it_is_told_has_the_last_word(put_back: PutBack) -> None:
    with put_back.opened() as session:
        session.autocommit = False
        put_back.note(session)
        with meanwhile(put_back.a.admin, put_back.b.admin, lambda: put_back.resume(put_back.b.admin)):
            session.commit()
    assert is_well_again(put_back)


@pytest.mark.parametrize("definer", [0, 1])
def test_a_link_whose_broker_is_resumed_while_it_is_opened_is_opened_anew(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, definer: int
) -> None:
    a, b = pair = brokers(2)
    make_type(a.admin, "tick")
    open_them = Keeper._open
    resumed: list[None] = []

    async def open_late(*args: Any) -> Any:
        if not resumed:
            resumed.append(call(b.admin, "resume_links", "restored"))
        return await open_them(*args)

    monkeypatch.setattr(Keeper, "_open", open_late)
    other = pair[1 - definer]
    call(pair[definer].admin, "create_link", f"to_{other.name}", other.dsn)
    with served(a, b):
        known = "select max(epoch) from pgps_internal.neighbour"
        wait_until(
            lambda: resumed and value(a.admin, known) == b.identity()["epoch"],
            what="a has met the resumed one",
        )
        wait_until(lambda: value(b.admin, "select count(*) from pgps.event_types") == 1, what="the type")


def test_what_is_sent_while_a_broker_is_resumed_is_of_one_epoch(brokers: Brokers, connect: Connect) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        call(b.admin, "subscribe", "all", "tick", scope="global")
        settle([a, b], links)
        publish(a.admin, "tick", 1, 2, 3)
        a.settle()
        out = links[0].out
        out.with_rows = 100
        packing, resuming, sent = connect(autocommit=False, dsn=a.dsn), connect(dsn=a.dsn), []
        # The session that sends has written what it sends next, and waits before it says so.
        rows(packing, "lock table pgps_internal.position in share mode")
        with (
            meanwhile(a.admin, out.source, lambda: sent.append(out.next(refresh=False))),
            meanwhile(a.admin, resuming, lambda: call(resuming, "resume_links", "restored")),
        ):
            packing.commit()
        out.carry(sent[0])
        links[0].close()
        links[0] = open_link(a, b, "to_b")
        settle([a, b], links)
        assert [n for _, n in received(b, "all")] == [1, 2, 3]


def has_no_link(broker: Broker) -> bool:
    return names(broker.admin) == []


def test_a_link_that_is_dropped_before_a_resumed_broker_has_met_the_other_again_goes_at_both(brokers: Brokers) -> None:
    a, b = brokers(2)
    make_type(a.admin, "tick")
    with linked([(b, a)]) as links:
        settle([a, b], links)
    call(b.admin, "resume_links", "restored")
    call(b.admin, "drop_link", "to_a")
    assert rows(b.admin, "select name, state from pgps.links") == [("to_a", "draining")]
    assert rows(a.admin, "select name from pgps.links") == [("b",)]
    with served(a, b):
        for broker in (a, b):
            wait_until(partial(has_no_link, broker), what=f"{broker.name} has forgotten the link")
        # Both may link again.
        call(a.admin, "create_link", "to_b", b.dsn)
        wait_until(lambda: rows(b.admin, "select name, state from pgps.links") == [("a", "up")], what="the new link")
