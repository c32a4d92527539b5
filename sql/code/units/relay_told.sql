-- What becomes of units from other brokers though nobody does anything here: their time is over, sessions end, services
-- are dropped, the broker restarts. Whoever looks sees it (lifetimes.sql); the other brokers are told by a worker, so
-- many at a time. What somebody has locked is passed over, and looked at again.
-- Locks: units, in the order of their numbers.
-- Writes: relay_session, relay_told, service_dropped.

create or replace function pgps_internal.note_relay_session(standing pgps_internal.unit_standing, session_id bigint)
returns void
language plpgsql
as $$
begin
    if note_relay_session.standing.their_no is not null then
        insert into pgps_internal.relay_session (session_id) values (note_relay_session.session_id)
        on conflict do nothing;
    end if;
end
$$;
comment on function pgps_internal.note_relay_session(pgps_internal.unit_standing, bigint) is
'Notes that a session holds a unit from another broker, which is to be told when the session ends';

create or replace function pgps_internal.relayed_to_look_at(
    told pgps_internal.relay_told, life pgps_internal.life, sessions bigint[], services integer[]
) returns bigint[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        select u.unit_no from pgps_internal.unit u
        where u.their_no is not null and u.ends_at > coalesce((relayed_to_look_at.told).until, '-infinity')
            and u.ends_at <= (relayed_to_look_at.life).seen_at
        union
        select h.unit_no from unnest(relayed_to_look_at.sessions) s(session_id)
        cross join lateral unnest((pgps_internal.hand_of(s.session_id)).held) h(unit_no)
        union
        select u.unit_no from pgps_internal.unit u
        where u.their_no is not null and u.service_id = any (relayed_to_look_at.services)
    ) || case when (relayed_to_look_at.told).life_id is distinct from (relayed_to_look_at.life).life_id then array(
        -- A restart ends all sessions, and discards what is not persistent; what else waits, waits on.
        select u.unit_no from pgps_internal.unit u
        left join lateral (select s.status from pgps_internal.unit_state s
            where s.unit_no = u.unit_no order by s.version desc limit 1) s on true
        where u.their_no is not null and (s.status = 'DELIVERED' or coalesce(s.status, 'ACCEPTED') = 'ACCEPTED'
            and u.life_id < case when u.is_persistent then (relayed_to_look_at.life).emptied_id
                else (relayed_to_look_at.life).life_id end)
    ) else '{}' end;
end
$$;
comment on function pgps_internal.relayed_to_look_at(
    pgps_internal.relay_told, pgps_internal.life, bigint[], integer[]) is
'The units from other brokers to which something may have happened since it was told last what did (told): their time
was over, their session ended (sessions), their service was dropped (services), or the broker restarted';

create or replace function pgps_internal.what_happened(units bigint[], max_units integer)
returns table (unit_no bigint, status text, attempts integer)
language plpgsql volatile rows 100
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    with noted as materialized (
        select n.unit_no, n.status from (
            select distinct u.unit_no, coalesce((select s.status from pgps_internal.unit_state s
                where s.unit_no = u.unit_no order by s.version desc limit 1), 'ACCEPTED') as status
            from unnest(what_happened.units) u(unit_no)) n
        where n.status in ('ACCEPTED', 'DELIVERED')
    )
    select n.unit_no, case s.status when 'GONE' then 'DISCARDED' else s.status end, s.attempts
    from noted n
    cross join lateral (select s.* from pgps_internal.unit_standing s where s.unit_no = n.unit_no) s
    where s.status <> n.status
    order by n.unit_no limit what_happened.max_units;
end
$$;
comment on function pgps_internal.what_happened(bigint[], integer) is
'Those of some units, at most so many, to which something has happened that nobody has noted, and how they stand now';

create or replace function pgps_internal.tell_what_happened(max_units integer = 1000) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_told pgps_internal.relay_told;
    v_life pgps_internal.life;
    v_dead bigint[];
    v_dropped integer[];
    v_found bigint[];
    v_units bigint[];
begin
    perform pg_stat_clear_snapshot();
    v_life := pgps._this_life();
    select t.* into v_told from pgps_internal.relay_told t;
    v_dead := array(select r.session_id from pgps_internal.relay_session r where not pgps._session_lives(r.session_id));
    v_dropped := array(select d.service_id from pgps_internal.service_dropped d where not d.is_told);
    v_found := array(select w.unit_no from pgps_internal.what_happened(
        pgps_internal.relayed_to_look_at(v_told, v_life, v_dead, v_dropped), tell_what_happened.max_units) w);
    v_units := array(select u.unit_no from pgps_internal.unit u where u.unit_no = any (v_found)
        order by u.unit_no for update skip locked);
    -- Looked at again, now that they are locked.
    perform pgps_internal.note_unit(w.unit_no, w.status, null, null, w.attempts, 0),
        pgps_internal.tell_status(w.unit_no, w.status, w.attempts, null)
    from pgps_internal.what_happened(v_units, tell_what_happened.max_units) w;
    perform pgps_internal.note_ended(e.service_id) from (select distinct u.service_id from pgps_internal.unit u
        where u.unit_no = any (v_units)) e;
    if cardinality(v_found) < tell_what_happened.max_units and cardinality(v_units) = cardinality(v_found) then
        delete from pgps_internal.relay_session r where r.session_id = any (v_dead);
        update pgps_internal.service_dropped d set is_told = true where d.service_id = any (v_dropped);
        -- Written only when there was something, or now and then.
        if v_found <> '{}' or v_told.life_id is distinct from v_life.life_id
            or v_told.until < v_life.seen_at - interval '1 minute' then
            delete from pgps_internal.relay_told;
            insert into pgps_internal.relay_told (life_id, until) values (v_life.life_id, v_life.seen_at);
        end if;
    end if;
    return cardinality(v_units);
end
$$;
comment on function pgps_internal.tell_what_happened(integer) is
'Notes what time, ended sessions, dropped services and restarts did to units from other brokers, at most so many at a
time, and tells these; returns to how many';
