-- Detection: composite events consume the log like subscriptions. A step takes what was dispatched since the last one,
-- and timers that are due, in one transaction: it reads what is open of the keys concerned, runs the detector, writes
-- what has changed, and publishes what was detected. So a crash repeats a step exactly, or it has been done.
-- Order: by batch, then by event id. A timer fires when all that was committed before its time has been taken.
-- Locks: the turn of detection, and the rows of the composite events that take a step, until the transaction ends.
-- Writes: composite, position.

create or replace function pgps_internal.all_before() returns timestamptz
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := pgps_internal.clock();
begin
    -- The clock is read first: what is committed later was not there when it showed this time, or is found waiting.
    return least(v_now, (select min(w.published_at)
        from pgps_internal.waiting(pgps_internal.last_batch(), pgps_internal.committed_now()) w));
end
$$;
comment on function pgps_internal.all_before() is
'The time before which all that was committed has been dispatched';

drop function if exists pgps_internal.composites_due(bigint, timestamptz, integer),
    pgps_internal.composites_due(bigint, timestamptz, integer, bigint[]),
    pgps_internal.step_job(pgps_internal.composite[], pgps_internal.composite_step[], bigint[], boolean[],
        timestamptz),
    pgps_internal.take_steps(pgps_internal.composite[], pgps_internal.composite_step[], bigint[], boolean[],
        timestamptz),
    pgps_internal.try_steps(pgps_internal.composite[], pgps_internal.composite_step[], bigint[], boolean[],
        timestamptz);
create or replace function pgps_internal.composites_due(
    last bigint, now timestamptz, most integer, among bigint[] = null
) returns table (composite_id bigint, upto bigint, is_last boolean)
language plpgsql stable rows 100
as $$
#variable_conflict use_column
begin
    return query
    with behind as materialized (
        -- A lane may be behind, and a suspended filter is to be asked about what came meanwhile: nothing after that is
        -- taken before, or it would come in another order.
        select l.composite_id, min(case when not c.is_active or c.is_pending then c.suspended_batch
            when g.in_lane then (select p.batch_id from pgps_internal.lane_place p where p.owner = c.owner) end) as upto
        from pgps_internal.composite_leaf l join pgps_internal.member m using (subscription_id)
        join pgps_internal.class c on c.class_id = m.class_id
        left join pgps_internal.signature g on g.signature_id = c.signature_id
        where g.in_lane or not c.is_active or c.is_pending
        group by l.composite_id
    ),
    c as materialized (
        select c, s, coalesce(s.batch_id, c.after_batch) as reached, least(composites_due.last, b.upto) as upto,
            pgps_internal.microseconds(composites_due.now) as now
        from pgps_internal.composite c
        cross join lateral pgps_internal.step_of(c.composite_id) s
        left join behind b on b.composite_id = c.composite_id
        where c.enabled and c.owner::text <> c.owner::oid::text
            and (composites_due.among is null or c.composite_id = any (composites_due.among))
    ),
    d as materialized (
        -- Whole batches, until there are enough events.
        select c.*, d.next, d.first is not null as has_events
        from c cross join lateral (
            select min(r.batch_id) as first, min(r.batch_id) filter (where r.running > composites_due.most) as next
            from (
                select d.batch_id, sum(d.events) over (order by d.batch_id) as running
                from pgps_internal.composite_leaf l
                join pgps_internal.member m using (subscription_id)
                cross join lateral (select d.batch_id, d.events from pgps_internal.delivery d
                    where d.class_id = m.class_id and d.batch_id > greatest(c.reached, m.from_batch)
                        and d.batch_id <= c.upto order by d.batch_id limit composites_due.most) d
                where l.composite_id = (c.c).composite_id) r) d
    )
    select (d.c).composite_id, case when d.next is null then d.upto else d.next end,
        d.next is null and d.upto = composites_due.last
    from d
    where d.has_events or d.upto = composites_due.last and (
        (d.s).idle_at <= composites_due.now
        or ((d.c).parsed ->> 'timed')::boolean and (d.c).time_basis = 'arrival' and (
            (d.s).composite_id is null and ((d.c).parsed ->> 'ticking')::boolean
            or exists (select from pgps_internal.composite_key k where k.state_id = (d.c).state_id
                and k.due >= coalesce(((d.s).ordering ->> 'frontier')::bigint, -4611686018427387904)
                and k.due < d.now)));
end
$$;
comment on function pgps_internal.composites_due(bigint, timestamptz, integer, bigint[]) is
'Composite events that have something to do: up to which batch they go now (about most events), and whether that is all
there is, so that timers may fire. among: of these; null = of all';

create or replace function pgps_internal.step_job(
    composite_ids bigint[], uptos bigint[], are_last boolean[], now timestamptz
) returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with once as materialized (
        select pgps_internal.interval_types() as intervals,
            extract(epoch from pgps_internal.setting('dispatch_lane_timeout')::interval) as max_time
    ),
    c as (
        select c.*, c as whole, exists (select from pgps_internal.composite_part p
                where p.composite_id = c.composite_id) as has_parts,
            s.row_id as step, s.batch_id, s.ordering, s.heard, s.open, w.upto, w.is_last
        from unnest(step_job.composite_ids, step_job.uptos, step_job.are_last) w(composite_id, upto, is_last)
        join pgps_internal.composite c using (composite_id)
        left join lateral pgps_internal.step_of(c.composite_id) s on true
    ),
    leaf as (
        select l.type_id, array_agg(l.composite_id order by l.composite_id, l.leaf) as composites,
            array_agg(l.leaf order by l.composite_id, l.leaf) as leaves,
            array_agg(coalesce(c.batch_id, c.after_batch) order by l.composite_id, l.leaf) as after,
            array_agg(c.upto order by l.composite_id, l.leaf) as upto
        from c join pgps_internal.composite_leaf l using (composite_id) group by l.type_id
    )
    select jsonb_build_object('now', pgps_internal.microseconds(step_job.now),
        'broker', (select p.broker from pgps_internal.progress p),
        'idle_source', (extract(epoch from pgps_internal.setting('idle_source')::interval) * 1000000)::bigint,
        'composites', (select jsonb_agg(jsonb_build_object('composite_id', c.composite_id, 'state_id', c.state_id,
            'version', c.state_id::text, 'step', c.step, 'given', c.given,
            'ordering', nullif(c.ordering, 'null'), 'heard', c.heard, 'upto', c.upto, 'open', c.open,
            'period', (c.parsed -> 'fastest' ->> 'period')::bigint, 'limit', o.max_time,
            'began', pgps_internal.microseconds(c.began_at),
            'since', case c.start when 'now' then pgps_internal.microseconds(c.began_at) end,
            'now', case when c.is_last then pgps_internal.microseconds(step_job.now) end,
            'timed', (c.parsed ->> 'timed')::boolean or c.time_basis = 'event',
            'binds', jsonb_array_length(c.parsed -> 'attributes') > 0,
            'parts', case when c.has_parts then pgps_internal.parts_of(c.whole) end,
            'part_types', case when c.has_parts then pgps_internal.part_types(c.composite_id) end,
            'asked', (select h.asked -> 'nodes' from pgps_internal.hosted_part h
                where h.composite_id = c.composite_id),
            'type_id', c.type_id, 'owner', c.owner::oid::bigint, 'insert', case when c.parsed -> 'attributes' = '[]'
                then (select pgps_internal.insert_text(t) from pgps_internal.event_type t
                    where t.type_id = c.type_id) end,
            'sources', pgps_internal.sources_of(c.composite_id),
            'tests', (select coalesce(jsonb_object_agg(t ->> 'text',
                    format('select * from pgps_internal.composite_test_%s_%s($1)', c.composite_id, o)), '{}')
                from jsonb_array_elements(c.parsed -> 'conditions') with ordinality x(t, o))))
            from c cross join once o),
        'intervals', (select o.intervals from once o),
        'types', (select coalesce(jsonb_agg(jsonb_build_object('type', t.name, 'type_id', t.type_id,
            'keys', k.columns, 'hits', pgps_internal.read_hits(t), 'events', pgps_internal.read_events(t, k.columns),
            'composites', l.composites, 'leaves', l.leaves, 'after', l.after, 'upto', l.upto)), '[]')
            from leaf l join pgps_internal.event_type t using (type_id)
            cross join lateral (
                select coalesce(jsonb_agg(distinct p -> 'columns') filter (where p -> 'columns' <> '[]'), '[]')
                    as columns
                from c cross join lateral jsonb_array_elements(c.parsed -> 'leaves') p
                where p ->> 'type' = t.name) k))
$$;
comment on function pgps_internal.step_job(bigint[], bigint[], boolean[], timestamptz) is
'What pgps_internal.detect_step takes: composite events, their last steps, and up to which batch each goes';

create or replace function pgps_internal.take_steps(
    composite_ids bigint[], uptos bigint[], are_last boolean[], now timestamptz
) returns boolean
language plpgsql
as $$
declare
    v_found jsonb;
begin
    v_found := pgps_internal.detect_step(pgps_internal.step_job(take_steps.composite_ids,
        take_steps.uptos, take_steps.are_last, take_steps.now)::text);
    insert into pgps_internal.position (subscription_id, acked_batch, acked_event, received_batch, received_event,
        acked_total, outstanding)
    select l.subscription_id, u.upto, 9223372036854775807, u.upto, 9223372036854775807, 0, 0
    from unnest(take_steps.composite_ids, take_steps.uptos) u(composite_id, upto)
    join pgps_internal.composite_leaf l using (composite_id)
    where l.subscription_id is not null;
    return (v_found ->> 'more')::boolean;
end
$$;
comment on function pgps_internal.take_steps(bigint[], bigint[], boolean[], timestamptz) is
'Takes a step of each of some composite events, and publishes what was detected. True when timers are due that a step
of their own has to fire';

create or replace function pgps_internal.try_steps(
    composite_ids bigint[], uptos bigint[], are_last boolean[], now timestamptz
) returns boolean
language plpgsql
as $$
declare
    v_state text;
    v_error text;
    v_place integer;
    v_more boolean := false;
    v_runs_code boolean := (select bool_or(c.parsed -> 'conditions' <> '[]' or c.parsed -> 'attributes' <> '[]')
        from pgps_internal.composite c where c.composite_id = any (try_steps.composite_ids));
    v_before pgps_internal.session_state;
begin
    begin
        if v_runs_code then
            v_before := pgps_internal.session_state(true);
        end if;
        v_more := pgps_internal.take_steps(try_steps.composite_ids, try_steps.uptos, try_steps.are_last,
            try_steps.now);
        -- What a filter or an attribute has set for the session would hold for what is detected next.
        if v_runs_code then
            perform pgps_internal.check_settings(v_before, 'the filter or an attribute of a composite event');
        end if;
        return v_more;
    exception when others or assert_failure then
        get stacked diagnostics v_state = returned_sqlstate, v_error = message_text;
        -- PL/Python puts the name of its exception before a message.
        v_error := regexp_replace(v_error, '^(plpy|spiexceptions)\.\w+: ', '');
        -- Errors that are not those of a definition: a conflict, no resources, a shutdown.
        if left(v_state, 2) in ('25', '40', '53', '57', '58') then
            raise;
        end if;
    end;
    if cardinality(try_steps.composite_ids) > 1 then
        for v_place in 1..cardinality(try_steps.composite_ids) loop
            v_more := pgps_internal.try_steps(try_steps.composite_ids[v_place:v_place],
                try_steps.uptos[v_place:v_place], try_steps.are_last[v_place:v_place], try_steps.now) or v_more;
        end loop;
        return v_more;
    end if;
    -- It stays where it is; the others go on, and so does who dispatches.
    update pgps_internal.composite c set enabled = false, last_error = v_error
    where c.composite_id = try_steps.composite_ids[1];
    raise warning 'composite event "%" is suspended: %',
        (select t.name from pgps_internal.composite c join pgps_internal.event_type t using (type_id)
            where c.composite_id = try_steps.composite_ids[1]), v_error
    using hint = 'See pgps.composite_events; go on with pgps.alter_composite_event(name, enabled => true).';
    return false;
end
$$;
comment on function pgps_internal.try_steps(bigint[], bigint[], boolean[], timestamptz) is
'As take_steps; a composite event whose step raises is suspended, where it was, and the others go on';

create or replace function pgps_internal.detect(most integer) returns bigint
language plpgsql
as $$
declare
    v_last bigint := coalesce((pgps_internal.last_batch()).batch_id, 0);
    v_now timestamptz := pgps_internal.all_before();
    v_began timestamptz := clock_timestamp();
    v_due record;
    v_ids bigint[];
    v_held bigint[] := '{}';
    v_more boolean;
    v_steps bigint := 0;
begin
    loop
        -- One that another session has altered, reset or dropped and not committed is left out; the others go on.
        v_ids := array(select d.composite_id from pgps_internal.composites_due(v_last, v_now, detect.most) d);
        exit when v_ids = '{}';
        v_held := array(select c.composite_id from pgps_internal.composite c
            where c.composite_id = any (v_ids) order by 1 for no key update skip locked);
        select array_agg(d.composite_id order by d.composite_id) as composite_ids,
            array_agg(d.upto order by d.composite_id) as uptos,
            array_agg(d.is_last order by d.composite_id) as are_last
        into v_due from pgps_internal.composites_due(v_last, v_now, detect.most, v_held) d;
        exit when v_due.composite_ids is null;
        v_more := pgps_internal.try_steps(v_due.composite_ids, v_due.uptos, v_due.are_last, v_now);
        v_steps := v_steps + cardinality(v_due.composite_ids);
        exit when not v_more and not false = any (v_due.are_last);
        -- What is done is kept: ticks of years would else be begun again and again.
        exit when clock_timestamp() > v_began + interval '10 seconds';
    end loop;
    return v_steps;
end
$$;
comment on function pgps_internal.detect(integer) is
'Takes steps until nothing that was dispatched, and no timer, is left, or for ten seconds; about most events in each.
Returns how many. The caller has the turn of detection';

create or replace function pgps_internal.detect_here() returns void
language plpgsql
set timezone = 'UTC' set datestyle = 'ISO' set intervalstyle = 'postgres' set enable_bitmapscan = on
as $$
begin
    perform pgps_internal.hold_detection();
    perform pgps_internal.detect(20000);
end
$$;
comment on function pgps_internal.detect_here() is
'Detects in this transaction; see pgps.dispatch. Waits for another session that does';

create or replace function pgps.detect() returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set enable_bitmapscan = off
set max_parallel_workers_per_gather = 0 set timezone = 'UTC' set datestyle = 'ISO' set intervalstyle = 'postgres'
as $$
begin
    perform pgps_internal.require_read_committed();
    if not exists (select from pgps_internal.composite) then
        return 0;
    end if;
    perform pgps_internal.hold_detection();
    return pgps_internal.detect(20000);
end
$$;
comment on function pgps.detect() is
'Detects composite events in what has been dispatched, and lets timers fire whose time is over; publishes what it finds,
all in one transaction. Returns how many steps it took. A worker calls it; pgps.dispatch does the same in a session that
is no worker''s. Waits for another session that detects. Needs pgps_worker or pgps_admin. Errors: 42501.';

create or replace function pgps.next_timer() returns double precision
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off
as $$
begin
    return (
        select extract(epoch from min(least(s.idle_at, pgps_internal.moment(k.due))) - pgps_internal.clock())
        from pgps_internal.composite c
        cross join lateral pgps_internal.step_of(c.composite_id) s
        left join lateral (select k.due from pgps_internal.composite_key k where k.state_id = c.state_id
            and (c.parsed ->> 'timed')::boolean and c.time_basis = 'arrival'
            and k.due >= coalesce((s.ordering ->> 'frontier')::bigint, -4611686018427387904)
            order by k.due limit 1) k on true
        where c.enabled);
end
$$;
comment on function pgps.next_timer() is
'In how many seconds a composite event has something to do without an event; null when none has, below zero when it is
due. Needs pgps_worker or pgps_admin.';

revoke all on function pgps.detect(), pgps.next_timer() from public;
grant execute on function pgps.detect(), pgps.next_timer() to pgps_worker, pgps_admin;
