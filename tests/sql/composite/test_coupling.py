"""Rules in the publisher's transaction: constraints over events, in the statement or before the commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fix_broker import call, make_type, receive, refused, rows, value
from tests.fix_db import Connect


@pytest.fixture
def broker(connect: Connect, own_database: str) -> psycopg.Connection:
    connection = connect(dsn=own_database)
    make_type(connection, "debit", "account text not null, amount integer")
    make_type(connection, "credit", "account text not null, amount integer")
    rows(connection, "create table public.told (place integer generated always as identity, what text)")
    rows(
        connection,
        "create function public.tell(what text) returns void language sql as $$ insert into public.told (what) "
        "values ($1) $$",
    )
    rows(
        connection,
        "create function public.refuse(what text) returns void language plpgsql as $$ begin "
        "raise exception 'refused: %', what using errcode = '23514'; end $$",
    )
    return connection


def told(connection: psycopg.Connection) -> list[str]:
    found = [row[0] for row in rows(connection, "select what from public.told order by place")]
    rows(connection, "truncate public.told")
    return found


def debit(connection: psycopg.Connection, *amounts: int, account: str = "A", kind: str = "debit") -> None:
    values = ", ".join(f"('{account}', {amount})" for amount in amounts)
    rows(connection, f"insert into pgps_event.{kind} values {values}")


def both(connection: psycopg.Connection, first: int, second: int) -> None:
    """Publish a debit and a credit in one transaction."""
    with connection.transaction():
        debit(connection, first)
        debit(connection, second, kind="credit")


def pair(connection: psycopg.Connection, **options: Any) -> None:
    call(
        connection, "create_composite_event", "pair", "debit a ; credit b", partition_by="account",
        attributes="account text = a.account, amounts text = a.amount || '+' || b.amount", **options,
    )  # fmt: skip


def test_a_composite_event_is_detected_in_the_transaction(broker: psycopg.Connection) -> None:
    pair(broker, context="chronicle", max_open=100, filter="b.amount >= a.amount")
    for coupling in ("deferred", "immediate"):
        call(
            broker, "subscribe", coupling, "pair", "account <> 'C'", execute="public.tell(amounts)", coupling=coupling,
        )  # fmt: skip
    call(broker, "pause", "immediate")
    # What is of several transactions, or of a key or a filter that does not fit, is none.
    debit(broker, 1)
    debit(broker, 1, kind="credit")
    assert told(broker) == []
    with broker.transaction():
        debit(broker, 1, 2)
        debit(broker, 9, account="B")
        debit(broker, 9, account="C")
        debit(broker, 9, kind="credit", account="C")
        debit(broker, 5, 6, 7, kind="credit")
        assert told(broker) == []
    assert told(broker) == ["1+5", "2+6"]
    # SET CONSTRAINTS runs what is due; each event counts once.
    with broker.transaction():
        debit(broker, 1, 2)
        debit(broker, 3, kind="credit")
        rows(broker, "set constraints all immediate")
        assert told(broker) == ["1+3"]
        debit(broker, 4, kind="credit")
        rows(broker, "set constraints all deferred")
    assert told(broker) == ["2+4"]
    call(broker, "pause", "deferred")
    call(broker, "resume", "immediate")
    with broker.transaction():
        debit(broker, 1, 2)
        debit(broker, 5, kind="credit")
        assert told(broker) == ["1+5"]
        debit(broker, 6, 7, kind="credit")
        assert told(broker) == ["2+6"]
    # The broker detects for its other consumers, too, and over all transactions.
    rows(broker, "select pgps.dispatch()")
    assert value(broker, "select detected from pgps.composite_events") == 8


def test_a_savepoint_takes_back_what_was_open(broker: psycopg.Connection) -> None:
    pair(broker, context="chronicle", max_open=100)
    for coupling in ("deferred", "immediate"):
        call(broker, "subscribe", coupling, "pair", execute=f"public.tell('{coupling} ' || amounts)", coupling=coupling)
    with broker.transaction():
        debit(broker, 1)
        for amount in (2, 3):
            with broker.transaction(force_rollback=True):
                debit(broker, amount)
                debit(broker, 7, kind="credit")
                assert value(broker, "select count(*) from public.told") == 1
        debit(broker, 4)
        debit(broker, 8, 9, kind="credit")
        assert told(broker) == ["immediate 1+8", "immediate 4+9"]
    assert told(broker) == ["deferred 1+8", "deferred 4+9"]


def test_what_a_rule_raises_aborts_the_publisher(broker: psycopg.Connection) -> None:
    call(broker, "subscribe", "all", "debit")
    call(broker, "subscribe", "limit", "debit", "amount > 100", execute="public.refuse(account)", coupling="immediate")
    with pytest.raises(psycopg.errors.CheckViolation, match="refused: A"):
        debit(broker, 1, 101)
    call(broker, "alter_subscription", "limit", filter="amount > 200")
    debit(broker, 101)
    with broker.transaction():
        with pytest.raises(psycopg.errors.CheckViolation), broker.transaction():
            debit(broker, 201)
        debit(broker, 5)
    call(broker, "unsubscribe", "limit")
    pair(broker)
    rule = "create rule no_pair on pair execute public.refuse(amounts) coupling deferred with 2"
    assert call(broker, "execute", rule) == "CREATE RULE"
    with pytest.raises(psycopg.errors.CheckViolation, match="refused: 6\\+7"):
        both(broker, 6, 7)
    # A condition that raises does not let a constraint be got round.
    call(broker, "alter_composite_event", "pair", filter="1 / b.amount >= 0")
    with pytest.raises(psycopg.Error, match="division by zero"):
        both(broker, 6, 0)
    rows(broker, "select pgps.dispatch()")
    amounts = [row[0] for row in rows(broker, "select payload ->> 'amount' from pgps.receive('all')")]
    assert amounts == ["101", "5"]
    # A rule is a reason not to drop what it is about.
    with refused("2BP01", "no_pair"):
        call(broker, "drop_event_type", "pair")
    call(broker, "drop_event_type", "pair", True)
    assert value(broker, "select count(*) from pgps.subscriptions where name = 'no_pair'") == 0
    both(broker, 6, 7)


def test_rules_fire_rules_by_priority_down_to_a_depth(broker: psycopg.Connection) -> None:
    rows(
        broker,
        "create function public.halve(amount integer, account text) returns void language sql as $$ "
        "insert into pgps_event.debit values ($2, $1 / 2) $$",
    )
    for coupling in ("immediate", "deferred"):
        call(
            broker, "subscribe", "halves", "debit", "amount > 1", execute="public.halve(amount, account)",
            coupling=coupling,
        )  # fmt: skip
        call(broker, "subscribe", "first", "debit", execute="public.tell(amount::text)", coupling=coupling, priority=9)
        with broker.transaction():
            debit(broker, 8)
            debit(broker, 1)
        wanted = ["8", "4", "2", "1", "1"] if coupling == "immediate" else ["8", "1", "4", "2", "1"]
        assert told(broker) == wanted
        # Not how many statements: how deep.
        call(broker, "configure", "coupling_depth", "4")
        with broker.transaction():
            for _ in range(6):
                debit(broker, 8)
        assert len(told(broker)) == 24
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match=f"rules with the coupling {coupling} are 5 deep"):
            debit(broker, 16)
        call(broker, "configure", "coupling_depth", "32")
        assert told(broker) == []
        for name in ("halves", "first"):
            call(broker, "unsubscribe", name)


def test_the_end_of_a_transaction_is_an_event_for_deferred_rules(broker: psycopg.Connection) -> None:
    call(broker, "create_composite_event", "unbalanced", "not(credit)[debit a, commit]",
         attributes="amount integer = a.amount")  # fmt: skip
    with refused("22023", "waits for the end of a transaction"):
        call(broker, "subscribe", "r", "unbalanced", execute="public.tell(amount::text)", coupling="immediate")
    call(broker, "subscribe", "r", "unbalanced", execute="public.refuse(amount::text)", coupling="deferred")
    with broker.transaction():
        debit(broker, 3)
        debit(broker, 3, kind="credit")
    with pytest.raises(psycopg.errors.CheckViolation, match="refused: 4"):
        debit(broker, 4)


class Numbered:
    """Immediate and deferred rules on credits and on pairs, told of events that have producers' numbers."""

    def __init__(self, broker: psycopg.Connection) -> None:
        self.broker = broker
        pair(broker, context="chronicle", max_open=100)
        call(broker, "subscribe", "all", "credit")
        for coupling in ("deferred", "immediate"):
            told_as = f"public.tell('{coupling} ' || "
            call(broker, "subscribe", f"plain_{coupling}", "credit", execute=told_as + "amount)", coupling=coupling)
            call(broker, "subscribe", f"pair_{coupling}", "pair", execute=told_as + "amounts)", coupling=coupling)

    def say(self, kind: str, amount: int, *numbers: int, by: psycopg.Connection | None = None) -> None:
        values = ", ".join(f"('A', {amount}, 'p', {number})" for number in numbers)
        insert = f"insert into pgps_event.{kind} (account, amount, _producer, _producer_seq) values {values}"
        rows(by or self.broker, insert)

    def heard(self) -> list[str]:
        """Return what both kinds of rules were told, which is the same."""
        found = [what.split() for what in told(self.broker)]
        each = {coupling: [what for who, what in found if who == coupling] for coupling in ("immediate", "deferred")}
        assert each["immediate"] == each["deferred"]
        return each["deferred"]


def test_repeats_of_a_producer_fire_no_rule(broker: psycopg.Connection) -> None:
    rules = Numbered(broker)
    # In one statement and in several of one transaction; a number that was rolled back is free.
    with broker.transaction():
        debit(broker, 9, account="B")
        rules.say("debit", 1, 1, 1)
        rules.say("debit", 2, 1)
        with broker.transaction(force_rollback=True):
            rules.say("credit", 3, 1)
        rules.say("credit", 4, 1, 1)
        rules.say("credit", 5, 1)
        debit(broker, 9, account="B")
    assert rules.heard() == ["4", "1+4"]
    # In a later transaction, before and after dispatch; numbers that are new go through, in any order.
    for _ in range(2):
        with broker.transaction():
            rules.say("debit", 6, 1)
            rules.say("credit", 7, 1)
        assert rules.heard() == []
        rows(broker, "select pgps.dispatch()")
    with broker.transaction():
        rules.say("debit", 1, 7, 1, 5)
        rules.say("credit", 2, 1, 7, 3)
    assert rules.heard() == ["2", "2", "1+2", "1+2"]
    # What the rules saw is what dispatch keeps.
    rows(broker, "select pgps.dispatch()")
    assert [payload["amount"] for payload in receive(broker, "all")] == [4, 2, 2]


def test_rules_know_repeats_of_other_transactions_and_ways(
    broker: psycopg.Connection, connect: Connect, own_database: str
) -> None:
    rules = Numbered(broker)
    # A transaction that commits after the dispatch of later events waits still.
    with connect(dsn=own_database) as other, other.transaction():
        rules.say("credit", 8, 8, by=other)
        rows(broker, "select pgps.dispatch()")
    assert rules.heard() == ["8"]
    for _ in range(2):
        rules.say("credit", 8, 8)
        assert rules.heard() == []
        rows(broker, "select pgps.dispatch()")
    # pgps.publish takes numbers of the same producer; other producers and events without a number are others.
    for wanted in (["9"], []):
        for _ in range(2):
            payload = '{"account": "A", "amount": 9}'
            call(broker, "publish", "credit", payload, producer="p", producer_seq=9)
        assert rules.heard() == wanted
        rules.say("credit", 9, 9)
        assert rules.heard() == []
    rows(broker, "insert into pgps_event.credit (account, amount, _producer, _producer_seq) values ('A', 1, 'q', 9)")
    debit(broker, 2, 2, kind="credit")
    assert rules.heard() == ["1", "2", "2"]
    rows(broker, "select pgps.dispatch()")
    assert [payload["amount"] for payload in receive(broker, "all")] == [8, 9, 1, 2, 2]


def test_an_immediate_event_is_a_transaction_of_its_own_for_rules(broker: psycopg.Connection) -> None:
    pair(broker)
    for coupling in ("deferred", "immediate"):
        told_as = f"public.tell('{coupling} ' || "
        call(broker, "subscribe", f"plain_{coupling}", "credit", execute=told_as + "amount)", coupling=coupling)
        call(broker, "subscribe", f"pair_{coupling}", "pair", execute=told_as + "amounts)", coupling=coupling)
    with broker.transaction(force_rollback=True):
        for kind in ("debit", "credit"):
            call(broker, "publish", kind, '{"account": "A", "amount": 3}', "immediate")
    # The rules ran with the event, which is out; a pair would be of two transactions.
    assert told(broker) == ["immediate 3", "deferred 3"]


def test_what_cannot_be_a_rule_in_a_transaction_is_refused(
    broker: psycopg.Connection, role: Callable[..., str]
) -> None:
    make_type(broker, "soon", "n integer", visibility="immediate")
    pair(broker)
    call(broker, "create_composite_event", "pairs", "pair a ; pair b")
    tell = {"execute": "public.tell('x')"}
    for event_type, options, sqlstate, said in (
        ("debit", {"coupling": "loose", **tell}, "22023", 'invalid coupling "loose"'),
        ("debit", {"coupling": "deferred"}, "22023", "executes nothing"),
        ("debit", {"coupling": "deferred", "start": "earliest", **tell}, "22023", "transaction alone"),
        ("debit", {"coupling": "deferred", "scope": "global", **tell}, "22023", "transaction alone"),
        ("deb*", {"coupling": "deferred", **tell}, "22023", "about one event type"),
        ("soon", {"coupling": "immediate", **tell}, "22023", "a transaction of their own"),
        ("pairs", {"coupling": "immediate", **tell}, "0A000", 'composite event "pair"'),
    ):
        with refused(sqlstate, said):
            call(broker, "subscribe", "r", event_type, **options)
    stranger = role("pgps_user")
    rows(broker, f"grant select on pgps_event.debit to {stranger}")
    with broker.transaction(force_rollback=True):
        rows(broker, f"set local role {stranger}")
        with refused("42501", "may not run rules in transactions"):
            call(broker, "subscribe", "r", "debit", coupling="deferred", execute="pg_catalog.lower('x')")
    assert value(broker, "select count(*) from pgps.subscriptions where name = 'r'") == 0


def test_attributes_may_have_any_names(broker: psycopg.Connection) -> None:
    make_type(broker, "dot", "x integer, event integer, events integer, place integer")
    for coupling in ("immediate", "deferred"):
        call(broker, "subscribe", coupling, "dot", execute="public.tell(x::text || place)", coupling=coupling)
    rows(broker, "insert into pgps_event.dot values (1, 2, 3, 4)")
    assert told(broker) == ["14", "14"]


def test_a_rule_is_given_only_to_who_may_have_one(
    broker: psycopg.Connection, connect: Connect, own_database: str, role: Callable[..., str]
) -> None:
    """Its code runs in everybody's transactions, or, without the right to see the events, not at all."""
    bob, boss = role("bob"), role("boss", "pgps_admin")
    rows(broker, f"grant {bob} to {boss}")
    own = connect(boss, dsn=own_database)
    for name, coupling in (("limit", "deferred"), ("now", "immediate")):
        call(own, "subscribe", name, "debit", "amount > 100", execute="public.refuse(account)", coupling=coupling)
        with refused("42501", bob):
            call(own, "alter_subscription", name, owner=bob)
    rows(broker, f"grant pgps_admin to {bob}")
    call(own, "alter_subscription", "limit", owner=bob)
    call(own, "unsubscribe", "now")
    with refused("23514", "refused: A"):
        debit(broker, 200)
