-- Generated: pgps_internal.match_<signature>, which asks the filters of one shape about events. Called by match.sql,
-- which explains the two tiers of filters.
-- Writes: delivery.

create or replace function pgps_internal.write_match(signature pgps_internal.signature) returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
declare
    v_type pgps_internal.event_type;
    v_names jsonb;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = (write_match.signature).type_id;
    v_names := jsonb_build_object('signature_id', (write_match.signature).signature_id, 'type_id', v_type.type_id,
        'name', quote_ident(v_type.name),
        -- Filters over the event alone depend on settings where they turn a value into text or name a null; leaving
        -- these SET clauses out elsewhere saves time in each batch.
        'log', v_type.log::text, 'settings', pgps_internal.environment_clause((write_match.signature).environment,
            (write_match.signature).tier <> 'safe'
                or (write_match.signature).shape ~* '\|\||::|\mcast\M|\mnull\M'),
        'filter', pgps_internal.write_constants((write_match.signature).shape, 'pgps_c'));
    return case (write_match.signature).tier when 'safe'
        then pgps_internal.write_safe_match(write_match.signature, v_names)
        else pgps_internal.write_owner_match(write_match.signature, v_names
            || jsonb_build_object('columns', pgps_internal.column_list(v_type.endpoint))) end;
end
$write$;
comment on function pgps_internal.write_match(pgps_internal.signature) is
'Writes pgps_internal.match_<signature>: the matching function of a signature';

create or replace function pgps_internal.safe_match_names(signature pgps_internal.signature, names jsonb) returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select s.names || jsonb_build_object(
        'in_segments', pgps_internal.in_log_segments(s.names ->> 'name' || '.event_id', 'pgps_lower', 'pgps_upper'),
        'first', case when (s.signature).has_table then '' else
            -- Materialized, so that constants are read and converted once, not for each event: the planner cannot know
            -- how many events there are.
            format('pgps_constants as materialized (select c.class_id as pgps_class %s from pgps_internal.class c
                    where c.signature_id = %s and c.is_active), ',
                (select string_agg(format(', c.constants[%s]::%s as pgps_%s', n, t, n), '' order by n)
                    from unnest((s.signature).parameter_types) with ordinality p(t, n)),
                (s.signature).signature_id) end,
        'constants', case when (s.signature).has_table
            then format('(select * from pgps_internal.const_%s)', (s.signature).signature_id)
            else 'pgps_constants' end)
    from (select safe_match_names.signature, safe_match_names.names) s
$$;
comment on function pgps_internal.safe_match_names(pgps_internal.signature, jsonb) is
'Names for the template of match_<signature>: where its constants are read, and the segments of the log that it reads';

create or replace function pgps_internal.write_noting(names jsonb, log text, place text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    -- In the order of the classes, as the index of the deliveries is: 50,000 of them out of order take twice as long.
    return pgps_internal.render($statement$with {first}pgps_found as (
                    select pgps_c.pgps_class, pg_catalog.array_agg({name}.event_id) as pgps_events,
                        pg_catalog.min({name}.event_id) as pgps_lowest,
                        pg_catalog.max({name}.event_id) as pgps_highest
                    from {of_log} as {name}, {constants} as pgps_c
                    where {at_place}
                        and (pgps_only is null or pgps_c.pgps_class between pg_catalog.lower(pgps_only)
                            and pg_catalog.upper(pgps_only) - 1)
                        and ({filter}
                        )
                    group by pgps_c.pgps_class
                    order by pgps_c.pgps_class
                ),
                pgps_noted as (
                    insert into pgps_internal.delivery (batch_id, class_id, type_id, events, event_ids, ids)
                    select pgps_batch, f.pgps_class, {type_id}, pg_catalog.cardinality(f.pgps_events),
                        case when f.pgps_lowest = f.pgps_highest
                            or f.pgps_highest - f.pgps_lowest + 1 <> pg_catalog.cardinality(f.pgps_events)
                            then f.pgps_events end,
                        case when f.pgps_lowest < f.pgps_highest
                            and f.pgps_highest - f.pgps_lowest + 1 = pg_catalog.cardinality(f.pgps_events)
                            then pg_catalog.int8multirange(pg_catalog.int8range(f.pgps_lowest, f.pgps_highest,
                                '[]')) end
                    from pgps_found f
                    returning class_id
                )
                select pg_catalog.array_agg(n.class_id) into pgps_matched from pgps_noted n;$statement$,
        write_noting.names || jsonb_build_object('of_log', pgps_internal.render(write_noting.log, write_noting.names),
            'at_place', pgps_internal.render(write_noting.place, write_noting.names)));
end
$write$;
comment on function pgps_internal.write_noting(jsonb, text, text) is
'The statement of match_<signature> that asks and notes the deliveries. log, place: templates of the relation of the
events and of the condition on it';

create or replace function pgps_internal.write_safe_match(signature pgps_internal.signature, names jsonb)
returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
declare
    v_names jsonb := pgps_internal.safe_match_names(write_safe_match.signature, write_safe_match.names);
begin
    -- The function notes the deliveries itself: returning 50,000 of them costs as much as finding them.
    return pgps_internal.write_function('pgps_internal.match_{signature_id}',
        $head$(pgps_batch bigint, pgps_ids int8multirange, pgps_only int8range) returns bigint[]
        language plpgsql volatile {settings}$head$, $body$
            #variable_conflict use_column
            declare
                pgps_matched bigint[];
                pgps_lower bigint := pg_catalog.lower(pgps_ids);
                pgps_upper bigint := pg_catalog.upper(pgps_ids) - 1;
                pgps_count bigint;
            begin
                if pg_catalog.current_setting('plan_cache_mode') <> 'force_custom_plan' then
                    {of_few}
                    return pgps_matched;
                end if;
                -- Many events, see plan_for_many. The planner cannot tell from conditions on their ids how many they
                -- are: it takes them for one and compares each with each class. The limit, which is their number,
                -- tells it (decision 87).
                pgps_count := (select pg_catalog.sum(pg_catalog.upper(r) - pg_catalog.lower(r))
                    from pg_catalog.unnest(pgps_ids) r);
                {of_many}
                return pgps_matched;
            end$body$, v_names || jsonb_build_object(
            'of_few', pgps_internal.write_noting(v_names, '{log}',
                $place${name}.event_id between pgps_lower and pgps_upper and {name}.event_id <@ pgps_ids
                        -- Only the segments that these ids are in.
                        and {in_segments}$place$),
            'of_many', pgps_internal.write_noting(v_names, $log$(
                        select pgps_l.* from pg_catalog.unnest(pgps_ids) pgps_r
                        cross join lateral (select * from {log} pgps_l where pgps_l.event_id >= pg_catalog.lower(pgps_r)
                            and pgps_l.event_id < pg_catalog.upper(pgps_r) offset 0) pgps_l
                        limit pgps_count)$log$, 'true')));
end
$write$;
comment on function pgps_internal.write_safe_match(pgps_internal.signature, jsonb) is
'The matching function of filters over the event alone: joins the log with the constants, and notes the deliveries';

create or replace function pgps_internal.write_owner_match(signature pgps_internal.signature, names jsonb)
returns pgps_internal.piece
language sql stable
set search_path = pg_catalog, pg_temp
as $write$
    select pgps_internal.write_function('pgps_internal.match_{signature_id}',
        $head$(pgps_ids bigint[], pgps_rows pgps_event.{name}[], pgps_classes bigint[]{parameters})
        returns table (pgps_class bigint, pgps_events bigint[], pgps_lowest bigint, pgps_highest bigint)
        language plpgsql volatile security definer set enable_seqscan = on set enable_bitmapscan = on {settings}$head$,
            $body$
            #variable_conflict use_column
            begin
                return query
                select pgps_c.pgps_class, pg_catalog.array_agg({name}.pgps_id), pg_catalog.min({name}.pgps_id),
                    pg_catalog.max({name}.pgps_id)
                from rows from (pg_catalog.unnest(pgps_ids), pg_catalog.unnest(pgps_rows)) as {name}(pgps_id,
                    {columns}),
                    rows from (pg_catalog.unnest(pgps_classes){unnested}) as pgps_c(pgps_class{constants})
                where ({filter}
                )
                group by pgps_c.pgps_class;
            end$body$, write_owner_match.names || p.names, (write_owner_match.signature).owner)
    from (
        select jsonb_build_object('parameters',
            coalesce(string_agg(format(', pgps_p%s %s[]', t.n, t.type), '' order by t.n), ''),
            'unnested', coalesce(string_agg(format(', pg_catalog.unnest(pgps_p%s)', t.n), '' order by t.n), ''),
            'constants', coalesce(string_agg(format(', pgps_%s', t.n), '' order by t.n), '')) as names
        from unnest((write_owner_match.signature).parameter_types) with ordinality t(type, n)
    ) p
$write$;
comment on function pgps_internal.write_owner_match(pgps_internal.signature, jsonb) is
'The matching function of a filter that may read tables: runs with its owner''s rights, sees the events it is given and
no log';
