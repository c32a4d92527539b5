-- Event types whose code fails in dispatch: a column was dropped behind the back of pgps, a function, a table. Such a
-- type is set aside, so that all others go on: what comes of it is noted, and dispatched, in the same order, once
-- pgps.resume_event_type has been called (decision 38). What came over links keeps one order across event types, so
-- while some of it waits, all that comes over links waits.
-- Locks: those of the dispatcher; resuming a type: the event type's relations, access exclusive.
-- Writes: broken_type, set_aside.

create or replace function pgps_internal.may_be_fault_of_type(sqlstate text, context text) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Not what another session or the server brings about: deadlocks, timeouts, a full disk, a shutdown.
    return not pgps_internal.is_cancelled(may_be_fault_of_type.sqlstate, may_be_fault_of_type.context)
        and left(may_be_fault_of_type.sqlstate, 2) not in ('08', '40', '53', '58')
        and may_be_fault_of_type.sqlstate not in ('55P03', '57P01', '57P02', '57P03', '25006');
end
$$;
comment on function pgps_internal.may_be_fault_of_type(text, text) is
'True when an error in dispatch may be the fault of one event type, so that the others are tried without it';

create or replace function pgps_internal.type_damage(
    event_type pgps_internal.event_type, out damage text, out remedy text
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := (type_damage.event_type).name;
    v_relation text;
    v_oid oid;
begin
    foreach v_relation in array array[format('pgps_event.%I', v_name), format('pgps_internal.%I', v_name || '_log'),
            format('pgps_internal.%I', v_name || '_kept'), format('pgps_internal.%I', v_name || '_audit')] loop
        v_oid := to_regclass(v_relation);
        if v_oid is null then
            damage := format('relation %s is gone', v_relation);
            remedy := format('select pgps.drop_event_type(%L, cascade => true), and create it again',
                quote_ident(v_name));
            return;
        end if;
        select format('%s has no column %I of type %s', v_relation, c.name, c.type),
            format(case when c.present then 'alter table %s alter column %I type %s'
                else 'alter table %s add column %I %s' end, v_relation, c.name, c.type)
        into damage, remedy
        from (
            select w.name, w.type, a.attnum is not null as present, a.atttypid is distinct from w.type_id as differs
            from (
                select e.attname as name, format_type(e.atttypid, e.atttypmod) as type, e.atttypid as type_id
                from pg_attribute e
                where e.attrelid in (to_regclass(format('pgps_event.%I', v_name)),
                        to_regclass(format('pgps_internal.%I', v_name || '_kept')))
                    and e.attnum > 0 and not e.attisdropped
                    and e.attname not in ('event_id', 'xid', 'pgps_publisher', 'pgps_published_at', 'pgps_origin',
                        'pgps_origin_event')
                union values ('_producer', 'text', 25), ('_producer_seq', 'bigint', 20)
                union select 'event_id', 'bigint', 20 where v_relation not like 'pgps\_event.%'
                union select 'xid', 'xid8', 5069 where v_relation not like 'pgps\_event.%'
            ) w
            left join pg_attribute a on a.attrelid = v_oid and a.attname = w.name and not a.attisdropped
        ) c
        where c.differs order by c.name limit 1;
        exit when damage is not null;
    end loop;
end
$$;
comment on function pgps_internal.type_damage(pgps_internal.event_type) is
'What the relations of an event type lack, and the statement that puts it right; nulls when they are whole';



create or replace function pgps_internal.dispatch_parts(batch_id bigint, parts pgps_internal.part[]) returns bigint
language plpgsql
as $$
declare
    v_part pgps_internal.part;
    v_events bigint := 0;
    v_state text;
    v_context text;
begin
    -- Common case: the table was never used, which its sequence tells, or is empty, which its size tells.
    if pg_sequence_last_value('pgps_internal.broken_type_place_seq'::regclass) is not null
            and pg_relation_size('pgps_internal.broken_type'::regclass) > 0 then
        if exists (select from pgps_internal.broken_type) then
            return pgps_internal.dispatch_with_care(dispatch_parts.batch_id, dispatch_parts.parts);
        end if;
    end if;
    begin
        -- Fewer are faster one by one.
        if cardinality(dispatch_parts.parts) > 8 then
            return pgps_internal.dispatch_together(dispatch_parts.batch_id, dispatch_parts.parts);
        end if;
        foreach v_part in array dispatch_parts.parts loop
            v_events := v_events + pgps_internal.dispatch_part(dispatch_parts.batch_id, v_part, false);
        end loop;
        return v_events;
    exception when others or assert_failure or query_canceled then
        get stacked diagnostics v_state = returned_sqlstate, v_context = pg_exception_context;
        if v_state <> '55P03' and not pgps_internal.may_be_fault_of_type(v_state, v_context) then
            raise;
        end if;
    end;
    -- Again, type by type: a filter or event that fails is found by bisection (isolate.sql), and a type that fails is
    -- set aside.
    return pgps_internal.dispatch_with_care(dispatch_parts.batch_id, dispatch_parts.parts);
end
$$;
comment on function pgps_internal.dispatch_parts(bigint, pgps_internal.part[]) is
'Takes the events of a window into a batch, type by type, or many types together; returns how many';

create or replace function pgps_internal.dispatch_with_care(batch_id bigint, parts pgps_internal.part[])
returns bigint
language plpgsql
as $$
declare
    v_aside integer[];
    v_hold boolean := exists (select from pgps_internal.set_aside s where s.is_forwarded and s.batch_id is null);
    v_part pgps_internal.part;
    v_tried integer;
    v_events bigint;
    v_state text;
    v_error text;
    v_context text;
begin
    perform pgps_internal.note_locked(dispatch_with_care.parts);
    v_aside := array(select b.type_id from pgps_internal.broken_type b);
    loop
        v_hold := v_hold or exists (select from unnest(dispatch_with_care.parts) p
            where p.type_id = any (v_aside) and pgps_internal.forwarded_ranges(p) <> '{}');
        v_events := 0;
        begin
            foreach v_part in array dispatch_with_care.parts loop
                v_tried := null;
                if v_hold or v_part.type_id = any (v_aside) then
                    v_part := pgps_internal.keep_aside(dispatch_with_care.batch_id, v_part,
                        v_part.type_id = any (v_aside));
                    continue when isempty(v_part.ranges);
                end if;
                v_tried := v_part.type_id;
                v_events := v_events + pgps_internal.dispatch_part(dispatch_with_care.batch_id, v_part, true);
            end loop;
            return v_events;
        exception when others or assert_failure or query_canceled then
            get stacked diagnostics v_state = returned_sqlstate, v_error = message_text,
                v_context = pg_exception_context;
            if v_tried is null or v_state <> '55P03' and not pgps_internal.may_be_fault_of_type(v_state, v_context) then
                raise;
            end if;
        end;
        -- Once more without that type, all of it: other types may have events of the same origins.
        perform pgps_internal.note_broken(t, v_state, v_error) from pgps_internal.event_type t
            where t.type_id = v_tried;
        v_aside := v_aside || v_tried;
    end loop;
end
$$;
comment on function pgps_internal.dispatch_with_care(bigint, pgps_internal.part[]) is
'As dispatch_parts, when an event type fails or is set aside already: the others are dispatched';

create or replace function pgps_internal.forwarded_ranges(part pgps_internal.part) returns int8multirange
language plpgsql stable
as $$
begin
    return coalesce((select range_agg(int8range(c.lo, c.hi, '[]')) from pgps_internal.control c
        where c.xid = any ((forwarded_ranges.part).xids) and c.type_id = (forwarded_ranges.part).type_id
            and c.origin_id is not null), '{}') * (forwarded_ranges.part).ranges;
end
$$;
comment on function pgps_internal.forwarded_ranges(pgps_internal.part) is
'What of a part came over links, as ranges of ids';

create or replace function pgps_internal.keep_aside(batch_id bigint, part pgps_internal.part, "all" boolean)
returns pgps_internal.part
language plpgsql
as $$
declare
    v_forwarded int8multirange := pgps_internal.forwarded_ranges(keep_aside.part);
    v_rest pgps_internal.part := keep_aside.part;
begin
    v_rest.ranges := (keep_aside.part).ranges - v_forwarded;
    insert into pgps_internal.set_aside (held_batch, type_id, xids, ranges, is_forwarded)
    select keep_aside.batch_id, v_rest.type_id, v_rest.xids, r.ranges, r.is_forwarded
    from (values (v_forwarded, true), (v_rest.ranges, false)) r(ranges, is_forwarded)
    where not isempty(r.ranges) and (keep_aside."all" or r.is_forwarded)
        -- It may have been dropped while its events waited.
        and exists (select from pgps_internal.event_type t where t.type_id = v_rest.type_id);
    if keep_aside."all" then
        v_rest.ranges := '{}';
    end if;
    return v_rest;
end
$$;
comment on function pgps_internal.keep_aside(bigint, pgps_internal.part, boolean) is
'Notes what of a part is set aside: what came over links, or all of it; returns what is left';

create or replace function pgps_internal.note_broken(
    event_type pgps_internal.event_type, sqlstate text, error text
) returns void
language plpgsql
as $$
declare
    v_damage record := pgps_internal.type_damage(note_broken.event_type);
    v_name text := quote_ident((note_broken.event_type).name);
    v_hint text := case when note_broken.sqlstate = '55P03' then
            'It goes on by itself when that transaction ends; pgps doctor shows which are old.'
        else concat(v_damage.remedy || '; then: ', format('select pgps.resume_event_type(%L)', v_name)) end;
begin
    -- Nothing is missing: the type may have been changed at this very moment, so that it is tried once more at once,
    -- unless somebody is still at it: then when it is free (free_locked).
    insert into pgps_internal.broken_type as b (type_id, sqlstate, error, hint, failed_at, is_mended)
    values ((note_broken.event_type).type_id, note_broken.sqlstate, coalesce(v_damage.damage, note_broken.error),
        v_hint, pgps_internal.clock(), v_damage.damage is null and note_broken.sqlstate <> '55P03')
    on conflict on constraint broken_type_pkey do update
    set sqlstate = excluded.sqlstate, error = excluded.error, hint = excluded.hint, failed_at = excluded.failed_at,
        is_mended = false, patience = case when excluded.sqlstate = '55P03'
            then least(greatest(2 * b.patience, '10 seconds'), '1 minute') else '0' end;
    raise warning 'event type "%" is set aside, its events wait: %', (note_broken.event_type).name,
        coalesce(v_damage.damage, note_broken.error) using hint = v_hint;
end
$$;
comment on function pgps_internal.note_broken(pgps_internal.event_type, text, text) is
'Notes that an event type is set aside, why, and what to type';



create or replace function pgps_internal.in_no_batch(last pgps_internal.batch, current pg_snapshot)
returns setof pgps_internal.control
language plpgsql stable rows 100
set search_path = pg_catalog, pg_temp
as $$
begin
    return query select w.* from pgps_internal.waiting(in_no_batch.last, in_no_batch.current) w;
    if exists (select from pgps_internal.set_aside s where s.batch_id is null) then
        return query
        select c.* from pgps_internal.set_aside s cross join lateral unnest(s.xids) x(xid)
            join pgps_internal.control c on c.xid = x.xid and c.type_id = s.type_id
        where s.batch_id is null and int8multirange(int8range(c.lo, c.hi, '[]')) && s.ranges;
    end if;
end
$$;
comment on function pgps_internal.in_no_batch(pgps_internal.batch, pg_snapshot) is
'Control rows whose events are in no batch up to last: those of pgps_internal.waiting, and what is set aside';

create or replace function pgps_internal.ids_aside(type_id integer) returns int8multirange
language plpgsql
-- Volatile, as all that reads a log (core/generated.sql).
set search_path = pg_catalog, pg_temp
as $$
declare
    v_log regclass;
    v_ids int8multirange;
begin
    if not exists (select from pgps_internal.set_aside s
        where s.type_id = ids_aside.type_id and s.batch_id is null) then
        return '{}';
    end if;
    -- Not with the generated code of the type, which may be what fails.
    select t.log into v_log from pgps_internal.event_type t where t.type_id = ids_aside.type_id;
    execute format('select range_agg(int8range(l.event_id, l.event_id, ''[]''))
        from pgps_internal.set_aside s cross join lateral unnest(s.ranges) r
            join %s l on l.event_id >= lower(r) and l.event_id < upper(r) and l.xid = any (s.xids)
        where s.type_id = $1 and s.batch_id is null', v_log) using ids_aside.type_id into v_ids;
    return coalesce(v_ids, '{}');
end
$$;
comment on function pgps_internal.ids_aside(integer) is 'The ids of events of a type that are set aside and wait';

create or replace function pgps_internal.needed_aside(type_id integer, segment regclass, low bigint) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ranges int8multirange;
    v_needed boolean;
begin
    -- What was set aside is in a later batch than the snapshots of batches say.
    select range_agg(r) into v_ranges from pgps_internal.set_aside s, unnest(s.ranges) r
    where s.type_id = needed_aside.type_id and (s.batch_id is null or s.batch_id > needed_aside.low);
    if v_ranges is null then
        return false;
    end if;
    execute format('select exists (select from %s l where l.event_id <@ $1)', needed_aside.segment)
        using v_ranges into v_needed;
    return v_needed;
end
$$;
comment on function pgps_internal.needed_aside(integer, regclass, bigint) is
'True when a segment of a log has events that are set aside, or were, and came into a batch after low';

create or replace function pgps_internal.sweep_aside() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.forget_dropped();
    delete from pgps_internal.set_aside s
    where s.batch_id is not null and s.batch_id <= pgps_internal.kept_batch(s.type_id);
end
$$;
comment on function pgps_internal.sweep_aside() is
'Forgets what was set aside and has been dispatched, when everybody is past that batch';

create or replace function pgps.broken_types()
returns table (event_type text, sqlstate text, error text, hint text, failed_at timestamptz, events bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp set jit = off
as $$
#variable_conflict use_column
begin
    return query
    select t.name, b.sqlstate, left(b.error, 1000), b.hint, b.failed_at, coalesce((
        select sum(upper(r) - lower(r))::bigint from pgps_internal.set_aside s, unnest(s.ranges) r
        where s.type_id = b.type_id and s.batch_id is null), 0)
    from pgps_internal.broken_type b join pgps_internal.event_type t using (type_id)
    where not b.is_mended order by t.name;
end
$$;
comment on function pgps.broken_types() is
'For a worker''s log and metrics, and pgps doctor: event types that dispatch has set aside since their generated code
failed, the error, what to type, and about how many events wait. Needs pgps_worker or pgps_admin. Errors: 42501.';

revoke all on function pgps.broken_types() from public;
grant execute on function pgps.broken_types() to pgps_worker, pgps_admin;
