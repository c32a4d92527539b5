-- Matching the next batches of a lane: as many as there are in one attempt. When something fails there, a second one
-- takes one batch, and each signature on its own, so that a filter or event that fails is found by bisection
-- (isolate.sql) and affects no other.
-- Locks: the row of the lane.
-- Writes: lane_step.

create or replace function pgps_internal.match_in_lane(
    batch_id bigint, event_type pgps_internal.event_type, signature pgps_internal.signature, ids int8multirange,
    careful boolean
) returns bigint[]
language plpgsql
as $$
declare
    v_owner regrole := (match_in_lane.signature).owner;
    v_ids int8multirange := match_in_lane.ids;
begin
    if (match_in_lane.event_type).has_policy then
        v_ids := case when match_in_lane.careful
            then pgps_internal.visible_carefully(match_in_lane.batch_id, match_in_lane.event_type, v_owner, v_ids)
            else pgps_internal.visible(match_in_lane.event_type, v_owner, v_ids) end;
    end if;
    if isempty(v_ids) then
        return null;
    elsif not match_in_lane.careful then
        return pgps_internal.match_signature(match_in_lane.batch_id, match_in_lane.signature, v_ids, null);
    end if;
    perform pgps_internal.match_carefully(match_in_lane.batch_id, match_in_lane.signature, v_ids);
    return array(select d.class_id from pgps_internal.delivery d join pgps_internal.class c using (class_id)
        where d.batch_id = match_in_lane.batch_id and c.signature_id = (match_in_lane.signature).signature_id);
end
$$;
comment on function pgps_internal.match_in_lane(bigint, pgps_internal.event_type, pgps_internal.signature,
    int8multirange, boolean) is
'Notes the deliveries of one signature in a batch; returns the classes that have one. careful: failures are isolated';

create or replace function pgps_internal.lane_work(lane pgps_internal.lane, after_batch bigint, most integer)
returns table (batches pgps_internal.batch_type[], has_guests boolean, shared integer[])
language sql stable
as $$
    -- One statement, so one snapshot: no batch may be matched ahead of what has to join or to catch up first.
    select pgps_internal.lane_rows(lane_work.lane, lane_work.after_batch, lane_work.most),
        (exists (select from pgps_internal.joining)
            or exists (select from pgps_internal.class c where c.is_pending)
                or exists (select from pgps_internal.asked_again))
            and pgps_internal.has_guests((lane_work.lane).owner)
            or pgps_internal.has_unseen((lane_work.lane).owner),
        array(select t.type_id from pgps_internal.lane_type t where t.owner = (lane_work.lane).owner
            and exists (select from pgps_internal.feature f where f.type_id = t.type_id and f.name = 'share'))
$$;
comment on function pgps_internal.lane_work(pgps_internal.lane, bigint, integer) is
'The next batches of a lane, as lane_rows has them; whether something has to join or to catch up first; and the lane''s
event types whose deliveries are shared out among workers';

drop function if exists pgps_internal.begin_lane(pgps_internal.lane, integer, double precision, integer, interval);
create or replace function pgps_internal.begin_lane(
    lane pgps_internal.lane, most integer, seconds double precision, slot integer, inout budget interval,
    out upto bigint, out piece pgps_internal.lane_piece, out has_guests boolean, out shared integer[],
    out signatures pgps_internal.signature[], out mark regclass, out no_more_after interval
)
language plpgsql
as $$
declare
    v_batches pgps_internal.batch_type[];
begin
    if budget is not null then
        perform pgps_internal.set_alarm(extract(epoch from budget)::double precision);
    end if;
    if begin_lane.slot is not null then
        perform pgps_internal.mark_lane(begin_lane.slot, (begin_lane.lane).lane_id);
        mark := format('pgps_internal.lane_mark_%s', begin_lane.slot)::regclass;
    end if;
    upto := pgps_internal.lane_position((begin_lane.lane).lane_id);
    select w.* into v_batches, has_guests, shared
    from pgps_internal.lane_work(begin_lane.lane, upto, begin_lane.most) w;
    if pg_sequence_last_value('pgps_internal.to_skip_skip_id_seq'::regclass) is not null
            and pg_relation_size('pgps_internal.to_skip'::regclass) > 0 then
        perform pgps_internal.apply_skips_of((begin_lane.lane).owner);
    end if;
    if budget is not null and cardinality(v_batches) > 0 then
        budget := budget + (select sum(b.events) from unnest(v_batches) b) * interval '1 millisecond';
        perform pgps_internal.set_alarm(extract(epoch from budget)::double precision);
    end if;
    piece := row(null, v_batches, true)::pgps_internal.lane_piece;
    if has_guests then
        perform pgps_internal.disturb_lane((begin_lane.lane).lane_id);
    elsif (begin_lane.lane).is_slow then
        piece := pgps_internal.next_piece((begin_lane.lane).lane_id, v_batches);
    end if;
    -- Read after the batches: a subscription made since wants only what is committed later.
    signatures := array(select g from pgps_internal.signature g join pgps_internal.event_type t using (type_id)
        where g.owner = (begin_lane.lane).owner and g.in_lane
            and has_table_privilege(g.owner::oid, t.endpoint, 'select')
        order by g.signature_id);
    no_more_after := begin_lane.seconds * interval '1 second';
end
$$;
comment on function pgps_internal.begin_lane(pgps_internal.lane, integer, double precision, integer, interval) is
'What a lane has to do: its position (upto), and as lane_work, of a slow lane maybe a part of a batch (piece); the
signatures to ask; the sequence that notes which one is asked (mark), null = the session has none; and how long after
the statement began no other batch is begun. Sets the alarm of a dispatch by hand, whose time (budget) is returned with
a millisecond more for each event';

drop function if exists pgps_internal.end_lane_batch(pgps_internal.batch_type, bigint[], integer[]),
    pgps_internal.end_lane_batch(pgps_internal.lane, pgps_internal.batch_type, bigint[], integer[], regclass);
create or replace function pgps_internal.end_lane_batch(
    lane pgps_internal.lane, batch pgps_internal.batch_type, classes bigint[], shared integer[], mark regclass,
    is_part boolean
) returns void
language plpgsql
as $$
begin
    perform setval(end_lane_batch.mark, pgps_internal.lane_mark((end_lane_batch.lane).lane_id));
    if (end_lane_batch.batch).events > 200 then
        perform pgps_internal.plan_for_many(false);
    end if;
    if end_lane_batch.is_part then
        perform pgps_internal.keep_found((end_lane_batch.lane).lane_id, (end_lane_batch.batch).batch_id,
            end_lane_batch.classes);
    elsif cardinality(end_lane_batch.classes) > 0 then
        perform pgps_internal.wake_members(end_lane_batch.classes);
        if (end_lane_batch.batch).type_id = any (end_lane_batch.shared) then
            perform pgps_internal.share_in_lane((end_lane_batch.batch).batch_id, (end_lane_batch.batch).type_id,
                end_lane_batch.classes);
        end if;
    end if;
end
$$;
comment on function pgps_internal.end_lane_batch(pgps_internal.lane, pgps_internal.batch_type, bigint[], integer[],
    regclass, boolean) is
'After the signatures of a lane were asked about a batch of one type: wakes the subscribers of the classes that have a
delivery in it, and shares those out whose types are shared, or notes them when that would take long. mark:
the sequence that notes which signature is asked; none is any more. is_part: keeps aside what was found instead';

drop function if exists
    pgps_internal.end_lane_run(pgps_internal.lane, pgps_internal.lane_run, bigint, boolean, integer);
create or replace function pgps_internal.end_lane_run(
    lane pgps_internal.lane, inout run pgps_internal.lane_run, upto bigint, is_careful boolean, slot integer,
    piece pgps_internal.lane_piece, shared integer[]
)
language plpgsql
as $$
begin
    if not ((end_lane_run.piece).part is null) then
        run := pgps_internal.end_lane_piece(end_lane_run.lane, end_lane_run.piece, end_lane_run.shared, run);
    end if;
    if run.batches > 0 then
        insert into pgps_internal.lane_step (lane_id, batch_id)
        values ((end_lane_run.lane).lane_id, end_lane_run.upto);
        -- Composite events go no further than the lanes of their leaves.
        if pg_sequence_last_value('pgps_internal.composite_state_seq'::regclass) is not null then
            perform pg_notify('pgps_composite', '') where exists (
                select from pgps_internal.signature g
                join pgps_internal.feature f on f.type_id = g.type_id and f.name = 'composite'
                where g.owner = (end_lane_run.lane).owner and g.in_lane);
        end if;
    end if;
    if (end_lane_run.lane).is_slow and not end_lane_run.is_careful then
        perform pgps_internal.note_quick_lane(end_lane_run.lane,
            (end_lane_run.piece).is_last and ((end_lane_run.piece).part).type_id is null);
    end if;
    if end_lane_run.slot is not null then
        perform pgps_internal.mark_lane(end_lane_run.slot, null), pg_advisory_unlock_all();
    end if;
end
$$;
comment on function pgps_internal.end_lane_run(pgps_internal.lane, pgps_internal.lane_run, bigint, boolean, integer,
    pgps_internal.lane_piece, integer[]) is
'Notes the batch up to which a lane has come, and that its session is in no lane any more; wakes who detects composite
events';

create or replace function pgps_internal.try_lane(
    lane pgps_internal.lane, most integer, seconds double precision, slot integer, inout try pgps_internal.lane_attempt
)
language plpgsql
as $$
declare
    v_run pgps_internal.lane_run := row(0, 0, false, null)::pgps_internal.lane_run;
    v_task record;
    v_row pgps_internal.batch_type;
    v_type pgps_internal.event_type;
    v_signature pgps_internal.signature;
    v_classes bigint[];
begin
    v_task := pgps_internal.begin_lane(try_lane.lane, try_lane.most, try_lane.seconds, try_lane.slot, try.budget);
    try.budget := v_task.budget;
    if v_task.has_guests then
        try.run := row(0, 0, not pgps_internal.prepare_lane(try_lane.lane, v_task.upto), null);
        return;
    end if;
    foreach v_row in array (v_task.piece).batches loop
        if v_row.batch_id > v_task.upto then
            exit when v_run.batches > 0 and clock_timestamp() - statement_timestamp() > v_task.no_more_after;
            v_task.upto := v_row.batch_id;
            v_run.batches := v_run.batches + 1;
        end if;
        if v_type.type_id is distinct from v_row.type_id then
            select t.* into v_type from pgps_internal.event_type t where t.type_id = v_row.type_id;
        end if;
        v_run.events := v_run.events + v_row.events;
        v_classes := '{}';
        if v_row.events > 200 then
            perform pgps_internal.plan_for_many(true);
        end if;
        foreach v_signature in array v_task.signatures loop
            continue when v_signature.type_id <> v_row.type_id or v_signature.from_batch >= v_row.batch_id;
            perform setval(v_task.mark, v_signature.signature_id);
            try.signature_id := v_signature.signature_id;
            try.began := clock_timestamp();
            v_classes := v_classes
                || pgps_internal.match_in_lane(v_row.batch_id, v_type, v_signature, v_row.ids, try.is_careful);
            if clock_timestamp() - try.began > try.longest_time then
                try.longest_time := clock_timestamp() - try.began;
                try.longest_id := v_signature.signature_id;
            end if;
        end loop;
        if v_row.events > 200 or cardinality(v_classes) > 0 then
            select null, true, clock_timestamp() into try.signature_id, try.is_ending, try.began; -- Nobody is blamed.
            perform pgps_internal.end_lane_batch(try_lane.lane, v_row, v_classes, v_task.shared, v_task.mark,
                not ((v_task.piece).part is null));
        end if;
    end loop;
    v_run.is_done := cardinality((v_task.piece).batches) < try_lane.most and not try.is_careful
        and coalesce(v_task.upto >= v_row.batch_id, true);
    try.run := pgps_internal.end_lane_run(try_lane.lane, v_run, v_task.upto, try.is_careful, try_lane.slot,
        v_task.piece, v_task.shared);
exception when others or assert_failure or query_canceled then
    get stacked diagnostics try.state = returned_sqlstate, try.error = message_text,
        try.context = pg_exception_context;
end
$$;
comment on function pgps_internal.try_lane(pgps_internal.lane, integer, double precision, integer,
    pgps_internal.lane_attempt) is
'Matches the next batches of a lane, or lets join and catch up what comes first. After an error what it wrote is rolled
back, and the result has the error, the signature that was being asked, since when (began), and which one has taken
longest. try: first as it is before an attempt.';

create or replace function pgps_internal.run_lane(
    lane_id bigint, is_slow boolean, most integer, seconds double precision, slot integer, budget interval = null
)
returns pgps_internal.lane_run
language plpgsql
as $$
declare
    v_limit interval := current_setting('statement_timeout')::interval;
    v_entered timestamptz := clock_timestamp();
    v_lane pgps_internal.lane;
    v_try pgps_internal.lane_attempt;
    v_held text;
    v_slowest bigint;
begin
    select l.* into v_lane from pgps_internal.lane l
    where l.lane_id = run_lane.lane_id and l.is_slow = coalesce(run_lane.is_slow, l.is_slow) for update skip locked;
    if not found then
        return null;
    elsif v_lane.is_slow and pgps_internal.held_type(v_lane, run_lane.most) is not null then
        return row(0, 0, true, null)::pgps_internal.lane_run;
    end if;
    v_try.is_careful := false;
    v_try.longest_time := '-1';
    loop
        v_try.signature_id := null;
        v_try.is_ending := false;
        v_try.began := clock_timestamp();
        v_try.budget := run_lane.budget;
        v_try := pgps_internal.try_lane(v_lane, case when v_try.is_careful then 1 else run_lane.most end,
            run_lane.seconds, run_lane.slot, v_try);
        if v_try.state is null then
            return v_try.run;
        end if;
        v_held := case when v_try.state in ('57014', '55P03') then pgps_internal.held_type(v_lane, run_lane.most) end;
        if v_held is not null then
            return row(0, 0, true, pgps_internal.note_held_lane(v_lane, v_held))::pgps_internal.lane_run;
        -- Less than the whole limit: the server measures from the first message of a statement, a little earlier.
        elsif v_limit > '0' and clock_timestamp() - statement_timestamp() >= 0.9 * v_limit then
            v_slowest := case when clock_timestamp() - v_try.began < v_try.longest_time then v_try.longest_id
                else v_try.signature_id end;
            return row(0, 0, false, case when v_slowest is null and v_try.is_ending
                then pgps_internal.note_broken_lane(v_lane, v_try.state, v_try.error)
                else pgps_internal.note_slow_lane(v_lane, v_slowest, 1, v_limit) end)::pgps_internal.lane_run;
        elsif clock_timestamp() - v_entered >= v_try.budget then
            -- The lane's filters get no second chance here: the caller waits for them.
            return row(0, 0, true,
                pgps_internal.note_slow_lane(v_lane, v_try.signature_id, 1, v_try.budget))::pgps_internal.lane_run;
        elsif pgps_internal.is_cancelled(v_try.state, v_try.context) then
            raise exception '%', v_try.error using errcode = v_try.state;
        elsif v_try.is_careful then
            -- Not the error of a filter, which would have been noted: the lane gives up for now, so that others do not
            -- wait.
            return row(0, 0, true,
                pgps_internal.note_broken_lane(v_lane, v_try.state, v_try.error))::pgps_internal.lane_run;
        end if;
        v_try.is_careful := true;
        v_try.state := null;
    end loop;
end
$$;
comment on function pgps_internal.run_lane(bigint, boolean, integer, double precision, integer, interval) is
'Matches the next batches of a lane in this transaction: about so many (most), and none begun after so many seconds.
Null when another session has the lane, or it is not as slow as is_slow says (null: slow or not). slot: of the session
(pgps.open_lanes), null = it has none. budget: a dispatch by hand waits no longer, and a millisecond for each event;
null = no limit. told: the message to report. A filter that exceeds the statement timeout is noted; but a lane whose
event type somebody is changing waits for him, among the slow ones, and no filter is blamed.';
