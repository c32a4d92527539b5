-- Detection: composite events consume the log like subscriptions. A step takes what was dispatched since the last one,
-- and timers that are due, in one transaction: it reads what is open of the keys concerned, runs the detector, writes
-- what has changed, and publishes what was detected. So a crash repeats a step exactly, or it has been done.
-- Order: by batch, then by event id. A timer fires when all that was committed before its time has been taken.
-- Workers share out what there is (shares.sql); who dispatches without a worker detects everything.
-- Locks: the turn of detection; the shares of composite events that take a step; the rows of those that have several
-- shares, or are suspended; until the transaction ends. Who alters or drops an event type is waited for as long as
-- lock_timeout says, once, and then only by what reads that type (held.sql).
-- Writes: composite, position.

create or replace function pgps_internal.all_before(last pgps_internal.batch) returns timestamptz
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := pgps_internal.clock();
begin
    -- The clock is read first: what is committed later was not there when it showed this time, or is found waiting.
    return least(v_now, (select min(w.published_at)
        from pgps_internal.waiting(all_before.last, pgps_internal.committed_now()) w));
end
$$;
comment on function pgps_internal.all_before(pgps_internal.batch) is
'The time before which all that was committed is in a batch up to last, which the caller goes by: what a batch has that
came meanwhile counts as waiting';

drop function if exists pgps_internal.take_steps(pgps_internal.composite[], pgps_internal.composite_step[], bigint[],
        boolean[], timestamptz), pgps_internal.take_steps(bigint[], bigint[], boolean[], timestamptz),
    pgps_internal.try_steps(pgps_internal.composite[], pgps_internal.composite_step[], bigint[], boolean[],
        timestamptz), pgps_internal.try_steps(bigint[], bigint[], boolean[], timestamptz),
    pgps_internal.detect(integer), pgps_internal.detect(integer, boolean), pgps.detect(),
    pgps_internal.take_steps(bigint[], integer[], bigint[], boolean[], timestamptz),
    pgps_internal.try_steps(bigint[], integer[], bigint[], boolean[], timestamptz),
    pgps_internal.take_less(bigint[], integer[], bigint[], boolean[], timestamptz, text, text),
    pgps_internal.detect_due(bigint, timestamptz, integer, integer, integer, bigint);
create or replace function pgps_internal.note_taken(composite_ids bigint[], uptos bigint[]) returns void
language plpgsql
as $$
begin
    insert into pgps_internal.position (subscription_id, acked_batch, acked_event, received_batch, received_event,
        acked_total, outstanding)
    select l.subscription_id, u.upto, 9223372036854775807, u.upto, 9223372036854775807, 0, 0
    from unnest(note_taken.composite_ids, note_taken.uptos) u(composite_id, upto)
    join pgps_internal.composite_leaf l using (composite_id)
    where l.subscription_id is not null;
end
$$;
comment on function pgps_internal.note_taken(bigint[], bigint[]) is
'Notes up to which batch the hidden subscriptions of composite events have taken their events';

create or replace function pgps_internal.take_steps(
    composite_ids bigint[], shares integer[], uptos bigint[], are_last boolean[], now timestamptz, pace text
) returns boolean
language plpgsql
as $$
declare
    v_found jsonb;
begin
    -- Before the session looks whether the queries that it keeps are still those of the types: who alters one meanwhile
    -- would have them fail, though no definition is at fault.
    perform pgps_internal.hold_log(t) from (select t.* from pgps_internal.event_type t
        where t.type_id in (select l.type_id from pgps_internal.composite_leaf l
            where l.composite_id = any (take_steps.composite_ids)) order by t.type_id) t;
    v_found := pgps_internal.detect_step(pgps_internal.step_job(take_steps.composite_ids, take_steps.shares,
        take_steps.uptos, take_steps.are_last, take_steps.now, take_steps.pace)::text);
    if (v_found ->> 'stayed')::boolean or exists (select from pgps_internal.composite_share h
            where h.composite_id = any (take_steps.composite_ids) and h.share > 0) then
        -- One after the other, so that the last one sees how far all shares are.
        perform from pgps_internal.composite c where c.composite_id = any (take_steps.composite_ids)
            and exists (select from pgps_internal.composite_share h
                where h.composite_id = c.composite_id and h.share > 0)
        order by c.composite_id for no key update of c;
        perform pgps_internal.note_taken(array_agg(u.composite_id), array_agg(u.upto))
        from (
            select n.composite_id, min(n.batch_id) as upto
            from pgps_internal.step_now n where n.composite_id = any (take_steps.composite_ids)
            group by n.composite_id
            -- A share that has taken no step yet still needs all from the beginning on.
            having count(*) = (select count(*) from pgps_internal.composite_share h
                where h.composite_id = n.composite_id)) u;
    else
        perform pgps_internal.note_taken(take_steps.composite_ids, take_steps.uptos);
    end if;
    return (v_found ->> 'more')::boolean;
end
$$;
comment on function pgps_internal.take_steps(bigint[], integer[], bigint[], boolean[], timestamptz, text) is
'Takes a step of each of some shares of composite events, and publishes what was detected. True when timers are due that
a step of their own has to fire';

create or replace function pgps_internal.shorter_step(
    composite_id bigint, share integer, upto bigint, now timestamptz
) returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select max(d.upto)
    from unnest(array[0, 300, 2500]) most
    cross join lateral pgps_internal.composites_due((pgps_internal.last_batch()).batch_id, shorter_step.now, most,
        among => array[shorter_step.composite_id], shares => array[shorter_step.share]) d
    where d.upto < shorter_step.upto
$$;
comment on function pgps_internal.shorter_step(bigint, integer, bigint, timestamptz) is
'Up to which batch a share of a composite event goes that should not go so far at once; null when that is one batch
already';

create or replace function pgps_internal.suspend_composite(composite_id bigint, error text) returns void
language plpgsql
as $$
begin
    -- It stays where it is; the others go on, and so does who dispatches.
    update pgps_internal.composite c set enabled = false, last_error = suspend_composite.error
    where c.composite_id = suspend_composite.composite_id;
    -- For whom it is detected, that neighbour is told.
    if exists (select from pgps_internal.hosted_part h where h.composite_id = suspend_composite.composite_id) then
        perform pg_notify('pgps_link', '');
    end if;
    raise warning 'composite event "%" is suspended: %',
        (select t.name from pgps_internal.composite c join pgps_internal.event_type t using (type_id)
            where c.composite_id = suspend_composite.composite_id), suspend_composite.error
    using hint = 'See pgps.composite_events; go on with pgps.alter_composite_event(name, enabled => true).';
end
$$;
comment on function pgps_internal.suspend_composite(bigint, text) is
'Stops the detection of a composite event whose step raises, and says why';

create or replace function pgps_internal.take_less(
    composite_ids bigint[], shares integer[], uptos bigint[], are_last boolean[], now timestamptz, pace text,
    state text, error text
) returns boolean
language plpgsql
as $$
declare
    v_more boolean := false;
    v_place integer;
    v_size integer;
    v_end integer;
    v_upto bigint;
begin
    if cardinality(take_less.composite_ids) > 1 then
        -- What they make together may be too much when each of them is well.
        v_size := case when take_less.state = '54001' then (cardinality(take_less.composite_ids) + 1) / 2 else 1 end;
        for v_place in 1..cardinality(take_less.composite_ids) by v_size loop
            v_end := v_place + v_size - 1;
            v_more := pgps_internal.try_steps(take_less.composite_ids[v_place:v_end],
                take_less.shares[v_place:v_end], take_less.uptos[v_place:v_end],
                take_less.are_last[v_place:v_end], take_less.now, take_less.pace) or v_more;
        end loop;
        return v_more;
    end if;
    if take_less.state = '54001' then
        v_upto := pgps_internal.shorter_step(take_less.composite_ids[1], take_less.shares[1], take_less.uptos[1],
            take_less.now);
        if v_upto is not null then
            perform pgps_internal.try_steps(take_less.composite_ids, take_less.shares, array[v_upto], array[false],
                take_less.now, take_less.pace);
            return true;
        end if;
    end if;
    if pgps_internal.is_no_json(take_less.state)
            and current_setting('pgps.is_careful', true) is distinct from 'on' then
        -- What cannot become JSON is looked for only now: a subtransaction for each publication would cost all of them.
        perform set_config('pgps.is_careful', 'on', true);
        v_more := pgps_internal.try_steps(take_less.composite_ids, take_less.shares, take_less.uptos,
            take_less.are_last, take_less.now, take_less.pace);
        perform set_config('pgps.is_careful', '', true);
        return v_more;
    end if;
    perform pgps_internal.suspend_composite(take_less.composite_ids[1], take_less.error);
    return false;
end
$$;
comment on function pgps_internal.take_less(bigint[], integer[], bigint[], boolean[], timestamptz, text, text, text) is
'Takes what a step that has raised leaves undone: of fewer composite events at once, or, where one alone would make too
much, less far; else it is suspended. state, error: what was raised. Returns the same as take_steps';

create or replace function pgps_internal.try_steps(
    composite_ids bigint[], shares integer[], uptos bigint[], are_last boolean[], now timestamptz, pace text
) returns boolean
language plpgsql
as $$
declare
    v_state text;
    v_error text;
    v_context text;
    v_whose text;
    v_more boolean := false;
    v_runs_code boolean := (select bool_or(c.runs_code) from pgps_internal.composite c
        where c.composite_id = any (try_steps.composite_ids));
    v_prepared text := case when v_runs_code then pgps_internal.prepared() end;
begin
    begin
        v_more := pgps_internal.take_steps(try_steps.composite_ids, try_steps.shares, try_steps.uptos,
            try_steps.are_last, try_steps.now, try_steps.pace);
        -- All else that a filter or an attribute does is rolled back at once, before any other statement runs.
        if v_runs_code then
            perform pgps_internal.forget_prepared(v_prepared);
        end if;
        return v_more;
    exception when others or assert_failure then
        get stacked diagnostics v_state = returned_sqlstate, v_error = message_text, v_context = pg_exception_context,
            v_whose = pg_exception_detail;
        -- PL/Python puts the name of its exception before a message.
        v_error := regexp_replace(v_error, '^(plpy|spiexceptions)\.\w+: ', '');
        if v_runs_code then
            perform pgps_internal.forget_prepared(v_prepared);
        end if;
        -- Errors that are not those of a definition: a conflict, no resources, a shutdown. A file that is not there
        -- may be what a function asked for that a filter or an attribute calls.
        if left(v_state, 2) in ('40', '53', '57') or left(v_state, 2) = '58' and not v_runs_code then
            raise;
        end if;
    end;
    if v_state in ('PS002', 'PS003') then
        return pgps_internal.take_quick(try_steps.composite_ids, try_steps.shares, try_steps.uptos,
            try_steps.are_last, try_steps.now, try_steps.pace,
            pgps_internal.note_slow_owner(string_to_array(v_whose, ',')::bigint[], v_error, v_state = 'PS003'));
    elsif pgps_internal.is_held_up(v_state, v_context) then
        return pgps_internal.take_free(try_steps.composite_ids, try_steps.shares, try_steps.uptos, try_steps.are_last,
            try_steps.now, try_steps.pace);
    end if;
    return pgps_internal.take_less(try_steps.composite_ids, try_steps.shares, try_steps.uptos, try_steps.are_last,
        try_steps.now, try_steps.pace, v_state, v_error);
end
$$;
comment on function pgps_internal.try_steps(bigint[], integer[], bigint[], boolean[], timestamptz, text) is
'As take_steps; a composite event whose step raises is suspended, where it was, and the others go on. One that would
make too much at once goes less far, and an owner whose code takes too long beside others is slow';

create or replace function pgps_internal.lock_due(inout composite_ids bigint[], inout shares integer[])
language plpgsql
as $$
declare
    v_is_held boolean;
begin
    -- One that another session has altered, reset or dropped and not committed is left out; the others go on.
    select array_agg(h.composite_id), array_agg(h.share), bool_or(h.is_held) into composite_ids, shares, v_is_held
    from (
        select h.composite_id, h.share, c.is_held from pgps_internal.composite_share h
        join unnest(lock_due.composite_ids, lock_due.shares) w(composite_id, share) using (composite_id, share)
        join pgps_internal.composite c using (composite_id)
        order by h.composite_id, h.share for no key update of h skip locked) h;
    if v_is_held then
        select array_agg(f.composite_id), array_agg(f.share) into composite_ids, shares
        from pgps_internal.free_shares(lock_due.composite_ids, lock_due.shares) f;
    end if;
end
$$;
comment on function pgps_internal.lock_due(bigint[], integer[]) is
'Locks shares of composite events for a step, and returns those that were free';

create or replace function pgps_internal.detect_due(
    last bigint, now timestamptz, most integer, seat integer, seats integer, pace text, inout steps bigint,
    out more boolean
)
language plpgsql
as $$
declare
    v_due record := pgps_internal.all_due(detect_due.last, detect_due.now, detect_due.most, detect_due.seat,
        detect_due.seats, null, null, detect_due.pace);
    v_free record;
    v_is_late boolean := v_due.composite_ids is null and detect_due.seats > 1;
begin
    if v_is_late then
        -- What another session should have done some time ago: it may be stopped, or busy.
        v_due := pgps_internal.all_due(pgps_internal.last_batch_before(pgps_internal.clock() - interval '5 seconds'),
            detect_due.now - interval '5 seconds', detect_due.most, 0, 1, null, null,
            detect_due.pace);
    end if;
    more := false;
    if v_due.composite_ids is null then
        return;
    end if;
    v_free := pgps_internal.lock_due(v_due.composite_ids, v_due.shares);
    -- Looked at again, now that they are locked, where somebody else may have taken a step of one, or has one.
    if v_is_late or cardinality(v_free.composite_ids) is distinct from cardinality(v_due.composite_ids)
            or not pgps_internal.are_as_seen(v_due.composite_ids, v_due.shares, v_due.steps) then
        v_due := pgps_internal.all_due(detect_due.last, detect_due.now, detect_due.most, 0, 1,
            coalesce(v_free.composite_ids, '{}'), coalesce(v_free.shares, '{}'), detect_due.pace);
        if v_due.composite_ids is null then
            return;
        end if;
    end if;
    more := pgps_internal.try_steps(v_due.composite_ids, v_due.shares, v_due.uptos, v_due.are_last, detect_due.now,
            detect_due.pace)
        or false = any (v_due.are_last);
    steps := detect_due.steps + cardinality(v_due.composite_ids);
end
$$;
comment on function pgps_internal.detect_due(bigint, timestamptz, integer, integer, integer, text, bigint) is
'Takes one step of what a session has to do, or of what others should have done five seconds ago; more: that was not
all';

create or replace function pgps_internal.detect(
    most integer, is_shared boolean, pace text, out steps bigint, out more boolean
)
language plpgsql
as $$
declare
    v_batch pgps_internal.batch := pgps_internal.last_batch();
    v_last bigint := coalesce(v_batch.batch_id, 0);
    v_now timestamptz := pgps_internal.all_before(v_batch);
    v_began timestamptz := clock_timestamp();
    v_seat record;
    v_step record;
begin
    steps := 0;
    select 0 as seat, 1 as seats into v_seat;
    if detect.is_shared then
        select t.seat, t.seats into v_seat from pgps_internal.take_seat() t;
        perform pgps_internal.share_out(v_seat.seats);
    end if;
    loop
        select d.* into v_step from pgps_internal.detect_due(v_last, v_now, detect.most, v_seat.seat, v_seat.seats,
            detect.pace, steps) d;
        steps := v_step.steps;
        more := v_step.more;
        -- What is done is kept: ticks of years would else be begun again and again. Others wait for a share.
        exit when not more or v_seat.seats > 1 or clock_timestamp() > v_began + interval '10 seconds';
    end loop;
end
$$;
comment on function pgps_internal.detect(integer, boolean, text) is
'Takes steps until nothing that was dispatched, and no timer, is left, or for ten seconds; about most events in each.
is_shared: other sessions do so, too, and this one takes its part. pace: quick = without those whose owner''s code is
slow, and who needs too long is slow from then on; null = all, as long as they take. Returns how many steps, and
whether it stopped before it was done. The caller has the turn of detection, or shares in it';

create or replace function pgps_internal.detect_here() returns void
language plpgsql
set timezone = 'UTC' set datestyle = 'ISO' set intervalstyle = 'postgres'
set extra_float_digits = 1 set bytea_output = 'hex' set enable_bitmapscan = on
as $$
begin
    perform pgps_internal.hold_detection();
    perform pgps_internal.detect(20000, false, null);
end
$$;
comment on function pgps_internal.detect_here() is
'Detects in this transaction; see pgps.dispatch. Waits for other sessions that do';

create or replace function pgps.detect(shared boolean = false) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set enable_bitmapscan = off
set max_parallel_workers_per_gather = 0 set timezone = 'UTC' set datestyle = 'ISO' set intervalstyle = 'postgres'
set extra_float_digits = 1 set bytea_output = 'hex'
set plan_cache_mode = force_generic_plan
as $$
begin
    perform pgps_internal.require_read_committed();
    if not exists (select from pgps_internal.composite) then
        return 0;
    end if;
    if detect.shared then
        perform pgps_internal.join_detection();
    else
        perform pgps_internal.hold_detection();
    end if;
    return (select d.steps from pgps_internal.detect(20000, coalesce(detect.shared, false), null) d);
end
$$;
comment on function pgps.detect(boolean) is
'Detects composite events in what has been dispatched, and lets timers fire whose time is over; publishes what it finds,
all in one transaction. Returns how many steps it took. shared: as a worker calls it, again and again in a session of
its own: the sessions that have called it so share out composite events and their partition keys, until they end; what
one leaves undone for five seconds another one does. Not shared, or null: does everything, as pgps.dispatch in a session
that is no worker''s, and waits for other sessions that detect. Needs pgps_worker or pgps_admin. Errors: 42501.';

drop function if exists pgps.detect_share();
create or replace function pgps.detect_share(
    out steps bigint, out more boolean, out timer double precision, out slow boolean
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set enable_bitmapscan = off
set max_parallel_workers_per_gather = 0 set timezone = 'UTC' set datestyle = 'ISO' set intervalstyle = 'postgres'
set extra_float_digits = 1 set bytea_output = 'hex'
set plan_cache_mode = force_generic_plan
as $$
begin
    steps := 0;
    more := false;
    slow := false;
    perform pgps_internal.require_read_committed();
    if exists (select from pgps_internal.composite) then
        perform pgps_internal.join_detection();
        select d.steps, d.more into steps, more from pgps_internal.detect(20000, true, 'quick') d;
        slow := cardinality(pgps_internal.slow_owners(whole => false)) > 0;
        timer := case when not more then pgps_internal.next_timer(false) end;
    end if;
end
$$;
comment on function pgps.detect_share() is
'What a worker calls: pgps.detect(shared => true), with all that it has to know to wait: steps, how many were taken;
more, whether there is more to do at once; timer, else, as pgps.next_timer; slow, whether pgps.detect_slow has to be
called, too, for owners whose filters or attributes take longer than a second beside those of others. Needs
pgps_worker or pgps_admin. Errors: 42501.';

revoke all on function pgps.detect(boolean), pgps.detect_share() from public;
grant execute on function pgps.detect(boolean), pgps.detect_share() to pgps_worker, pgps_admin;
