-- Segments of ledgers: a ledger is partitioned into four segments, and a row lies in segment (number / size) % 4. One
-- segment is written, the one before it is kept, and the other two are truncated when nobody needs them. This file has
-- the sizes, and the functions with which a dispatch inserts into the ledgers. They insert directly into the segment,
-- since routing through the partitioned parent adds executor start-up cost. Each segment has a branch with a statement
-- of its own, so that only the one that is run is planned. Called by pgps.dispatch alone, with its settings.
-- Locks: none.
-- Writes: batch, batch_type, delivery.

create or replace function pgps_internal.ledgers() returns table (ledger text, key text, size bigint)
language sql immutable
as $$
    -- These must match the partitioning of the tables. Segments of the control queue and of the logs end at the same
    -- event ids.
    values ('control', 'hi', 65536::bigint), ('batch', 'batch_id', 4096), ('batch_type', 'batch_id', 4096),
        ('delivery', 'batch_id', 4096),
        ('producer', 'batch_id', 4096), ('appointment', 'batch_id', 4096), ('position', 'position_id', 262144),
        ('lane_step', 'step_id', 65536), ('shipment', 'shipment_id', 65536), ('arrival', 'arrival_id', 65536),
        ('client_mark', 'mark_id', 16384), ('client_checkpoint', 'checkpoint_id', 16384),
            ('reply_mark', 'mark_id', 16384),
        ('composite_step', 'row_id', 262144), ('composite_key', 'row_id', 262144),
        ('composite_open', 'row_id', 262144),
        ('rule_moment', 'after_event', 65536),
        ('coupling_mark', 'row_id', 65536),
        ('request', 'request_no', 4096), ('request_attempt', 'request_no', 4096), ('reply', 'request_no', 4096),
        ('reply_rows', 'request_no', 64), ('spool_state', 'batch_id', 4096), ('spool_mark', 'mark_id', 16384),
        ('network_mark', 'mark_id', 16384),
        ('conversation', 'at_no', 65536), ('conversation_state', 'at_no', 65536), ('unit', 'at_no', 65536),
        ('unit_commit', 'at_no', 65536), ('unit_state', 'at_no', 65536), ('unit_message', 'at_no', 65536),
        ('unit_note', 'at_no', 65536), ('session_hand', 'at_no', 65536), ('queue_low', 'at_no', 65536)
$$;
comment on function pgps_internal.ledgers() is
'The ledgers: the column by which they are cut into segments, and how many numbers a segment has';

create or replace function pgps_internal.segment_size(ledger text) returns bigint
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select l.size from pgps_internal.ledgers() l where l.ledger = segment_size.ledger);
end
$$;
comment on function pgps_internal.segment_size(text) is 'How many numbers a segment of a ledger has';

-- A segment of a log is named as its event type, in a schema for each slot: PostgreSQL names the table when a row
-- breaks a constraint, and whoever published the row knows the type.
create or replace function pgps_internal.segment_name(type_name text, slot integer) returns text
language sql immutable parallel safe
return format('pgps_log_%s.%I', segment_name.slot, segment_name.type_name);
comment on function pgps_internal.segment_name(text, integer) is
'A segment of the log of an event type, qualified and quoted; slot: 0 to 3';

create or replace function pgps_internal.segment_of(number text, ledger text) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- This must be the expression by which the tables are partitioned: the planner looks for it when it leaves out
    -- segments.
    return format('(%s / %s) %% 4', segment_of.number, pgps_internal.segment_size(segment_of.ledger));
end
$$;
comment on function pgps_internal.segment_of(text, text) is
'The text of an expression: the segment of a ledger that a number is in; number: an expression, too. For what runs with
a user''s rights; other code calls log_segment and its like.';

create or replace function pgps_internal.in_log_segments(number text, lo text, hi text) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Asked for each row. Nearly always the first comparison holds, and the others are not evaluated; a list behind IN
    -- would be built anew for each row.
    return (
        select format('(%s)', string_agg(format('%s = %s', pgps_internal.segment_of(in_log_segments.number, 'control'),
            case n when 0 then pgps_internal.segment_of(in_log_segments.lo, 'control')
                else format('(%1$s / %3$s + least(%2$s / %3$s - %1$s / %3$s, %4$s)) %% 4', in_log_segments.lo,
                    in_log_segments.hi, pgps_internal.segment_size('control'), n) end), ' or ' order by n))
        from generate_series(0, 3) n);
end
$$;
comment on function pgps_internal.in_log_segments(text, text, text) is
'The text of a condition: a number is in one of the segments of the log that the numbers from lo to hi are in';

-- The same as functions, for code that runs with the rights of pgps. They have no SET clause, and bodies that are
-- parsed now: the planner puts such a function's expression in its place, so that a call costs nothing, and segments
-- are left out as if the expression were written there.
create or replace function pgps_internal.log_segment(number bigint) returns bigint
language sql immutable parallel safe
return number / 65536 % 4;
comment on function pgps_internal.log_segment(bigint) is
'The segment of its log, and of the control queue, that an event id is in';

create or replace function pgps_internal.log_segment_start(number bigint) returns bigint
language sql immutable parallel safe
return number / 65536 * 65536;
comment on function pgps_internal.log_segment_start(bigint) is 'The lowest event id of the same segment';

create or replace function pgps_internal.batch_segment(number bigint) returns bigint
language sql immutable parallel safe
return number / 4096 % 4;
comment on function pgps_internal.batch_segment(bigint) is
'The segment of the batches, and of what is recorded by batch, that a batch number is in';

create or replace function pgps_internal.batch_segment_start(number bigint) returns bigint
language sql immutable parallel safe
return number / 4096 * 4096;
comment on function pgps_internal.batch_segment_start(bigint) is 'The lowest batch number of the same segment';

create or replace function pgps_internal.position_segment(number bigint) returns bigint
language sql immutable parallel safe
return number / 262144 % 4;
comment on function pgps_internal.position_segment(bigint) is
'The segment that a position''s number is in';

create or replace function pgps_internal.position_segment_start(number bigint) returns bigint
language sql immutable parallel safe
return number / 262144 * 262144;
comment on function pgps_internal.position_segment_start(bigint) is 'The lowest number of the same segment';

create or replace function pgps_internal.arrival_segment(number bigint) returns bigint
language sql immutable parallel safe
return number / 65536 % 4;
comment on function pgps_internal.arrival_segment(bigint) is
'The segment that the number of an arrival is in';

create or replace function pgps_internal.arrival_segment_start(number bigint) returns bigint
language sql immutable parallel safe
return number / 65536 * 65536;
comment on function pgps_internal.arrival_segment_start(bigint) is 'The lowest number of the same segment';

create or replace function pgps_internal.lane_step_segment(number bigint) returns bigint
language sql immutable parallel safe
return number / 65536 % 4;
comment on function pgps_internal.lane_step_segment(bigint) is
'The segment that the number of a lane''s step is in';

create or replace function pgps_internal.lane_step_segment_start(number bigint) returns bigint
language sql immutable parallel safe
return number / 65536 * 65536;
comment on function pgps_internal.lane_step_segment_start(bigint) is 'The lowest number of the same segment';

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.note_batch(batch pgps_internal.batch) returns bigint
        language plpgsql
        as $$
        begin
            case pgps_internal.batch_segment((note_batch.batch).batch_id)%s
            end case;
            return (note_batch.batch).batch_id;
        end
        $$$f$, (select string_agg(format($b$
            when %1$s then insert into pgps_internal.batch_%1$s values ((note_batch.batch).*);$b$, n), '' order by n)
                from generate_series(0, 3) n));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.note_type(batch_id bigint, type_id integer, ids int8multirange,
            events bigint, repeats bigint)
        returns bigint
        language plpgsql
        as $$
        begin
            -- Common case: the type's last batch is in the same segment.
            case pgps_internal.batch_segment(note_type.batch_id)%s
            end case;
            if not found then
                insert into pgps_internal.batch_type (batch_id, type_id, ids, events, total, repeats)
                select note_type.batch_id, note_type.type_id, note_type.ids, note_type.events,
                    coalesce(p.total, 0) + note_type.events,
                    coalesce(p.repeats, 0) + note_type.repeats
                from (select) one
                left join lateral (select b.total, b.repeats from pgps_internal.batch_type b
                    where b.type_id = note_type.type_id
                    order by b.batch_id desc limit 1) p on true;
            end if;
            return note_type.events + note_type.repeats;
        end
        $$$f$, (select string_agg(format($b$
            when %1$s then
                insert into pgps_internal.batch_type_%1$s (batch_id, type_id, ids, events, total, repeats)
                select note_type.batch_id, note_type.type_id, note_type.ids, note_type.events,
                    b.total + note_type.events, b.repeats + note_type.repeats
                from pgps_internal.batch_type_%1$s b
                where b.type_id = note_type.type_id
                    and b.batch_id >= pgps_internal.batch_segment_start(note_type.batch_id)
                order by b.batch_id desc limit 1;$b$, n), '' order by n)
            from generate_series(0, 3) n));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.note_types(batch_id bigint, parts pgps_internal.part[],
            ids pgps_internal.part_ids[])
        returns bigint
        language plpgsql
        as $$
        declare
            v_types bigint;
            v_events bigint;
            v_noted bigint;
        begin
            select count(*), coalesce(sum(f.events), 0) into v_types, v_events from unnest(note_types.ids) f
            where f.events > 0 and not f.numbered;
            case pgps_internal.batch_segment(note_types.batch_id)%s
            end case;
            get diagnostics v_noted = row_count;
            if v_noted < v_types then
                insert into pgps_internal.batch_type (batch_id, type_id, ids, events, total, repeats)
                select note_types.batch_id, w.type_id, w.ids, w.events, coalesce(p.total, 0) + w.events,
                    coalesce(p.repeats, 0)
                from unnest(note_types.parts, note_types.ids) w(type_id, xids, ranges, ids, events, numbered)
                left join lateral (select b.batch_id, b.total, b.repeats from pgps_internal.batch_type b
                    where b.type_id = w.type_id order by b.batch_id desc limit 1) p on true
                where w.events > 0 and not w.numbered and p.batch_id is distinct from note_types.batch_id;
            end if;
            return v_events;
        end
        $$$f$, (select string_agg(format($b$
            when %1$s then
                insert into pgps_internal.batch_type_%1$s (batch_id, type_id, ids, events, total, repeats)
                select note_types.batch_id, w.type_id, w.ids, w.events, p.total + w.events, p.repeats
                from unnest(note_types.parts, note_types.ids) w(type_id, xids, ranges, ids, events, numbered)
                cross join lateral (select b.total, b.repeats from pgps_internal.batch_type_%1$s b
                    where b.type_id = w.type_id
                        and b.batch_id >= pgps_internal.batch_segment_start(note_types.batch_id)
                    order by b.batch_id desc limit 1) p
                where w.events > 0 and not w.numbered;$b$, n), '' order by n)
            from generate_series(0, 3) n));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.note_unfiltered(batch_id bigint, event_type pgps_internal.event_type,
            ids int8multirange, events bigint)
        returns bigint[]
        language plpgsql
        as $$
        declare
            v_classes bigint[];
        begin
            case pgps_internal.batch_segment(note_unfiltered.batch_id)%s
            end case;
            return v_classes;
        end
        $$$f$, (select string_agg(format($b$
            when %1$s then
                with d as (
                    insert into pgps_internal.delivery_%1$s (batch_id, class_id, type_id, events, ids)
                    select note_unfiltered.batch_id, c.class_id, (note_unfiltered.event_type).type_id,
                        note_unfiltered.events, note_unfiltered.ids
                    from pgps_internal.class c
                    where c.type_id = (note_unfiltered.event_type).type_id and c.signature_id is null and c.is_active
                        and has_table_privilege(c.owner::oid, (note_unfiltered.event_type).endpoint, 'select')
                        -- regrole prints the bare OID of a role that was dropped.
                        and c.owner::text <> c.owner::oid::text
                    returning class_id
                )
                select array_agg(d.class_id) into v_classes from d;$b$, n), '' order by n)
            from generate_series(0, 3) n));
end
$do$;
comment on function pgps_internal.note_batch(pgps_internal.batch) is
'Writes a batch into its segment; returns its number';
comment on function pgps_internal.note_type(bigint, integer, int8multirange, bigint, bigint) is
'Writes what a batch has of one event type into its segment, with running totals; returns the number of events,
including repeats';
comment on function pgps_internal.note_types(bigint, pgps_internal.part[], pgps_internal.part_ids[]) is
'As note_type for many event types, whose events may not be repeats of others; those that may are left out. ids: the
events of each part, by place. Returns the number of events';
comment on function pgps_internal.note_unfiltered(bigint, pgps_internal.event_type, int8multirange, bigint) is
'Writes the deliveries of a type''s classes that have no filter, for types without policies; returns the classes';
