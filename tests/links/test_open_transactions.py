"""Every public function, in a transaction that stays open: whoever else there is goes on (decision 64)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.fix_broker import call, column, make_type, publish, quoted, rows
from tests.fix_db import Connect
from tests.links.rig import Broker, Link, linked, received, settle

Brokers = Callable[[int], list[Broker]]

# How long the others may be held up: far longer than any of their steps takes on a busy machine.
_BOUND = "set lock_timeout = '10s'; set statement_timeout = '60s'"

# What a role may do that has LOGIN, and the rights to publish, receive and subscribe. Each story is one transaction,
# which stays open behind its last statement.
STORIES: dict[str, list[str]] = {
    "subscriptions": [
        "select pgps.subscribe('new_all', 'tick', scope => 'global')",
        "select pgps.subscribe('new_some', 'tick', 'n > 5', scope => 'global')",
        "select pgps.subscribe('new_shared', 'tick', 'n > 5', scope => 'global', handler => 'any')",
        "select pgps.subscribe('new_lane', 'tick', 'n in (table public.wished)', scope => 'global')",
        "select pgps.subscribe('new_prefix', 't*', scope => 'global')",
        "select pgps.subscribe('new_prefix_some', 't*', 'n > 5', scope => 'global')",
        "select pgps.subscribe('new_early', 'tick', 'n > 5', scope => 'global', start => 'earliest')",
        "select pgps.subscribe('new_early_lane', 'tick', 'n in (table public.wished)', 'global', start => 'earliest')",
        "select pgps.subscribe('new_local', 'tick', 'n > 6')",
    ],
    "first subscriptions of a role": [
        "select pgps.subscribe('first', 'tick', scope => 'global')",
        "select pgps.subscribe('first_shared', 'tick', 'n > 5', scope => 'global', handler => 'any')",
        "select pgps.subscribe('first_lane', 'tick', 'n in (table public.wished)', scope => 'global')",
        "select pgps.subscribe('first_prefix', 't*', 'n > 5', scope => 'global')",
    ],
    "subscriptions that are changed": [
        "select pgps.alter_subscription('mine', 'n > 7')",
        "select pgps.alter_subscription('shared', 'n > 7')",
        "select pgps.alter_subscription('fresh', 'n > 7')",
        "select pgps.alter_subscription('fresh_shared', 'n > 7')",
        "select pgps.alter_subscription('lane', 'n > 7')",
        "select pgps.alter_subscription('prefix', 'n > 7')",
        "select pgps.alter_subscription('mine', priority => 3, max_backlog => 5)",
    ],
    "subscriptions that are moved": [
        "select pgps.seek('mine', 'earliest')",
        "select pgps.seek('shared', 'now')",
        "select pgps.seek('fresh', 'now')",
        "select pgps.seek('fresh_shared', 'earliest')",
        "select pgps.seek('lane', 'earliest')",
        "select pgps.seek('prefix', 'earliest')",
    ],
    "subscriptions that rest": [
        "select pgps.pause('mine')",
        "select pgps.pause('shared')",
        "select pgps.pause('fresh')",
        "select pgps.pause('lane')",
        "select pgps.resume('mine')",
        "select pgps.resume('fresh')",
        "select pgps.resume('lane')",
        "select pgps.pause('prefix')",
    ],
    "subscriptions that end": [
        "select pgps.unsubscribe('mine')",
        "select pgps.unsubscribe('shared')",
        "select pgps.unsubscribe('fresh')",
        "select pgps.unsubscribe('fresh_shared')",
        "select pgps.unsubscribe('lane')",
        "select pgps.unsubscribe('prefix')",
    ],
    "consumers": [
        "select pgps.receive('mine')",
        "select pgps.nack('mine', (select min(event_id) from pgps.receive('mine')))",
        "select pgps.ack('mine')",
        "select pgps.take('shared')",
        "select pgps.ack_each(array['lane'])",
        "select pgps.open_stream('prefix')",
        "select pgps.reject_events('fresh', '{}', '{}')",
    ],
    "publishers": [
        "select pgps.advertise('tick')",
        "insert into pgps_event.tick values (7)",
        "select pgps.publish('tick', '{\"n\": 8}', producer => 'p', producer_seq => 1)",
        "select pgps.claim('tick', 'q', 1)",
        "select pgps.last_claim('tick', 'q')",
        "select pgps.begin_load('tick', 'a_load')",
        "select pgps.begin_load_part('tick', 'a_load', 'a_part')",
        "select pgps.discard_load('a_load')",
        "select pgps.execute('publish tick (n) values (9)')",
        "select pgps.create_rule('a_rule', 'public.own', 'insert', 'tick', array['new.n'])",
        "insert into public.own values (1)",
        "select pgps.drop_rule('a_rule')",
        "select pgps.unadvertise('tick')",
    ],
    "clients": [
        "select pgps.connect_client('c')",
        "select pgps.use_client('c')",
        "select pgps.register_for_event('c', 'tick')",
        "select pgps.receive_event('c')",
        "select pgps.re_receive_event('c')",
        "select pgps.commit_event('c')",
        "select pgps.unregister_for_event('c', 'tick')",
        "select pgps.send_request('c', 'select 1', id => 5)",
        "select pgps.cancel_request('c', 5)",
        "select pgps.receive_reply('c')",
        "select pgps.commit_receive('c')",
        "select pgps.connect_client('d')",
        "select pgps.disconnect_client('d')",
        "select pgps.drop_client('d')",
    ],
    "composite events": [
        "select pgps.create_composite_event('new_it', 'tick ; tick', scope => 'global')",
        "select pgps.try_composite_event('tick ; tick')",
        "select pgps.alter_composite_event('it', enabled => false)",
        "select pgps.alter_composite_event('it', filter => 'e1.n > 3')",
        "select pgps.reset_composite_event('it')",
        "select pgps.drop_event_type('it', cascade => true)",
    ],
    "spools": [
        "select pgps.spool('a_spool', 1, '\"m\"')",
        "select pgps.spool_many('a_spool', '[{\"entry\": 1, \"message\": 1}]')",
        "select pgps.connect_client('m')",
        "select pgps.join_group('a_spool', 'm')",
        "select pgps.receive_spooled('a_spool', 'm')",
        "select pgps.leave_group('a_spool', 'm')",
        "select pgps.spool_discard('a_spool')",
    ],
    "conversations": [
        "select pgps.logon('t')",
        "select pgps.register_service('its', 'desk', 'mail')",
        "select pgps.send_message('m', to_service => 'its/desk/mail', option => 'commit')",
        "select pgps.receive_message()",
        "select pgps.deregister_service('its', 'desk', 'mail')",
        "select pgps.logoff()",
    ],
}

# What administrators define: others than those that change this broker's links.
DEFINITIONS = [
    "select pgps.create_event_type('made', 'n integer')",
    "select pgps.advertise('made')",
    "select pgps.subscribe('of_made', 'made', scope => 'global')",
    "select pgps.alter_event_type('spare', add_attribute => 'm integer')",
    "select pgps.alter_queue('spare_out', auditable => true)",
    "select pgps.create_policy('spare', 'a_policy', 'pgps_neighbour', 'n > 1')",
    "select pgps.drop_policy('spare', 'a_policy')",
    "select pgps.create_event_type('confirming', 'id bigint, is_committed boolean')",
    "select pgps.advertise('confirming')",
    "select pgps.link_confirm_event('confirming', 'spare')",
    "select pgps.drop_confirm_event('confirming', 'spare')",
    "select pgps.resume_event_type('spare')",
    "select pgps.drop_event_type('spare', cascade => true)",
    "select pgps.retry_exception('tick')",
    "select pgps.discard_exception('tick')",
    "select pgps.configure('lease', '11 seconds')",
    "select pgps.create_link('new_link', 'host=127.0.0.1 port=1')",
    "select pgps.alter_link('new_link', enabled => false)",
    "select pgps.create_network('a_network', '{host=127.0.0.1}')",
    "select pgps.alter_network('a_network', username => 'x')",
    "select pgps.drop_network('a_network')",
    "select pgps.create_source('a_source', 'b')",
    "select pgps.alter_source('a_source', client => 'x')",
    "select pgps.drop_source('a_source')",
    "select pgps.create_spool('made_spool')",
    "select pgps.grant_spool('made_spool', 'spool', 'pgps_neighbour')",
    "select pgps.spool_advise('made_spool', max_messages => 5)",
    "select pgps.revoke_spool('made_spool', 'spool', 'pgps_neighbour')",
    "select pgps.drop_spool('made_spool')",
    "select pgps.create_service('made', 'desk', 'mail')",
    "select pgps.alter_service('made', 'desk', 'mail', max_uows => 5)",
    "select pgps.grant_service('made', 'desk', 'mail', 'send', 'pgps_neighbour')",
    "select pgps.revoke_service('made', 'desk', 'mail', 'send', 'pgps_neighbour')",
    "select pgps.drop_service('made', 'desk', 'mail')",
    "select pgps.dismiss_findings()",
    "select pgps.alter_subscription('mine', owner => 'pgps_neighbour')",
]

# Public functions that write and are in no story. They change this broker's links: of one link for good, by an
# administrator.
_OF_LINKS = {"drop_link", "resync_link"}
# They write nothing, though they are volatile, or what nobody else reads.
_READ = set(
    """
    audit check_call check_callback check_composite check_filter client_channels count_exceptions end_of_stream explain
    explain_composite_event fetch_direct fetch_reply fetch_tuples find_exceptions find_queued find_subscriptions health
    plan_composite_event session_channels slice_stream suspects totals trace
    """.split()
)
# Each does to one row of its room what a neighbour of it in a story does.
_ALIKE = set(
    """
    ack_spooled ack_stream cancel_unit end_conversation group_ready logon_session nack_events place_service
    prepend_and_discard publish_load re_receive_reply relay_services set_network_role spool_and_discard spool_cancel
    spool_getseqn spool_inquire spool_play_through spool_replay spool_set_checkpoint_pointer spool_set_replay_pointer
    spool_wait syncpoint
    """.split()
)


class World:
    """Brokers a and b, linked; at b a stranger with subscriptions of every kind, and another owner."""

    def __init__(self, a: Broker, b: Broker, links: list[Link], roles: list[str], connect: Connect) -> None:
        self.a, self.b, self.links, self.connect = a, b, links, connect
        stranger, late, other = roles
        for role in roles:
            rows(b.admin, f"grant select, insert on pgps_event.tick to {quoted(role)}")
            rows(b.admin, f"grant create on schema public to {quoted(role)}")
        rows(b.admin, "create table public.own (n integer)")
        rows(b.admin, f"alter table public.own owner to {quoted(stranger)}")
        call(b.admin, "create_spool", "a_spool")
        call(b.admin, "create_service", "its", "desk", "mail")
        for privilege in ("spool", "replay"):
            call(b.admin, "grant_spool", "a_spool", privilege, stranger)
        for privilege in ("send", "serve"):
            call(b.admin, "grant_service", "its", "desk", "mail", privilege, stranger)
        make_type(b.admin, "spare")
        rows(b.admin, "create table public.wished as select generate_series(0, 9) as n")
        rows(b.admin, "grant select on public.wished to public")
        self.own = connect(stranger, dsn=b.dsn)
        self.stranger, self.late, self.count = stranger, late, 0
        self.other = connect(other, dsn=b.dsn)
        self.subscribe("mine", "n >= 0")
        self.subscribe("shared", "n >= 0", handler="any")
        self.subscribe("lane", "n in (table public.wished)")
        self.subscribe("prefix", "n >= 0", event_type="t*")
        call(b.admin, "subscribe", "all", "tick", scope="global")
        call(self.own, "create_composite_event", "it", "tick e1 ; tick e2", scope="global")
        settle([a, b], links)
        publish(a.admin, "tick", 1, 2)
        settle([a, b], links)
        # No neighbour has been told of the filters of these yet.
        self.subscribe("fresh", "n < 100")
        self.subscribe("fresh_shared", "n < 101", handler="any")
        for link in links:
            for lane in (link.out, link.back):
                lane.with_rows = 100
                for session in (lane.source, lane.target):
                    rows(session, _BOUND)
        for session in (a.admin, b.admin, self.other):
            rows(session, _BOUND)

    def subscribe(self, name: str, filter: str, *, event_type: str = "tick", handler: str | None = None) -> None:  # noqa: A002
        call(self.own, "subscribe", name, event_type, filter, scope="global", handler=handler)

    def others_go_on(self) -> None:
        """Publish, receive over the link, dispatch, subscribe, make event types: none of it waits for the stranger."""
        self.count += 1
        name, n = f"t{self.count}", 1000 + self.count
        publish(self.a.admin, "tick", n)
        self.a.settle()
        # Before anything of the new subscriptions is told: this is what their filters are not in force for.
        self.links[0].out.move()
        self.b.settle()
        call(self.other, "subscribe", name, "tick", f"n <> {self.count}", scope="global")
        call(self.other, "subscribe", f"{name}_shared", "tick", f"n <> -{self.count}", scope="global", handler="any")
        call(self.other, "connect_client", name)
        call(self.other, "send_request", name, "select 1")
        make_type(self.b.admin, f"{name}b")
        make_type(self.a.admin, f"{name}a")
        settle([self.a, self.b], self.links)
        publish(self.a.admin, "tick", n, n)
        publish(self.b.admin, "tick", n)
        settle([self.a, self.b], self.links)
        assert [m for _, m in received(self.b, "all")][-4:] == [n, n, n, n]
        assert sorted(column(self.other, "select (payload ->> 'n')::int from pgps.receive(%s, 100)", [name]))[-3:] == [
            n, n, n,
        ]  # fmt: skip
        call(self.other, "ack", name)
        call(self.other, "unsubscribe", name)
        call(self.other, "unsubscribe", f"{name}_shared")
        rows(self.b.admin, "select pgps.reclaim()")


@pytest.fixture
def world(brokers: Brokers, connect: Connect, role: Callable[..., str]) -> Iterator[World]:
    a, b = brokers(2)
    for broker in (a, b):
        make_type(broker.admin, "tick")
    with linked([(a, b)]) as links:
        settle([a, b], links)
        yield World(a, b, links, [role("stranger"), role("late"), role("other")], connect)


def _hold_open(world: World, session: psycopg.Connection, statements: list[str]) -> None:
    """Let the others go on beside a transaction, and once more when it is taken back."""
    rows(session, _BOUND)
    for statement in statements:
        rows(session, statement)
    world.others_go_on()
    session.rollback()
    world.others_go_on()


@pytest.mark.parametrize("story", STORIES)
def test_an_open_transaction_of_a_stranger_holds_up_nobody_else(world: World, story: str) -> None:
    role = world.late if story.startswith("first") else world.stranger
    _hold_open(world, world.connect(role, dsn=world.b.dsn, autocommit=False), STORIES[story])


def test_an_open_transaction_of_an_administrator_who_defines_something_holds_up_nobody_else(world: World) -> None:
    _hold_open(world, world.connect(dsn=world.b.dsn, autocommit=False), DEFINITIONS)


def test_every_public_function_that_writes_is_in_a_story(brokers: Brokers) -> None:
    (here,) = brokers(1)
    public = set(
        column(
            here.admin,
            "select distinct p.proname::text from pg_proc p where p.pronamespace = 'pgps'::regnamespace"
            " and p.provolatile = 'v' and p.proname !~ '^_' and has_function_privilege('public', p.oid, 'execute')",
        )
    )
    told = set(
        re.findall(r"pgps\.(\w+)\(", " ".join([*DEFINITIONS, *(s for story in STORIES.values() for s in story)]))
    )
    assert public - told - _OF_LINKS - _READ - _ALIKE == set(), "put them into a story"
    assert (_OF_LINKS | _READ | _ALIKE) - public == set()


def test_a_lane_that_is_joining_a_new_event_type_holds_up_no_link(world: World, connect: Connect) -> None:
    a, b = world.a, world.b
    call(b.admin, "subscribe", "every", "t*", scope="global")
    call(world.own, "subscribe", "wide", "t*", "n >= 0", scope="global")
    settle([a, b], world.links)
    for broker in (a, b):
        make_type(broker.admin, "tz")
    rows(b.admin, f"grant select on pgps_event.tz to {quoted(world.stranger)}")
    # As a lane does, which then asks the filter: that may take as long as the filter likes.
    lane = connect(dsn=b.dsn, autocommit=False)
    rows(lane, "select from pgps_internal.lane for update")
    assert rows(lane, "delete from pgps_internal.joining returning subscription_id")
    settle([a, b], world.links)
    publish(a.admin, "tz", 1)
    settle([a, b], world.links)
    assert ("a", 1) in received(b, "every")
    lane.rollback()
    settle([a, b], world.links)
    publish(a.admin, "tz", 2)
    settle([a, b], world.links)
    assert [n for _, n in received(b, "wide")][-1:] == [2]
