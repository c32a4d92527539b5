-- What came over a link and is no event here: events refused by this broker's constraints, and gaps. The part of
-- pgps.retry_exception and pgps.discard_exception that is about them. Locks: the rows; a retry also takes the turns of
-- the origins, as who receives does.
-- Writes: arrival, discarded, rejected; by name: the log of a type.

create or replace function pgps_internal.is_of_link(args jsonb) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select args ->> 'event_type' is null and args ->> 'event_id' is null
        or coalesce(args ->> 'subscription' like 'link %', false)
            and not exists (select from pgps_internal.subscription s
                where s.name = pgps_internal.fold(args ->> 'subscription'))
$$;
comment on function pgps_internal.is_of_link(jsonb) is
'True when a call about exceptions can only be about what came over links';

create or replace function pgps_internal.choose_refused(caller name, args jsonb) returns setof pgps_internal.rejected
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type integer;
begin
    if not pg_has_role(caller, 'pgps_admin', 'usage') then
        if pgps_internal.is_of_link(args) then
            perform pgps_internal.require_admin(caller, 'settle exceptions of links');
        end if;
        return;
    elsif args ->> 'event_type' is not null then
        v_type := (pgps_internal.find_type(args ->> 'event_type')).type_id;
    end if;
    return query
    select r.* from pgps_internal.rejected r
    where r.type_id is not distinct from v_type
        and (args ->> 'event_id' is null or r.origin_event = (args ->> 'event_id')::bigint)
        and (args ->> 'subscription' is null or format('link %s', r.neighbour) = args ->> 'subscription')
    order by r.origin_id, r.origin_batch, r.origin_event
    for update of r;
end
$$;
comment on function pgps_internal.choose_refused(name, jsonb) is
'Locks and returns the refused events, or gaps (without an event type), that a call is about, in the order of their
origins; none unless caller is an administrator';

create or replace function pgps_internal.discard_refused(caller name, args jsonb) returns bigint
language sql
set search_path = pg_catalog, pg_temp
as $$
    with gone as (
        delete from pgps_internal.rejected r using pgps_internal.choose_refused(caller, args) c
            where r.rejected_id = c.rejected_id returning r.*
    ),
    kept as (
        insert into pgps_internal.discarded (type_id, subscription, event_id, attempts, sqlstate, error, failed_at,
            state)
        select g.type_id, format('link %s', g.neighbour), g.origin_event, g.attempts, g.sqlstate, g.error, g.failed_at,
            'discarded'
        from gone g join pgps_internal.queue q on q.type_id = g.type_id and q.kind = 'exception' and q.auditable
    )
    select count(*) from gone
$$;
comment on function pgps_internal.discard_refused(name, jsonb) is
'Drops refused events, or acknowledges gaps; returns how many';

create or replace function pgps_internal.retry_refused(caller name, args jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_chosen pgps_internal.rejected[];
    v_one pgps_internal.rejected;
    v_count bigint := 0;
begin
    v_chosen := array(select c from pgps_internal.choose_refused(caller, args) c);
    if v_chosen = '{}' then
        return 0;
    elsif args ->> 'event_type' is null then
        raise exception 'a gap cannot be retried: nobody has those events any more' using errcode = '55000',
            hint = 'Acknowledge it: select pgps.discard_exception(null)';
    end if;
    perform pgps_internal.require_read_committed();
    perform pgps_internal.hold_origins(array(select c.origin_id from unnest(v_chosen) c));
    foreach v_one in array v_chosen loop
        v_count := v_count + pgps_internal.publish_refused(v_one)::integer;
    end loop;
    return v_count;
end
$$;
comment on function pgps_internal.retry_refused(name, jsonb) is
'Publishes refused events that this broker takes now; returns how many. Errors: 55000 a gap.';

create or replace function pgps_internal.publish_refused(refused pgps_internal.rejected) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_id bigint := nextval('pgps_internal.event_id_seq');
    v_ids int8multirange := int8multirange(int8range(v_id, v_id, '[]'));
    v_columns text;
    v_state text;
    v_error text;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = (publish_refused.refused).type_id;
    -- Attributes that were added since take their defaults.
    select string_agg(format(', %I', a.name), '') into v_columns from pgps_internal.attributes_of(v_type.endpoint) a
    where (publish_refused.refused).payload ? a.name;
    begin
        execute format('insert into %s (event_id, pgps_origin_event%s) select $1, $2%s from '
            'jsonb_populate_record(null::%s, $3)',
            v_type.log, v_columns, v_columns, v_type.endpoint)
        using v_id, (publish_refused.refused).origin_event, (publish_refused.refused).payload;
    exception when integrity_constraint_violation or data_exception then
        get stacked diagnostics v_state = returned_sqlstate, v_error = message_text;
        update pgps_internal.rejected r set attempts = r.attempts + 1, sqlstate = v_state, error = v_error,
            failed_at = pgps_internal.clock()
        where r.rejected_id = (publish_refused.refused).rejected_id;
        return false;
    end;
    perform pgps_internal.record(array[v_type.type_id], array[v_id], array[v_id], (publish_refused.refused).publisher,
        null,
        array[(publish_refused.refused).published_at], array[(publish_refused.refused).origin_id], true);
    -- It gets its place in its origin's history, before the horizon: neighbours that are past it do not get it. It
    -- belongs to no attachment (-1).
    insert into pgps_internal.arrival (neighbour_id, lseq, mark, origin_id, attachment, upto, horizon, lo, hi, ids)
    select coalesce((publish_refused.refused).neighbour_id, 0), coalesce(a.lseq, 0), coalesce(a.mark, ''),
        (publish_refused.refused).origin_id, -1,
        (publish_refused.refused).origin_batch, pgps_internal.horizon((publish_refused.refused).origin_id), v_id, v_id,
            v_ids
    from (select) one
    left join lateral (select a.lseq, a.mark from pgps_internal.arrival a
        where a.neighbour_id = (publish_refused.refused).neighbour_id
        order by a.lseq desc limit 1) a on true;
    delete from pgps_internal.rejected r where r.rejected_id = (publish_refused.refused).rejected_id;
    return true;
end
$$;
comment on function pgps_internal.publish_refused(pgps_internal.rejected) is
'Puts one refused event into its log, as an event of its origin; false when it is still refused';
