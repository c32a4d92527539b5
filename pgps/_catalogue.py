"""Queries of the catalogue for programs that show a broker, such as the command line.

They only read public views and functions, and any role may run them. The database may be of an older release:
the query `HAS_LINKS` tells whether it has the views of links.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from psycopg.sql import SQL, Composed, Identifier, Literal

__all__: list[str] = []

Query: TypeAlias = SQL | Composed


def folded(name: str) -> str:
    """Return a name as the catalog has it: in lower case, unless in double quotes or not fit for SQL without."""
    if len(name) > 2 and name[0] == name[-1] == '"':
        return name[1:-1].replace('""', '"')
    # PostgreSQL folds the letters A to Z here and no others.
    return re.sub("[A-Z]+", lambda m: m[0].lower(), name) if re.fullmatch(r"[^\W\d][\w$]*", name) else name


def _where(**equal: Any) -> Composed:
    """Return a where clause with a condition for each value that is not None, or nothing; names are folded."""
    tests = [
        SQL("{} = {}").format(Identifier(key), Literal(folded(value) if isinstance(value, str) else value))
        for key, value in equal.items()
        if value is not None
    ]
    return SQL(" where ") + SQL(" and ").join(tests) if tests else Composed([])


# ---------------------------------------------------------------------------
# Catalog views
# ---------------------------------------------------------------------------

_EVENT_TYPES = SQL("""
    select name, owner, attributes, visibility, reliability, persistent, auditable, handler, can_publish,
           can_subscribe, subscriptions, published, last_published_at, created_at
    from pgps.event_types""")

_QUEUES = SQL("""
    select queue, event_type, kind, persistent, auditable, retention::text as retention, depth, oldest, size_bytes
    from pgps.queues""")

_SUBSCRIPTIONS = SQL("""
    select subscription_id, name, owner, event_type, filter, scope, kind, execute, priority, handler, state,
           channel, max_attempts, depth, oldest, lag_events, lag_seconds, rate, attempts, retrying, failed,
           last_error, created_at
    from pgps.subscriptions""")

_EXCEPTIONS = SQL("""
    select event_type, event_id, subscription, failed_at, attempts, sqlstate, error, state, payload
    from pgps.exceptions""")


_LINKS = SQL("""
    select name, neighbour, broker_id::text as broker_id, epoch, direction, enabled, defined_here, role, state,
           changed_at, last_error, hint, lag_events, lag_seconds, events_sent, sent_rate, events_received,
           received_rate, last_received_at, filters_sent, filters_received, refused, gaps
    from pgps.links""")


_CLIENTS = SQL("""
    select c.name, c.owner, c.connected, c.session, c.pid, c.address, c.connected_at, c.disconnected,
        c.last_sent_request, c.last_received_request, c.last_committed_request, c.last_received_event,
        c.last_committed_event, c.pending_events, c.pending_requests, c.pending_replies, c.reply_checkpoint_bytes,
        c.event_checkpoint_bytes, c.created_at,
        (select count(*) from pgps.registrations r where r.client = c.name) as registrations
    from pgps.clients c""")


def clients(name: str | None = None) -> Query:
    """Return the query of the clients that the reader may see, or of one."""
    return _CLIENTS + _where(name=name) + SQL(" order by name")


_SPOOLS = SQL("""
    select name, first_seqn, last_seqn, replay_pointer, checkpoint_pointer, replayable, new, discarded, bytes, members,
        operational, play_through, persistent, max_messages, max_bytes, retention::text as retention, on_limit, owner,
        channel, created_at
    from pgps.spools""")


def services() -> Query:
    """Return the query of the services that the reader may use."""
    return SQL(
        "select concat_ws('/', class, server, service) as name, servers, depth, oldest, attempts, store,"
        " lifetime::text as lifetime, deferred, channel from pgps.services order by 1"
    )


def units_of_work(uow_id: str | None = None) -> Query:
    """Return the query of the reader's units of work, or of one."""
    return (
        SQL("select u.*, concat_ws('/', class, server, service) as name from pgps.units_of_work u")
        # Ids of units are in capital letters and must not be folded.
        + (SQL("") if uow_id is None else SQL(" where uow_id = {}").format(Literal(uow_id)))
        + SQL(" order by began_at, uow_id")
    )


def spools(name: str | None = None) -> Query:
    """Return the query of the spools that the reader may use, or of one."""
    return _SPOOLS + _where(name=name) + SQL(" order by name")


def composite_events(name: str | None = None) -> Query:
    """Return the query of the composite events that the reader may subscribe to, or of one."""
    query = SQL("""
        select name, expression, context, partition_by, within::text as within, filter, attributes, scope, time_basis,
               lateness::text as lateness, max_open, owner, state, lag, open, keys, detected, late, given_up,
               last_error, created_at, start, reliability, persistent, auditable, handler, settings
        from pgps.composite_events""")
    return query + _where(name=name) + SQL(" order by created_at, name")


def composite_nodes(name: str) -> Query:
    """Return the query of the nodes of a composite event's graph, the whole expression first."""
    return SQL(
        "select node, min(expression) as expression, array_agg(distinct broker) filter (where broker is not null) "
        "as brokers, min(parts) as parts, max(open) as open "
        "from pgps.plan_composite_event({}) with ordinality p group by node order by min(ordinality)"
    ).format(Literal(name))


def event_sources() -> Query:
    """Return the query of the logical names of applications."""
    return SQL("select name, broker, client from pgps.sources order by name")


def networks(name: str | None = None) -> Query:
    """Return the query of the networks that are defined here, or of one."""
    query = SQL("select name, state, up, contacts, waiting, username::text as username, passfile, last_error, hint,")
    return query + SQL(" created_at from pgps.networks") + _where(name=name) + SQL(" order by name")


def network_contacts(network: str) -> Query:
    """Return the query of the contact points of a network."""
    query = SQL("select place, conninfo, state, arrived_seqn, waiting, manager, changed_at, last_error")
    return query + SQL(" from pgps.network_contacts") + _where(network=network) + SQL(" order by place")


def group_members(spool: str) -> Query:
    """Return the query of the members of a spool's process group."""
    return (
        SQL("select member, owner, present, ready, phase, acked_seqn, joined_at from pgps.group_members")
        + _where(group_name=spool)
        + SQL(" order by member")
    )


def spooled_messages(spool: str, newest: int) -> Query:
    """Return the query of the newest messages of a spool, in their order."""
    return (
        SQL("select * from (select seqn, entry, message, keys, keywords, sender, spooled_at, replayed, id")
        + SQL(" from pgps.spooled_messages")
        + _where(spool=spool)
        + SQL(" order by seqn desc limit {}) m order by seqn").format(Literal(newest))
    )


def registrations(client: str) -> Query:
    """Return the query of what a client is registered for."""
    return (
        SQL("""
    select event_name, mode, style, state, reason, attempts, subscription, channels, registered_at
    from pgps.registrations""")
        + _where(client=client)
        + SQL(" order by event_name")
    )


def requests(client: str) -> Query:
    """Return the query of the requests of a client that are kept."""
    return (
        SQL("""
    select request_id, role, sent_at, state, attempts, replied_at, row_count, sqlstate, error
    from pgps.requests""")
        + _where(client=client)
        + SQL(" order by request_id")
    )


def event_types(name: str | None = None) -> Query:
    """Return the event types that the reader may see, or the one of that name."""
    return _EVENT_TYPES + _where(name=name) + SQL(" order by name")


def queues(queue: str | None = None, *, event_type: str | None = None) -> Query:
    """Return the queues, or one, or one type's."""
    return (
        _QUEUES
        + _where(queue=queue, event_type=event_type)
        + SQL(" order by event_type, array_position(array['in', 'out', 'exception'], kind)")
    )


def queue_events(view: str, limit: int) -> Composed:
    """Return the newest events in a queue."""
    return SQL("select * from pgps_queue.{} order by event_id desc limit {}").format(Identifier(view), Literal(limit))


def subscriptions(name: str | None = None, *, event_type: str | None = None, state: str | None = None) -> Composed:
    """Return the subscriptions the reader may see; of one type with those on a pattern it fits, as `security*`."""
    if event_type is None or event_type.endswith("*"):
        where = _where(name=name, event_type=event_type, state=state)
    else:
        where = SQL(" where (event_type = {0} or event_type like '%*' and pgps._covers(event_type, {0}))").format(
            Literal(folded(event_type))
        )
        where += SQL(" and state = {}").format(Literal(state)) if state else SQL("")
    return _SUBSCRIPTIONS + where + SQL(" order by name")


def advertisements(event_type: str | None = None) -> Query:
    """Return the advertisements: which role publishes which event type, and from which broker each was learned."""
    return (
        SQL("select event_type, role, advertised_at, origin from pgps.advertisements")
        + _where(event_type=event_type)
        + SQL(" order by event_type, role")
    )


def rules(event_type: str | None = None) -> Query:
    """Return the active rules."""
    return (
        SQL("""
    select name, table_name::text as table_name, operations, event_type, attributes, condition, run_as, owner
    from pgps.rules""")
        + _where(event_type=event_type)
        + SQL(" order by name")
    )


def exceptions(
    *,
    event_type: str | None = None,
    event_id: int | None = None,
    subscription: str | None = None,
    limit: int | None = None,
) -> Query:
    """Return the exceptions that wait for a decision, oldest first."""
    return (
        _EXCEPTIONS
        + _where(event_type=event_type, event_id=event_id, subscription=subscription)
        + SQL(" order by failed_at, event_id limit {}").format(Literal(limit))
    )


def failed_event(view: str, event_id: int) -> Composed:
    """Return the attributes of a failed event as JSON, as far as the reader may see it."""
    return SQL("""
    select to_jsonb(q) - array['event_id', 'subscription', 'failed_at', 'attempts', 'sqlstate', 'error', 'state']
               as event
    from pgps_queue.{} q where q.event_id = {} limit 1""").format(Identifier(view), Literal(event_id))


def activity(*, has_clock: bool = True) -> Query:
    """Return the counters of each event type, and by the broker's clock how long the oldest event has waited."""
    return SQL("""
    select event_type, published, matched, repeats, batches, last_batch_at, waiting, oldest_waiting, rate,
           extract(epoch from {clock} - oldest_waiting)::float8 as waiting_seconds,
           extract(epoch from last_batch_at - {clock})::float8 as last_batch_ahead
    from pgps.activity order by event_type""").format(clock=_CLOCKS[has_clock])


def workers() -> Query:
    """Return the connected workers and their services."""
    return SQL("""
    select pid, worker, service, role, host(client_addr) as client_addr, started_at, state, leader,
           coalesce((select rolsuper from pg_roles where rolname = role), false) as superuser
    from pgps.workers order by worker, service, pid""")


def links(name: str | None = None) -> Query:
    """Return the links to other brokers, or those of that name."""
    return _LINKS + _where(name=name) + SQL(" order by name, neighbour")


def link_details() -> Query:
    """Return further details of each link."""
    return SQL("""
    select name, neighbour, role, role_is_superuser, has_password, connected_since, sent, confirmed, received,
           differences, array(select jsonb_object_keys(differences) order by 1) as different_types
    from pgps.link_details""")


def routes() -> Query:
    """Return the network as far as this broker knows it: itself first, then each origin by each neighbour."""
    return SQL("""
    select origin, broker_id::text as broker_id, epoch, is_self, neighbour, path, cost, is_parent, event_types
    from pgps.routes order by is_self desc, cost, origin, epoch, is_parent desc, neighbour""")


def settings(name: str | None = None) -> Query:
    """Return the settings of this broker."""
    return SQL("select * from pgps.settings") + _where(name=name) + SQL(" order by name")


def policies(event_type: str | None = None) -> Query:
    """Return the row-level policies."""
    return SQL("select * from pgps.policies") + _where(event_type=event_type) + SQL(" order by event_type, name")


def privileges(event_type: str) -> Composed:
    """Return who may publish and subscribe; PUBLIC is everybody."""
    return SQL("""
    select coalesce(nullif(a.grantee, 0)::regrole::text, 'PUBLIC') as role,
           bool_or(a.privilege_type = 'INSERT') as publish,
           bool_or(a.privilege_type = 'SELECT') as subscribe
    from pg_catalog.pg_class c,
         pg_catalog.aclexplode(coalesce(c.relacl, pg_catalog.acldefault('r', c.relowner))) a
    where c.relnamespace = 'pgps_event'::regnamespace and c.relname = {}
      and a.privilege_type in ('INSERT', 'SELECT')
    group by a.grantee order by a.grantee""").format(Literal(folded(event_type)))


def explain(subscription: str, event_id: int) -> Composed:
    """Return why an event did, or did not, reach a subscription."""
    return SQL("select step, outcome from pgps.explain({}, {})").format(Literal(subscription), Literal(event_id))


# ---------------------------------------------------------------------------
# The database itself
# ---------------------------------------------------------------------------

# Releases before 0.2 have no clock of their own.
HAS_CLOCK = "select to_regprocedure('pgps._clock()') is not null as has_clock"
_CLOCKS = {True: SQL("pgps._clock()"), False: SQL("clock_timestamp()")}

# As whom workers may run: a role that is not a superuser's.
WORKER_LOGIN = """
    select (select r.rolname::text from pg_roles r join pg_roles w on w.rolname = 'pgps_worker'
            where r.rolcanlogin and not r.rolsuper and pg_has_role(r.oid, w.oid, 'member')
            order by r.rolname <> 'broker_worker', r.rolname limit 1) as role
"""

INSTALLED = "select to_regnamespace('pgps') is not null as installed, current_database() as database"


def summary(*, has_clock: bool = True) -> Query:
    """Return how much there is in all, and what waits."""
    return SQL("""
    select (select count(*) from pgps.event_types) as event_types,
           (select count(*) from pgps.subscriptions) as subscriptions,
           (select count(distinct worker) from pgps.workers) as workers,
           (select coalesce(sum(waiting), 0)::bigint from pgps.activity) as waiting,
           (select extract(epoch from {clock} - min(oldest_waiting))::float8 from pgps.activity) as lag_seconds,
           (select coalesce(sum(depth), 0)::bigint from pgps.subscriptions) as depth,
           (select count(*) from pgps.exceptions) as exceptions""").format(clock=_CLOCKS[has_clock])


LINKS_SUMMARY = """
    select count(*) as links, count(*) filter (where state in ('up', 'elsewhere')) as links_up,
           (select count(*) from pgps.exceptions where state = 'gap' and event_type is null) as gaps
    from pgps.links
"""

AUDIT = """
    select kind, neighbour, origin, event_type, filter, events_there, events_here, digest_equal, verdict, hint
    from pgps.audit()
"""
HAS_LINKS = "select to_regclass('pgps.link_details') is not null as has_links"

ONE_SNAPSHOT = "set transaction isolation level repeatable read, read only"


def moment(*, has_clock: bool = True) -> Query:
    """Return the database, and the broker's time."""
    return SQL("select current_database() as database, {clock} as now").format(clock=_CLOCKS[has_clock])


STATUS = """
    select current_database() as database,
           current_setting('server_version_num')::integer as server_version,
           to_regnamespace('pgps') is not null as installed
"""

# ---------------------------------------------------------------------------
# What a worker reports in its log and its metrics
# ---------------------------------------------------------------------------

TROUBLES = """
    select kind, subscription, event_type, event_id, attempts, sqlstate, error, hint, happened_at
    from pgps.troubles(%s)
"""
TROUBLE_COUNTS = """
    select subscription, state, last_error, failed, retrying, last_event, hint, passed_over, depth
    from pgps.trouble_counts()
"""
LAG_COUNTS = "select * from pgps.lag_counts(%(after)s, max_rows => %(portion)s, also => %(also)s)"
METRICS = "select metric, kind, labels, value from pgps.metrics()"
BROKEN_TYPES = "select event_type, sqlstate, error, hint, events from pgps.broken_types()"
SLOW_LANE_COUNTS = "select role, lag_batches, lag_events, lag_seconds, last_error from pgps.slow_lane_counts()"
