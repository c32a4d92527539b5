-- Sessions of neighbours that hold up others: a transaction that hears what a neighbour says holds the turn of routes,
-- and the dispatcher off, until it ends, and the neighbour says when that is (decision 95).
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.holds_up_others(pid integer) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- Who waits himself is not at fault.
    select not exists (select from pg_locks o where o.pid = holds_up_others.pid and not o.granted)
        and exists (select from pg_locks w
            where not w.granted and holds_up_others.pid = any (pg_blocking_pids(w.pid)))
$$;
comment on function pgps_internal.holds_up_others(integer) is
'True for a server process that others are waiting for. Costly: all locking stops for a moment';

create or replace function pgps_internal.serves_a_stranger(pid integer, role oid) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- Every function of a link, and what a network brings, locks one of these in a mode that no reader takes; nobody
    -- but the functions can.
    select not pg_has_role(serves_a_stranger.role, 'pgps_worker', 'usage')
        and not pg_has_role(serves_a_stranger.role, 'pgps_admin', 'usage')
        and exists (select from pg_locks l where l.pid = serves_a_stranger.pid and l.locktype = 'relation'
            and l.mode <> 'AccessShareLock'
            and l.relation = any ('{pgps_internal.turn_of_neighbours, pgps_internal.turn_of_sending,
                pgps_internal.turn_of_routes, pgps_internal.arrival, pgps_internal.link_session,
                pgps_internal.network_origin, pgps_internal.network_mark}'::regclass[]))
$$;
comment on function pgps_internal.serves_a_stranger(integer, oid) is
'True for a session that has called the functions of a link, or of a network, in its transaction, for a role that is no
worker''s here';

create or replace function pgps_internal.holders_of_dispatch(older_than interval) returns integer[]
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select array(
        select l.pid from pg_locks l join pg_stat_get_activity(l.pid) a on true
        where l.relation = 'pgps_internal.batch'::regclass and l.granted and l.mode = 'RowExclusiveLock'
            and l.database = (select d.oid from pg_database d where d.datname = current_database())
            and a.xact_start <= clock_timestamp() - holders_of_dispatch.older_than
            and exists (select from pg_locks w where w.relation = l.relation and w.database = l.database
                and not w.granted))
$$;
comment on function pgps_internal.holders_of_dispatch(interval) is
'The sessions that keep the dispatcher off at this moment, in a transaction of at least that age: whoever receives does
so in its last step, for milliseconds (pgps_internal.begin_filters)';

create or replace function pgps_internal.stuck_links(patience interval, holders integer[])
returns table (pid integer, role oid, xact_start timestamptz)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    select a.pid, a.usesysid, a.xact_start from pg_stat_get_activity(null) a
    where a.datid = (select d.oid from pg_database d where d.datname = current_database())
        and a.xact_start <= clock_timestamp() - stuck_links.patience
        -- A large batch may take minutes, and would take them again: only what does nothing is ended soon.
        and (a.state <> 'active' and a.state_change <= clock_timestamp() - stuck_links.patience
            or a.wait_event_type = 'Timeout' or a.pid = any (stuck_links.holders)
            or a.xact_start <= clock_timestamp() - 120 * stuck_links.patience)
        and pgps_internal.serves_a_stranger(a.pid, a.usesysid)
        -- Not how long they have waited: the dispatcher gives up each time, and comes again.
        and pgps_internal.holds_up_others(a.pid) offset 0;
end
$$;
comment on function pgps_internal.stuck_links(interval, integer[]) is
'Sessions of neighbours that hold up others, as pgps.end_stuck_links has it; holders: those that keep the dispatcher
off';

create or replace function pgps.end_stuck_links(patience interval = '5 seconds') returns text[]
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_holders integer[];
begin
    if end_stuck_links.patience is null then
        raise exception 'patience is null' using errcode = '22004', hint = 'Leave it out: 5 seconds.';
    end if;
    v_holders := pgps_internal.holders_of_dispatch(end_stuck_links.patience);
    if v_holders <> '{}' then
        -- Long enough for whoever is about to commit.
        perform pg_sleep_for(least(end_stuck_links.patience / 5, interval '1 second'));
        perform pg_stat_clear_snapshot();
        v_holders := array(select unnest(v_holders)
            intersect select unnest(pgps_internal.holders_of_dispatch(end_stuck_links.patience)));
    end if;
    -- Those of the same role that wait behind it would take its place, one after the other.
    return array(
        with stuck as materialized (select s.* from pgps_internal.stuck_links(end_stuck_links.patience, v_holders) s),
        queue as materialized (
            select w.pid, s.role from stuck s join pg_stat_get_activity(null) w on w.usesysid = s.role
            where w.pid <> s.pid and w.wait_event_type = 'Lock' and s.pid = any (pg_blocking_pids(w.pid))
                and pgps_internal.serves_a_stranger(w.pid, s.role)
        ),
        ended as materialized (select q.role, count(*) filter (where pg_terminate_backend(q.pid)) as sessions
            from (select distinct q.pid, q.role from queue q) q group by q.role)
        -- Those behind first: with the first one gone, the next would go on.
        select format(case when pg_terminate_backend(s.pid) then 'ended a session of role "%s", a neighbour''s: its '
                'transaction, open for %s s, held up others%s' else 'a session of role "%s" does not end (%s s)%s' end,
            pg_get_userbyid(s.role), round(extract(epoch from clock_timestamp() - s.xact_start)),
            '; and ' || e.sessions || ' of that role that waited for it')
        from stuck s left join ended e using (role));
end
$$;
comment on function pgps.end_stuck_links(interval) is
'Ends sessions of neighbours whose transaction others are waiting for: when it has done nothing for longer than
patience, or keeps the dispatcher off, and when it has been at work 120 times as long; with it those of its role that
wait for it. Their links are opened again, and go on where they were.
Returns messages to report. Sessions of members of pgps_worker and pgps_admin are not ended. Workers call it every five
seconds. Needs pgps_worker or pgps_admin. Errors: 22004.';

revoke all on function pgps.end_stuck_links(interval) from public;
grant execute on function pgps.end_stuck_links(interval) to pgps_worker, pgps_admin;
