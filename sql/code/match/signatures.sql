-- The matching functions of signatures, and the indexed tables that hold their constants once there are enough classes
-- (setting table_threshold).
-- Locks: those of creating and dropping functions and tables.
-- Writes: class, const, member, signature; by name: the constants of a signature.

drop function if exists pgps_internal.current_environment(jsonb);
create or replace function pgps_internal.current_environment(schemas jsonb, written text) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return jsonb_build_object('search_path', pgps_internal.clean_path(current_environment.schemas),
            'timezone', current_setting('timezone'), 'datestyle', current_setting('datestyle'),
            'intervalstyle', current_setting('intervalstyle'))
        || case when current_setting('timezone_abbreviations') <> 'Default'
            then jsonb_build_object('timezone_abbreviations', current_setting('timezone_abbreviations')) else '{}' end
        -- Only where it is looked at: it names an object that may be dropped.
        || case when current_environment.written ~* '@@|ts_?(vector|query|headline)'
            then jsonb_build_object('default_text_search_config', current_setting('default_text_search_config'))
            else '{}' end;
end
$$;
comment on function pgps_internal.current_environment(jsonb, text) is
'The settings of this session that what is written in it keeps wherever it runs. schemas: its search_path, a JSON
array';

create or replace function pgps_internal.settled() returns table (name text, value text)
language sql immutable rows 10
begin atomic
    -- What PostgreSQL sets where nobody sets anything. Not among them: what only names a file or an object that another
    -- server may not have, as the locales do (decision 88).
    values ('array_nulls', 'on'), ('bytea_output', 'hex'), ('extra_float_digits', '1'), ('gin_fuzzy_search_limit', '0'),
        ('quote_all_identifiers', 'off'), ('row_security', 'on'), ('timezone_abbreviations', 'Default'),
        ('transform_null_equals', 'off'), ('xmlbinary', 'base64'), ('xmloption', 'content');
end;
comment on function pgps_internal.settled() is
'What expressions depend on besides the environment in which they were written: settings that are the same for all, so
that nothing depends on the session in which they run';

create or replace function pgps_internal.settled_clause() returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$ select string_agg(format('set %s = %L', s.name, s.value), ' ' order by s.name) from pgps_internal.settled() s $$;
comment on function pgps_internal.settled_clause() is 'The settings of pgps_internal.settled() as SET clauses';

drop function if exists pgps_internal.environment_clause(jsonb);
create or replace function pgps_internal.environment_clause(environment jsonb, is_settled boolean = true) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select 'set standard_conforming_strings = on '
        || case when environment_clause.is_settled then pgps_internal.settled_clause() || ' ' else '' end
        || string_agg(format('set %s = %s', e.key, case e.key when 'search_path' then e.value
            else quote_literal(e.value) end), ' ')
    from jsonb_each_text(environment_clause.environment) e
$$;
comment on function pgps_internal.environment_clause(jsonb, boolean) is
'SET clauses that give generated code the settings under which a filter was written; is_settled: the others, too, which
may be left out where nothing depends on them';

create or replace function pgps_internal.write_constants(shape text, alias text) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$ select regexp_replace(write_constants.shape, '\$(\d+)', write_constants.alias || '.pgps_\1', 'g') $$;
comment on function pgps_internal.write_constants(text, text) is
'A shape with $1, $2 … as columns pgps_1, pgps_2 … of alias';

create or replace function pgps_internal.build_signature(signature_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.build(pgps_internal.write_match(g), g.type_id) from pgps_internal.signature g
    where g.signature_id = build_signature.signature_id;
end
$$;
comment on function pgps_internal.build_signature(bigint) is 'Generates the matching function of a signature';

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
        (select string_agg(format(', pgps_%s %s', n, v_signature.parameter_types[n]), '' order by n)
            from generate_series(1, v_count) n));
    execute format('insert into %s select c.class_id%s from pgps_internal.class c where c.signature_id = %s and '
        'c.is_active', v_table,
        (select string_agg(format(', c.constants[%s]::%s', n, v_signature.parameter_types[n]), '' order by n)
            from generate_series(1, v_count) n),
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
'Gives a signature with many classes a table of constants, indexed by its equality conditions first, then one range
(Hanson et al. 1999)';

create or replace function pgps_internal.drop_signature(signature_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.drop_piece('function', 'pgps_internal.match_' || drop_signature.signature_id);
    if to_regclass(format('pgps_internal.const_%s', drop_signature.signature_id)) is not null then
        execute format('drop table pgps_internal.const_%s', drop_signature.signature_id);
    end if;
    delete from pgps_internal.member m using pgps_internal.class c
    where m.class_id = c.class_id and c.signature_id = drop_signature.signature_id;
    delete from pgps_internal.signature g where g.signature_id = drop_signature.signature_id;
end
$$;
comment on function pgps_internal.drop_signature(bigint) is
'Drops a signature with its function, constants and classes';

create or replace function pgps_internal.store_constants(class pgps_internal.class, signature pgps_internal.signature)
returns void
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
comment on function pgps_internal.store_constants(pgps_internal.class, pgps_internal.signature) is
'Puts a class into its signature''s table of constants';

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
        execute format('delete from pgps_internal.const_%s where pgps_class = $1', v_signature.signature_id)
            using v_class.class_id;
        if set_class_active.active then
            perform pgps_internal.store_constants(v_class, v_signature);
        end if;
    end if;
end
$$;
comment on function pgps_internal.set_class_active(bigint, boolean) is 'Takes a class into matching, or out of it';
