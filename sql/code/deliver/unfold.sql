-- Events with their payload, as far as the owner of a subscription may see them.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.unfold(
    handed_out pgps_internal.received[], subscription pgps_internal.subscription
) returns pgps_internal.message[]
language plpgsql stable
as $$
declare
    v_owner regrole := (unfold.subscription).owner;
    v_messages pgps_internal.message[];
    v_part pgps_internal.message[];
    v_type pgps_internal.event_type;
    v_found record;
    v_ids bigint[];
begin
    if not (unfold.subscription).is_pattern then
        -- Without a pattern all events are of one type.
        select t.type_id, t.name, t.has_policy
            or not has_table_privilege(v_owner::oid, t.endpoint, 'select') as is_restricted,
            coalesce((select nullif(s.value, '') from pgps_internal.setting s where s.name = 'broker'),
                current_database()::text) as broker
        into v_found from pgps_internal.event_type t where t.type_id = unfold.handed_out[1].type_id;
        if v_found.is_restricted then
            select t.* into v_type from pgps_internal.event_type t where t.type_id = v_found.type_id;
            v_ids := pgps_internal.visible_ids(v_type, v_owner,
                array(select r.event_id from unnest(unfold.handed_out) r));
        end if;
        execute 'select pgps_internal.unfold_' || v_found.type_id || '($1, $2, $3, $4)'
        using unfold.handed_out, v_ids, v_found.name, v_found.broker into v_messages;
        return coalesce(v_messages, '{}');
    end if;
    v_messages := '{}';
    for v_type in select t.* from pgps_internal.event_type t
        where t.type_id in (select r.type_id from unnest(unfold.handed_out) r)
    loop
        v_ids := pgps_internal.visible_ids(v_type, v_owner,
            array(select r.event_id from unnest(unfold.handed_out) r where r.type_id = v_type.type_id));
        execute 'select pgps_internal.unfold_' || v_type.type_id || '($1, $2, $3, $4)'
        using unfold.handed_out, v_ids, v_type.name, pgps_internal.broker_name() into v_part;
        v_messages := v_messages || v_part;
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
