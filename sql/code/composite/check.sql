-- What a user wrote as predicates, filter and attributes of a composite event, checked with the user's rights before
-- anything is created: PostgreSQL says what is wrong, and the user is told where in the text that was given.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps.check_composite(parsed jsonb) returns jsonb
language plpgsql
set standard_conforming_strings = on
as $$
declare
    v_leaf jsonb;
    v_part jsonb;
    v_type text;
    v_constants jsonb := '[]';
begin
    for v_leaf in select l from pg_catalog.jsonb_array_elements(check_composite.parsed -> 'leaves') l loop
        v_constants := v_constants || pg_catalog.jsonb_build_array(case when v_leaf ->> 'predicate' <> ''
            then pg_catalog.to_jsonb(pgps.check_filter(v_leaf ->> 'type', v_leaf ->> 'predicate')) end);
    end loop;
    -- PostgreSQL checks names, types and rights, and says where an error is; nothing is executed.
    for v_part in select c from pg_catalog.jsonb_array_elements(check_composite.parsed -> 'conditions') c loop
        perform pgps._check_part(check_composite.parsed, v_part, null);
        execute 'explain ' || pgps._write_test(check_composite.parsed, v_part) using '[]'::text;
    end loop;
    for v_part in select a from pg_catalog.jsonb_array_elements(check_composite.parsed -> 'attributes') a loop
        v_type := pg_catalog.to_regtype(v_part ->> 'type')::text;
        if v_type is null then
            raise exception 'type "%" does not exist', v_part ->> 'type' using errcode = '42704',
                hint = pg_catalog.format('Give attribute %I a type of SQL, for example numeric.', v_part ->> 'name');
        end if;
        perform pgps._check_part(check_composite.parsed, v_part, v_part ->> 'type');
    end loop;
    if pg_catalog.jsonb_array_length(check_composite.parsed -> 'attributes') > 0 then
        execute 'explain ' || pgps._write_attributes(check_composite.parsed) using '[]'::text;
    end if;
    return v_constants;
end
$$;
comment on function pgps.check_composite(jsonb) is
'Checks the predicates, the filter and the attributes of a composite event with the caller''s rights, as
pgps.create_composite_event does. parsed: of pgps.describe_composite. Returns for each leaf the types of the constants
in its predicate. Errors: PostgreSQL''s own, with their position.';

create or replace function pgps._check_part(parsed jsonb, part jsonb, target text) returns void
language plpgsql
set standard_conforming_strings = on
as $$
declare
    -- Padded, so that a place in it is one in the whole argument.
    v_text text := pg_catalog.concat(pg_catalog.repeat(' ', (_check_part.part ->> 'at')::integer - 1),
        _check_part.part ->> 'given');
    v_what text := case when _check_part.target is null then 'the filter' else 'the attributes' end;
    v_query text := pgps._write_check(_check_part.parsed, _check_part.part, v_text, _check_part.target);
    v_found text;
    v_state text;
    v_message text;
    v_detail text;
    v_hint text;
begin
    begin
        execute v_query;
        return;
    exception when syntax_error_or_access_rule_violation or data_exception or invalid_schema_name
            or feature_not_supported then
        get stacked diagnostics v_state = returned_sqlstate, v_message = message_text, v_detail = pg_exception_detail,
            v_hint = pg_exception_hint;
    end;
    if v_state = '42804' and _check_part.target is not null then
        v_found := pgps._type_of(_check_part.parsed, _check_part.part, v_text);
        if v_found = '' then
            return;
        end if;
        v_message := pg_catalog.format('attribute "%s" is of type %s but its expression is of type %s',
            _check_part.part ->> 'name', _check_part.target, v_found);
        v_hint := pg_catalog.format('Cast it: %I %s = (%s)::%2$s', _check_part.part ->> 'name', _check_part.target,
            _check_part.part ->> 'given');
    end if;
    perform pgps._refuse_text(v_state, v_message, v_detail, coalesce(nullif(v_hint, ''),
        pgps._hint_for(nullif(v_state, '0A000'),
        pgps._alias_columns(_check_part.parsed), case when _check_part.target is null
            then 'A filter is one condition over the aliases: b.price > a.price and b.symbol = ''A''; an alias that '
                'stands for a set is in an aggregate.'
            else 'Write each as: name type = expression over the aliases.' end),
        'Write it as an expression over one occurrence.'), v_query, array[v_text], array[v_what]);
end
$$;
comment on function pgps._check_part(jsonb, jsonb, text) is
'Checks one condition, or one attribute of type target, with the caller''s rights; see pgps.check_composite';

create or replace function pgps._type_of(parsed jsonb, part jsonb, expression text) returns text
language plpgsql
set standard_conforming_strings = on
as $$
declare
    v_type regtype;
    v_target regtype := (_type_of.part ->> 'type')::regtype;
begin
    -- A parameter gets the type of what stands beside it.
    execute pg_catalog.concat('prepare pgps_probe as ', pgps._write_check(_type_of.parsed, _type_of.part,
        _type_of.expression, null, true));
    select p.parameter_types[1] into v_type from pg_catalog.pg_prepared_statements p where p.name = 'pgps_probe';
    deallocate pgps_probe;
    return case when (select t.typcategory from pg_catalog.pg_type t where t.oid = v_target::oid) = 'S'
        or exists (select from pg_catalog.pg_cast c where c.castsource = v_type::oid
            and c.casttarget = v_target::oid and c.castcontext in ('a', 'i')) then '' else v_type::text end;
end
$$;
comment on function pgps._type_of(jsonb, jsonb, text) is
'The type of an attribute''s expression, empty when a value of it may be assigned to the attribute';

create or replace function pgps._alias_columns(parsed jsonb) returns text
language sql stable
as $$
    select pg_catalog.string_agg(pg_catalog.concat(pg_catalog.quote_ident(a ->> 'name'), ' (',
        pgps._attribute_names(pg_catalog.concat('pgps_event.', pg_catalog.quote_ident(a ->> 'type'))::regclass), ')'),
        ', ' order by o)
    from pg_catalog.jsonb_array_elements(_alias_columns.parsed -> 'aliases') with ordinality x(a, o)
    where a ->> 'name' <> ''
$$;
comment on function pgps._alias_columns(jsonb) is 'The aliases of a composite event with what they have: for hints';

create or replace function pgps._write_check(
    parsed jsonb, part jsonb, expression text, target text, asks boolean = false
) returns text
language sql immutable security definer
set search_path = pg_catalog, pg_temp
as $$
    -- Neither sets of rows nor windows of them are allowed where a condition stands: an occurrence is one event.
    select format(E'%sselect 1 from pg_catalog.jsonb_array_elements(''[]''::pg_catalog.jsonb) '
        'with ordinality pgps_g(pgps_x, pgps_n)%s%s', case when _write_check.asks then '' else 'explain ' end, n.ones,
        case when n.sets is null then E'\nwhere ' || c.condition
        else format(E'\ncross join lateral (select 1 from %s having %s) pgps_q', n.sets, c.condition) end)
    from pgps_internal.write_names(_write_check.parsed, _write_check.part -> 'names') n
    cross join lateral (select case
        when _write_check.asks then format(E'(case when true then (%s\n) else $1 end) is null', _write_check.expression)
        when _write_check.target is null then format(E'(%s\n)', _write_check.expression)
        else format(E'(case when true then (%s\n) else null::%s end) is null', _write_check.expression,
            _write_check.target) end as condition) c
$$;
comment on function pgps._write_check(jsonb, jsonb, text, text, boolean) is
'The statement that checks a condition, or an attribute; asks: to be prepared, where $1 has the type of the attribute';

create or replace function pgps._write_test(parsed jsonb, condition jsonb) returns text
language sql immutable security definer
set search_path = pg_catalog, pg_temp
as $$ select pgps_internal.write_test(_write_test.parsed, _write_test.condition) $$;
comment on function pgps._write_test(jsonb, jsonb) is 'See pgps.check_composite';

create or replace function pgps._write_attributes(parsed jsonb) returns text
language sql immutable security definer
set search_path = pg_catalog, pg_temp
as $$ select pgps_internal.write_attributes(_write_attributes.parsed) $$;
comment on function pgps._write_attributes(jsonb) is 'See pgps.check_composite';

revoke all on function pgps.check_composite(jsonb), pgps._write_test(jsonb, jsonb), pgps._write_attributes(jsonb),
    pgps._check_part(jsonb, jsonb, text), pgps._type_of(jsonb, jsonb, text), pgps._alias_columns(jsonb),
    pgps._write_check(jsonb, jsonb, text, text, boolean) from public;
grant execute on function pgps.check_composite(jsonb), pgps._write_test(jsonb, jsonb), pgps._write_attributes(jsonb),
    pgps._check_part(jsonb, jsonb, text), pgps._type_of(jsonb, jsonb, text), pgps._alias_columns(jsonb),
    pgps._write_check(jsonb, jsonb, text, text, boolean) to public;
