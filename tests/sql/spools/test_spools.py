"""Making spools, who may use them, what a message may have, limits, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fix_broker import call, column, refused, rows, value
from tests.fix_clock import Clock
from tests.fix_db import Connect
from tests.fix_spools import Member, Spool

Name = Callable[..., str]
Role = Callable[..., str]


def test_a_spool_is_made_changed_and_dropped(admin: psycopg.Connection, name: Name) -> None:
    made = name("spool")
    call(admin, "create_spool", made, max_messages=5, on_limit="drop_oldest")
    with refused("42710", made, "spool_advise"):
        call(admin, "create_spool", made)
    query = "select max_messages, max_bytes, retention::text, on_limit from pgps.spools where name = %s"
    assert rows(admin, query, [made]) == [(5, None, None, "drop_oldest")]
    call(admin, "spool_advise", made, max_bytes=1000, retention="1 day")
    assert rows(admin, query, [made]) == [(5, 1000, "1 day", "drop_oldest")]
    call(admin, "drop_spool", made)
    assert rows(admin, query, [made]) == []
    with refused("42704", made, "create_spool"):
        call(admin, "drop_spool", made)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ({"max_messages": 0}, "22023", "max_messages 0"),
        ({"max_bytes": -1}, "22023", "max_bytes -1"),
        ({"retention": "-1 day"}, "22023", "retention"),
        ({"on_limit": "forget"}, "22023", "forget"),
        ({"on_limit": None}, "22023", "on_limit"),
    ],
)
def test_limits_that_make_no_sense_are_refused(
    admin: psycopg.Connection, name: Name, options: dict[str, Any], code: str, said: str
) -> None:
    with refused(code, said):
        call(admin, "create_spool", name("spool"), **options)


def test_lists_of_lists_are_refused_in_words(admin: psycopg.Connection, spool: Spool, name: Name) -> None:
    with refused("22023", "keywords", "texts without nulls"):
        rows(admin, f"""select pgps.spool('{spool.name}', 1, '1', keywords => '{{{{a,b}},{{c,d}}}}')""")
    with refused("22023", "invalid contacts", "without nulls"):
        call(admin, "create_network", name("network"), "{{host=a},{host=b}}")


def test_names_are_checked(admin: psycopg.Connection) -> None:
    for wrong, code in (("", "42602"), ("x" * 41, "42622"), (None, "22023"), ("a*", "42602")):
        with refused(code):
            call(admin, "create_spool", wrong)


def test_only_administrators_make_spools_and_only_owners_change_them(
    admin: psycopg.Connection, connect: Connect, role: Role, spool: Spool, name: Name
) -> None:
    stranger = connect(role("stranger"))
    with refused("42501", "create spools"):
        call(stranger, "create_spool", name("spool"))
    for change in ("drop_spool", "spool_advise"):
        with refused("42501", "change spool"):
            call(stranger, change, spool.name)
    for change in ("grant_spool", "revoke_spool"):
        with refused("42501", "change spool"):
            call(stranger, change, spool.name, "spool", stranger.info.user)


def test_spool_and_replay_are_privileges(connect: Connect, role: Role, spool: Spool) -> None:
    alice, bob = role("alice"), role("bob")
    writer, reader = connect(alice), connect(bob)
    with refused("42501", "may not spool into", "grant_spool"):
        call(writer, "spool", spool.name, 1, "1")
    assert column(writer, "select name from pgps.spools where name = %s", [spool.name]) == []
    call(spool.connection, "grant_spool", spool.name, "spool", alice)
    call(spool.connection, "grant_spool", spool.name, "replay", bob)
    call(spool.connection, "grant_spool", spool.name, "replay", bob)
    made = call(writer, "spool", spool.name, 1, "1")
    with refused("42501", "may not spool into"):
        call(reader, "spool", spool.name, 1, "1")
    with refused("42501", "may not replay"):
        call(writer, "spool_discard", spool.name)
    spool.dispatch()
    seen = "select message from pgps.spooled_messages where spool = %s"
    assert column(writer, seen, [spool.name]) == []
    assert column(reader, seen, [spool.name]) == [1]
    assert call(writer, "spool_getseqn", made) == call(reader, "spool_getseqn", made) == 1
    stranger = connect(role("stranger"))
    assert call(stranger, "spool_getseqn", made) == 0
    assert call(stranger, "spool_inquire", made) is None
    with refused("42501", "may not cancel"):
        call(stranger, "spool_cancel", made)
    call(spool.connection, "revoke_spool", spool.name, "replay", bob)
    with refused("42501", "may not replay"):
        call(reader, "spool_replay", spool.name)
    call(spool.connection, "grant_spool", spool.name, "spool", "public")
    call(stranger, "spool", spool.name, 1, "2")
    with refused("22023", "privilege"):
        call(spool.connection, "grant_spool", spool.name, "read", alice)
    with refused("42704", "does not exist"):
        call(spool.connection, "grant_spool", spool.name, "spool", "nobody_of_that_name")


def test_the_way_in_of_plain_messages_asks_for_the_right_and_believes_nobody(
    connect: Connect, role: Role, spool: Spool
) -> None:
    group = role("group")
    writer, member, other = connect(role("writer")), connect(role("member", group)), connect(role("other"))
    call(spool.connection, "grant_spool", spool.name, "spool", writer.info.user)
    call(spool.connection, "grant_spool", spool.name, "spool", group)
    insert = """
        insert into pgps_entry.plain_spooled (name, entry, message, id)
        select %s, 1, to_jsonb(n), 1 from generate_series(1, 3) n returning id
    """
    ids = column(writer, insert, [spool.name])
    assert len(ids) == 3
    assert min(ids) > 1
    assert len(column(member, insert, [spool.name])) == 3
    assert column(other, insert, [spool.name]) == []
    spool.dispatch()
    query = "select seqn, spooler, message from pgps.spooled_messages where spool = %s"
    found = rows(spool.connection, query, [spool.name])
    assert [seqn for seqn, *_ in found] == [1, 2, 3, 4, 5, 6]
    # In which order the planner takes the rows of a set is left to it.
    for spooler, part in ((writer, found[:3]), (member, found[3:])):
        assert sorted(row[1:] for row in part) == [(spooler.info.user, n) for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("column", "good", "bad"),
    [
        ("name", "%(name)s", "'no spool of that name'"),
        ("entry", "1", "-7"),
        ("message", "'1'::jsonb", "null"),
        ("keys", """'{"a": 1}'::jsonb""", """'{"a": "x"}'::jsonb"""),
        ("keywords", "'{a}'::text[]", "'{{a},{b}}'::text[]"),
    ],
)
@pytest.mark.parametrize("form", ["values ({})", "select {} from generate_series(1, 3)"])
def test_what_is_checked_is_what_is_spooled_whatever_an_expression_gives_next(
    connect: Connect, role: Role, spool: Spool, column: str, good: str, bad: str, form: str
) -> None:
    writer = connect(role("writer"))
    call(spool.connection, "grant_spool", spool.name, "spool", writer.info.user)
    rows(writer, "create temporary sequence turn")
    given = {"name": "%(name)s", "entry": "1", "message": "'1'::jsonb"}
    for good_ones in range(4):
        rows(writer, "alter sequence turn restart")
        given[column] = f"case when nextval('turn') <= {good_ones} then {good} else {bad} end"
        insert = f"insert into pgps_entry.plain_spooled ({', '.join(given)}) {form.format(', '.join(given.values()))}"
        writer.execute(insert.encode(), {"name": spool.name})
    spool.dispatch()
    stored = "select entry, message, keys, keywords from pgps.spooled_messages where spool = %s"
    before = rows(spool.connection, stored, [spool.name])
    assert before
    assert set(map(repr, before)) == {
        repr((1, 1, {"a": 1} if column == "keys" else None, ["a"] if column == "keywords" else None))
    }
    spool.spool(2)
    assert rows(spool.connection, stored, [spool.name]) == [*before, (1, 2, None, None)]


def test_administrators_change_spools_and_read_none(connect: Connect, role: Role, spool: Spool) -> None:
    boss = connect(role("boss", "pgps_admin"))
    made = spool.spool(1)[0]
    assert column(boss, "select new from pgps.spools where name = %s", [spool.name]) == [1]
    seen = "select message from pgps.spooled_messages where spool = %s"
    assert column(boss, seen, [spool.name]) == []
    assert call(boss, "spool_getseqn", made) == 0
    for function, arguments in (("spool", (1, "2")), ("spool_discard", ()), ("spool_set_replay_pointer", (1,))):
        with refused("42501", "may not", "grant_spool"):
            call(boss, function, spool.name, *arguments)
    call(boss, "grant_spool", spool.name, "replay", boss.info.user)
    assert column(boss, seen, [spool.name]) == [1]
    call(boss, "spool_advise", spool.name, max_messages=5)


def test_the_sender_is_a_role_of_the_caller_and_the_spooler_the_caller(
    connect: Connect, role: Role, spool: Spool
) -> None:
    group = role("group")
    alice = role("alice", group)
    call(spool.connection, "grant_spool", spool.name, "spool", "public")
    writer = connect(alice)
    call(writer, "spool", spool.name, 1, "1", sender=group)
    call(writer, "spool", spool.name, 1, "2")
    with refused("42501", "for sender"):
        call(writer, "spool", spool.name, 1, "3", sender=role("other"))
    with refused("42704", "does not exist"):
        call(writer, "spool", spool.name, 1, "3", sender="nobody_of_that_name")
    spool.dispatch()
    query = "select message, sender, spooler from pgps.spooled_messages where spool = %s"
    assert rows(spool.connection, query, [spool.name]) == [(1, group, alice), (2, alice, alice)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"entry": None}, "entry"),
        ({"entry": -1}, "entry -1"),
        ({"message": None}, "message"),
        ({"keys": {f"k{n}": n for n in range(10)}}, "10 numeric keys"),
        ({"keys": {"a": "1"}}, 'key "a"'),
        ({"keys": {"a": None}}, 'key "a"'),
        ({"keys": {"a": [1]}}, 'key "a"'),
        ({"keys": {"a": []}}, 'key "a"'),
        ({"keys": [1]}, "keys"),
        ({"keywords": ["a", None]}, "keywords"),
        ({"keywords": [["a"]]}, "keywords"),
        ({"ordering": "lbcast"}, "lbcast"),
    ],
)
def test_messages_that_make_no_sense_are_refused(spool: Spool, arguments: dict[str, Any], said: str) -> None:
    given = {"entry": 1, "message": 1} | arguments
    keys = given.pop("keys", None)
    message = None if given["message"] is None else Jsonb(given.pop("message"))
    given = {"message": message} | {k: v for k, v in given.items() if k != "message"}
    query = ", ".join(f"{key} => %s" for key in given)
    with refused("22023", said):
        rows(
            spool.connection,
            f"select pgps.spool(%s, {query}, keys => %s)",
            [spool.name, *given.values(), None if keys is None else Jsonb(keys)],
        )


def test_all_that_a_message_has_is_kept(spool: Spool, clock: Clock) -> None:
    clock.set("2026-03-01 12:00+00")
    expires = datetime(2026, 3, 2, tzinfo=UTC)
    keys = {f"k{n}": n / 2 for n in range(9)}
    spool.spool('{"a": [null]}', keys=Jsonb(keys), keywords=["add", ""], expires=expires)
    spool.spool("null")
    query = """
        select seqn, entry, message, keys, keywords, spooled_at, expires, replayed
        from pgps.spooled_messages where spool = %s
    """
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert rows(spool.connection, query, [spool.name]) == [
        (1, 1, {"a": [None]}, keys, ["add", ""], at, expires, False),
        (2, 1, None, None, None, at, None, False),
    ]


def test_a_set_is_spooled_in_one_call_all_of_it_or_nothing(spool: Spool) -> None:
    messages = [{"entry": n, "message": {"n": n}, "keys": {"N": n}} for n in range(1, 1001)]
    made = call(spool.connection, "spool_many", spool.name, Jsonb(messages))
    assert len(made) == 1000
    spool.dispatch()
    query = "select array_agg(id), array_agg(seqn), array_agg(entry) from pgps.spooled_messages where spool = %s"
    assert rows(spool.connection, query, [spool.name]) == [(made, list(range(1, 1001)), list(range(1, 1001)))]
    for wrong, said in (
        ([*messages, {"entry": 1}], "message is missing"),
        ([*messages, {"entry": 1, "message": 1, "key": 2}], '"key"'),
        ([*messages, 5], "JSON number"),
        ({"entry": 1, "message": 1}, "JSON object"),
        (5, "JSON number"),
    ):
        with refused("22023", said):
            call(spool.connection, "spool_many", spool.name, Jsonb(wrong))
    assert call(spool.connection, "spool_many", spool.name, Jsonb([])) == []
    spool.dispatch()
    assert spool.standing("last_seqn") == 1000


def test_unknown_spools_and_networks_are_refused(spool: Spool) -> None:
    for function in ("spool_discard", "spool_replay"):
        with refused("42704", "no_such_spool", "create_spool"):
            call(spool.connection, function, "no_such_spool")
    with refused("42704", "no_such_spool"):
        call(spool.connection, "spool", "no_such_spool", 1, "1")
    with refused("42704", "atlantis"):
        call(spool.connection, "spool", spool.name, 1, "1", network="atlantis")


def test_a_full_spool_refuses_and_takes_again_after_a_discard(spool: Spool) -> None:
    call(spool.connection, "spool_advise", spool.name, max_messages=3)
    spool.spool(1, 2)
    call(spool.connection, "spool", spool.name, 1, "3")
    with refused("54000", "3 messages of 3", "spool_discard"):
        call(spool.connection, "spool", spool.name, 1, "4")
    spool.pointer(2)
    assert spool.discard() == 2
    spool.spool(4, 5)
    with refused("54000"):
        call(spool.connection, "spool", spool.name, 1, "6")
    assert spool.contents() == {3: 3, 4: 4, 5: 5}


def test_a_limit_in_bytes_counts_what_is_there(spool: Spool) -> None:
    call(spool.connection, "spool_advise", spool.name, max_bytes=100)
    spool.spool(f'"{"x" * 58}"')
    assert spool.standing("bytes") == 60
    with refused("54000", "60 bytes of 100"):
        spool.spool(f'"{"x" * 58}"')
    spool.spool(f'"{"x" * 38}"')
    assert spool.standing("bytes") == 100


def test_the_oldest_are_dropped_with_a_gap(spool: Spool) -> None:
    call(spool.connection, "spool_advise", spool.name, max_messages=3, on_limit="drop_oldest")
    spool.spool(1, 2, 3, 4)
    assert spool.contents() == {2: 2, 3: 3, 4: 4}
    call(spool.connection, "spool_many", spool.name, Jsonb([{"entry": 1, "message": n} for n in (5, 6)]))
    spool.dispatch()
    assert spool.contents() == {4: 4, 5: 5, 6: 6}
    query = "select first_seqn, last_seqn, messages, reason from pgps.spool_gaps where spool = %s order by first_seqn"
    assert rows(spool.connection, query, [spool.name]) == [(1, 1, 1, "limit"), (2, 3, 2, "limit")]
    assert spool.standing("discarded", "first_seqn", "last_seqn") == (3, 4, 6)


def test_members_are_told_what_a_full_spool_has_dropped(spool: Spool, connect: Connect, name: Name) -> None:
    call(spool.connection, "spool_advise", spool.name, max_messages=3, on_limit="drop_oldest")
    early, late = (Member(connect(), spool, name("member")) for _ in range(2))
    spool.spool(1, 2)
    assert early.take() == [1, 2]
    spool.spool(3, 4, 5, 6, 7)
    # What a member has acknowledged is no gap for it.
    assert early.received() == [(4, {"gap": [3, 4]}, False), (5, 5, False), (6, 6, False), (7, 7, False)]
    assert late.received(2) == [(4, {"gap": [1, 4]}, False), (5, 5, False)]
    gap = rows(late.connection, "select id from pgps.receive_spooled(%s, %s, 1)", [spool.name, late.name])[0][0]
    assert early.ack() == 4
    assert late.ack(gap) == 1
    spool.spool(8, 9)
    assert late.received() == [(6, {"gap": [5, 6]}, False), (7, 7, False), (8, 8, False), (9, 9, False)]
    assert early.take() == [8, 9]
    # A replay tells it, too: what it lacks has been processed, and is lost to whoever recovers.
    spool.pointer(8)
    early.join(replay=True)
    assert early.received() == [(6, {"gap": [1, 6]}, True), (7, 7, True), (8, 8, True), (0, {"replay": "ended"}, False)]
    assert early.ack() == 4
    assert late.take() == ["|", 7, 8, 9], "the row of the gap, as before, has no entry"
    latest = Member(connect(), spool, name("member"))
    assert latest.received() == [], "it gets what is spooled from now on"
    for member in (early, late, latest):
        rows(spool.connection, "delete from pgps_internal.client where name = %s", [member.name])


def test_messages_past_the_retention_go_when_space_is_reclaimed(spool: Spool, clock: Clock) -> None:
    call(spool.connection, "spool_advise", spool.name, retention="1 hour")
    spool.spool(1, 2)
    clock.advance("40 minutes")
    spool.spool(3)
    clock.advance("40 minutes")
    value(spool.connection, "select pgps.reclaim(1000000)")
    spool.dispatch()
    assert spool.contents() == {3: 3}
    clock.advance("40 minutes")
    value(spool.connection, "select pgps.reclaim(1000000)")
    spool.dispatch()
    assert spool.contents() == {}
    query = "select first_seqn, last_seqn, reason from pgps.spool_gaps where spool = %s order by first_seqn"
    assert rows(spool.connection, query, [spool.name]) == [(1, 2, "retention"), (3, 3, "retention")]


def test_the_hidden_event_type_is_nobodys(connect: Connect, role: Role, spool: Spool) -> None:
    boss = connect(role("boss", "pgps_admin"))
    for query in (
        "select * from pgps_event.pgps_spool",
        "insert into pgps_event.pgps_spool (verb) values ('l')",
        "select * from pgps_queue.pgps_spool_in",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            boss.execute(query.encode())
    with refused("2BP01", "spools"):
        call(boss, "drop_event_type", "pgps_spool")
