"""An open transaction of somebody without rights holds up nobody else: no dispatcher, no reclaim, no administrator."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, meanwhile, numbers, publish, rows, value
from tests.fix_db import Connect
from tests.sql.log.test_reclaim import kept, reclaim, roll
from tests.sql.match.lane_steps import take_only

Session = Callable[..., psycopg.Connection]
WAYS = {"worker": "select pgps.dispatch_batch()", "hand": "select pgps.dispatch()"}


@pytest.fixture
def broker(own_database: str, connect: Connect) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "tick")
    return connection


@pytest.fixture
def alice(own_database: str, connect: Connect, role: Callable[..., str]) -> Session:
    """Opens sessions that leave transactions open."""
    name = role("alice")
    return lambda **options: connect(name, dsn=own_database, **{"autocommit": False, **options})


@pytest.fixture
def bob(own_database: str, connect: Connect, role: Callable[..., str]) -> psycopg.Connection:
    session = connect(role("bob"), dsn=own_database)
    rows(session, "set statement_timeout = '5s'")
    return session


def done(session: psycopg.Connection, query: str) -> None:
    rows(session, query)
    session.commit()


def impatient(broker: psycopg.Connection) -> None:
    """Let it wait for locks as long as a worker's dispatcher does, and for all together not for long."""
    rows(broker, "set lock_timeout = '2s'")
    rows(broker, "set statement_timeout = '10s'")


@pytest.mark.parametrize("way", WAYS)
def test_who_has_paused_in_an_open_transaction_a_subscription_whose_filter_fails_holds_up_no_dispatcher(
    broker: psycopg.Connection, alice: Session, bob: psycopg.Connection, way: str
) -> None:
    altering, pausing = alice(), alice()
    done(altering, "select pgps.subscribe('s', 'tick', 'n >= 0')")
    call(bob, "subscribe", "b", "tick")
    call(altering, "alter_subscription", "s", filter="10 / n > 0")
    publish(broker, "tick", 0)
    rows(broker, "select pgps.dispatch_batch()")
    with meanwhile(broker, pausing, lambda: call(pausing, "pause", "s")):
        altering.commit()
    impatient(broker)
    publish(broker, "tick", 1)
    rows(broker, WAYS[way])
    assert take_only(bob, "b") == [0, 1]


@pytest.mark.parametrize("way", WAYS)
def test_who_has_a_subscription_open_on_which_a_policy_raises_holds_up_no_dispatcher(
    broker: psycopg.Connection, alice: Session, bob: psycopg.Connection, way: str
) -> None:
    pausing = alice()
    make_type(broker, "tock")
    call(broker, "create_policy", "tick", "pol", pausing.info.user, "10 / n > 0")
    done(pausing, "select pgps.subscribe('s', 'tick')")
    call(bob, "subscribe", "b", "tock")
    call(pausing, "pause", "s")
    publish(broker, "tick", 0)
    publish(broker, "tock", 1)
    rows(broker, "set statement_timeout = '5s'")
    rows(broker, WAYS[way])
    assert take_only(bob, "b") == [1]
    pausing.rollback()
    rows(broker, WAYS[way])
    assert value(broker, "select state from pgps.subscriptions where name = 's'") == "suspended", "the next time"


FIRST_LANE = "select pgps.subscribe('first', 'tick', 'n in (select n from public.x)')"


def make_table(broker: psycopg.Connection) -> None:
    rows(broker, "create table public.x (n integer)")
    rows(broker, "grant select on public.x to public")


def test_who_opens_his_first_lane_holds_up_nobody_who_makes_an_event_type_of_a_prefix_of_his(
    broker: psycopg.Connection, alice: Session
) -> None:
    session = alice()
    make_table(broker)
    done(session, "select pgps.subscribe('s', 'q*', 'n > 0')")
    rows(session, FIRST_LANE)
    rows(broker, "set statement_timeout = '5s'")
    call(broker, "create_event_type", "qa", "n integer")
    session.commit()


def test_who_opens_his_first_lane_holds_up_no_dispatcher_that_lets_a_subscription_of_his_join(
    broker: psycopg.Connection, own_database: str, connect: Connect, alice: Session, bob: psycopg.Connection
) -> None:
    session, altering = alice(), connect(dsn=own_database, autocommit=False)
    make_table(broker)
    make_type(broker, "qa")
    call(bob, "subscribe", "b", "tick")
    call(altering, "alter_event_type", "qa", add_attribute="m integer")
    done(session, "select pgps.subscribe('s', 'q*', 'n > 0')")
    altering.rollback()
    rows(session, FIRST_LANE)
    publish(broker, "tick", 1)
    impatient(broker)
    rows(broker, "select pgps.dispatch_batch()")
    assert take_only(bob, "b") == [1]


def test_reclaim_waits_for_nobody_who_changes_a_limit(broker: psycopg.Connection, alice: Session) -> None:
    session = alice()
    done(session, "select pgps.subscribe('s', 'tick')")
    done(session, "select pgps.alter_subscription('s', max_backlog => 2)")
    publish(broker, "tick", 1, 2, 3, 4)
    rows(broker, "select pgps.dispatch()")
    rows(broker, "select pgps.reclaim()")
    assert value(broker, "select state from pgps.subscriptions") == "suspended"
    call(session, "resume", "s")
    assert take_only(session, "s") == [1, 2, 3, 4]
    session.commit()
    call(session, "alter_subscription", "s", max_backlog=3)
    rows(broker, "set statement_timeout = '5s'")
    rows(broker, "select pgps.reclaim()")


def test_reclaim_waits_for_nobody_who_discards_a_gap(
    broker: psycopg.Connection, alice: Session, bob: psycopg.Connection
) -> None:
    session = alice()
    for one, who in [(bob, "b"), (session, "s")]:
        call(one, "subscribe", who, "tick")
        call(one, "alter_subscription", who, max_backlog=1, on_backlog="drop")
    session.commit()
    publish(broker, "tick", 5, 6)
    rows(broker, "select pgps.dispatch()")
    rows(broker, "select pgps.reclaim()")
    assert column(broker, "select events from pgps_internal.backlog_gap") == [1, 1]
    call(session, "discard_exception", "tick", subscription="s")
    publish(broker, "tick", 7, 8)
    rows(broker, "select pgps.dispatch()")
    rows(broker, "set statement_timeout = '5s'")
    rows(broker, "select pgps.reclaim()")
    assert take_only(bob, "b") == [8]


RAISES = "create function {name}(e pgps_event.tick) returns void language plpgsql as $$ begin raise 'no'; end $$"


def test_who_has_paused_a_subscription_whose_callback_fails_holds_up_no_others_callbacks(
    broker: psycopg.Connection, alice: Session, bob: psycopg.Connection
) -> None:
    pausing = alice()
    rows(broker, "grant create on schema public to public")
    rows(pausing, RAISES.format(name="public.fails"))
    done(pausing, "select pgps.subscribe('s', 'tick', execute => 'public.fails', priority => 9)")
    rows(bob, "create table public.got (n integer)")
    rows(bob, "create function public.get(e pgps_event.tick) returns void language sql as "
              "'insert into public.got values (e.n)'")  # fmt: skip
    call(bob, "subscribe", "b", "tick", execute="public.get")
    publish(broker, "tick", 1, 2)
    rows(broker, "select pgps.dispatch()")
    state = "select state, last_error from pgps.subscriptions where name = 's'"
    for change in ("select pgps.pause('s')", "revoke select on pgps_event.tick from public"):
        rows(pausing, "select pgps.pause('s')")
        if change.startswith("revoke"):
            # Its owner may not receive the type any more, which suspends it.
            rows(broker, f"{change}; grant select on pgps_event.tick to {bob.info.user}")
        impatient(broker)
        rows(broker, "call pgps.run_subscribers()")
        assert column(bob, "select n from public.got order by n") == [1, 2]
        assert rows(broker, state) == [("active", None)]
        pausing.rollback()
    rows(broker, "call pgps.run_subscribers()")
    ((now, error),) = rows(broker, state)
    assert (now, "may not receive" in error) == ("suspended", True)
    rows(broker, "grant select on pgps_event.tick to public")
    done(pausing, "select pgps.resume('s')")
    rows(broker, "call pgps.run_subscribers()")
    assert rows(broker, state) == [("active", "no")]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_who_has_put_an_event_back_in_an_open_transaction_holds_up_nobody_who_does_so(
    broker: psycopg.Connection, alice: Session, bob: psycopg.Connection, end: str
) -> None:
    refusing = alice()
    done(refusing, "select pgps.subscribe('s', 'tick', max_attempts => 1)")
    call(bob, "subscribe", "b", "tick", max_attempts=1)
    rows(broker, RAISES.format(name="public.fails"))
    call(broker, "subscribe", "c", "tick", execute="public.fails", max_attempts=1)
    rows(broker, "create function public.good(n integer) returns boolean language plpgsql as "
                 "$$ begin if n = 1 then raise 'one'; end if; return true; end $$")  # fmt: skip
    call(bob, "subscribe", "f", "tick", "public.good(n)")
    publish(broker, "tick", 1)
    rows(broker, "select pgps.dispatch_batch()")
    (event,) = column(refusing, "select event_id from pgps.receive('s')")
    rows(refusing, "select pgps.nack('s', %s)", [event])
    impatient(broker)
    assert column(bob, "select event_id from pgps.receive('b')") == [event]
    rows(bob, "select pgps.nack('b', %s, 'bad')", [event])
    rows(broker, "call pgps.run_lanes()")
    rows(broker, "call pgps.run_subscribers()")
    getattr(refusing, end)()
    if end == "rollback":
        (event,) = column(refusing, "select event_id from pgps.take('s')")
        refusing.commit()
    shown = "select subscription from pgps.exceptions order by subscription"
    assert column(broker, shown) == ["b", "c", "f", *(["s"] if end == "commit" else [])]
    # Also when the log has been given back, which whoever puts an event back while others do leaves the copying to.
    rows(broker, "reset statement_timeout")
    roll(broker)
    reclaim(broker)
    assert (kept(broker), kept(broker, "tick_kept")) == (0, 1)
    assert call(bob, "retry_exception", "tick", event, "b") == 1
    assert numbers(bob, "b") == [1]


@pytest.mark.parametrize(
    "change",
    [
        "select pgps.alter_event_type('tick', add_attribute => 'm integer')",
        "select pgps.alter_event_type('told', drop_attribute => 'ok')",
        "select pgps.drop_confirm_event('told', 'tick')",
        "select pgps.drop_event_type('told', cascade => true)",
    ],
    ids=["alters", "alters what confirms", "drops the link", "drops"],
)
def test_who_changes_a_type_in_an_open_transaction_holds_up_no_others_confirming_events(
    broker: psycopg.Connection, own_database: str, connect: Connect, change: str
) -> None:
    changing = connect(dsn=own_database, autocommit=False)
    for original, confirming in (("tick", "told"), ("tock", "tolled")):
        if original != "tick":
            make_type(broker, original)
        make_type(broker, confirming, "id bigint, ok boolean")
        call(broker, "link_confirm_event", confirming, original)
        publish(broker, original, 1)
    call(broker, "subscribe", "s", "told")
    call(broker, "subscribe", "b", "tolled")
    rows(broker, "select pgps.dispatch_batch()")
    rows(changing, change)
    impatient(broker)
    rows(broker, "select pgps.raise_confirming()")
    rows(broker, "select pgps.dispatch_batch()")
    told = "select payload ->> 'ok' from pgps.take(%s)"
    assert [column(broker, told, [name]) for name in "bs"] == [["true"], []]
    assert column(broker, "select last_error from pgps.confirm_events") == [None, None]
    changing.rollback()
    rows(broker, "select pgps.raise_confirming()")
    rows(broker, "select pgps.dispatch_batch()")
    assert [column(broker, told, [name]) for name in "bs"] == [[], ["true"]]


def test_who_asks_what_became_of_an_event_waits_for_no_type_that_he_may_not_see(
    broker: psycopg.Connection, own_database: str, connect: Connect, alice: Session
) -> None:
    session, changing = alice(autocommit=True), connect(dsn=own_database, autocommit=False)
    make_type(broker, "other")
    rows(broker, "revoke select on pgps_event.other from public")
    call(session, "subscribe", "s", "tick")
    call(changing, "alter_event_type", "other", add_attribute="m integer")
    rows(session, "set statement_timeout = '5s'")
    assert "is not there" in rows(session, "select * from pgps.explain('s', 1000000)")[0][1]
