-- What an administrator should know of the server: free space on its disks (disks.sql), events that a crash took, who
-- blocks others, and neighbours that make much up.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.lost_events(event_type pgps_internal.event_type) returns bigint
language plpgsql
-- Volatile, as all that reads a log (core/generated.sql).
set search_path = pg_catalog, pg_temp
as $$
declare
    v_lost bigint;
begin
    -- A crash empties an unlogged log, but the publishing statements are in the control queue, which is logged.
    execute format('select coalesce(sum(c.hi - c.lo + 1), 0) from (
            select c.* from pgps_internal.control c where c.type_id = $1 order by c.xid desc, c.hi desc limit 10000
        ) c where not exists (select from %s l where l.event_id = c.hi)
            and not exists (select from pgps_internal.%I k where k.event_id = c.hi)',
        (lost_events.event_type).log, (lost_events.event_type).name || '_kept')
    using (lost_events.event_type).type_id into v_lost;
    return v_lost;
end
$$;
comment on function pgps_internal.lost_events(pgps_internal.event_type) is
'About how many events of a type with an unlogged log a crash has taken; counts those of the last 10,000 statements that
published it';

create or replace function pgps_internal.do_health(caller name, args jsonb) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.require_worker(caller, 'examine the server');
    return jsonb_build_object(
        'disks', (select coalesce(to_jsonb(array_agg(d)), '[]') from pgps_internal.disks() d),
        'lost', (select coalesce(to_jsonb(array_agg(jsonb_build_object('event_type', l.name, 'events', l.events,
            'guaranteed', l.reliability = 'guaranteed') order by l.name)), '[]')
            from (select t.name, t.reliability, pgps_internal.lost_events(t) as events
                from pgps_internal.event_type t join pg_class c on c.oid = t.log
                where exists (select from pg_inherits i join pg_class s on s.oid = i.inhrelid
                    where i.inhparent = c.oid and s.relpersistence = 'u')) l where l.events > 0),
        'blocked', (select coalesce(to_jsonb(array_agg(b order by b.seconds desc)), '[]') from (
            select w.pid, h.pid as holder, h.usename as role, h.application_name, c.oid::regclass::text as relation,
                extract(epoch from clock_timestamp() - w.state_change)::float8 as seconds
            from pg_stat_activity w
            join pg_locks l on l.pid = w.pid and not l.granted
            left join pg_class c on c.oid = l.relation
                and l.database = (select d.oid from pg_database d where d.datname = current_database())
            cross join lateral unnest(pg_blocking_pids(w.pid)) x(pid)
            join pg_stat_activity h on h.pid = x.pid
            where w.datname = current_database() and w.wait_event_type = 'Lock' and w.pid <> pg_backend_pid()
            limit 100) b),
        'claims', (select coalesce(to_jsonb(array_agg(jsonb_build_object('link', coalesce(l.name, n.name),
            'neighbour', n.name, 'broker_id', n.broker_id, 'role', n.role::text, 'at', n.claimed_at)
            order by n.claimed_at)), '[]')
            from pgps_internal.neighbour n left join pgps_internal.link l using (link_id)
            where n.claimed_at is not null),
        'crowded', (select coalesce(to_jsonb(array_agg(n)), '[]') from pgps_internal.crowded_neighbours() n),
        'in_the_way', (select coalesce(to_jsonb(array_agg(n)), '[]') from pgps_internal.names_in_the_way() n));
end
$$;
comment on function pgps_internal.do_health(name, jsonb) is 'See pgps.health';

create or replace function pgps.health() returns jsonb
language sql
begin atomic
    select pgps._call('health', '{}');
end;
comment on function pgps.health() is
'What pgps doctor and a worker ask the server: disks (place, total_bytes, free_bytes), lost (event_type, events: what a
crash took from types whose queue is not persistent, as long as the control queue knows of it), blocked (pid, holder,
role, application_name, relation, seconds: who waits for whose lock), crowded (role, setting, event_type, used, most:
whose neighbours come near the limit that a setting gives them), claims (link, neighbour, broker_id, role, at: over
which links it was said, since when, that this broker was restored) and in_the_way (kind, name, role: whose event types
and subscriptions have names that pgps needs for itself, from before they were refused). Needs pgps_worker or
pgps_admin. Errors: 42501.';

grant execute on function pgps.health() to public;
