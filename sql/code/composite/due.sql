-- What there is to do: which shares of composite events have events or timers, and what a step of them needs to know.
-- Not in SQL, which would be planned anew in each step.
-- Locks: none.
-- Writes: nothing.

drop function if exists pgps_internal.composites_due(bigint, timestamptz, integer),
    pgps_internal.composites_due(bigint, timestamptz, integer, bigint[]),
    pgps_internal.composites_due(bigint, timestamptz, integer, integer, integer, bigint[], integer[]),
    pgps_internal.step_job(pgps_internal.composite[], pgps_internal.composite_step[], bigint[], boolean[],
        timestamptz), pgps_internal.step_job(bigint[], bigint[], boolean[], timestamptz),
    pgps_internal.step_job(bigint[], integer[], bigint[], boolean[], timestamptz),
    pgps_internal.composites_due(bigint, timestamptz, integer, integer, integer, bigint[], integer[]),
    pgps_internal.all_due(bigint, timestamptz, integer, integer, integer, bigint[], integer[]);
create or replace view pgps_internal.share_now as
select c.composite_id, h.share, h.shares, c as composite, s.step, coalesce((s.step).batch_id, c.after_batch) as reached,
    exists (select from pgps_internal.composite_part p where p.composite_id = c.composite_id) as has_parts,
    exists (select from pgps_internal.composite_leaf l
        where l.composite_id = c.composite_id and l.source is not null) as has_sources
from pgps_internal.composite c
join pgps_internal.composite_share h using (composite_id)
cross join lateral (select (select n from pgps_internal.composite_step n
    where n.composite_id = h.composite_id and n.share = h.share order by n.row_id desc limit 1) as step) s;
comment on view pgps_internal.share_now is
'Each share of a composite event with its last step (null before the first) and the batch up to which it has come';

create or replace view pgps_internal.composite_behind as
select l.composite_id, min(case when not c.is_active or c.is_pending then least(c.suspended_batch, u.from_batch)
    -- A lane moves only where it has something to do: what comes before that is matched.
    when g.in_lane then (select n.batch_id - 1 from pgps_internal.lane_place p
        cross join lateral (select b.batch_id from pgps_internal.batch_type b
            where b.type_id = c.type_id and b.batch_id > greatest(p.batch_id, g.from_batch) and b.events > 0
            order by b.batch_id limit 1) n
        where p.owner = c.owner)
    else u.from_batch end) as upto
from pgps_internal.composite_leaf l join pgps_internal.member m using (subscription_id)
join pgps_internal.class c on c.class_id = m.class_id
left join pgps_internal.signature g on g.signature_id = c.signature_id
left join pgps_internal.unasked u on u.signature_id = c.signature_id
where g.in_lane or not c.is_active or c.is_pending or u.signature_id is not null
group by l.composite_id;
comment on view pgps_internal.composite_behind is
'Up to which batch the filters of leaves have been asked, where they may be behind: in lanes, when suspended, and when
nobody asks them; null where the lanes have asked about all';

create or replace function pgps_internal.whole_upto(batch_id bigint, last bigint) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_batch pgps_internal.batch;
    v_end bigint;
begin
    select b.* into v_batch from pgps_internal.batch b where b.batch_id = whole_upto.batch_id;
    if not found then
        return whole_upto.batch_id;
    end if;
    -- Only parts of one transaction have the same snapshots and the same end (large.sql).
    v_end := coalesce((select b.batch_id - 1 from pgps_internal.batch b
            where b.batch_id > v_batch.batch_id
                and (b.snapshot::text <> v_batch.snapshot::text or b.upto is distinct from v_batch.upto)
            order by b.batch_id limit 1), (pgps_internal.last_batch()).batch_id);
    if v_end <= whole_upto.last then
        return v_end;
    end if;
    return coalesce((select b.batch_id from pgps_internal.batch b
        where b.batch_id < v_batch.batch_id
            and (b.snapshot::text <> v_batch.snapshot::text or b.upto is distinct from v_batch.upto)
        order by b.batch_id desc limit 1), 0);
end
$$;
comment on function pgps_internal.whole_upto(bigint, bigint) is
'Up to which batch a step goes that is to go up to batch_id and to end in no transaction that is several batches: to the
last one of these, or, where that is behind last, to the one before the first';

create or replace function pgps_internal.is_transactional(composite_id bigint) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Asked of steps alone that do not go to the newest batch.
    return (select (c.parsed ->> 'transactional')::boolean from pgps_internal.composite c
        where c.composite_id = is_transactional.composite_id);
end
$$;
comment on function pgps_internal.is_transactional(bigint) is
'True when a composite event has begin_transaction or commit, so that its steps take whole transactions';

create or replace function pgps_internal.composites_due(
    last bigint, now timestamptz, most integer, seat integer = 0, seats integer = 1, among bigint[] = null,
    shares integer[] = null, pace text = null
) returns table (composite_id bigint, share integer, upto bigint, is_last boolean, step bigint)
language plpgsql stable rows 100
as $$
#variable_conflict use_column
declare
    v_slow oid[] := pgps_internal.slow_owners(whole => false, is_asked => composites_due.pace = 'quick');
    v_whole oid[] := pgps_internal.slow_owners(whole => true, is_asked => v_slow <> '{}');
    v_aside boolean := pgps_internal.were_set_aside();
begin
    return query
    with c as materialized (
        -- A lane may be behind, a suspended filter is to be asked about what came meanwhile, an event type may be set
        -- aside: nothing after that is taken before, or it would come in another order.
        select s.composite_id, s.share, (s.composite).state_id, s.step, s.reached,
            least(composites_due.last, b.upto, case when v_aside then pgps_internal.aside_upto(s.composite_id,
                s.reached, least(composites_due.last, b.upto)) end) as upto,
            pgps_internal.microseconds(composites_due.now) as now,
            (s.composite).is_timed and (s.composite).time_basis = 'arrival' as is_timed,
            (s.step).batch_id is null and (s.composite).is_ticking as is_new_clock
        from pgps_internal.share_now s
        left join (select b.* from pgps_internal.composite_behind b offset 0) b using (composite_id)
        where (s.composite).enabled and (s.composite).owner::text <> (s.composite).owner::oid::text
            and (s.composite_id + s.share) % composites_due.seats = composites_due.seat
            and (s.composite).owner <> all (case when (s.composite).runs_code then v_slow else v_whole end)
            and (composites_due.among is null or (s.composite_id, s.share) in (
                select w.* from unnest(composites_due.among, composites_due.shares) w))
    ),
    d as materialized (
        -- Whole batches, until there are enough events: one more than that, since a batch may be one event.
        select c.*, d.next, d.first is not null as has_events
        from c cross join lateral (
            select min(r.batch_id) as first, min(r.batch_id) filter (where r.running > composites_due.most) as next
            from (
                select d.batch_id, sum(d.events) over (order by d.batch_id) as running
                from pgps_internal.composite_leaf l
                join pgps_internal.member m using (subscription_id)
                cross join lateral (select d.batch_id, d.events from pgps_internal.delivery d
                    where d.class_id = m.class_id and d.batch_id > greatest(c.reached, m.from_batch)
                        and d.batch_id <= c.upto order by d.batch_id limit composites_due.most + 1) d
                where l.composite_id = c.composite_id) r) d
    ),
    e as (
        select d.*, case when (d.next is not null or d.upto < composites_due.last)
                and pgps_internal.is_transactional(d.composite_id)
            then pgps_internal.whole_upto(coalesce(d.next, d.upto), d.upto) else coalesce(d.next, d.upto) end as goal
        from d where d.has_events or d.upto = composites_due.last
    )
    select d.composite_id, d.share, d.goal, d.next is null and d.upto = composites_due.last, (d.step).row_id
    from e d
    where d.has_events and d.goal > d.reached or d.upto = composites_due.last and (
        (d.step).idle_at <= composites_due.now
        or d.is_timed and (d.is_new_clock
            or exists (select from pgps_internal.composite_key k where k.state_id = d.state_id
                and k.due >= coalesce(((d.step).ordering ->> 'frontier')::bigint, -4611686018427387904)
                and k.due < d.now)));
end
$$;
comment on function pgps_internal.composites_due(bigint, timestamptz, integer, integer, integer, bigint[],
    integer[], text) is
'Shares of composite events that have something to do: up to which batch they go now (about most events), whether that
is all there is, so that timers may fire, and their last step. seat, seats: those of one session of so many; among,
shares: of these; null = of all. pace: quick = without those of owners that are slow';

create or replace function pgps_internal.all_due(
    last bigint, now timestamptz, most integer, seat integer, seats integer, among bigint[], among_shares integer[],
    pace text, out composite_ids bigint[], out shares integer[], out uptos bigint[], out are_last boolean[],
    out steps bigint[]
)
language plpgsql stable
as $$
begin
    select array_agg(d.composite_id order by d.composite_id, d.share),
        array_agg(d.share order by d.composite_id, d.share), array_agg(d.upto order by d.composite_id, d.share),
        array_agg(d.is_last order by d.composite_id, d.share), array_agg(d.step order by d.composite_id, d.share)
    into composite_ids, shares, uptos, are_last, steps
    from pgps_internal.composites_due(all_due.last, all_due.now, all_due.most, all_due.seat, all_due.seats,
        all_due.among, all_due.among_shares, all_due.pace) d;
end
$$;
comment on function pgps_internal.all_due(bigint, timestamptz, integer, integer, integer, bigint[], integer[], text) is
'What pgps_internal.composites_due returns, as arrays; nulls when there is nothing to do';

create or replace function pgps_internal.are_as_seen(composite_ids bigint[], shares integer[], steps bigint[])
returns boolean
language plpgsql stable
as $$
begin
    return not exists (
        select from unnest(are_as_seen.composite_ids, are_as_seen.shares, are_as_seen.steps)
            w(composite_id, share, step)
        join pgps_internal.share_now s using (composite_id, share)
        where (s.step).row_id is distinct from w.step or not (s.composite).enabled);
end
$$;
comment on function pgps_internal.are_as_seen(bigint[], integer[], bigint[]) is
'True when nobody has taken another step of these shares than the last one given, or disabled one of them';

create or replace function pgps_internal.step_types(composite_ids bigint[], reached bigint[], uptos bigint[])
returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return (with leaf as (
            select l.type_id, array_agg(l.composite_id order by c.subject, l.leaf) as composites,
                array_agg(l.leaf order by c.subject, l.leaf) as leaves,
                array_agg(c.reached order by c.subject, l.leaf) as after,
                array_agg(c.upto order by c.subject, l.leaf) as upto,
                array_agg(c.subject order by c.subject, l.leaf) as subjects
            from unnest(step_types.composite_ids, step_types.reached, step_types.uptos)
                with ordinality c(composite_id, reached, upto, subject)
            join pgps_internal.composite_leaf l using (composite_id) group by l.type_id
        )
        select coalesce(to_jsonb(array_agg(jsonb_build_object('type', t.name, 'type_id', t.type_id,
            'version', pgps_internal.reading_version(t), 'composites', l.composites, 'leaves', l.leaves,
            'after', l.after, 'upto', l.upto, 'subjects', l.subjects))), '[]')
        from leaf l join pgps_internal.event_type t using (type_id));
end
$$;
comment on function pgps_internal.step_types(bigint[], bigint[], bigint[]) is
'For each event type of these composite events: by which leaves it is read, after which batch and up to which, and
whether what reads it has changed; composite events are numbered as their subjects in a step';

create or replace function pgps_internal.step_job(
    composite_ids bigint[], shares integer[], uptos bigint[], are_last boolean[], now timestamptz, pace text
) returns json
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return (with once as materialized (
            select extract(epoch from pgps_internal.setting('dispatch_lane_timeout')::interval) as max_time
        ),
        c as materialized (
            select (s.composite).*, s.composite as whole, s.share, s.shares, s.step, s.reached, s.has_parts,
                s.has_sources, w.subject, w.upto, w.is_last
            from unnest(step_job.composite_ids, step_job.shares, step_job.uptos, step_job.are_last)
                with ordinality w(composite_id, share, upto, is_last, subject)
            join pgps_internal.share_now s using (composite_id, share)
        )
        select json_build_object('now', pgps_internal.microseconds(step_job.now),
            'code_seconds', pgps_internal.code_seconds(step_job.pace), 'pace', step_job.pace,
            'is_careful', coalesce(current_setting('pgps.is_careful', true), '') = 'on',
            'broker', (select p.broker from pgps_internal.progress p),
            'late', case when pgps_internal.were_set_aside() then (
                select pgps_internal.came_late(array_agg(c.composite_id), array_agg(c.reached), array_agg(c.upto))
                from c) end,
            'idle_source', (extract(epoch from pgps_internal.setting('idle_source')::interval) * 1000000)::bigint,
            'composites', (select json_agg(json_build_object('subject', c.subject, 'composite_id', c.composite_id,
                'share', c.share, 'shares', c.shares, 'state_id', c.state_id, 'version', c.state_id::text,
                'step', (c.step).row_id, 'ordering', nullif((c.step).ordering, 'null'),
                'heard', (c.step).heard, 'upto', c.upto, 'reached', c.reached, 'open', (c.step).open,
                'keys', (c.step).keys, 'detected', (c.step).detected, 'late', (c.step).late,
                'given_up', (c.step).given_up,
                'period', case when c.is_timed then (c.parsed -> 'fastest' ->> 'period')::bigint end,
                'limit', o.max_time,
                'began', pgps_internal.microseconds(c.began_at),
                'since', case c.start when 'now' then pgps_internal.microseconds(c.began_at) end,
                'now', case when c.is_last then pgps_internal.microseconds(step_job.now) end,
                'timed', c.is_timed or c.time_basis = 'event',
                'binds', case when c.runs_code then c.parsed -> 'attributes' <> '[]' else false end,
                'parts', case when c.has_parts then pgps_internal.parts_of(c.whole) end,
                'part_types', case when c.has_parts then pgps_internal.part_types(c.composite_id) end,
                'asked', (select h.asked -> 'nodes' from pgps_internal.hosted_part h
                    where h.composite_id = c.composite_id),
                'type_id', c.type_id, 'owner', c.owner::oid::bigint,
                'log', (select t.log::text from pgps_internal.event_type t where t.type_id = c.type_id),
                'sources', case when c.has_sources then pgps_internal.sources_of(c.composite_id) end,
                'tests', case when c.runs_code and c.parsed -> 'conditions' <> '[]' then (
                    select jsonb_object_agg(t ->> 'text',
                        format('select * from pgps_internal.composite_test_%s_%s($1)', c.composite_id, o))
                    from jsonb_array_elements(c.parsed -> 'conditions') with ordinality x(t, o)) end))
                from c cross join once o),
            'types', (select pgps_internal.step_types(array_agg(c.composite_id order by c.subject),
                array_agg(c.reached order by c.subject), array_agg(c.upto order by c.subject)) from c)));
end
$$;
comment on function pgps_internal.step_job(bigint[], integer[], bigint[], boolean[], timestamptz, text) is
'What pgps_internal.detect_step takes: shares of composite events, their last steps, and up to which batch each goes';

create or replace function pgps_internal.next_timer(slow boolean) returns double precision
language plpgsql volatile
as $$
declare
    v_slow oid[] := pgps_internal.slow_owners(whole => false, is_asked => next_timer.slow is not null);
    v_whole oid[] := pgps_internal.slow_owners(whole => true, is_asked => v_slow <> '{}');
begin
    if not exists (select from pgps_internal.composite c
            where c.time_basis = 'event' or c.is_timed) then
        return null;
    end if;
    -- What is later than that was not to be done by who has just detected: it waits for a lane, for a leaf that is
    -- suspended, or for an event type that is set aside, and not for the clock.
    return (
        select extract(epoch from min(w.at) - pgps_internal.clock())
        from pgps_internal.composite c
        cross join pgps_internal.seat_here() t
        join pgps_internal.step_now s
            on s.composite_id = c.composite_id and (s.composite_id + s.share) % t.seats = t.seat
        left join lateral (select k.due from pgps_internal.composite_key k where k.state_id = c.state_id
            and c.is_timed and c.time_basis = 'arrival'
            and k.due >= coalesce((s.ordering ->> 'frontier')::bigint, -4611686018427387904)
            order by k.due limit 1) k on true
        cross join lateral (select least(s.idle_at, pgps_internal.moment(k.due)) as at offset 0) w
        where c.enabled and not c.is_held and w.at > pgps_internal.clock() - interval '1 second'
            and (next_timer.slow is null
                or c.owner = any (case when c.runs_code then v_slow else v_whole end) = next_timer.slow));
end
$$;
comment on function pgps_internal.next_timer(boolean) is
'As pgps.next_timer. slow: of owners that are slow, or of all others; null = of both';

create or replace function pgps.next_timer() returns double precision
language sql stable security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
    select pgps_internal.next_timer(null)
$$;
comment on function pgps.next_timer() is
'In how many seconds a composite event has something to do without an event, of those that this session has to detect;
null when none has, below zero when it is due. What has been due for a second is left out: who has just detected could
not do it yet. Needs pgps_worker or pgps_admin.';

revoke all on function pgps.next_timer() from public;
grant execute on function pgps.next_timer() to pgps_worker, pgps_admin;
