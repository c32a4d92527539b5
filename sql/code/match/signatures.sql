-- The code that asks the filters of one shape, and where their constants are: in its arguments, or from some number on in an indexed table.
-- Locks: those of creating and dropping functions and tables.
-- Writes: class, const, delivery, member, signature; by name: the constants of a signature.

create or replace function pgps_internal.environment_clause(environment jsonb) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select 'set standard_conforming_strings = on '
        || string_agg(format('set %s = %s', e.key, case e.key when 'search_path' then e.value else quote_literal(e.value) end), ' ')
    from jsonb_each_text(environment_clause.environment) e
$$;
comment on function pgps_internal.environment_clause(jsonb) is 'SET clauses that give generated code the settings under which a filter was written';

create or replace function pgps_internal.write_constants(shape text, alias text) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$ select regexp_replace(write_constants.shape, '\$(\d+)', write_constants.alias || '.pgps_\1', 'g') $$;
comment on function pgps_internal.write_constants(text, text) is 'A shape with $1, $2 … as columns pgps_1, pgps_2 … of alias';

create or replace function pgps_internal.build_signature(signature_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_signature pgps_internal.signature;
    v_type pgps_internal.event_type;
    v_count integer;
    v_constants text;
    v_first text := '';
begin
    select g.* into v_signature from pgps_internal.signature g where g.signature_id = build_signature.signature_id;
    select t.* into v_type from pgps_internal.event_type t where t.type_id = v_signature.type_id;
    v_count := cardinality(v_signature.parameter_types);
    if v_signature.tier = 'safe' then
        if v_signature.has_table then
            v_constants := format('(select * from pgps_internal.const_%s)', v_signature.signature_id);
        else
            -- Read and converted once, not for each event: how many of those there are, the planner cannot know.
            v_constants := 'pgps_constants';
            v_first := format('pgps_constants as materialized (select c.class_id as pgps_class %s from pgps_internal.class c
                    where c.signature_id = %s and c.is_active), ',
                (select coalesce(string_agg(format(', c.constants[%s]::%s as pgps_%s', n, v_signature.parameter_types[n], n), '' order by n), '')
                    from generate_series(1, v_count) n), v_signature.signature_id);
        end if;
        -- It notes the deliveries itself: handing out 50,000 of them costs as much as finding them.
        perform pgps_internal.create_function(format(
            'pgps_internal.match_%s(pgps_batch bigint, pgps_ids int8multirange, pgps_only int8range) returns bigint[]', v_signature.signature_id),
            format('language plpgsql volatile %s as %L', pgps_internal.environment_clause(v_signature.environment), format($body$
            #variable_conflict use_column
            declare
                pgps_matched bigint[];
                pgps_lower bigint := pg_catalog.lower(pgps_ids);
                pgps_upper bigint := pg_catalog.upper(pgps_ids) - 1;
                pgps_slot bigint := pgps_lower / 65536;
                pgps_slots bigint := pgps_upper / 65536 - pgps_slot;
            begin
                with %6$spgps_found as (
                    select pgps_c.pgps_class, pg_catalog.array_agg(%1$I.event_id) as pgps_events, pg_catalog.min(%1$I.event_id) as pgps_lowest,
                        pg_catalog.max(%1$I.event_id) as pgps_highest
                    from %2$s as %1$I, %3$s as pgps_c
                    where %1$I.event_id between pgps_lower and pgps_upper and %1$I.event_id <@ pgps_ids
                        -- In the segments where they are only.
                        and (%1$I.event_id / 65536) %% 4 in (pgps_slot %% 4, (pgps_slot + least(pgps_slots, 1)) %% 4,
                            (pgps_slot + least(pgps_slots, 2)) %% 4, (pgps_slot + least(pgps_slots, 3)) %% 4)
                        and (pgps_only is null or pgps_c.pgps_class between pg_catalog.lower(pgps_only) and pg_catalog.upper(pgps_only) - 1)
                        and (%4$s
                        )
                    group by pgps_c.pgps_class
                ),
                pgps_noted as (
                    insert into pgps_internal.delivery (batch_id, class_id, type_id, events, event_ids, ids)
                    select pgps_batch, f.pgps_class, %5$s, pg_catalog.cardinality(f.pgps_events),
                        case when f.pgps_lowest = f.pgps_highest or f.pgps_highest - f.pgps_lowest + 1 <> pg_catalog.cardinality(f.pgps_events)
                            then f.pgps_events end,
                        case when f.pgps_lowest < f.pgps_highest and f.pgps_highest - f.pgps_lowest + 1 = pg_catalog.cardinality(f.pgps_events)
                            then pg_catalog.int8multirange(pg_catalog.int8range(f.pgps_lowest, f.pgps_highest, '[]')) end
                    from pgps_found f
                    returning class_id
                )
                select pg_catalog.array_agg(n.class_id) into pgps_matched from pgps_noted n;
                return pgps_matched;
            end$body$, v_type.name, v_type.log, v_constants, pgps_internal.write_constants(v_signature.shape, 'pgps_c'), v_type.type_id, v_first)));
    else
        perform pgps_internal.build_owner_match(v_signature, v_type);
    end if;
end
$$;
comment on function pgps_internal.build_signature(bigint) is 'Generates the matching function of a signature';

create or replace function pgps_internal.build_owner_match(signature pgps_internal.signature, event_type pgps_internal.event_type) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_count integer := cardinality((build_owner_match.signature).parameter_types);
    v_types text[] := (build_owner_match.signature).parameter_types;
    v_name text := format('pgps_internal.match_%s', (build_owner_match.signature).signature_id);
    v_arguments text;
begin
    v_arguments := format('pgps_ids bigint[], pgps_rows pgps_event.%I[], pgps_classes bigint[]%s', (build_owner_match.event_type).name,
        (select coalesce(string_agg(format(', pgps_p%s %s[]', n, v_types[n]), '' order by n), '') from generate_series(1, v_count) n));
    perform pgps_internal.create_function(format(
        '%s(%s) returns table (pgps_class bigint, pgps_events bigint[], pgps_lowest bigint, pgps_highest bigint)', v_name, v_arguments),
        format('language plpgsql volatile security definer set enable_seqscan = on set enable_bitmapscan = on %s as %L',
            pgps_internal.environment_clause((build_owner_match.signature).environment), format($body$
            #variable_conflict use_column
            begin
                return query
                select pgps_c.pgps_class, pg_catalog.array_agg(%1$I.pgps_id), pg_catalog.min(%1$I.pgps_id), pg_catalog.max(%1$I.pgps_id)
                from rows from (pg_catalog.unnest(pgps_ids), pg_catalog.unnest(pgps_rows)) as %1$I(pgps_id, %2$s),
                    rows from (pg_catalog.unnest(pgps_classes)%3$s) as pgps_c(pgps_class%4$s)
                where (%5$s
                )
                group by pgps_c.pgps_class;
            end$body$, (build_owner_match.event_type).name, pgps_internal.column_list((build_owner_match.event_type).endpoint),
            (select coalesce(string_agg(format(', pg_catalog.unnest(pgps_p%s)', n), '' order by n), '') from generate_series(1, v_count) n),
            (select coalesce(string_agg(format(', pgps_%s', n), '' order by n), '') from generate_series(1, v_count) n),
            pgps_internal.write_constants((build_owner_match.signature).shape, 'pgps_c'))));
    execute format('alter function %s(%s) owner to %s', v_name, v_arguments, (build_owner_match.signature).owner);
end
$$;
comment on function pgps_internal.build_owner_match(pgps_internal.signature, pgps_internal.event_type) is
'The matching function of a filter that may read tables: runs with its owner''s rights, sees the events it is given and no log';

create or replace function pgps_internal.promote(signature_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_signature pgps_internal.signature;
    v_table text := format('pgps_internal.const_%s', promote.signature_id);
    v_count integer;
begin
    select g.* into v_signature from pgps_internal.signature g where g.signature_id = promote.signature_id for update;
    if v_signature.has_table then
        return;
    end if;
    v_count := cardinality(v_signature.parameter_types);
    execute format('create table %s (pgps_class bigint primary key%s)', v_table,
        (select string_agg(format(', pgps_%s %s', n, v_signature.parameter_types[n]), '' order by n) from generate_series(1, v_count) n));
    execute format('insert into %s select c.class_id%s from pgps_internal.class c where c.signature_id = %s and c.is_active', v_table,
        (select string_agg(format(', c.constants[%s]::%s', n, v_signature.parameter_types[n]), '' order by n) from generate_series(1, v_count) n),
        promote.signature_id);
    if cardinality(v_signature.key_columns) > 0 then
        execute format('create index on %s (%s)', v_table, (select string_agg('pgps_' || k, ', ' order by place)
            from unnest(v_signature.key_columns) with ordinality u(k, place)));
    end if;
    execute format('analyze %s', v_table);
    update pgps_internal.signature g set has_table = true where g.signature_id = promote.signature_id;
    perform pgps_internal.build_signature(promote.signature_id);
end
$$;
comment on function pgps_internal.promote(bigint) is
'Gives a signature with many members a table of constants, indexed by its equality conditions first, then one range (Hanson et al. 1999)';

create or replace function pgps_internal.drop_signature(signature_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_function regprocedure;
begin
    for v_function in select p.oid from pg_proc p
        where p.pronamespace = 'pgps_internal'::regnamespace and p.proname = 'match_' || drop_signature.signature_id loop
        execute format('drop function %s', v_function);
    end loop;
    if to_regclass(format('pgps_internal.const_%s', drop_signature.signature_id)) is not null then
        execute format('drop table pgps_internal.const_%s', drop_signature.signature_id);
    end if;
    delete from pgps_internal.member m using pgps_internal.class c
    where m.class_id = c.class_id and c.signature_id = drop_signature.signature_id;
    delete from pgps_internal.signature g where g.signature_id = drop_signature.signature_id;
end
$$;
comment on function pgps_internal.drop_signature(bigint) is 'Drops a signature with its function, constants and classes';

create or replace function pgps_internal.store_constants(class pgps_internal.class, signature pgps_internal.signature) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('insert into pgps_internal.const_%s select $1%s', (store_constants.signature).signature_id,
        (select string_agg(format(', ($2)[%s]::%s', n, (store_constants.signature).parameter_types[n]), '' order by n)
            from generate_subscripts((store_constants.signature).parameter_types, 1) n))
    using (store_constants.class).class_id, (store_constants.class).constants;
end
$$;
comment on function pgps_internal.store_constants(pgps_internal.class, pgps_internal.signature) is 'Puts a class into its signature''s table of constants';

create or replace function pgps_internal.set_class_active(class_id bigint, active boolean) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_class pgps_internal.class;
    v_signature pgps_internal.signature;
begin
    update pgps_internal.class c set is_active = set_class_active.active, failures = 0,
        suspended_batch = case when not set_class_active.active then c.suspended_batch end
    where c.class_id = set_class_active.class_id returning * into v_class;
    select g.* into v_signature from pgps_internal.signature g where g.signature_id = v_class.signature_id;
    if v_signature.has_table then
        execute format('delete from pgps_internal.const_%s where pgps_class = $1', v_signature.signature_id) using v_class.class_id;
        if set_class_active.active then
            perform pgps_internal.store_constants(v_class, v_signature);
        end if;
    end if;
end
$$;
comment on function pgps_internal.set_class_active(bigint, boolean) is 'Takes a class into matching, or out of it';

revoke all on all functions in schema pgps_internal from public;
