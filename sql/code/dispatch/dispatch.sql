-- Dispatch: cuts a batch of whole transactions out of the control queue, matches it and records the deliveries, in one
-- transaction for each call.
-- Order: batches are numbered without gaps in commit order (a batch has what its snapshot sees and the previous one did
-- not); inside a batch, events are in the order of their ids.
-- Locks: share row exclusive on the parent of the batches until the transaction ends, so that one dispatcher runs at a
-- time; no row locks.
-- Writes: batch.

create or replace function pgps_internal.cut_batch(max_events integer) returns bigint
language plpgsql
as $$
declare
    v_last pgps_internal.batch := pgps_internal.last_batch();
    -- The body of cut_window: calling it would copy all arrays once more.
    v_window pgps_internal.batch_window := case when v_last.batch_id is null or pgps_internal.is_same_life(v_last)
        then pgps_internal.next_window(v_last, cut_batch.max_events) else pgps_internal.begin_epoch(v_last) end;
    v_part pgps_internal.part;
    v_is_ready boolean;
begin
    if (v_window.batch).batch_id is null then
        return -1;
    end if;
    v_is_ready := pgps_internal.before_window(v_last, v_window.parts);
    foreach v_part in array v_window.parts loop
        -- The span of the ids is known without reading the log, and is never less than the number of events.
        if upper(v_part.ranges) - lower(v_part.ranges) > cut_batch.max_events
                and pgps_internal.size_if_large(v_window, cut_batch.max_events) > 0 then
            perform pgps_internal.open_parts(v_window);
            return (select coalesce(sum(pgps_internal.dispatch_large_part(b)), 0)
                from generate_series((v_window.batch).batch_id,
                (select max(p.batch_id) from pgps_internal.large_part p)) b);
        end if;
    end loop;
    v_window.batch.batch_id := pgps_internal.note_batch(v_window.batch);
    return pgps_internal.dispatch_parts((v_window.batch).batch_id, v_window.parts);
end
$$;
comment on function pgps_internal.cut_batch(integer) is
'Cuts and matches one batch, or one transaction that is too large for a batch; returns its number of events, -1 when
nothing waits';

create or replace function pgps_internal.note_matched(after bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The one exception to "rows of a ledger are never updated": a call that took long leaves a dead row for each of
    -- its batches until the segment is truncated.
    update pgps_internal.batch b set created_at = pgps_internal.clock() where b.batch_id > note_matched.after;
end
$$;
comment on function pgps_internal.note_matched(bigint) is
'The last step of a transaction that dispatched for long: gives its batches, those above a number, the present time,
when they are about to be visible, instead of the time when they were begun. Only the dispatcher calls this, for batches
that nobody else sees yet';

-- One statement for all that dispatch has to know of a type, to save executor start-up.
create or replace view pgps_internal.dispatched_type as
select t.type_id, t as event_type,
    array(select g from pgps_internal.signature g
        where g.type_id = t.type_id and not g.in_lane and has_table_privilege(g.owner::oid, t.endpoint, 'select')
            -- regrole prints the bare OID of a role that was dropped.
            and g.owner::text <> g.owner::oid::text
            -- Mostly there never was such a one, which the sequence tells (decision 70).
            and (pg_sequence_last_value('pgps_internal.unasked_place_seq'::regclass) is null
                or not exists (select from pgps_internal.unasked u where u.signature_id = g.signature_id))
        order by g.owner, g.signature_id) as signatures,
    exists (select from pgps_internal.class c where c.type_id = t.type_id and c.signature_id is null) as has_unfiltered,
    array(select f.name from pgps_internal.feature f where f.type_id = t.type_id) as features
from pgps_internal.event_type t;
comment on view pgps_internal.dispatched_type is
'What dispatch has to know of an event type: the signatures to ask, whether a class wants every event, and the optional
steps behind matching, which stand in the roster; most types need none of them';

create or replace function pgps_internal.dispatch_part(
    batch_id bigint, part pgps_internal.part, careful boolean
) returns bigint
language plpgsql
as $$
declare
    v_damage text;
    v_known record;
    v_type pgps_internal.event_type;
    v_found pgps_internal.part_ids;
    v_all bigint;
    v_woken bigint;
begin
    select d.* into v_known from pgps_internal.dispatched_type d where d.type_id = (dispatch_part.part).type_id;
    if not found then
        -- The type was dropped while events waited; its rows in the control queue are truncated with their segment.
        return 0;
    end if;
    v_type := v_known.event_type;
    if dispatch_part.careful then
        -- Asked before the filters, which would be blamed for a column that is gone.
        v_damage := (pgps_internal.type_damage(v_type)).damage;
        if v_damage is not null then
            raise exception '%', v_damage using errcode = '55000', hint = 'See pgps.event_types.';
        end if;
    end if;
    execute 'select * from pgps_internal.part_ids_' || v_type.type_id || '($1, $2)' using (dispatch_part.part).xids,
        (dispatch_part.part).ranges into v_found;
    v_all := v_found.events;
    if v_found.numbered then
        select r.ids, r.events into v_found.ids, v_found.events
            from pgps_internal.drop_repeats(dispatch_part.batch_id, v_type.type_id, v_found.ids,
            (dispatch_part.part).xids) r;
    end if;
    if v_all = 0 then
        return 0;
    end if;
    -- An assignment instead of PERFORM: it is evaluated as a simple expression, without executor start-up.
    v_all := pgps_internal.note_type(dispatch_part.batch_id, v_type.type_id, v_found.ids, v_found.events,
        v_all - v_found.events);
    if v_found.events > 0 then
        v_woken := pgps_internal.match(dispatch_part.batch_id, v_type, v_found.ids, v_found.events,
            v_known.has_unfiltered, v_known.signatures, dispatch_part.careful);
        if v_known.features <> '{}' then
            perform pgps_internal.after_match(dispatch_part.batch_id, v_type, (dispatch_part.part).xids, v_found.ids,
                v_known.features);
        end if;
    end if;
    return v_found.events;
end
$$;
comment on function pgps_internal.dispatch_part(bigint, pgps_internal.part, boolean) is
'Takes the events of one type into a batch: cut, drop repeats, match. careful: something has failed, so the type''s
relations are looked at first, and filters that fail are found';

create or replace function pgps.dispatch(max_events integer = null) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set enable_bitmapscan = off
set max_parallel_workers_per_gather = 0 set plan_cache_mode = force_generic_plan
as $$
declare
    -- The functions that run for each batch have no SET clauses, which took as long as some of the work.
    v_cap integer;
    v_events bigint;
    v_total bigint := 0;
    v_until xid8 := pg_snapshot_xmax(pg_current_snapshot());
    v_last pgps_internal.batch;
    v_started timestamptz;
    v_again boolean;
    v_is_ready boolean;
begin
    if dispatch.max_events <= 0 then
        raise exception 'invalid max_events %', dispatch.max_events using errcode = '22023',
            hint = 'Give a positive number, or null for all that waits.';
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        perform pgps_internal.require_read_committed();
    end if;
    lock table only pgps_internal.batch in share row exclusive mode;
    -- Three questions in one statement, to save executor start-up.
    select coalesce(dispatch.max_events,
            (select s.value::integer from pgps_internal.setting s where s.name = 'max_batch_events')),
        exists (select from pgps_internal.class c where c.is_pending) or exists (select from pgps_internal.newcomer)
    into v_cap, v_again;
    v_is_ready := pgps_internal.before_windows(v_again);
    if pgps_internal.may_be_mended() then
        v_total := pgps_internal.dispatch_mended(v_cap);
    end if;
    v_started := pgps_internal.clock();
    loop
        v_events := pgps_internal.cut_batch(v_cap);
        exit when v_events < 0;
        v_total := v_total + v_events;
        exit when dispatch.max_events is not null and v_total > 0;
        -- Ends with what had been committed when the call began, even if more events keep coming.
        v_last := pgps_internal.last_batch();
        exit when v_last.upto is null and pg_snapshot_xmax(v_last.snapshot) >= v_until;
    end loop;
    -- Where there never was a lane, or a composite event, this is all that they cost: no query.
    if pg_sequence_last_value('pgps_internal.lane_lane_id_seq'::regclass) is not null
            and pg_relation_size('pgps_internal.lane'::regclass) > 0 then
        perform pgps_internal.run_lanes_here();
    end if;
    perform pgps_internal.share_here();
    if pg_sequence_last_value('pgps_internal.composite_state_seq'::regclass) is not null then
        if exists (select from pgps_internal.composite) and not pgps_internal.leads() then
            perform pgps_internal.detect_here();
        end if;
    end if;
    if pgps_internal.clock() > v_started + interval '20 ms' then
        perform pgps_internal.note_matched(pgps_internal.last_batch_before(v_started));
    end if;
    return v_total;
end
$$;
comment on function pgps.dispatch(integer) is
'Matches what has been committed and fills the out queues (paper, section 4.8); returns how many events. max_events:
about how many at most, never splitting a transaction; null = all that wait. Of transactions that published at the same
time fewer are taken, since what counts is the span of their event ids. Then evaluates the filters that read more than
the event (pgps.lanes), unless another session does so or they are slow: those of one role for the setting
dispatch_lane_timeout at most, and a millisecond more for each event. Then detects composite events; what it detects is
published in this transaction, so the next call dispatches it: one call for each level of composite events that are made
of others. Waits for another dispatcher''s transaction. Committed as a whole, so after a crash it is repeated exactly.
Needs pgps_worker or pgps_admin. Errors: 22023, 42501.';

revoke all on function pgps.dispatch(integer) from public;
grant execute on function pgps.dispatch(integer) to pgps_worker, pgps_admin;
