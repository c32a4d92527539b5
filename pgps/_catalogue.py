"""What programs that show a broker ask its catalogue: the command line, and whatever else comes to show one.

Reads only, of public views and functions, as any role. Whoever asks may be at a database of an older release:
what such a one has not is asked for behind a `HAS_…`.
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
    # SQL folds A to Z and nothing else.
    return re.sub("[A-Z]+", lambda m: m[0].lower(), name) if re.fullmatch(r"[^\W\d][\w$]*", name) else name


def _where(**equal: Any) -> Composed:
    """Return a where clause for what is not None, or nothing; names are folded."""
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


def spools(name: str | None = None) -> Query:
    """Return the query of the spools that the reader may use, or of one."""
    return _SPOOLS + _where(name=name) + SQL(" order by name")


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
    """Return the event types the reader may see, or the one of that name."""
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
        where = SQL(
            " where (event_type = {0} or event_type like '%*' and starts_with({0}, rtrim(event_type, '*')))"
        ).format(Literal(folded(event_type)))
        where += SQL(" and state = {}").format(Literal(state)) if state else SQL("")
    return _SUBSCRIPTIONS + where + SQL(" order by name")


def advertisements(event_type: str | None = None) -> Query:
    """Return who may publish what, and where that comes from."""
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
    """Return what failed and waits for a decision, oldest first."""
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


def activity() -> Query:
    """Return the counters of each event type."""
    return SQL("""
    select event_type, published, matched, repeats, batches, last_batch_at, waiting, oldest_waiting, rate,
           extract(epoch from clock_timestamp() - oldest_waiting)::float8 as waiting_seconds,
           extract(epoch from last_batch_at - clock_timestamp())::float8 as last_batch_ahead
    from pgps.activity order by event_type""")


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
    """Return what else is known of each link."""
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

INSTALLED = "select to_regnamespace('pgps') is not null as installed, current_database() as database"

SERVER = """
    select current_database() as database,
           current_user as role,
           pg_is_in_recovery() as standby,
           current_setting('server_version_num')::integer as server_version,
           current_setting('server_version') as server_version_text,
           (select rolsuper from pg_roles where rolname = current_user) as superuser,
           exists (select from pg_extension where extname = 'plpython3u') as plpython_installed,
           exists (select from pg_available_extensions where name = 'plpython3u') as plpython_available,
           to_regnamespace('pgps') is not null as installed,
           array(select rolname::text from pg_roles where rolname in ('pgps_admin', 'pgps_worker')) as roles,
           coalesce(pg_has_role(current_user, (select oid from pg_roles where rolname = 'pgps_admin'), 'member'),
                    false) as is_admin,
           current_setting('max_connections')::integer as max_connections,
           (select count(*) from pg_stat_activity where backend_type = 'client backend') as connections,
           current_setting('autovacuum')::boolean as autovacuum,
           current_setting('synchronous_commit') as synchronous_commit,
           current_setting('fsync')::boolean as fsync,
           current_setting('wal_level') as wal_level
"""

# A transaction that has written, and every snapshot, holds reclaim back until it ends; a prepared one, too.
TRANSACTIONS = """
    select pid, usename::text as role, application_name, null as gid,
           extract(epoch from clock_timestamp() - xact_start)::float8 as seconds
    from pg_stat_activity
    where xact_start is not null and datname = current_database() and pid <> pg_backend_pid()
    union all
    select null, owner::text, '', gid, extract(epoch from clock_timestamp() - prepared)::float8
    from pg_prepared_xacts where database = current_database()
    order by seconds desc nulls last limit 20
"""

# What sessions begin with, as far as this role may know; milliseconds where no unit is given.
TIMEOUTS = """
    select null as role, null as database, reset_val::float8 / 1000 as seconds
    from pg_settings where name = 'statement_timeout' and source not in ('database', 'user', 'database user')
    union all
    select s.role, s.database,
           extract(epoch from (s.value || case when s.value ~ '^[0-9]+$' then ' ms' else '' end)::interval)::float8
    from (
        select r.rolname::text as role, d.datname::text as database,
               substring(c.text from '^statement_timeout=(.*)$') as value
        from pg_db_role_setting g
        left join pg_roles r on r.oid = g.setrole
        left join pg_database d on d.oid = g.setdatabase
        cross join unnest(g.setconfig) c(text)
        where (g.setdatabase = 0 or d.datname = current_database())
    ) s
    where s.value is not null
"""

# As JSON: a schema that is not upgraded yet has no such columns.
WAITING = """
    select name, kind, depth, lag_seconds, row ->> 'dead_after' as dead_after,
        coalesce((row ->> 'is_dead')::boolean, false) as is_dead
    from (select s.name, s.kind, s.state, s.depth, s.lag_seconds, to_jsonb(s) as row from pgps.subscriptions s) s
    where depth > 0 and (row ->> 'is_dead' = 'true'
        or kind = 'external' and state = 'active' and row ->> 'dead_after' is null)
    order by is_dead desc, lag_seconds desc limit 20
"""
HAS_HEALTH = "select to_regprocedure('pgps.health()') is not null as has_health"
HEALTH = "select pgps.health() as health"

# Subscribers' filters and callbacks may want temporary tables; a role that has none gets a puzzling error.
STOPPED = """
    select name, state, last_error, depth, not exists (select from pg_roles r where r.rolname = s.owner) as is_orphan
    from pgps.subscriptions s where state <> 'active' order by name
"""

TEMP_PRIVILEGE = """
    select distinct r.rolname::text as role
    from pgps.subscriptions s join pg_roles r on r.rolname = s.owner
    where not has_database_privilege(r.oid, current_database(), 'TEMP') order by 1
"""

SUMMARY = """
    select (select count(*) from pgps.event_types) as event_types,
           (select count(*) from pgps.subscriptions) as subscriptions,
           (select count(distinct worker) from pgps.workers) as workers,
           (select coalesce(sum(waiting), 0)::bigint from pgps.activity) as waiting,
           (select extract(epoch from clock_timestamp() - min(oldest_waiting))::float8 from pgps.activity)
               as lag_seconds,
           (select coalesce(sum(depth), 0)::bigint from pgps.subscriptions) as depth,
           (select count(*) from pgps.exceptions) as exceptions
"""

LINKS_SUMMARY = """
    select count(*) as links, count(*) filter (where state in ('up', 'elsewhere')) as links_up,
           (select count(*) from pgps.exceptions where state = 'gap' and event_type is null) as gaps
    from pgps.links
"""

# What nobody has any more of what should have come over a link has no event type.
GAPS = """
    select subscription, event_type, count(*) as gaps, (array_agg(event_id order by failed_at))[1] as event_id,
        (array_agg(error order by failed_at))[1] as error
    from pgps.exceptions where state = 'gap' group by 1, 2 order by 1, 2
"""
HAS_LANES = "select to_regclass('pgps.lanes') is not null as has_lanes"
SLOW_LANES = """
    select role::text as role, lag_events, lag_seconds, last_error from pgps.lanes where state = 'slow' order by role
"""
HAS_BROKEN_TYPES = "select to_regprocedure('pgps.broken_types()') is not null as has_broken_types"
SET_ASIDE = "select name, last_error, hint from pgps.event_types where state = 'set aside' order by name"
AUDIT = """
    select kind, neighbour, origin, event_type, filter, events_there, events_here, digest_equal, verdict, hint
    from pgps.audit()
"""
# A database of an older release is examined and shown, too, and told to be upgraded.
HAS_AUDIT = "select to_regclass('pgps.audit_findings') is not null as has_audit"
FINDINGS = """
    select kind, what, neighbour, origin, event_type, events_there, events_here, last_found_at
    from pgps.audit_findings order by last_found_at desc
"""
HAS_LINKS = "select to_regclass('pgps.link_details') is not null as has_links"
IDENTITY = "select i ->> 'name' as name, i ->> 'state' as state from pgps.link_identity() i"

ONE_SNAPSHOT = "set transaction isolation level repeatable read, read only"
MOMENT = "select current_database() as database, clock_timestamp() as now"


STATUS = """
    select current_database() as database,
           current_setting('server_version_num')::integer as server_version,
           to_regnamespace('pgps') is not null as installed
"""

# ---------------------------------------------------------------------------
# What a worker tells of: its log and its metrics
# ---------------------------------------------------------------------------

TROUBLES = """
    select kind, subscription, event_type, event_id, attempts, sqlstate, error, hint, happened_at
    from pgps.troubles(%s)
"""
TROUBLE_COUNTS = """
    select subscription, state, last_error, failed, retrying, last_event, hint, passed_over, depth
    from pgps.trouble_counts()
"""
BROKEN_TYPES = "select event_type, sqlstate, error, hint, events from pgps.broken_types()"
SLOW_LANE_COUNTS = "select role, lag_batches, lag_events, lag_seconds, last_error from pgps.slow_lane_counts()"
