"""A neighbour that holds up others, or takes their name: its own role is all that it needs for trying."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

import psycopg
import pytest

from pgps_worker.links import service
from tests.fix_broker import call, column, make_type, publish, refused, rows, value
from tests.fix_db import Connect, wait_until
from tests.links.rig import Broker, Lane, linked, received, settle
from tests.links.serving import served
from tests.links.test_link_rights import ad, hub, say

__all__ = ["hub"]

Brokers = Callable[[int], list[Broker]]
Hub = tuple[Broker, Broker, Broker, Lane]
SETTINGS = {
    "timezone": "UTC",
    "datestyle": "ISO, MDY",
    "search_path": "pg_catalog, pg_temp",
    "intervalstyle": "postgres",
}
# Whoever waits to make a file longer, of a shared catalogue, waits for sessions of any database, and for a moment.
WAITS = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and wait_event <> 'extend' and pid = %s"


def sub(here: Broker, filter: str | None, *, types: list[str] | None = None) -> dict[str, object]:  # noqa: A002
    """Ask for ticks."""
    asked = {"key": uuid4().hex, "told": 1, "type": "tick", "reach": 16, "filter": filter, "constant_types": types}
    return {
        "kind": "sub",
        "body": asked | {"collation": here.identity()["collation"], "environment": SETTINGS},
    }


class Stranger:
    """A neighbour of `here` that is nothing but a login."""

    def __init__(self, here: Broker, connect: Connect, role: str) -> None:
        self.here = here
        self.session = connect(role, dsn=here.dsn)
        self.identity = {**here.identity(), "broker": str(uuid4()), "name": "stranger"}
        call(self.session, "link_open", json.dumps(self.identity), "receive")
        self.last = 0

    @property
    def pid(self) -> int:
        return self.session.info.backend_pid

    def take(self, *items: dict[str, object], then: str = "") -> None:
        """Let the broker hear some items in one statement, which does something else behind it."""
        numbered = [{"lseq": self.last + n, **item} for n, item in enumerate(items, 1)]
        upto = self.last + len(items)
        batch = {"after": self.last, "upto": upto, "mark": str(upto), "items": numbered, "types": []}
        rows(self.session, f"select pgps.link_take(%s){then}", [json.dumps(batch)])
        self.last = upto


@pytest.fixture
def stranger(brokers: Brokers, connect: Connect, role: Callable[..., str]) -> Stranger:
    (here,) = brokers(1)
    make_type(here.admin, "tick")
    linker = role("linker", "pgps_link")
    rows(here.admin, f'grant select on pgps_event.tick to "{linker}"')
    return Stranger(here, connect, linker)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"broker": "x"}, 'id of a broker "x"'),
        ({"broker": None}, "null"),
        ({"epoch": "soon"}, 'epoch of a broker "soon"'),
        ({"epoch": None}, "null"),
        ({"name": "n" * 64}, "nnn"),
        ({"name": "a\nb"}, "control characters"),
        ({"name": ""}, "1 to 63 bytes"),
    ],
)
def test_who_does_not_say_what_a_broker_says_is_no_neighbour(
    stranger: Stranger, wrong: dict[str, str | None], said: str
) -> None:
    with refused("22023", said) as caught:
        call(stranger.session, "link_open", json.dumps({**stranger.identity, **wrong}), "receive")
    assert len(str(caught.value.diag.message_primary)) < 200


def waiting(session: psycopg.Connection, watch: psycopg.Connection, statement: str) -> threading.Thread:
    """Execute a statement that waits for somebody, in a thread; returns when it waits."""
    thread = threading.Thread(target=rows, args=(session, statement))
    thread.start()
    wait_until(lambda: value(watch, WAITS, [session.info.backend_pid]) == 1, what="it waits")
    return thread


@pytest.mark.parametrize("then", ["", ", pg_sleep(600)"])
def test_a_neighbour_whose_open_transaction_holds_up_the_dispatcher_is_ended(
    stranger: Stranger, connect: Connect, then: str
) -> None:
    here = stranger.here
    other = connect(dsn=here.dsn)
    call(here.admin, "subscribe", "all", "tick")
    publish(here.admin, "tick", 1)
    rows(stranger.session, "begin")
    if then:
        pid = stranger.pid
        holds = threading.Thread(target=lambda: ended(stranger, sub(here, None), then=then))
        holds.start()
        asleep = "select count(*) from pg_stat_activity where pid = %s and wait_event = 'PgSleep'"
        wait_until(lambda: value(here.admin, asleep, [pid]) == 1, what="it sleeps")
    else:
        stranger.take(sub(here, None))
    assert call(here.admin, "end_stuck_links", "0 seconds") == [], "it holds up nobody yet"
    thread = waiting(other, here.admin, "select pgps.dispatch()")
    assert call(here.admin, "end_stuck_links", "1 hour") == [], "not for long yet"
    (told,) = call(here.admin, "end_stuck_links", "0 seconds")
    assert "linker" in told
    assert "held up others" in told
    thread.join(60)
    assert received(here, "all") == [("a", 1)]
    if then:
        holds.join(60)
    else:
        ended(stranger, sub(here, None))


def test_a_neighbour_that_is_at_work_while_it_keeps_the_dispatcher_off_is_ended(
    stranger: Stranger, connect: Connect
) -> None:
    here = stranger.here
    call(here.admin, "subscribe", "all", "tick")
    publish(here.admin, "tick", 1)
    rows(stranger.session, "begin")
    stranger.take(sub(here, None))
    works = "do $$ begin while clock_timestamp() < now() + interval '2 minutes' loop null; end loop; end $$"
    holds = threading.Thread(target=lambda: gone(stranger, works))
    holds.start()
    busy = "select count(*) from pg_stat_activity where pid = %s and state = 'active'"
    wait_until(lambda: value(here.admin, busy, [stranger.pid]) == 1, what="it is at work")
    other = connect(dsn=here.dsn)
    thread = waiting(other, here.admin, "select pgps.dispatch()")
    assert call(here.admin, "end_stuck_links", "1 hour") == [], "not for long yet"
    (told,) = call(here.admin, "end_stuck_links", "1 millisecond")
    assert "linker" in told
    thread.join(60)
    holds.join(60)
    assert received(here, "all") == [("a", 1)]


def gone(stranger: Stranger, statement: str) -> None:
    """Find the session of the neighbour ended while it executes a statement."""
    with pytest.raises(psycopg.OperationalError):
        rows(stranger.session, statement)


def ended(stranger: Stranger, *items: dict[str, object], then: str = "") -> None:
    """Find the session of the neighbour ended while, or before, it says something."""
    with pytest.raises(psycopg.OperationalError):
        stranger.take(*items, then=then)


def test_who_meets_the_broker_and_stays_holds_up_nobody_who_comes_behind(
    stranger: Stranger, connect: Connect, role: Callable[..., str]
) -> None:
    here = stranger.here
    rows(stranger.session, "begin")
    call(stranger.session, "link_open", json.dumps({**stranger.identity, "broker": str(uuid4())}), "receive")
    other = connect(role("other", "pgps_link"), dsn=here.dsn)
    peer = json.dumps({**stranger.identity, "broker": str(uuid4()), "name": "other"})
    thread = waiting(other, here.admin, f"select pgps.link_open('{peer}', 'receive')")
    assert len(call(here.admin, "end_stuck_links", "0 seconds")) == 1
    thread.join(60)
    assert not thread.is_alive()


def test_sessions_that_are_no_neighbours_or_wait_themselves_are_not_ended(
    stranger: Stranger, connect: Connect, role: Callable[..., str]
) -> None:
    here = stranger.here
    own, other, admin = connect(role("own"), dsn=here.dsn, autocommit=False), connect(dsn=here.dsn), here.admin
    rows(admin, f'create table public.own (n integer); alter table public.own owner to "{own.info.user}"')
    rows(own, "lock table public.own in access exclusive mode")
    thread = waiting(other, admin, "table public.own")
    assert call(admin, "end_stuck_links", "0 seconds") == []
    own.rollback()
    thread.join(60)
    # An administrator's, for whom the neighbour waits, who is waited for by the dispatcher.
    boss = connect(dsn=here.dsn, autocommit=False)
    rows(boss, "lock table only pgps_internal.turn_of_routes in exclusive mode")
    batch = threading.Thread(target=stranger.take, args=(sub(here, None),))
    batch.start()
    wait_until(lambda: value(admin, WAITS, [stranger.pid]) == 1, what="the neighbour waits")
    assert call(admin, "end_stuck_links", "0 seconds") == []
    boss.rollback()
    batch.join(60)
    stranger.take(sub(here, "n > 1", types=["integer"]))
    for who in (own, stranger.session):
        with refused("42501"):
            call(who, "end_stuck_links")
    with refused("22004", "patience"):
        call(admin, "end_stuck_links", None)


def test_the_worker_ends_a_neighbour_that_holds_up_the_broker(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = stranger.here
    monkeypatch.setattr(service, "_POLL", 0.1)
    call(here.admin, "subscribe", "all", "tick")
    rows(stranger.session, "begin")
    stranger.take(sub(here, None))
    with served(here):
        publish(here.admin, "tick", 1)
        depth = "select depth from pgps.subscriptions where name = 'all'"
        wait_until(lambda: value(here.admin, depth) == 1, what="the event is dispatched")
    assert received(here, "all") == [("a", 1)]


def test_a_neighbour_with_more_forms_of_filters_than_the_dispatcher_asks_gets_all_and_loses_nothing(
    brokers: Brokers,
) -> None:
    a, b = made = brokers(2)
    for broker in made:
        make_type(broker.admin, "tick", "n integer, s text")
    call(a.admin, "configure", "link_filters", "3")
    with linked([(a, b)]) as links:
        settle(made, links)
        for place, form in enumerate(["n > 1", "n < 9", "n = 5", "n <> 4", "n > 2 and n < 4", "n > 3"]):
            call(b.admin, "subscribe", f"s{place}", "tick", form, scope="global")
            settle(made, links)
        forms = "select count(*) from pgps_internal.signature"
        assert value(a.admin, forms) == 3
        (crowd,) = value(a.admin, "select pgps.health() -> 'crowded'")
        assert (crowd["setting"], crowd["event_type"], crowd["used"], crowd["most"]) == ("link_filters", "tick", 3, 3)
        wanted = "select count(*) from pgps_internal.wanted w join pgps_internal.class c using (class_id)"
        assert value(a.admin, f"{wanted} where c.signature_id is null") == 2, "n > 3 is of a form that is asked already"
        publish(a.admin, "tick", *range(12))
        settle(made, links)
        for place, took in enumerate([range(2, 12), range(9), [5], [0, 1, 2, 3, *range(5, 12)], [3], range(4, 12)]):
            assert received(b, f"s{place}") == [("a", n) for n in took]
        for place in range(6):
            call(b.admin, "unsubscribe", f"s{place}")
        settle(made, links)
        settle(made, links)
        call(b.admin, "subscribe", "new", "tick", "n <> 3", scope="global")
        settle(made, links)
        publish(a.admin, "tick", 3, 4)
        settle(made, links)
        assert received(b, "new") == [("a", 4)]


def test_a_filter_of_a_neighbour_that_holds_up_the_dispatcher_is_taken_as_none(brokers: Brokers) -> None:
    a, b = made = brokers(2)
    for broker in made:
        make_type(broker.admin, "tick", "n integer, s text")
    call(a.admin, "configure", "dispatch_filter_timeout", "50 milliseconds")
    with linked([(a, b)]) as links:
        settle(made, links)
        call(b.admin, "subscribe", "slow", "tick", "n > 1", scope="global")
        settle(made, links)
        (signature,) = column(a.admin, "select signature_id from pgps_internal.signature")
        text = value(a.admin, f"select pg_get_functiondef('pgps_internal.match_{signature}'::regproc)")
        begin = "\n            begin\n"
        assert text.count(begin) == 1
        rows(a.admin, text.replace(begin, f"{begin} perform pg_catalog.pg_sleep(0.3);"))
        for number in range(4):
            publish(a.admin, "tick", number)
            settle(made, links)
        wanted = "select c.signature_id from pgps_internal.wanted w join pgps_internal.class c using (class_id)"
        assert column(a.admin, wanted) == [None]
        assert received(b, "slow") == [("a", 2), ("a", 3)]
        # Neither is a further form asked for that role.
        call(b.admin, "subscribe", "new", "tick", "n <> 5", scope="global")
        settle(made, links)
        publish(a.admin, "tick", 4, 5)
        settle(made, links)
        assert received(b, "new") == [("a", 4)]
        assert column(a.admin, wanted + " order by 1") == [None, None]


def test_what_a_neighbour_calls_itself_nobody_else_changes(hub: Hub) -> None:
    a, b, c, lane = hub
    name = "select o.name from pgps_internal.origin o where o.broker_id = %s"
    assert value(b.admin, name, [c.identity()["broker"]]) == "c"
    forged = ad(c, a, c)
    forged["body"]["name"] = "a"
    say(lane, forged)
    assert value(b.admin, name, [c.identity()["broker"]]) == "c"
    forged = ad(a, a)
    forged["body"]["name"] = "renamed"
    say(lane, forged)
    assert value(b.admin, name, [a.identity()["broker"]]) == "renamed", "its own name it may change"


def test_neighbours_that_are_called_the_same_are_told_apart(stranger: Stranger, connect: Connect) -> None:
    """A neighbour says itself how it is called; whoever drops a link drops the one that is meant."""
    here = stranger.here
    role = value(stranger.session, "select session_user")

    def appear(name: str) -> str:
        broker = str(uuid4())
        peer = json.dumps({**stranger.identity, "broker": broker, "name": name})
        call(connect(role, dsn=here.dsn), "link_open", peer, "receive")
        return broker

    def there() -> set[str]:
        return set(column(here.admin, "select broker_id::text from pgps.links where broker_id is not null"))

    one, two = appear("twin"), appear("twin")
    for function in ("drop_link", "resync_link"):
        with refused("42P09", 'several neighbours are called "twin"', "broker_id"):
            call(here.admin, function, "twin")
    call(here.admin, "drop_link", one, cascade=True)
    assert (one in there(), two in there()) == (False, True)
    call(here.admin, "resync_link", "twin")
    # One that is called as a link is called that is defined here, or as another's id is.
    call(here.admin, "create_link", "home", "host=127.0.0.1 port=1")
    like_a_link, like_an_id = appear("home"), appear(two)
    with refused("42P09", "several neighbours"):
        call(here.admin, "drop_link", two, cascade=True)
    call(here.admin, "drop_link", like_an_id, cascade=True)
    call(here.admin, "drop_link", two, cascade=True)
    assert {like_a_link, like_an_id, two} & there() == {like_a_link}
    call(here.admin, "drop_link", "home", cascade=True)
    assert like_a_link in there()
    call(here.admin, "drop_link", "home", cascade=True)
    assert like_a_link not in there()


def test_sessions_that_wait_behind_a_stuck_one_of_their_role_go_with_it(stranger: Stranger, connect: Connect) -> None:
    here = stranger.here
    role = value(stranger.session, "select session_user")
    item = json.dumps({"after": 0, "upto": 1, "mark": "1", "types": [], "items": [
        {"lseq": 1, "kind": "unad", "body": {"broker": str(uuid4()), "epoch": 1}}]})  # fmt: skip
    sessions = []
    for _ in range(4):
        session = connect(role, dsn=here.dsn)
        call(session, "link_open", json.dumps({**stranger.identity, "broker": str(uuid4())}), "receive")
        session.autocommit = False
        sessions.append(session)

    def take(session: psycopg.Connection) -> None:
        with suppress(psycopg.Error):
            session.execute("select pgps.link_take(%s)", [item])

    take(sessions[0])
    others = [threading.Thread(target=take, args=(session,)) for session in sessions[1:]]
    for thread in others:
        thread.start()
    pids = [session.info.backend_pid for session in sessions]
    waiting = "select count(*) = 3 from pg_stat_activity where wait_event_type = 'Lock' and pid = any (%s)"
    wait_until(lambda: value(here.admin, waiting, [pids]), what="the others wait")
    (told,) = value(here.admin, "select pgps.end_stuck_links('0 seconds')")
    assert "and 3 of that role that waited for it" in told
    wait_until(lambda: value(here.admin, "select count(*) = 0 from pg_stat_activity where pid = any (%s)", [pids]),
               what="all are gone")  # fmt: skip
    for thread in others:
        thread.join()
