-- Active rules: ON {INSERT|UPDATE|DELETE} TO table WHERE condition PUBLISH type (attributes). Each statement on the
-- table publishes one set of events.
-- Writes: rule; by name: the endpoint of its event type (generated).

create or replace function pgps_internal.columns_for(event_type pgps_internal.event_type, given bigint, giver text)
returns text[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_columns text[];
    v_needed bigint;
begin
    -- As in VALUES, those at the end may be left out, but not what may not be null.
    select array_agg(quote_ident(a.attname) order by a.attnum),
        max(a.place) filter (where a.attnotnull and not a.atthasdef)
    into v_columns, v_needed
    from (select a.*, row_number() over (order by a.attnum) as place from pg_attribute a
        where a.attrelid = (columns_for.event_type).endpoint and a.attnum > 0 and not a.attisdropped
            and a.attname not in ('_producer', '_producer_seq')) a;
    if columns_for.given < greatest(v_needed, 1) or columns_for.given > cardinality(v_columns) then
        raise exception '% gives % values; event type "%" has % attributes%', columns_for.giver, columns_for.given,
            (columns_for.event_type).name, cardinality(v_columns),
            case when v_needed < cardinality(v_columns)
                then format(', of which those after the first %s may be left out', v_needed) else '' end
        using errcode = '22023', hint = format('Give a value for each attribute, in this order: %s.',
            array_to_string(v_columns, ', '));
    end if;
    return v_columns[1:columns_for.given];
end
$$;
comment on function pgps_internal.columns_for(pgps_internal.event_type, bigint, text) is
'The attributes that so many values are for. Errors: 22023 too many, or too few: what is left out, at the
end, has a default or may be null. giver: what gives the values, for the error';

create or replace function pgps_internal.require_unfilled_by_rules(
    event_type pgps_internal.event_type, attribute text
) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := require_unfilled_by_rules.event_type;
    v_rule text;
begin
    select r.name into v_rule from pgps_internal.rule r
    where r.type_id = v_type.type_id and cardinality(r.attributes) >= (
        select a.ordinality from pgps_internal.attributes_of(v_type.endpoint) with ordinality a
        where a.name = require_unfilled_by_rules.attribute)
    order by r.name limit 1;
    if found then
        raise exception 'attribute "%" of event type "%" is filled by rule "%"', require_unfilled_by_rules.attribute,
            v_type.name, v_rule
        using errcode = '2BP01', hint = format('Drop the rule first, and create it again without that attribute: '
            'select pgps.drop_rule(%L)', quote_ident(v_rule));
    end if;
end
$$;
comment on function pgps_internal.require_unfilled_by_rules(pgps_internal.event_type, text) is
'Raises 2BP01 while a rule gives an attribute of a type its value';

create or replace function pgps_internal.do_columns(caller name, args jsonb) returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select to_jsonb(pgps_internal.columns_for(pgps_internal.find_type(args ->> 'event_type'),
        (args ->> 'count')::bigint, args ->> 'giver'))
$$;
comment on function pgps_internal.do_columns(name, jsonb) is 'See columns_for; for PUBLISH';

create or replace function pgps_internal.require_rule_arguments(args jsonb) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if args ->> 'table_name' is null then
        raise exception 'the table_name of rule "%" is null', args ->> 'name' using errcode = '22023',
            hint = 'Give the table as in ''public.orders''.';
    elsif args ->> 'attributes' is null then
        raise exception 'the attributes of rule "%" are null', args ->> 'name' using errcode = '22023',
            hint = 'Give an expression over new and old for each attribute: array[''new.symbol'', ''new.price''].';
    elsif jsonb_typeof(args #> '{attributes,0}') = 'array' then
        raise exception 'the attributes of rule "%" have more than one dimension: %', args ->> 'name',
            args -> 'attributes' using errcode = '22023',
            hint = 'Give an expression over new and old for each attribute: array[''new.symbol'', ''new.price''].';
    elsif args -> 'attributes' @> '[null]' then
        raise exception 'an expression in the attributes of rule "%" is null', args ->> 'name'
        using errcode = '22023', hint = 'To publish a null, write it in the expression: ''null''.';
    end if;
end
$$;
comment on function pgps_internal.require_rule_arguments(jsonb) is
'Raises 22023 when the table, the attributes or one of them is null';

create or replace function pgps_internal.do_create_rule(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'event_type');
    v_name text := pgps_internal.check_name(args ->> 'name', 'rule');
    v_table regclass := (args ->> 'table_name')::oid;
    v_operations text[];
    v_attributes text[] := array(select jsonb_array_elements_text(nullif(args -> 'attributes', 'null')));
    v_columns text[];
    v_wrong text;
begin
    perform pgps_internal.require_rule_arguments(args);
    select array_agg(distinct upper(o)) into v_operations
    from regexp_split_to_table(trim(both ' {}' from args ->> 'operations'), '(\s*[,|]\s*)|(\s+or\s+)|\s+', 'i') o
        where o <> '';
    select o.given into v_wrong
    from regexp_split_to_table(trim(both ' {}' from args ->> 'operations'), '(\s*[,|]\s*)|(\s+or\s+)|\s+', 'i') o(given)
        where o.given <> '' and upper(o.given) not in ('INSERT', 'UPDATE', 'DELETE') limit 1;
    if v_wrong is not null or v_operations is null then
        raise exception 'invalid operation "%"', coalesce(v_wrong, args ->> 'operations')
        using errcode = '22023', hint = 'Use INSERT, UPDATE or DELETE, or several of them: ''INSERT OR UPDATE''.';
    end if;
    perform pgps_internal.forget_rules();
    if exists (select from pgps_internal.rule r where r.name = v_name) then
        raise exception 'rule "%" exists already', v_name using errcode = '42710',
            hint = format('select pgps.drop_rule(%L)', quote_ident(v_name));
    elsif coalesce(args ->> 'moment', 'end') not in ('begin', 'end') then
        raise exception 'invalid moment "%"', args ->> 'moment' using errcode = '22023', hint = 'Use begin or end.';
    elsif args ->> 'run_as' not in ('invoker', 'owner') or args ->> 'run_as' is null then
        raise exception 'invalid run_as "%"', args ->> 'run_as' using errcode = '22023', hint = 'Use invoker or owner.';
    elsif not exists (select from pg_class c where c.oid = v_table) then
        raise exception 'table "%" does not exist', coalesce(v_table::text, 'null')
        using errcode = '42P01', hint = 'Give the table as in ''public.orders''.';
    elsif not pg_has_role(caller, (select c.relowner from pg_class c where c.oid = v_table), 'usage') then
        raise exception 'role "%" does not own table %', caller, v_table
        using errcode = '42501', hint = 'Only the owner of a table can make a rule on it.';
    elsif not has_table_privilege(caller, v_type.endpoint, 'insert') then
        raise exception 'role "%" may not publish event type "%"', caller, v_type.name
        using errcode = '42501', hint = format('Ask for: grant insert on %s to %I', v_type.endpoint, caller);
    end if;
    perform pgps_internal.require_rule_table(v_table, v_operations, args ->> 'moment');
    v_columns := pgps_internal.columns_for(v_type, cardinality(v_attributes), 'rule "' || v_name || '"');
    perform pgps.parse_filter(x, 'new', '{}') from unnest(v_attributes || coalesce(args ->> 'condition', 'true')) x;
    insert into pgps_internal.rule (name, owner, table_name, operations, type_id, attributes, condition, run_as,
        moment)
    values (v_name, quote_ident(caller)::regrole, v_table, v_operations, v_type.type_id, v_attributes,
        args ->> 'condition', args ->> 'run_as', coalesce(args ->> 'moment', 'end'));
    return jsonb_build_object('name', v_name, 'endpoint', v_type.endpoint::text, 'columns',
        array_to_string(v_columns, ', '),
        'table', v_table::text, 'operations', to_jsonb(v_operations), 'has_key', exists (
            select from pg_index i where i.indrelid = v_table and i.indisprimary));
end
$$;
comment on function pgps_internal.do_create_rule(name, jsonb) is
'First half of pgps.create_rule: checks the arguments and records the rule; returns what is needed to check its
expressions';

create or replace function pgps_internal.do_finish_rule(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_rule pgps_internal.rule;
begin
    select r.* into strict v_rule from pgps_internal.rule r
    where r.name = pgps_internal.fold(args ->> 'name') and pg_has_role(caller, r.owner::oid, 'usage');
    perform pgps_internal.note_columns(v_rule.rule_id);
    perform pgps_internal.build_rule(v_rule.rule_id,
        format('set standard_conforming_strings = on set datestyle from current
        set intervalstyle from current set timezone from current set search_path = %s',
            pgps_internal.clean_path(args -> 'schemas')));
    perform pgps_internal.note_names_of_rule(v_rule.rule_id), pgps_internal.build_rule_triggers(v_rule),
        pgps_internal.warn_of_foreign_parts(v_rule);
end
$$;
comment on function pgps_internal.do_finish_rule(name, jsonb) is
'Second half of pgps.create_rule: creates the trigger functions and the statement triggers';

-- Of former releases, with a search_path that nothing looked at.
drop function if exists pgps.create_rule(text, regclass, text, text, text[], text, text, text),
    pgps.create_rule(text, regclass, text, text, text[], text, text, text, text);
create or replace function pgps.create_rule(
    name text, table_name regclass, operations text, event_type text, attributes text[], condition text = null,
    run_as text = 'invoker', moment text = 'end'
) returns void
language plpgsql
set standard_conforming_strings = on
as $$
declare
    v_rule jsonb;
    v_query text;
    v_state text;
    v_message text;
    v_detail text;
    v_hint text;
begin
    v_rule := pgps._call('create_rule',
        pg_catalog.jsonb_build_object('name', create_rule.name, 'table_name', create_rule.table_name::oid::text,
        'operations', create_rule.operations, 'event_type', create_rule.event_type, 'attributes',
            create_rule.attributes,
        'condition', create_rule.condition, 'run_as', create_rule.run_as, 'moment', create_rule.moment));
    -- EXPLAIN checks the expressions with the caller's rights; PostgreSQL's own error says what is wrong with one.
    v_query := pg_catalog.format(case create_rule.moment when 'begin' then E'explain insert into %s (%s) select %s '
            'where (%6$s\n)' else E'explain insert into %s (%s) select %s from %s as new, %s as old where (%s\n)' end,
        v_rule ->> 'endpoint', v_rule ->> 'columns',
        (select pg_catalog.string_agg(pg_catalog.format(E'(%s\n)', x.expression), ', ' order by x.place)
            from pg_catalog.unnest(create_rule.attributes) with ordinality x(expression, place)),
        v_rule ->> 'table', v_rule ->> 'table', coalesce(create_rule.condition, 'true'));
    begin
        execute v_query;
    exception when syntax_error_or_access_rule_violation or data_exception or invalid_schema_name then
        get stacked diagnostics v_state = returned_sqlstate, v_message = message_text, v_detail = pg_exception_detail,
            v_hint = pg_exception_hint;
        perform pgps._refuse_text(v_state, v_message, v_detail, coalesce(nullif(v_hint, ''), case
                when create_rule.moment = 'begin' and v_state in ('42P01', '42703')
                    then 'At the beginning of a statement there is no new and no old.' end, pgps._hint_for(v_state,
            pgps._attribute_names(create_rule.table_name) || ', each of new and of old.',
            pg_catalog.format('The condition is boolean, and the values are for: %s.',
            pgps._attribute_names((v_rule ->> 'endpoint')::regclass)))),
            v_query, pg_catalog.array_append(create_rule.attributes, coalesce(create_rule.condition, 'true')),
            array(select 'value ' || n from pg_catalog.generate_series(1,
                pg_catalog.cardinality(create_rule.attributes)) n) || 'the condition'::text);
    end;
    perform pgps._call('finish_rule', pg_catalog.jsonb_build_object('name', pg_catalog.quote_ident(v_rule ->> 'name'),
        'schemas', pg_catalog.to_jsonb(pg_catalog.current_schemas(false))));
end
$$;
comment on function pgps.create_rule(text, regclass, text, text, text[], text, text, text) is
'Makes a statement that changes a table publish a set of events: ON operations TO table WHERE condition PUBLISH
event_type (attributes). operations: INSERT, UPDATE, DELETE or several with OR. attributes, condition: SQL over new and
old (null rows where they do not apply). run_as: invoker publishes with the rights of whoever changes the table, owner
with the rule owner''s. moment: end = after the statement; begin = before it, one event for each statement, with no new
and no old. On a partitioned table the rule also applies to statements that name a partition, even one made or attached
later. The table and its columns may be renamed: attributes and condition keep the names they had. Other things that
they name may not be renamed (see docs/how-to/active-rules.md), and a column that they use may not be dropped (2BP01).
Needs to own the table and INSERT on the event type. Errors: 42704, 42710, 22023, 42501, 42809 no table (a view, an
event type, a foreign table unless moment is begin), 55000 a table whose statements a rewrite rule turns into others,
and those of the expressions. A foreign table among its partitions or heirs gets a WARNING: what changes there is not
published.';

create or replace function pgps_internal.drop_rule(rule_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp set client_min_messages = warning
as $$
declare
    v_operation text;
begin
    for v_operation in select lower(o) from pgps_internal.rule r, unnest(r.operations) o
        where r.rule_id = drop_rule.rule_id loop
        execute format('drop function if exists pgps_internal.%I() cascade',
            format('rule_%s_%s', drop_rule.rule_id, v_operation));
    end loop;
    delete from pgps_internal.rule r where r.rule_id = drop_rule.rule_id;
end
$$;
comment on function pgps_internal.drop_rule(integer) is 'Drops a rule with its triggers and functions';

create or replace function pgps_internal.forget_rules() returns void
language plpgsql
set search_path = pg_catalog, pg_temp set client_min_messages = warning
as $$
begin
    perform pgps_internal.drop_rule(r.rule_id) from pgps_internal.rule r
        where not exists (select from pg_class c where c.oid = r.table_name);
end
$$;
comment on function pgps_internal.forget_rules() is
'Drops the rules whose tables were dropped: that drops the triggers, but leaves the rules and their functions';

create or replace function pgps_internal.do_drop_rule(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_rule pgps_internal.rule;
begin
    select r.* into v_rule from pgps_internal.rule r where r.name = pgps_internal.fold(args ->> 'name');
    if not found then
        raise exception 'rule "%" does not exist', pgps_internal.fold(args ->> 'name')
        using errcode = '42704', hint = 'See pgps.rules.';
    elsif not (pg_has_role(caller, v_rule.owner::oid, 'usage') or pg_has_role(caller, 'pgps_admin', 'usage')) then
        raise exception 'rule "%" belongs to role %', v_rule.name, v_rule.owner using errcode = '42501',
            hint = 'Ask its owner or an administrator.';
    end if;
    perform pgps_internal.drop_rule(v_rule.rule_id);
end
$$;
comment on function pgps_internal.do_drop_rule(name, jsonb) is 'See pgps.drop_rule';

create or replace function pgps.drop_rule(name text) returns void
language sql
begin atomic
    select pgps._call('drop_rule', jsonb_build_object('name', drop_rule.name));
end;
comment on function pgps.drop_rule(text) is
'Drops an active rule. Needs to own it, or pgps_admin. Locks its table. Errors: 42704, 42501.';

create or replace function pgps_internal.rule_of(event_type pgps_internal.event_type) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select format('rule "%s" publishes it', r.name) from pgps_internal.rule r
            where r.type_id = (rule_of.event_type).type_id limit 1);
end
$$;
comment on function pgps_internal.rule_of(pgps_internal.event_type) is
'A rule that publishes an event type, as a reason not to drop it; null when there is none';

create or replace function pgps_internal.drop_rules_of(event_type pgps_internal.event_type) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.drop_rule(r.rule_id) from pgps_internal.rule r
        where r.type_id = (drop_rules_of.event_type).type_id;
end
$$;
comment on function pgps_internal.drop_rules_of(pgps_internal.event_type) is
'Drops the rules that publish an event type';

grant execute on function
    pgps.create_rule(text, regclass, text, text, text[], text, text, text), pgps.drop_rule(text)
to public;
