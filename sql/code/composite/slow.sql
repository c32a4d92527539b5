-- Owners whose composite events take long: a step of all gives the code of all owners, filters and attributes, a second
-- together, and the detector a second for what it makes of one owner's events beside what they commonly take. Who has
-- taken much of a second that was not enough is slow, and detected apart from then on, by another session of the
-- worker: one composite event at a time, the owners in turn, each waiting after a step as long as it has taken
-- (decision 94). So a slow owner delays itself.
-- Locks: the row of a slow owner; as detect.sql.
-- Writes: slow_detection.

create or replace function pgps_internal.code_seconds(pace text) returns double precision
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return case code_seconds.pace when 'quick' then 1
        when 'slow' then 10 * extract(epoch from pgps_internal.setting('dispatch_lane_timeout')::interval) end;
end
$$;
comment on function pgps_internal.code_seconds(text) is
'How many seconds code may take in a step: quick = that of all owners together, in a step of all composite events, and
the detector as many for what is one owner''s; slow = in a step of an owner that is slow, where each candidate adds a
millisecond; null = as long as each may take';

create or replace function pgps_internal.slow_owners(whole boolean, is_asked boolean = true) returns oid[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return case when slow_owners.is_asked then array(select o.owner from pgps_internal.slow_detection o
        where o.is_slow and (o.is_whole or not slow_owners.whole)) else '{}' end;
end
$$;
comment on function pgps_internal.slow_owners(boolean, boolean) is
'Roles whose composite events are slow. whole: only those of which all are detected apart, and not only those that run
code. is_asked: else none';

drop function if exists pgps_internal.note_slow_owner(bigint, text, boolean),
    pgps_internal.take_quick(bigint[], integer[], bigint[], boolean[], timestamptz, text, oid);
create or replace function pgps_internal.note_slow_owner(composite_ids bigint[], error text, whole boolean)
returns oid[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_owners oid[] := array(select distinct c.owner::oid from pgps_internal.composite c
        where c.composite_id = any (note_slow_owner.composite_ids) order by 1);
    v_now timestamptz := pgps_internal.clock();
begin
    delete from pgps_internal.slow_detection o where (o.owner) in (select n.owner from pgps_internal.slow_detection n
        where not n.is_slow and n.failed_at < v_now - interval '1 hour' for update skip locked);
    -- Slow for longer each time: who is quick and slow by turns would otherwise delay the others each time.
    insert into pgps_internal.slow_detection as o (owner, failed_at, slow_until, last_error, is_whole)
    select w.owner, v_now, v_now + interval '2 seconds', note_slow_owner.error, note_slow_owner.whole
    from unnest(v_owners) w(owner)
    on conflict on constraint slow_detection_pkey do update set is_slow = true, offences = o.offences + 1,
        failed_at = v_now, last_error = excluded.last_error,
        is_whole = excluded.is_whole or o.is_slow and o.is_whole,
        slow_until = v_now + least(power(2, least(o.offences + 1, 12)), 3600) * interval '1 second';
    perform pg_notify('pgps_composite', '');
    return v_owners;
end
$$;
comment on function pgps_internal.note_slow_owner(bigint[], text, boolean) is
'Notes that composite events have taken too long beside others: their owners are slow. whole: not by the code that they
run. Returns the owners';

create or replace function pgps_internal.take_quick(
    composite_ids bigint[], shares integer[], uptos bigint[], are_last boolean[], now timestamptz, pace text,
    owners oid[]
) returns boolean
language plpgsql
as $$
declare
    v_whole oid[] := pgps_internal.slow_owners(whole => true);
    v_quick integer[] := array(
        select w.place::integer from unnest(take_quick.composite_ids) with ordinality w(composite_id, place)
        join pgps_internal.composite c using (composite_id)
        where c.owner <> all (take_quick.owners) or not (c.runs_code or c.owner = any (v_whole)) order by w.place);
begin
    if cardinality(v_quick) = 0 then
        return false;
    end if;
    return pgps_internal.try_steps(array(select take_quick.composite_ids[p] from unnest(v_quick) p),
        array(select take_quick.shares[p] from unnest(v_quick) p),
        array(select take_quick.uptos[p] from unnest(v_quick) p),
        array(select take_quick.are_last[p] from unnest(v_quick) p), take_quick.now, take_quick.pace);
end
$$;
comment on function pgps_internal.take_quick(bigint[], integer[], bigint[], boolean[], timestamptz, text, oid[]) is
'As take_less, when the composite events of some owners have taken too long: the others are detected without those of
theirs that are detected apart';

create or replace function pgps_internal.slow_due(last bigint, now timestamptz)
returns table (owner oid, composite_id bigint, share integer, upto bigint, is_last boolean, step bigint)
language plpgsql stable
as $$
#variable_conflict use_column
declare
    v_ids bigint[];
    v_shares integer[];
begin
    select array_agg(h.composite_id), array_agg(h.share) into v_ids, v_shares
    from pgps_internal.slow_detection o join pgps_internal.composite c on c.owner = o.owner
    join pgps_internal.composite_share h using (composite_id)
    where o.is_slow and (c.runs_code or o.is_whole);
    -- Fewer events than elsewhere: a millisecond for each may be used.
    return query
    select o.owner, d.composite_id, d.share, d.upto, d.is_last, d.step
    from pgps_internal.composites_due(slow_due.last, slow_due.now, 2000, among => coalesce(v_ids, '{}'),
        shares => coalesce(v_shares, '{}')) d
    join pgps_internal.composite c using (composite_id) join pgps_internal.slow_detection o on o.owner = c.owner
    order by o.turn_at, o.owner, d.step nulls first;
end
$$;
comment on function pgps_internal.slow_due(bigint, timestamptz) is
'What slow owners have to do: as pgps_internal.composites_due, whose turn it is first, and of each what has waited
longest';

create or replace function pgps_internal.note_slow_step(owner oid, began timestamptz) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_began timestamptz := note_slow_step.began;
    v_took interval := clock_timestamp() - v_began;
    v_is_slow boolean := v_took > interval '0.25 seconds';
begin
    update pgps_internal.slow_detection o set turn_at = v_began + 2 * v_took,
        is_slow = o.is_slow and (v_is_slow or o.slow_until >= pgps_internal.clock()),
        slow_until = case when v_is_slow
            then greatest(o.slow_until, pgps_internal.clock() + power(2, least(o.offences, 10)) * interval '1 second')
            else o.slow_until end
    where o.owner = note_slow_step.owner;
end
$$;
comment on function pgps_internal.note_slow_step(oid, timestamptz) is
'Notes when a slow owner has his next turn, after one that began then; he is slow no more when his steps have been quick
for some time';

create or replace function pgps.detect_slow(
    out steps bigint, out more boolean, out timer double precision, out slow boolean
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set enable_bitmapscan = off
set max_parallel_workers_per_gather = 0 set timezone = 'UTC' set datestyle = 'ISO' set intervalstyle = 'postgres'
set extra_float_digits = 1 set bytea_output = 'hex'
set plan_cache_mode = force_generic_plan
as $$
declare
    v_last pgps_internal.batch;
    v_now timestamptz;
    v_due record;
    v_began timestamptz := clock_timestamp();
begin
    steps := 0;
    more := false;
    slow := false;
    perform pgps_internal.require_read_committed();
    if cardinality(pgps_internal.slow_owners(whole => false)) = 0 then
        return;
    end if;
    slow := true;
    perform pgps_internal.join_detection();
    v_last := pgps_internal.last_batch();
    v_now := pgps_internal.all_before(v_last);
    for v_due in select d.* from pgps_internal.slow_due(coalesce(v_last.batch_id, 0), v_now) d loop
        -- Somebody else may take a step of it, or has just taken one.
        continue when (pgps_internal.lock_due(array[v_due.composite_id], array[v_due.share])).shares is null;
        more := true;
        exit when not pgps_internal.are_as_seen(array[v_due.composite_id], array[v_due.share], array[v_due.step]);
        perform pgps_internal.try_steps(array[v_due.composite_id], array[v_due.share], array[v_due.upto],
            array[v_due.is_last], v_now, 'slow');
        perform pgps_internal.note_slow_step(v_due.owner, v_began);
        steps := 1;
        return;
    end loop;
    timer := case when not more then pgps_internal.next_timer(true) end;
end
$$;
comment on function pgps.detect_slow() is
'What a worker calls beside pgps.detect_share, in another session: takes a step of one composite event of a role that
is slow, the roles in turn, with what it has to know to wait: steps, 1 or 0; more, whether there
may be more to do at once; timer, else, as pgps.next_timer; slow, whether there are such roles. Needs
pgps_worker or pgps_admin. Errors: 42501.';

create or replace function pgps.slow_detection() returns table (role name, lag_events bigint, last_error text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp set jit = off
as $$
#variable_conflict use_column
begin
    if cardinality(pgps_internal.slow_owners(whole => false)) = 0 then
        return;
    end if;
    return query
    select pg_get_userbyid(o.owner), sum(v.lag)::bigint, left(o.last_error, 1000)
    from pgps_internal.slow_detection o
    join pgps_internal.composite c on c.owner = o.owner and (c.runs_code or o.is_whole) and c.enabled
    join pgps_internal.event_type t using (type_id)
    join pgps.composite_events v on v.name = t.name
    where o.is_slow group by o.owner, o.last_error order by 1;
end
$$;
comment on function pgps.slow_detection() is
'For a worker''s log and metrics, and pgps doctor: roles whose filters or attributes of composite events are slow, so
that these are detected apart; lag_events: how many events wait for them. Needs pgps_worker or pgps_admin.
Errors: 42501.';

revoke all on function pgps.detect_slow(), pgps.slow_detection() from public;
grant execute on function pgps.detect_slow(), pgps.slow_detection() to pgps_worker, pgps_admin;
