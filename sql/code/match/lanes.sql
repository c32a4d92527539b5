-- Lanes: each matches the filters of one role that may read more than the event, beside the dispatcher and with a
-- position of its own. A slow or stuck filter delays its owner and nobody else (decision 24). A lane writes ordinary
-- deliveries, batch by batch.
-- Locks: the row of the lane, while it is matched; sessions divide the lanes among themselves with SKIP LOCKED.
-- Writes: lane, lane_step.

create or replace function pgps_internal.open_lane(owner regrole) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgps_internal.lane (owner, from_batch)
    select open_lane.owner, coalesce((pgps_internal.last_batch()).batch_id, 0)
    where not exists (select from pgps_internal.lane l where l.owner = open_lane.owner)
    on conflict do nothing;
end
$$;
comment on function pgps_internal.open_lane(regrole) is 'Gives a role a lane if it has none, at the last batch';

create or replace function pgps_internal.lane_position(lane_id bigint) returns bigint
language plpgsql stable
as $$
declare
    v_batch bigint;
    v_newest bigint := pg_sequence_last_value('pgps_internal.lane_step_seq'::regclass);
begin
    -- A lane in use has its newest step in the newest segment: looking there alone sets up one scan instead of four.
    select s.batch_id into v_batch from pgps_internal.lane_step s
    where s.lane_id = lane_position.lane_id
        and pgps_internal.lane_step_segment(s.step_id) = pgps_internal.lane_step_segment(v_newest)
        and s.step_id >= pgps_internal.lane_step_segment_start(v_newest)
    order by s.step_id desc limit 1;
    if not found then
        v_batch := (select p.batch_id from pgps_internal.lane_place p where p.lane_id = lane_position.lane_id);
    end if;
    return v_batch;
end
$$;
comment on function pgps_internal.lane_position(bigint) is 'The batch up to which a lane has matched';

create or replace view pgps_internal.lane_place as
select l.lane_id, l.owner, coalesce((select s.batch_id from pgps_internal.lane_step s where s.lane_id = l.lane_id
    order by s.step_id desc limit 1),
    l.from_batch) as batch_id
from pgps_internal.lane l where exists (select from pg_catalog.pg_roles r where r.oid = l.owner);
comment on view pgps_internal.lane_place is
'The batch up to which each lane has matched; see pgps_internal.lane_position';

create or replace view pgps_internal.lane_type as
select g.owner, g.type_id, min(g.from_batch) as from_batch, count(*) as signatures
from pgps_internal.signature g where g.in_lane group by g.owner, g.type_id;
comment on view pgps_internal.lane_type is
'Event types that have filters in a lane, and the batch after which the oldest of these filters begins';

create or replace view pgps_internal.lane_next as
select p.lane_id, p.owner, t.type_id, p.batch_id as position, t.signatures, n.batch_id
from pgps_internal.lane_place p
join pgps_internal.lane_type t using (owner)
cross join lateral (select b.batch_id from pgps_internal.batch_type b
    where b.type_id = t.type_id and b.batch_id > greatest(p.batch_id, t.from_batch) and b.events > 0
        order by b.batch_id limit 1) n;
comment on view pgps_internal.lane_next is
'For each lane that is behind, and each event type, the first batch that it has not matched';

-- ---------------------------------------------------------------------------------------------------------------------
-- What a lane has to do
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.lanes_with_work(seen bigint, is_slow boolean) returns bigint[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The newest batch of each type is looked up first: where none has come since, no lane need be looked at.
    return array(
        with type as materialized (
            select t.type_id, n.batch_id
                from (select distinct g.type_id from pgps_internal.signature g where g.in_lane) t
            cross join lateral (select b.batch_id from pgps_internal.batch_type b
                where b.type_id = t.type_id and b.events > 0 order by b.batch_id desc limit 1) n
            where n.batch_id > lanes_with_work.seen
        ),
        wanted as materialized (
            select g.owner, max(n.batch_id) as newest from type n
            join pgps_internal.signature g on g.type_id = n.type_id and g.in_lane
            where n.batch_id > g.from_batch group by g.owner
        ),
        behind as (
            select l.lane_id, l.owner from wanted w join pgps_internal.lane l using (owner)
            where l.is_slow = coalesce(lanes_with_work.is_slow, l.is_slow) and w.newest > coalesce(
                (select s.batch_id from pgps_internal.lane_step s where s.lane_id = l.lane_id
                    order by s.step_id desc limit 1), l.from_batch)
            union
            select l.lane_id, l.owner from pgps_internal.lane l
            where (exists (select from pgps_internal.joining)
                or exists (select from pgps_internal.class c where c.is_pending)
                    or exists (select from pgps_internal.asked_again))
                and l.is_slow = coalesce(lanes_with_work.is_slow, l.is_slow) and pgps_internal.has_guests(l.owner)
        )
        -- A regrole shows a dropped role as a number; its lane is left out.
        select b.lane_id from behind b where b.owner::text <> b.owner::oid::text order by b.lane_id);
end
$$;
comment on function pgps_internal.lanes_with_work(bigint, boolean) is
'Lanes that have something to match, of types that had events after batch seen, or that have to join or to catch up;
is_slow: null = slow or not';

create or replace function pgps_internal.has_guests(owner regrole) returns boolean
language sql stable
as $$
    select exists (select from pgps_internal.joining j join pgps_internal.subscription s using (subscription_id)
            where s.owner = has_guests.owner and j.failures < 3)
        or exists (select from pgps_internal.class c join pgps_internal.signature g using (signature_id)
            where c.is_pending and g.in_lane and c.owner = has_guests.owner)
        or exists (select from pgps_internal.asked_again a where a.owner = has_guests.owner)
$$;
comment on function pgps_internal.has_guests(regrole) is
'True while subscriptions of a role have to join a type, to catch up or to be asked again before its lane goes on';

create or replace function pgps_internal.lane_rows(lane pgps_internal.lane, after_batch bigint, most integer)
returns pgps_internal.batch_type[]
language plpgsql stable
as $$
begin
    return array(
        select r from (
            select b as r, b.batch_id from pgps_internal.lane_type t
            cross join lateral (select b.* from pgps_internal.batch_type b
                where b.type_id = t.type_id and b.batch_id > greatest(lane_rows.after_batch, t.from_batch)
                    and b.events > 0
                order by b.batch_id limit lane_rows.most) b
            where t.owner = (lane_rows.lane).owner
            order by b.batch_id fetch first lane_rows.most rows with ties) x
        order by x.batch_id, (x.r).type_id);
end
$$;
comment on function pgps_internal.lane_rows(pgps_internal.lane, bigint, integer) is
'The next batches of a lane, with a row for each of its event types: about so many rows (most), whole batches only';

-- ---------------------------------------------------------------------------------------------------------------------
-- Matching
-- ---------------------------------------------------------------------------------------------------------------------

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

create or replace function pgps_internal.run_lane(
    lane_id bigint, is_slow boolean, most integer, seconds double precision, slot integer, budget interval = null
)
returns pgps_internal.lane_run
language plpgsql
as $$
declare
    v_limit interval := current_setting('statement_timeout')::interval;
    v_lane pgps_internal.lane;
    v_rows pgps_internal.batch_type[];
    v_row pgps_internal.batch_type;
    v_type pgps_internal.event_type;
    v_has_guests boolean;
    v_shared integer[];
    v_signatures pgps_internal.signature[];
    v_signature pgps_internal.signature;
    v_longest pgps_internal.signature;
    v_longest_time interval := '-1';
    v_began timestamptz;
    v_position bigint;
    v_classes bigint[];
    v_careful boolean := false;
    v_entered timestamptz := clock_timestamp();
    v_budget interval := run_lane.budget;
    v_run pgps_internal.lane_run;
    v_state text;
    v_error text;
    v_context text;
begin
    select l.* into v_lane from pgps_internal.lane l
    where l.lane_id = run_lane.lane_id and l.is_slow = coalesce(run_lane.is_slow, l.is_slow) for update skip locked;
    if not found then
        return null;
    end if;
    loop
        v_run := row(0, 0, false, null)::pgps_internal.lane_run;
        begin
            v_signature := null;
            v_began := clock_timestamp();
            if v_budget is not null then
                perform pgps_internal.set_alarm(extract(epoch from v_budget)::double precision);
            end if;
            if run_lane.slot is not null then
                perform pgps_internal.mark_lane(run_lane.slot, v_lane.lane_id);
            end if;
            v_position := pgps_internal.lane_position(run_lane.lane_id);
            -- One statement, so one snapshot: no batch may be matched ahead of what has to join or to catch up first.
            select pgps_internal.lane_rows(v_lane, v_position, case when v_careful then 1 else run_lane.most end),
                (exists (select from pgps_internal.joining)
                    or exists (select from pgps_internal.class c where c.is_pending)
                        or exists (select from pgps_internal.asked_again))
                    and pgps_internal.has_guests(v_lane.owner),
                array(select t.type_id from pgps_internal.lane_type t where t.owner = v_lane.owner
                    and exists (select from pgps_internal.feature f where f.type_id = t.type_id and f.name = 'share'))
            into v_rows, v_has_guests, v_shared;
            if v_budget is not null and cardinality(v_rows) > 0 then
                v_budget := run_lane.budget
                    + (select sum(r.events) from unnest(v_rows) r) * interval '1 millisecond';
                perform pgps_internal.set_alarm(extract(epoch from v_budget)::double precision);
            end if;
            if v_has_guests then
                v_run.is_done := not pgps_internal.prepare_lane(v_lane, v_position);
                return v_run;
            end if;
            -- Read after the rows: a subscription made since wants only what is committed later.
            v_signatures := array(select g from pgps_internal.signature g join pgps_internal.event_type t
                using (type_id)
                where g.owner = v_lane.owner and g.in_lane and has_table_privilege(g.owner::oid, t.endpoint, 'select')
                    order by g.signature_id);
            foreach v_row in array v_rows loop
                if v_row.batch_id > v_position and v_run.batches > 0
                        and clock_timestamp() - statement_timestamp() > run_lane.seconds * interval '1 second' then
                    exit;
                elsif v_row.batch_id > v_position then
                    v_position := v_row.batch_id;
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
                foreach v_signature in array v_signatures loop
                    continue when v_signature.type_id <> v_row.type_id or v_signature.from_batch >= v_row.batch_id;
                    if run_lane.slot is not null then
                        perform setval(format('pgps_internal.lane_mark_%s', run_lane.slot)::regclass,
                            v_signature.signature_id);
                    end if;
                    v_began := clock_timestamp();
                    v_classes := v_classes
                        || pgps_internal.match_in_lane(v_row.batch_id, v_type, v_signature, v_row.ids, v_careful);
                    if clock_timestamp() - v_began > v_longest_time then
                        v_longest_time := clock_timestamp() - v_began;
                        v_longest := v_signature;
                    end if;
                end loop;
                if v_row.events > 200 then
                    perform pgps_internal.plan_for_many(false);
                end if;
                if cardinality(v_classes) > 0 then
                    perform pgps_internal.wake_members(v_classes);
                    if v_row.type_id = any (v_shared) then
                        perform pgps_internal.share_out(v_row.batch_id, v_row.type_id, v_classes);
                    end if;
                end if;
            end loop;
            if v_run.batches > 0 then
                insert into pgps_internal.lane_step (lane_id, batch_id) values (run_lane.lane_id, v_position);
            end if;
            v_run.is_done := coalesce(cardinality(v_rows), 0) < run_lane.most
                and (v_row is null or v_position >= v_row.batch_id) and not v_careful;
            if v_lane.is_slow and not v_careful then
                perform pgps_internal.note_quick_lane(v_lane);
            end if;
            if run_lane.slot is not null then
                perform pgps_internal.mark_lane(run_lane.slot, null), pg_advisory_unlock_all();
            end if;
            return v_run;
        exception when others or assert_failure or query_canceled then
            get stacked diagnostics v_state = returned_sqlstate, v_error = message_text,
            v_context = pg_exception_context;
        end;
        -- Less than the whole limit: the server measures from the first message of a statement, a little earlier.
        if v_limit > '0' and clock_timestamp() - statement_timestamp() >= 0.9 * v_limit then
            if clock_timestamp() - v_began < v_longest_time then
                v_signature := v_longest;
            end if;
            return row(0, 0, false,
                pgps_internal.note_slow_lane(v_lane, v_signature.signature_id, 1, v_limit))::pgps_internal.lane_run;
        elsif clock_timestamp() - v_entered >= v_budget then
            -- The lane's filters get no second chance here: the caller waits for them.
            return row(0, 0, true,
                pgps_internal.note_slow_lane(v_lane, v_signature.signature_id, 1, v_budget))::pgps_internal.lane_run;
        elsif pgps_internal.is_cancelled(v_state, v_context) then
            raise exception '%', v_error using errcode = v_state;
        elsif v_careful then
            -- Not the error of a filter, which would have been noted: the lane gives up for now, so that others do not
            -- wait.
            return row(0, 0, true, pgps_internal.note_broken_lane(v_lane, v_state, v_error))::pgps_internal.lane_run;
        end if;
        -- Try again with one batch and each signature on its own, so that a filter or event that fails is found by
        -- bisection (isolate.sql) and affects no other.
        v_careful := true;
    end loop;
end
$$;
comment on function pgps_internal.run_lane(bigint, boolean, integer, double precision, integer, interval) is
'Matches the next batches of a lane in this transaction: about so many (most), and none begun after so many seconds.
Null when another session has the lane, or it is not as slow as is_slow says (null: slow or not). slot: of the session
(pgps.open_lanes), null = it has none. budget: a dispatch by hand waits no longer, and a millisecond for each event;
null = no limit. told: the message to report. A filter that exceeds the statement timeout is
noted.';
