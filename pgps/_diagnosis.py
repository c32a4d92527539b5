"""What `pgps doctor` asks of a broker: statements that read views and settings, and need no more rights than those."""

from __future__ import annotations

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


# Those that are stopped, and of the others the twenty for which something has waited longest: in one scan, since each
# is asked what waits. A schema that is not upgraded yet has no such columns: the names are those of `absent` then.
SUBSCRIPTIONS = """
    with s as materialized (
        select x.* from (select null::interval as dead_after, false as is_dead) absent
        cross join lateral (
            select name, owner, kind, state, last_error, depth, lag_seconds, dead_after::text as dead_after, is_dead
            from pgps.subscriptions
        ) x
    )
    (select s.*, not exists (select from pg_roles r where r.rolname = s.owner) as is_orphan, true as is_stopped
        from s where s.state in ('paused', 'suspended') order by s.name)
    union all
    (select s.*, false, false from s
        where s.depth > 0 and (s.is_dead or s.kind = 'external' and s.state = 'active' and s.dead_after is null)
        order by s.is_dead desc, s.lag_seconds desc limit 20)
"""


# What waits in queues is not counted here, but for exceptions: with many subscriptions that takes long.
QUEUES = """
    select queue, event_type, kind, persistent, case kind when 'exception' then depth end as depth
    from pgps.queues where kind <> 'out'
"""


HAS_HEALTH = "select to_regprocedure('pgps.health()') is not null as has_health"


HEALTH = "select pgps.health() as health"


# Subscribers' filters and callbacks may want temporary tables; a role that has none gets a puzzling error.
TEMP_PRIVILEGE = """
    select distinct r.rolname::text as role
    from pgps.subscriptions s join pg_roles r on r.rolname = s.owner
    where not has_database_privilege(r.oid, current_database(), 'TEMP') order by 1
"""


# What nobody has any more of what should have come over a link has no event type.
GAPS = """
    select subscription, event_type, count(*) as gaps, (array_agg(event_id order by failed_at))[1] as event_id,
        (array_agg(error order by failed_at))[1] as error
    from pgps.exceptions where state = 'gap' group by 1, 2 order by 1, 2
"""


HAS_SUSPECTS = "select to_regprocedure('pgps.suspects()') is not null as has_suspects"


# Expressions of types and policies that call what is not a superuser's; event_type, policy or null, fault.
SUSPECTS = "select pgps.suspects() as suspects"


HAS_LANES = "select to_regclass('pgps.lanes') is not null as has_lanes"


SLOW_LANES = """
    select role::text as role, lag_events, lag_seconds, last_error from pgps.lanes where state = 'slow' order by role
"""


HAS_COMPOSITES = "select to_regclass('pgps.composite_events') is not null as has_composites"


HAS_SLOW_DETECTION = """
    select coalesce(has_function_privilege(to_regprocedure('pgps.slow_detection()'), 'execute'), false)
        as has_slow_detection
"""


SLOW_DETECTION = "select role::text as role, lag_events, last_error from pgps.slow_detection() order by role"


SUSPENDED_COMPOSITES = """
    select c.name, c.last_error, not exists (select from pg_roles r where r.rolname = c.owner) as is_orphan
    from pgps.composite_events c where c.state = 'suspended' order by c.name
"""


HAS_BROKEN_TYPES = "select to_regprocedure('pgps.broken_types()') is not null as has_broken_types"


SET_ASIDE = "select name, last_error, hint from pgps.event_types where state = 'set aside' order by name"


# A database of an older release is examined and shown, too, and told to be upgraded.
HAS_AUDIT = "select to_regclass('pgps.audit_findings') is not null as has_audit"


FINDINGS = """
    select kind, what, neighbour, origin, event_type, events_there, events_here, last_found_at
    from pgps.audit_findings order by last_found_at desc
"""


IDENTITY = "select i ->> 'name' as name, i ->> 'state' as state from pgps.link_identity() i"
