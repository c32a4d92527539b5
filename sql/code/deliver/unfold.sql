-- Events with their payload, as far as the owner of a subscription may see them.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.only_these(
    handed_out pgps_internal.received[], type_id integer, event_ids bigint[]
) returns pgps_internal.received[]
language plpgsql stable
as $$
begin
    -- IN (SELECT …), so that ids are hashed: an array would be searched from its start for each event.
    return (select array_agg((r.batch_id, r.event_id, case when r.event_id in (select i from
            unnest(only_these.event_ids) i) then only_these.type_id end, r.attempt)::pgps_internal.received
            order by r.place)
        from unnest(only_these.handed_out) with ordinality r(batch_id, event_id, type_id, attempt, place));
end
$$;
comment on function pgps_internal.only_these(pgps_internal.received[], integer, bigint[]) is
'What was handed out, without a type where it is not one of these events of the type: all keep their places';

create or replace function pgps_internal.unfold_of(
    type_id integer, handed_out pgps_internal.received[], event_ids bigint[], event_type text, broker text
) returns pgps_internal.message[]
language plpgsql
as $$
declare
    v_messages pgps_internal.message[];
begin
    execute 'select pgps_internal.unfold_' || unfold_of.type_id || '($1, $2, $3, $4)'
    using unfold_of.handed_out, unfold_of.event_ids, unfold_of.event_type, unfold_of.broker into v_messages;
    return coalesce(v_messages, '{}');
end
$$;
comment on function pgps_internal.unfold_of(integer, pgps_internal.received[], bigint[], text, text) is
'Calls pgps_internal.unfold_<type>';

create or replace function pgps_internal.unfold_these(
    handed_out pgps_internal.received[], event_type pgps_internal.event_type, event_ids bigint[], broker text
) returns pgps_internal.message[]
language plpgsql
as $$
declare
    v_is_all boolean := unfold_these.event_ids is null
        or cardinality(unfold_these.event_ids) = cardinality(unfold_these.handed_out);
    v_messages pgps_internal.message[];
begin
    return pgps_internal.unfold_of((unfold_these.event_type).type_id,
        case when v_is_all then unfold_these.handed_out
            else pgps_internal.only_these(unfold_these.handed_out, (unfold_these.event_type).type_id,
                unfold_these.event_ids) end,
        case when not v_is_all then unfold_these.event_ids end, (unfold_these.event_type).name, unfold_these.broker);
end
$$;
comment on function pgps_internal.unfold_these(pgps_internal.received[], pgps_internal.event_type, bigint[], text) is
'Some events of a type (null: all) with their payload, at their places among what was handed out';

create or replace function pgps_internal.unfold(
    handed_out pgps_internal.received[], subscription pgps_internal.subscription
) returns pgps_internal.message[]
language plpgsql
as $$
declare
    v_owner regrole := (unfold.subscription).owner;
    v_messages pgps_internal.message[];
    v_type pgps_internal.event_type;
    v_found record;
    v_ids bigint[];
    -- One event alone is handed out if that can be done at all, and to registrations all of an occurrence are.
    v_is_checked boolean := cardinality(unfold.handed_out) = 1 or (unfold.subscription).kind <> 'external';
begin
    if not (unfold.subscription).is_pattern then
        -- Without a pattern all events are of one type.
        select t.type_id, t.name, t.has_policy
            or not has_table_privilege(v_owner::oid, t.endpoint, 'select') as is_restricted,
            coalesce((select nullif(s.value, '') from pgps_internal.setting s where s.name = 'broker'),
                current_database()::text) as broker
        into v_found from pgps_internal.event_type t where t.type_id = unfold.handed_out[1].type_id;
        if not v_is_checked and pgps_internal.is_toasted(v_found.name, unfold.handed_out[1].event_id,
            unfold.handed_out[cardinality(unfold.handed_out)].event_id) then
            perform pgps_internal.require_fit(unfold.handed_out);
        end if;
        if v_found.is_restricted then
            select t.* into v_type from pgps_internal.event_type t where t.type_id = v_found.type_id;
            v_ids := pgps_internal.visible_ids(v_type, v_owner,
                array(select r.event_id from unnest(unfold.handed_out) r));
        end if;
        if v_ids is not null then
            return pgps_internal.unfold_these(unfold.handed_out, v_type, v_ids, v_found.broker);
        end if;
        return pgps_internal.unfold_of(v_found.type_id, unfold.handed_out, null, v_found.name, v_found.broker);
    end if;
    v_messages := '{}';
    for v_type in select t.* from pgps_internal.event_type t
        where t.type_id in (select r.type_id from unnest(unfold.handed_out) r)
    loop
        if not v_is_checked and pgps_internal.is_toasted(v_type.name, unfold.handed_out[1].event_id,
            unfold.handed_out[cardinality(unfold.handed_out)].event_id) then
            perform pgps_internal.require_fit(unfold.handed_out);
            v_is_checked := true;
        end if;
        v_ids := pgps_internal.visible_ids(v_type, v_owner,
            array(select r.event_id from unnest(unfold.handed_out) r where r.type_id = v_type.type_id));
        v_messages := v_messages || pgps_internal.unfold_these(unfold.handed_out, v_type, v_ids,
            pgps_internal.broker_name());
    end loop;
    return v_messages;
end
$$;
comment on function pgps_internal.unfold(pgps_internal.received[], pgps_internal.subscription) is
'Events with their payload, as far as the subscription''s owner may see them now; one statement for each event type
among them';

create or replace function pgps_internal.broker_name() returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return coalesce((select nullif(s.value, '') from pgps_internal.setting s where s.name = 'broker'),
        current_database()::text);
end
$$;
comment on function pgps_internal.broker_name() is 'Name of this broker';
