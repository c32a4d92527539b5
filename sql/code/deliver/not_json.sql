-- Events that cannot become JSON (types/as_json.sql). One goes to the exception queue, as one that is too large does
-- (large_events.sql), so that those behind it come. Looked for only when a conversion has failed: what is handed out is
-- converted as a set, without a subtransaction for each event.
-- Locks: the turn of the subscription, or the rows of events that competing consumers share, until the transaction
-- ends.
-- Writes: nothing.

create or replace function pgps_internal.json_fault(value anyelement, out state text, out error text, out shown text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform to_jsonb(json_fault.value);
exception when others or assert_failure then
    get stacked diagnostics state = returned_sqlstate, error = message_text;
    shown := left(json_fault.value::text, 100);
end
$$;
comment on function pgps_internal.json_fault(anyelement) is
'Why a value cannot become jsonb, and the beginning of it as text; nulls when it can';

create or replace function pgps_internal.events_no_json(type_id integer, event_ids bigint[])
returns table (event_id bigint, state text, error text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_type pgps_internal.event_type;
    v_attributes text;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = events_no_json.type_id;
    select string_agg(format('select %s, %L, f.* from pgps_internal.json_fault((e.event).%I) f', a.attnum, a.attname,
        a.attname), ' union all ' order by a.attnum)
    into v_attributes
    from pg_attribute a
    where a.attrelid = v_type.endpoint and a.attnum > 0 and not a.attisdropped
        and pgps_internal.may_be_no_json(a.atttypid);
    if v_attributes is null then
        return;
    end if;
    return query execute format($query$
        select e.event_id, f.state, format('event %%s of event type "%%s" is no JSON: attribute "%%s" is %%s: %%s; '
            'pgps_queue.%%I gives events as rows', e.event_id, $2, f.attribute, f.shown, f.error, $2 || '_receive')
        from pgps_internal.events_%s($1) e
        cross join lateral (
            select x.* from (%s) x(place, attribute, state, error, shown) where x.state is not null
            order by x.place limit 1) f$query$, v_type.type_id, v_attributes)
    using events_no_json.event_ids, v_type.name;
end
$$;
comment on function pgps_internal.events_no_json(integer, bigint[]) is
'Those of some events of a type that cannot become JSON, wherever they are kept, and what is to be said of them';

create or replace function pgps_internal.is_no_json(sqlstate text) returns boolean
language sql immutable
set search_path = pg_catalog, pg_temp
-- Not when something else is in the way: privileges, a constraint, a lock, a conflict, the state of the subscription, a
-- shutdown. A cast may raise what it likes.
return left(sqlstate, 2) not in ('08', '23', '25', '28', '40', '42', '53', '55', '57', '58', 'XX')
    and sqlstate not in ('54000', '22023');
comment on function pgps_internal.is_no_json(text) is
'True for an error that may say that a value cannot become JSON';

create or replace function pgps_internal.file_no_json(
    subscription pgps_internal.subscription, max_events integer, consumer text
) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_next pgps_internal.received[];
    v_filed bigint;
begin
    v_next := pgps_internal.next_to_receive(file_no_json.subscription, file_no_json.max_events,
        file_no_json.consumer);
    select count(pgps_internal.note_failures(file_no_json.subscription, array[(n.batch_id, n.event_id, n.type_id,
            (file_no_json.subscription).max_attempts)::pgps_internal.received], 'nack', f.state, f.error,
            null)::text)
    into v_filed
    from (
        select t as event_type, array_agg(n.event_id) as ids
        from unnest(v_next) n join pgps_internal.event_type t using (type_id) group by t
    ) g
    -- What its owner may not see is handed out to nobody.
    cross join lateral pgps_internal.events_no_json((g.event_type).type_id, pgps_internal.visible_ids(g.event_type,
        (file_no_json.subscription).owner, g.ids)) f
    join unnest(v_next) n on n.event_id = f.event_id;
    return v_filed > 0;
end
$$;
comment on function pgps_internal.file_no_json(pgps_internal.subscription, integer, text) is
'Files those of the next events that cannot be handed out as JSON as failed, so that the others come; false when all can
be';

create or replace function pgps_internal.few_that_can_be(
    subscription pgps_internal.subscription, tried integer, consumer text, state text, error text
) returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if pgps_internal.is_too_large(few_that_can_be.state, few_that_can_be.error) then
        return pgps_internal.fewer_events(few_that_can_be.subscription, few_that_can_be.tried,
            few_that_can_be.consumer, few_that_can_be.error);
    end if;
    return case when not pgps_internal.is_no_json(few_that_can_be.state) then 0
        -- It was another one: what had been put back is due meanwhile, and comes first.
        when not pgps_internal.file_no_json(few_that_can_be.subscription, few_that_can_be.tried,
            few_that_can_be.consumer) then -1
        else few_that_can_be.tried end;
end
$$;
comment on function pgps_internal.few_that_can_be(pgps_internal.subscription, integer, text, text, text) is
'How many events to hand out when so many (tried) could not be, after those that never can be have been filed; null: as
many as were asked for first. 0: the error is not one of the events, -1: it is not one of those that are next now.
state, error: what was raised';
