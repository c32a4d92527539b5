-- The triggers of an active rule, and their text.
-- Locks: none.
-- Writes: by name: the endpoint of its event type (generated).

create or replace function pgps_internal.build_rule(rule_id integer, environment text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_rule pgps_internal.rule;
    v_operation text;
    v_name text;
begin
    select r.* into v_rule from pgps_internal.rule r where r.rule_id = build_rule.rule_id;
    foreach v_operation in array v_rule.operations loop
        v_name := format('rule_%s_%s', v_rule.rule_id, lower(v_operation));
        execute format('create or replace function pgps_internal.%I() returns trigger language plpgsql %s %s as %L',
            v_name,
            case v_rule.run_as when 'owner' then 'security definer' else '' end, build_rule.environment,
            pgps_internal.rule_body(v_rule, v_operation));
        if v_rule.run_as = 'owner' then
            execute format('alter function pgps_internal.%I() owner to %s', v_name, v_rule.owner);
        end if;
        execute format('revoke all on function pgps_internal.%I() from public', v_name);
    end loop;
end
$$;
comment on function pgps_internal.build_rule(integer, text) is
'Creates, or replaces, the trigger functions of a rule. environment: SET clauses, the settings under which the rule was
written';

create or replace function pgps_internal.build_rule_triggers(rule pgps_internal.rule) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_found record;
begin
    for v_found in
        select w.relid, o.operation,
            format('pgps_internal.rule_%s_%s', (build_rule_triggers.rule).rule_id, lower(o.operation)) as function
        from unnest((build_rule_triggers.rule).operations) o(operation)
        cross join (
            -- A statement fires the triggers of the table that it names, not those of a partition's parent.
            select (build_rule_triggers.rule).table_name as relid
            union
            select p.relid from pg_partition_tree((build_rule_triggers.rule).table_name) p
                join pg_class c on c.oid = p.relid
            where c.relkind in ('r', 'p')
                -- No trigger is told which rows of a foreign table a statement changes (warn_of_foreign_parts).
                or (c.relkind = 'f' and (build_rule_triggers.rule).moment = 'begin')) w
        where not exists (select from pg_trigger t where t.tgrelid = w.relid
            and t.tgfoid = format('pgps_internal.rule_%s_%s()', (build_rule_triggers.rule).rule_id,
                lower(o.operation))::regprocedure)
    loop
        execute format('create trigger %I %s %s on %s %s for each statement execute function %s()',
            'pgps_' || (build_rule_triggers.rule).name || '_' || lower(v_found.operation),
            case (build_rule_triggers.rule).moment when 'begin' then 'before' else 'after' end, v_found.operation,
                v_found.relid,
            case when (build_rule_triggers.rule).moment = 'begin' then '' else 'referencing ' || case
                v_found.operation when 'INSERT' then 'new table as pgps_new' when 'DELETE' then 'old table as pgps_old'
                else 'new table as pgps_new old table as pgps_old' end end, v_found.function);
    end loop;
end
$$;
comment on function pgps_internal.build_rule_triggers(pgps_internal.rule) is
'Creates the statement triggers of a rule that are missing, on its table and on each partition';

create or replace function pgps_internal.rule_row(rule pgps_internal.rule, source text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Columns are matched by number: each has the name that the rule uses, whatever its current name.
    return (
        select string_agg(format('%s%I as %I', rule_row.source, a.attname, coalesce(k.name, a.attname)), ', '
            order by a.attnum)
        from pg_attribute a
        left join (select c.key as name, (c.value ->> 0)::smallint as attnum
            from jsonb_each((rule_row.rule).columns) c) k using (attnum)
        where a.attrelid = (rule_row.rule).table_name and a.attnum > 0 and not a.attisdropped
            and (k.name is not null or not (rule_row.rule).columns ? a.attname::text));
end
$$;
comment on function pgps_internal.rule_row(pgps_internal.rule, text) is
'The columns of a rule''s table, each prefixed with source, under the names that the rule uses';

create or replace function pgps_internal.rule_body(rule pgps_internal.rule, operation text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_source text;
    v_columns text;
    v_row text := pgps_internal.rule_row(rule_body.rule, '');
    v_null text := pgps_internal.rule_row(rule_body.rule, format('(null::%s).', (rule_body.rule).table_name));
    v_tells boolean := exists (select from pgps_internal.feature f
        where f.type_id = (rule_body.rule).type_id and f.name = 'moment');
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = (rule_body.rule).type_id;
    select string_agg(quote_ident(a.name), ', ') into v_columns
    from (select a.name from pgps_internal.attributes_of(v_type.endpoint) a
        limit cardinality((rule_body.rule).attributes)) a;
    -- The transition tables of an UPDATE hold its rows in the same order: they are paired by place, since a key may
    -- change. At the beginning of a statement there are no rows: it publishes one event.
    v_source := case
        when (rule_body.rule).moment = 'begin' then '(values (true)) pgps_once'
        when rule_body.operation = 'INSERT'
            then format('(select %s from pgps_new) as new cross join lateral (select %s) as old', v_row, v_null)
        when rule_body.operation = 'DELETE'
            then format('(select %s from pgps_old) as old cross join lateral (select %s) as new', v_row, v_null)
        else format('(select pgps_new as pgps_row, row_number() over () as pgps_place from pgps_new) pgps_n
            join (select pgps_old as pgps_row, row_number() over () as pgps_place from pgps_old) pgps_o using '
                '(pgps_place)
            cross join lateral (select %s) as new cross join lateral (select %s) as old',
            pgps_internal.rule_row(rule_body.rule, '(pgps_n.pgps_row).'),
            pgps_internal.rule_row(rule_body.rule, '(pgps_o.pgps_row).')) end;
    return format(E'#variable_conflict use_column\nbegin\n%6$s    insert into %1$s (%2$s)\n    select %3$s\n    '
        'from %4$s\n    where (%5$s\n    );\n%7$s    return null;\nend',
        v_type.endpoint, v_columns,
        (select string_agg(format(E'(%s\n)', x.expression), ', ' order by x.place)
            from unnest((rule_body.rule).attributes) with ordinality x(expression, place)),
        v_source, coalesce((rule_body.rule).condition, 'true'),
        case when v_tells then format(E'    perform pgps._mark_moment(%s, %L);\n', v_type.type_id,
            (rule_body.rule).moment) else '' end,
        case when v_tells then format(E'    perform pgps._mark_moment(%s, null);\n', v_type.type_id) else '' end);
end
$$;
comment on function pgps_internal.rule_body(pgps_internal.rule, text) is
'The body of a rule''s trigger function: one INSERT … SELECT from the transition tables into the endpoint';
