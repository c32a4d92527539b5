-- What this broker detects for a neighbour: a composite event that the link's role owns. It sees what that role may see
-- here, counts in its quota, and what is detected goes to the neighbour that asked and to nobody else.
-- Locks: the turn of routes; those of creating and dropping an event type; the row of the composite event.
-- Writes: composite, hosted_part.

create or replace function pgps_internal.hosted_args(body jsonb) returns jsonb
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    -- Durations travel in microseconds.
    select body -> 'given' || jsonb_build_object('name', quote_ident(body ->> 'name'), 'scope', 'global',
        'start', 'now', 'reliability', coalesce(body ->> 'reliability', 'guaranteed'), 'persistent', true,
        'auditable', false, 'handler', 'all', 'sources', coalesce(body -> 'sources', '{}'),
        'lateness', coalesce(replace(body #>> '{given,lateness}', ' us', ' microseconds'), '0'),
        'within', replace(body #>> '{given,within}', ' us', ' microseconds'))
$$;
comment on function pgps_internal.hosted_args(jsonb) is
'The arguments of a composite event that a neighbour asks for, as pgps.create_composite_event has them';

create or replace function pgps_internal.host_leaves(neighbour pgps_internal.neighbour, body jsonb, parsed jsonb)
returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_leaf jsonb;
    v_type pgps_internal.event_type;
    v_constants jsonb := '[]';
begin
    for v_leaf in select l from jsonb_array_elements(host_leaves.parsed -> 'leaves') l loop
        select t.* into v_type from pgps_internal.event_type t where t.name = v_leaf ->> 'type';
        if exists (select from pgps_internal.foreign_type f
                where f.neighbour_id = (host_leaves.neighbour).neighbour_id and f.name = v_type.name
                    and f.difference is not null) then
            raise exception 'event type "%" is another one there', v_type.name using errcode = '55000',
                hint = 'See pgps.links.';
        elsif v_leaf ->> 'predicate' <> '' and not pgps_internal.travels(v_type, pgps.parse_filter(
                v_leaf ->> 'predicate', v_type.name, pgps_internal.attribute_names(v_type)), 'pg_catalog',
                host_leaves.body ->> 'collation') then
            raise exception 'the predicate of event type "%" may mean something else here', v_type.name
            using errcode = '55000', hint = 'It is asked where the composite event was created.';
        end if;
        v_constants := v_constants || jsonb_build_array(case when v_leaf ->> 'predicate' <> ''
            then to_jsonb(pgps_internal.constant_types(v_type.name, v_leaf ->> 'predicate',
                host_leaves.body -> 'environment')) end);
    end loop;
    return v_constants;
end
$$;
comment on function pgps_internal.host_leaves(pgps_internal.neighbour, jsonb, jsonb) is
'For each leaf the types of its constants. Raises 55000 for a leaf that could mean something else than at the neighbour
that asks, and for a predicate that reads more than the event';

create or replace function pgps_internal.host_part(neighbour pgps_internal.neighbour, body jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_role name := pg_get_userbyid((host_part.neighbour).role::oid);
    v_args jsonb := pgps_internal.hosted_args(host_part.body);
    v_parsed jsonb;
begin
    if host_part.body ->> 'name' !~ '^pgps_part_[0-9a-f]{20}$' then
        raise exception 'invalid name of a part "%"', host_part.body ->> 'name' using errcode = '42602',
            hint = 'It is damaged, or that broker is not what it says.';
    elsif exists (select from pgps_internal.event_type t where t.name = host_part.body ->> 'name') then
        raise exception 'event type "%" exists already', host_part.body ->> 'name' using errcode = '42710',
            hint = 'Drop it.';
    elsif jsonb_array_length(coalesce(host_part.body -> 'nodes', '[]')) = 0 or v_args ? 'filter'
            or v_args ? 'attributes' or lower(coalesce(v_args ->> 'time_basis', 'arrival')) <> 'arrival' then
        raise exception 'what broker "%" asks for cannot be detected for it', (host_part.neighbour).name
        using errcode = '0A000', hint = 'Upgrade the older broker: pgps upgrade DSN';
    end if;
    v_args := v_args || jsonb_build_object('context', coalesce(v_args ->> 'context', 'recent'), 'time_basis', 'arrival',
        'zone', coalesce(v_args ->> 'zone', 'UTC'));
    perform pgps_internal.check_composite_args(v_role, v_args);
    v_parsed := pgps_internal.describe(v_role, v_args);
    if exists (select from jsonb_array_elements_text(host_part.body -> 'nodes') n
            where not v_parsed -> 'nodes' @> jsonb_build_array(jsonb_build_object('name', n))) then
        raise exception 'the expression means something else here' using errcode = '55000',
            hint = 'The two brokers run different releases: pgps upgrade DSN';
    end if;
    v_args := v_args || jsonb_build_object('without', (host_part.neighbour).broker_id,
        'constant_types', pgps_internal.host_leaves(host_part.neighbour, host_part.body, v_parsed));
    return (pgps_internal.make_composite(v_role, host_part.body ->> 'name', v_args, v_parsed,
        -- Of its settings those by which constants are read, and nothing else.
        jsonb_build_object('search_path', 'pg_catalog, pg_temp',
            'timezone', coalesce(host_part.body #>> '{environment,timezone}', 'UTC'),
            'datestyle', coalesce(host_part.body #>> '{environment,datestyle}', 'ISO, MDY'),
            'intervalstyle', coalesce(host_part.body #>> '{environment,intervalstyle}', 'postgres')))).composite_id;
end
$$;
comment on function pgps_internal.host_part(pgps_internal.neighbour, jsonb) is
'Makes the composite event that a neighbour asks for, in the name of the link''s role; returns its id. Errors: as
pgps.create_composite_event, 55000 it would mean something else here';

create or replace function pgps_internal.hear_part(neighbour pgps_internal.neighbour, body jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_hosted pgps_internal.hosted_part;
    v_composite bigint;
    v_reason text;
begin
    select h.* into v_hosted from pgps_internal.hosted_part h where h.name = hear_part.body ->> 'name';
    begin
        if v_hosted.name is null then
            v_composite := pgps_internal.host_part(hear_part.neighbour, hear_part.body);
        elsif v_hosted.broker_id = (hear_part.neighbour).broker_id and v_hosted.composite_id is not null then
            perform pgps_internal.change_hosted(v_hosted, hear_part.body);
            v_composite := v_hosted.composite_id;
        end if;
    exception when others then
        -- Transient errors are raised, so that the link opens again and retries.
        if sqlstate ~ '^(40|53|57|58|XX)' or sqlstate = '55P03' then
            raise;
        end if;
        v_reason := sqlerrm;
    end;
    insert into pgps_internal.hosted_part as h (name, broker_id, neighbour_id, composite_id, asked, reset_no, reason)
    values (hear_part.body ->> 'name', (hear_part.neighbour).broker_id, (hear_part.neighbour).neighbour_id,
        v_composite, hear_part.body, pgps_internal.last_reset(hear_part.body), v_reason)
    on conflict on constraint hosted_part_pkey do update set neighbour_id = excluded.neighbour_id,
        asked = excluded.asked, reset_no = excluded.reset_no, reason = coalesce(h.reason, excluded.reason)
    where h.broker_id = excluded.broker_id;
end
$$;
comment on function pgps_internal.hear_part(pgps_internal.neighbour, jsonb) is
'Handles what a neighbour asks to be detected for it: makes it, changes what has changed, or notes why not';

create or replace function pgps_internal.last_reset(body jsonb) returns bigint
language sql immutable
set search_path = pg_catalog, pg_temp
as $$ select coalesce(max((r ->> 0)::bigint), 0) from jsonb_array_elements(last_reset.body -> 'resets') r $$;
comment on function pgps_internal.last_reset(jsonb) is 'The newest reset of a part, 0 when there was none';

create or replace function pgps_internal.change_hosted(hosted pgps_internal.hosted_part, body jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_composite pgps_internal.composite;
begin
    perform pgps_internal.hold_composite((change_hosted.hosted).composite_id);
    select c.* into v_composite from pgps_internal.composite c
    where c.composite_id = (change_hosted.hosted).composite_id;
    update pgps_internal.composite c set sources = coalesce(change_hosted.body -> 'sources', '{}')
    where c.composite_id = v_composite.composite_id returning * into v_composite;
    if change_hosted.body -> 'given' <> (change_hosted.hosted).asked -> 'given' then
        v_composite := pgps_internal.redefine(v_composite, pgps_internal.hosted_args(change_hosted.body)
            || jsonb_build_object('context', v_composite.context, 'time_basis', 'arrival'));
    end if;
    perform pgps_internal.forget_open(v_composite, nullif(r -> 1, 'null'))
    from jsonb_array_elements(change_hosted.body -> 'resets') r
    where (r ->> 0)::bigint > (change_hosted.hosted).reset_no;
end
$$;
comment on function pgps_internal.change_hosted(pgps_internal.hosted_part, jsonb) is
'Does with what is detected for a neighbour what was done there with the composite event: altered, reset';

create or replace function pgps_internal.hear_unpart(neighbour pgps_internal.neighbour, name text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.drop_hosted(h) from pgps_internal.hosted_part h
    where h.name = hear_unpart.name and h.broker_id = (hear_unpart.neighbour).broker_id;
end
$$;
comment on function pgps_internal.hear_unpart(pgps_internal.neighbour, text) is
'Handles that a neighbour does not want something any more that is detected for it';

create or replace function pgps_internal.drop_hosted(hosted pgps_internal.hosted_part) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.drop_type(t) from pgps_internal.composite c join pgps_internal.event_type t using (type_id)
    where c.composite_id = (drop_hosted.hosted).composite_id;
    delete from pgps_internal.hosted_part h where h.name = (drop_hosted.hosted).name;
end
$$;
comment on function pgps_internal.drop_hosted(pgps_internal.hosted_part) is
'Ends what is detected for a neighbour';

create or replace function pgps_internal.sweep_hosted() returns void
language plpgsql
set search_path = pg_catalog, pg_temp set lock_timeout = '100ms'
as $$
declare
    v_hosted pgps_internal.hosted_part;
begin
    -- A neighbour that was restored asks again, in its new epoch, for what it knows of.
    for v_hosted in
        select h.* from pgps_internal.hosted_part h
        join pgps_internal.neighbour n on n.broker_id = h.broker_id and n.neighbour_id <> h.neighbour_id
        where pgps_internal.is_up(n.neighbour_id)
            and exists (select from pgps_internal.attached a where a.neighbour_id = n.neighbour_id and a.is_live)
    loop
        begin
            perform pgps_internal.drop_hosted(v_hosted);
        exception when lock_not_available or undefined_object then
            -- Somebody uses it, or is dropping it: the next time.
            null;
        end;
    end loop;
end
$$;
comment on function pgps_internal.sweep_hosted() is
'Ends what is detected for a neighbour that was restored to a time before it asked for it';

create or replace function pgps_internal.is_for_others(name text, neighbour pgps_internal.neighbour) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select starts_with(is_for_others.name, 'pgps_part_') and not exists (select from pgps_internal.hosted_part h
        where h.name = is_for_others.name and h.broker_id = (is_for_others.neighbour).broker_id)
$$;
comment on function pgps_internal.is_for_others(text, pgps_internal.neighbour) is
'True for the event type of something that is detected for another broker than this neighbour';
