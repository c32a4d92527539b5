-- What a neighbour says of its event types: compared with those here, adopted when they are new.
-- Locks: those of creating an event type; the turn of routes.
-- Writes: activation, foreign_type, origin, told.

create or replace function pgps_internal.difference(event_type pgps_internal.event_type, definition jsonb, name text)
returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select string_agg(case
        when h.name is null then format('attribute "%s" %s is only at "%s"', t.name, t.type, difference.name)
        when t.name is null then format('attribute "%s" %s is only here', h.name, h.type)
        else format('attribute "%s" is %s here and %s at "%s"', h.name, h.type, t.type, difference.name) end, '; '
            order by coalesce(h.name, t.name))
    from (select a.name, a.type from pgps_internal.attributes_of((difference.event_type).endpoint) a) h
    full join jsonb_to_recordset(difference.definition -> 'attributes') t(name text, type text) on t.name = h.name
    where h.type is distinct from t.type
$$;
comment on function pgps_internal.difference(pgps_internal.event_type, jsonb, text) is
'How an event type here differs from the one that a neighbour describes; null when they have the same attributes of the
same types';

create or replace function pgps_internal.hear_type(neighbour pgps_internal.neighbour, body jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := hear_type.body ->> 'name';
    v_type pgps_internal.event_type;
    v_difference text;
    v_before jsonb := (select f.definition from pgps_internal.foreign_type f
        where f.neighbour_id = (hear_type.neighbour).neighbour_id and f.name = hear_type.body ->> 'name');
begin
    perform pgps_internal.check_described(hear_type.neighbour, v_name);
    select t.* into v_type from pgps_internal.event_type t where t.name = v_name;
    if not found and pgps_internal.setting('link_create_types')::boolean then
        begin
            v_type := pgps_internal.adopt_type(hear_type.neighbour, hear_type.body);
        exception when others then
            -- Transient errors are raised, so that the link opens again and retries.
            if sqlstate ~ '^(40|53|57|58|XX)' or sqlstate = '55P03' then
                raise;
            end if;
            v_difference := format('it cannot be created here: %s', sqlerrm);
            -- Another session may have created the type in the meantime.
            select t.* into v_type from pgps_internal.event_type t where t.name = v_name;
        end;
    end if;
    if v_type.type_id is null then
        v_difference := coalesce(v_difference, 'there is no such event type here');
    else
        v_difference := pgps_internal.difference(v_type, hear_type.body, (hear_type.neighbour).name);
    end if;
    insert into pgps_internal.foreign_type as f (neighbour_id, name, definition, difference)
    values ((hear_type.neighbour).neighbour_id, v_name, hear_type.body, v_difference)
    on conflict on constraint foreign_type_pkey do update set definition = excluded.definition,
        difference = excluded.difference;
    -- Also when it is the first time: it did not know the type when it was told the filters.
    if v_before -> 'made' is distinct from hear_type.body -> 'made' then
        perform pgps_internal.tell_again(hear_type.neighbour, v_type.type_id);
    end if;
end
$$;
comment on function pgps_internal.hear_type(pgps_internal.neighbour, jsonb) is
'Handles a neighbour''s schema of an event type: creates the type if it is missing and the setting link_create_types
allows. A difference is noted, and no events of the type are asked for';

create or replace function pgps_internal.tell_again(neighbour pgps_internal.neighbour, type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id integer := (tell_again.neighbour).neighbour_id;
begin
    -- As pgps.resync_link does: filters are told again, and origins attached again with the horizon, so that what the
    -- new type has had until now is sent, too.
    update pgps_internal.told t set value = t.value || '{"is_stale": true}'
    from pgps_internal.link_filter f
    where t.neighbour_id = v_id and t.kind = 'sub' and f.key = t.key and f.type_id = tell_again.type_id;
    if found then
        update pgps_internal.activation a set is_confirmed = false
        from pgps_internal.origin o where o.origin_id = a.origin_id and o.parent = v_id;
        update pgps_internal.origin o set attachment = o.attachment + 1, is_settled = false where o.parent = v_id;
    end if;
end
$$;
comment on function pgps_internal.tell_again(pgps_internal.neighbour, integer) is
'Tells a neighbour filters again when one of the two has dropped an event type and created it anew: those that were told
went with the old type';

create or replace function pgps_internal.tell_of_own_made_anew(neighbour pgps_internal.neighbour) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id integer := (tell_of_own_made_anew.neighbour).neighbour_id;
    v_types integer[];
begin
    -- Filters that were told by a release that did not note of which type they are.
    update pgps_internal.told t set value = t.value || jsonb_build_object('made', f.type_id)
    from pgps_internal.link_filter f
    where t.neighbour_id = v_id and t.kind = 'sub' and f.key = t.key and not t.value ? 'made';
    v_types := array(select distinct f.type_id from pgps_internal.told t join pgps_internal.link_filter f using (key)
        where t.neighbour_id = v_id and t.kind = 'sub' and (t.value ->> 'made')::integer <> f.type_id
            and not t.value ? 'is_stale');
    perform pgps_internal.tell_again(tell_of_own_made_anew.neighbour, u) from unnest(v_types) u;
end
$$;
comment on function pgps_internal.tell_of_own_made_anew(pgps_internal.neighbour) is
'Tells a neighbour filters again of an event type that was dropped here and created anew since they were told: they are
the same word for word, and are in force nowhere any more';

create or replace function pgps_internal.adopt_type(neighbour pgps_internal.neighbour, body jsonb)
returns pgps_internal.event_type
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := adopt_type.body ->> 'name';
    v_columns text;
    v_type pgps_internal.event_type;
begin
    -- Of what pgps makes by itself only what links carry: else a neighbour would have it before pgps, with its rights.
    if v_name ~ '^pgps_' and v_name !~ '^pgps_part_[0-9a-f]{20}$' and not (v_name = 'pgps_uow'
            and pgps_internal.is_relay(array(select format('%s %s', a.name, a.type)
                from rows from (jsonb_to_recordset(adopt_type.body -> 'attributes') as (name text, type text))
                    with ordinality a(name, type, n) order by a.n))) then
        raise exception 'the name "%" is for pgps itself', v_name using errcode = '42939',
            hint = 'Event types whose names begin with pgps_ do not cross.';
    end if;
    -- Names and types only: a default or check of another broker would run with this one's rights. A text that
    -- to_regtype accepts is a type, with its length or precision, and nothing else. A comment in it is complete, but
    -- for one that goes to the end of the line: there the line ends.
    select coalesce(string_agg(format(E'%I %s\n, ', a.name, a.type), '' order by n), '')
    into v_columns
    from rows from (jsonb_to_recordset(adopt_type.body -> 'attributes') as (name text,
        type text)) with ordinality a(name, type, n);
    if exists (select from jsonb_to_recordset(adopt_type.body -> 'attributes') a(name text, type text)
        where to_regtype(a.type) is null) then
        raise exception 'data type % does not exist',
            (select a.type from jsonb_to_recordset(adopt_type.body -> 'attributes') a(name text, type text)
            where to_regtype(a.type) is null limit 1) using errcode = '42704', hint = 'Create it.';
    end if;
    execute format('create table pgps_event.%I (%s _producer text, _producer_seq bigint)', v_name, v_columns);
    perform pgps_internal.do_build_type(current_user,
        jsonb_build_object('name', quote_ident(v_name), 'visibility', 'deferred',
        'reliability', coalesce(adopt_type.body ->> 'reliability', 'guaranteed'), 'persistent',
            coalesce((adopt_type.body ->> 'persistent')::boolean, true),
        'attributes', (select coalesce(to_jsonb(array_agg(a -> 'name' order by n)), '[]')
            from jsonb_array_elements(adopt_type.body -> 'attributes') with ordinality u(a, n)),
        'auditable', false, 'handler', coalesce(adopt_type.body ->> 'handler', 'all')));
    execute format('grant insert, select on pgps_event.%I to %s', v_name, (adopt_type.neighbour).role);
    select t.* into v_type from pgps_internal.event_type t where t.name = v_name;
    return v_type;
end
$$;
comment on function pgps_internal.adopt_type(pgps_internal.neighbour, jsonb) is
'Creates an event type as a neighbour describes it; the neighbour''s role may publish and receive it';
