-- Event types that are mended: what was set aside of them (set_aside.sql) is dispatched now, before anything newer of
-- the type, and is kept until then.
-- Locks: those of dispatch.sql.
-- Writes: broken_type, set_aside.

create or replace view pgps_internal.mended_part as
select s.* from pgps_internal.set_aside s left join pgps_internal.broken_type b using (type_id)
where s.batch_id is null and b.is_mended is not false
    and not (s.is_forwarded and exists (select from pgps_internal.broken_type o
        where not o.is_mended and exists (select from pgps_internal.set_aside x
            where x.type_id = o.type_id and x.is_forwarded and x.batch_id is null)));
comment on view pgps_internal.mended_part is
'What was set aside and may be dispatched now: its event type is mended and, if it came over a link, so is every other
type that something from a link waits for';

create or replace function pgps_internal.may_be_mended() returns boolean
language plpgsql
as $$
begin
    -- Common case: there never was a row, or the tables are empty, which needs no query (decision 70).
    if pg_sequence_last_value('pgps_internal.broken_type_place_seq'::regclass) is null
            or pg_relation_size('pgps_internal.broken_type'::regclass)
                + pg_relation_size('pgps_internal.set_aside'::regclass) = 0 then
        return false;
    end if;
    return exists (select from pgps_internal.broken_type b where b.is_mended or b.sqlstate = '55P03'
            or not exists (select from pgps_internal.event_type t where t.type_id = b.type_id))
        or exists (select from pgps_internal.mended_part);
end
$$;
comment on function pgps_internal.may_be_mended() is
'False when nothing that was set aside can be dispatched: all event types that fail do so still. What waited for one
that has been dropped can';

create or replace function pgps_internal.dispatch_mended(most integer) returns bigint
language plpgsql
as $$
declare
    v_parts bigint[];
    v_events bigint := 0;
begin
    perform pgps_internal.forget_dropped(), pgps_internal.free_locked();
    perform pgps_internal.join_late_types(pgps_internal.last_batch(), '{}');
    loop
        -- In one statement: a type that is resumed at this moment has parts in earlier windows, too, which come first.
        with mended as materialized (select m.* from pgps_internal.mended_part m)
        select array_agg(m.part_id order by m.part_id) into v_parts
        from mended m where m.held_batch = (select min(e.held_batch) from mended e);
        if v_parts is null then
            delete from pgps_internal.broken_type b where b.is_mended
                and not exists (select from pgps_internal.set_aside s
                    where s.type_id = b.type_id and s.batch_id is null);
            return v_events;
        end if;
        v_events := v_events + pgps_internal.dispatch_held(v_parts);
        exit when v_events >= dispatch_mended.most;
    end loop;
    return v_events;
end
$$;
comment on function pgps_internal.dispatch_mended(integer) is
'Dispatches what was set aside of event types that are mended, window by window in their order, each as a new batch;
ends when about so many events (most) are; returns how many';

drop function if exists pgps_internal.dispatch_held(bigint);
create or replace function pgps_internal.dispatch_held(part_ids bigint[]) returns bigint
language plpgsql
as $$
declare
    v_batch pgps_internal.batch := pgps_internal.last_batch();
    v_part pgps_internal.part;
    v_events bigint := 0;
    v_state text;
    v_error text;
    v_context text;
begin
    -- The snapshots are those of the last batch: as with parts of a large transaction, none of them moves on.
    v_batch.batch_id := v_batch.batch_id + 1;
    v_batch.created_at := pgps_internal.clock();
    begin
        v_batch.batch_id := pgps_internal.note_batch(v_batch);
        -- A type once, as in any batch: a filter that is asked elsewhere from now on would be asked there about what
        -- comes behind this batch.
        for v_part in
            select s.type_id, (select array_agg(distinct x) from pgps_internal.set_aside k, unnest(k.xids) x
                    where k.type_id = s.type_id and k.part_id = any (dispatch_held.part_ids)),
                range_agg(r)
            from pgps_internal.set_aside s cross join lateral unnest(s.ranges) r
            where s.part_id = any (dispatch_held.part_ids) group by s.type_id order by min(s.part_id)
        loop
            v_events := v_events + pgps_internal.dispatch_part(v_batch.batch_id, v_part, true);
            update pgps_internal.set_aside s set batch_id = v_batch.batch_id
            where s.type_id = v_part.type_id and s.part_id = any (dispatch_held.part_ids);
        end loop;
        return v_events;
    exception when others or assert_failure or query_canceled then
        get stacked diagnostics v_state = returned_sqlstate, v_error = message_text, v_context = pg_exception_context;
        if v_part.type_id is null
            or v_state <> '55P03' and not pgps_internal.may_be_fault_of_type(v_state, v_context) then
            raise;
        end if;
    end;
    perform pgps_internal.note_broken(t, v_state, v_error) from pgps_internal.event_type t
        where t.type_id = v_part.type_id;
    return 0;
end
$$;
comment on function pgps_internal.dispatch_held(bigint[]) is
'Dispatches parts of one window that were set aside as a new batch; returns how many events. A type that fails again is
set aside again';

create or replace function pgps_internal.do_resume_type(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp set client_min_messages = warning
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'name');
    v_damage record := pgps_internal.type_damage(v_type);
begin
    perform pgps_internal.require_admin(caller, 'resume event types');
    if v_damage.damage is not null then
        raise exception 'event type "%" is not whole: %', v_type.name, v_damage.damage
        using errcode = '55000', hint = concat('As a superuser: ', v_damage.remedy);
    end if;
    perform pgps_internal.lock_types(array[v_type.type_id]);
    perform pgps_internal.build_endpoint(v_type.type_id), pgps_internal.build_code(v_type.type_id);
    update pgps_internal.broken_type b set is_mended = true where b.type_id = v_type.type_id;
    perform pgps_internal.wake_dispatcher();
end
$$;
comment on function pgps_internal.do_resume_type(name, jsonb) is 'See pgps.resume_event_type';

create or replace function pgps.resume_event_type(name text) returns void
language sql
begin atomic
    select pgps._call('resume_type', jsonb_build_object('name', resume_event_type.name));
end;
comment on function pgps.resume_event_type(text) is
'Has dispatch go on with an event type that it has set aside since its generated code failed (state of pgps.event_types,
pgps doctor): checks that its relations are whole, makes its code anew, and lets the events that were kept come in their
order. Harmless for any other event type. Locks its relations until the transaction ends; while other transactions use
them that are open, it is tried again and again for as long as lock_timeout says, and publishers wait for a tenth of a
second at most. Needs pgps_admin. Errors: 42704, 42501, 55000 something is missing still; the hint has the statement,
55P03, 40P01.';

grant execute on function pgps.resume_event_type(text) to public;
