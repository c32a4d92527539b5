-- What subscribe checks with the subscriber's rights, before anything is written: that the event type is there, may be
-- read and is advertised, the filter, and the callback.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.do_types_for(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_given text := args ->> 'event_type';
    v_pattern boolean := v_given ~ '\*$';
    v_type pgps_internal.event_type;
begin
    if v_pattern then
        v_given := case when v_given = '*' then '' else pgps_internal.fold(left(v_given, -1)) end || '*';
        return jsonb_build_object('pattern', true, 'event_type', v_given, 'types', (
            select coalesce(to_jsonb(array_agg(t.name order by t.name)), '[]') from pgps_internal.event_type t
            where pgps._covers(v_given, t.name) and has_table_privilege(caller, t.endpoint, 'select')
                -- What somebody is changing or dropping is joined later (late_types.sql).
                and pgps_internal.try_lock(t.endpoint, 'access share') and pgps_internal.try_lock(t.log, 'access share')
            ));
    end if;
    v_type := pgps_internal.find_type(v_given);
    if not has_table_privilege(caller, v_type.endpoint, 'select') then
        raise exception 'role "%" may not subscribe to event type "%"', caller, v_type.name
        using errcode = '42501', hint = format('Ask for: grant select on %s to %I', v_type.endpoint, caller);
    -- Roles may have been dropped: their advertisements are nobody's.
    elsif not exists (select from pgps_internal.advertisement a
            where a.type_id = v_type.type_id and a.role::text <> a.role::oid::text)
            and not exists (select from pgps_internal.offer f where v_type.name = any (f.types)) then
        raise exception 'event type "%" is not advertised by anybody', v_type.name
        using errcode = '55000',
            hint = format('A publisher must first: select pgps.advertise(%L)', quote_ident(v_type.name));
    end if;
    return jsonb_build_object('pattern', false, 'event_type', v_type.name, 'types', jsonb_build_array(v_type.name));
end
$$;
comment on function pgps_internal.do_types_for(name, jsonb) is
'The event types a subscription is about: one, or all of a prefix that the caller may see and that nobody is changing;
these are locked, access share. Errors: 42704, 42501, 55000 not advertised.';

create or replace function pgps._quoted_pattern(name text, is_pattern boolean) returns text
language sql immutable
begin atomic
    select case when is_pattern is not true or right(name, 1) <> '*' then quote_ident(name) when name = '*' then name
        else quote_ident(left(name, -1)) || '*' end;
end;
comment on function pgps._quoted_pattern(text, boolean) is
'The name of an event type, or with is_pattern a prefix with its *, as the catalogue has it, in the way in which
pgps.subscribe takes it';
grant execute on function pgps._quoted_pattern(text, boolean) to public;

create or replace function pgps._require_there(event_type text) returns void
language plpgsql
as $$
begin
    if pg_catalog.to_regclass(pg_catalog.format('pgps_event.%I', _require_there.event_type)) is null then
        raise exception 'event type "%" does not exist any more', _require_there.event_type using errcode = '42704',
            hint = 'Another session has dropped it meanwhile.';
    end if;
end
$$;
comment on function pgps._require_there(text) is
'Raises 42704 when an event type has been dropped since it was looked up; for what checks filters and callbacks';
grant execute on function pgps._require_there(text) to public;

create or replace function pgps.check_filter(event_type text, filter text) returns text[]
language plpgsql
set standard_conforming_strings = on
as $$
declare
    v_endpoint text := pg_catalog.concat('pgps_event.', pg_catalog.quote_ident(coalesce(check_filter.event_type, '')));
    v_parsed jsonb;
    v_types text[];
    v_query text;
    v_state text;
    v_message text;
    v_detail text;
    v_hint text;
begin
    if pg_catalog.to_regclass(v_endpoint) is null then
        raise exception 'event type "%" does not exist', check_filter.event_type
        using errcode = '42704', hint = 'Give its name as in pgps.event_types, as it stands there.';
    elsif not pg_catalog.has_table_privilege(v_endpoint, 'select') then
        raise exception 'role "%" may not subscribe to event type "%"', current_user, check_filter.event_type
        using errcode = '42501',
            hint = pg_catalog.format('Ask for: grant select on %s to %I', v_endpoint, current_user);
    end if;
    v_parsed := pgps.parse_filter(check_filter.filter, check_filter.event_type, array(
        select a.attname::text from pg_catalog.pg_attribute a
        where a.attrelid = v_endpoint::regclass and a.attnum > 0 and not a.attisdropped
            and a.attname not in ('_producer', '_producer_seq') order by a.attnum));
    -- PostgreSQL checks names, types and rights, and says where an error is; nothing is executed.
    v_query := pg_catalog.format(E'explain select 1 from %s where (%s\n)', v_endpoint, check_filter.filter);
    begin
        execute v_query;
    exception when syntax_error_or_access_rule_violation or data_exception or invalid_schema_name
            or feature_not_supported then
        get stacked diagnostics v_state = returned_sqlstate, v_message = message_text, v_detail = pg_exception_detail,
            v_hint = pg_exception_hint;
        perform pgps._require_there(check_filter.event_type);
        perform pgps._refuse_text(v_state, v_message, v_detail, coalesce(nullif(v_hint, ''), pgps._hint_for(v_state,
            pgps._attribute_names(v_endpoint::regclass), 'A filter is one condition: price > 100 and symbol = ''A''.')),
            v_query, array[check_filter.filter], array['the filter']);
    end;
    if pg_catalog.jsonb_array_length(v_parsed -> 'parameters') = 0 then
        return '{}';
    end if;
    begin
        execute pg_catalog.format(E'prepare pgps_probe as select 1 from %s where (%s\n)', v_endpoint,
            v_parsed ->> 'shape');
    exception when others then
        return null;
    end;
    select array(select t::text from pg_catalog.unnest(p.parameter_types) t) into v_types
        from pg_catalog.pg_prepared_statements p where p.name = 'pgps_probe';
    deallocate pgps_probe;
    return v_types;
end
$$;
comment on function pgps.check_filter(text, text) is
'Checks a filter on an event type with the caller''s rights, as pgps.subscribe does: raises PostgreSQL''s own error with
its place in the filter. Returns the types of its constants; null when they cannot be told from their context. Errors:
42601 not one expression, 42703, 42804 not boolean, 42883, 42P01, 42501.';

create or replace function pgps.check_callback(event_type text, execute text) returns jsonb
language plpgsql
set standard_conforming_strings = on
as $$
declare
    v_parsed jsonb := pgps.parse_callback(check_callback.execute);
    v_name text := v_parsed ->> 'function';
    v_type text := pg_catalog.concat('pgps_event.', pg_catalog.quote_ident(coalesce(check_callback.event_type, '')));
    v_takes text := case when v_parsed -> 'types' = '["record"]' then 'record'
        when v_parsed -> 'types' = pg_catalog.jsonb_build_array('pgps_event', check_callback.event_type) then 'event'
        when v_parsed -> 'types' = pg_catalog.jsonb_build_array('pgps_event', check_callback.event_type, '[]')
            then 'batch'
        when v_parsed -> 'types' ->> 0 = 'pgps_event' then 'another event type' end;
    v_function regprocedure;
begin
    if check_callback.execute is null then
        raise exception 'the callback is null' using errcode = '22023',
            hint = 'Give the name of a function, and of what it takes: ''f(attribute, …)''.';
    elsif check_callback.event_type is null or pg_catalog.to_regclass(v_type) is null then
        raise exception 'event type "%" does not exist', check_callback.event_type
        using errcode = '42704', hint = 'Give its name as in pgps.event_types, as it stands there.';
    end if;
    if v_parsed ->> 'arguments' is not null and (v_takes is null or v_takes = 'record' and exists (
            select from pg_catalog.pg_attribute a where a.attrelid = v_type::regclass and a.attname = 'record'))
            and (v_parsed ->> 'arguments' <> '' or pg_catalog.to_regprocedure(v_name || '()') is not null) then
        return pgps.check_call(check_callback.event_type, v_parsed);
    end if;
    select f.oid, case when v_takes is not null then f.takes end into v_function, v_takes
    from (values (1, 'event', pg_catalog.to_regprocedure(pg_catalog.format('%s(%s)', v_name, v_type))),
        (2, 'batch', pg_catalog.to_regprocedure(pg_catalog.format('%s(%s[])', v_name, v_type))),
        (3, 'record', pg_catalog.to_regprocedure(v_name || '(record)'))) f(place, takes, oid)
    where f.oid is not null and f.takes = coalesce(v_takes, f.takes) order by f.place limit 1;
    if v_function is null then
        raise exception 'function %(%) does not exist', v_name,
            coalesce(case when v_parsed ->> 'types' is not null then v_parsed ->> 'arguments' end, v_type)
            using errcode = '42883',
            hint = pg_catalog.format('The callback takes one event, %1$s(%2$s) or %1$s(record), a batch, '
                '%1$s(%2$s[]), or what you give it: ''%1$s(attribute, …)''.',
                v_name, v_type);
    elsif not pg_catalog.has_function_privilege(v_function::oid, 'execute') then
        raise exception 'permission denied for function %', v_function
        using errcode = '42501',
            hint = pg_catalog.format('Ask for: grant execute on function %s to %I', v_function, current_user);
    elsif (select p.prokind from pg_catalog.pg_proc p where p.oid = v_function::oid) <> 'f' then
        raise exception '% is not a function', v_function using errcode = '42809', hint = 'Give a function.';
    end if;
    return (select pg_catalog.jsonb_build_object('function', pg_catalog.format('%I.%I', n.nspname, p.proname), 'takes',
        v_takes)
        from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace
            where p.oid = v_function::oid);
end
$$;
comment on function pgps.check_callback(text, text) is
'Finds the callback of an internal subscription with the caller''s rights and search_path: f, f(pgps_event.<type>),
f(pgps_event.<type>[]) or f(record), which gets the event or the batch; or f(price, symbol): SQL over the attributes,
evaluated with the subscriber''s rights. f() calls f without arguments if there is such a function. Errors: 42883 no
such function, 42703 no such attribute, 42501, 42601 not a call, 42809 not a function.';

create or replace function pgps.check_call(event_type text, parsed jsonb) returns jsonb
language plpgsql
set standard_conforming_strings = on
as $$
declare
    v_endpoint text := pg_catalog.concat('pgps_event.', pg_catalog.quote_ident(coalesce(check_call.event_type, '')));
    v_query text := pg_catalog.format(E'explain (format json) select %s(%s\n) from %s',
        check_call.parsed ->> 'function', check_call.parsed ->> 'arguments', v_endpoint);
    v_plan jsonb;
    v_state text;
    v_message text;
    v_detail text;
    v_hint text;
    v_schemas name[];
begin
    if check_call.parsed ->> 'function' is null or check_call.parsed ->> 'arguments' is null then
        raise exception 'the call is not one that was taken apart: %', coalesce(check_call.parsed::text, 'null')
        using errcode = '22023', hint = 'Give what pgps.parse_callback(''f(attribute, …)'') returns.';
    elsif check_call.event_type is null or pg_catalog.to_regclass(v_endpoint) is null then
        raise exception 'event type "%" does not exist', check_call.event_type
        using errcode = '42704', hint = 'Give its name as in pgps.event_types, as it stands there.';
    elsif not pg_catalog.has_table_privilege(v_endpoint, 'select') then
        raise exception 'role "%" may not subscribe to event type "%"', current_user, check_call.event_type
        using errcode = '42501',
            hint = pg_catalog.format('Ask for: grant select on %s to %I', v_endpoint, current_user);
    end if;
    begin
        -- PostgreSQL checks names, types and rights; nothing is executed.
        execute v_query into v_plan;
    exception when syntax_error_or_access_rule_violation or data_exception or invalid_schema_name
            or feature_not_supported then
        get stacked diagnostics v_state = returned_sqlstate, v_message = message_text, v_detail = pg_exception_detail,
            v_hint = pg_exception_hint;
        perform pgps._require_there(check_call.event_type);
        perform pgps._refuse_text(v_state, v_message, v_detail,
            case when v_state in ('42883', '42703', '42725') or v_hint = '' then
                pg_catalog.format('Give %s SQL over the attributes of the event: %s.', check_call.parsed ->> 'function',
                (select pg_catalog.string_agg(pg_catalog.format('%I %s', a.attname,
                    pg_catalog.format_type(a.atttypid, a.atttypmod)), ', ' order by a.attnum)
                from pg_catalog.pg_attribute a
                where a.attrelid = v_endpoint::regclass and a.attnum > 0 and not a.attisdropped
                    and a.attname not in ('_producer', '_producer_seq')))
            else v_hint end, v_query, array[check_call.parsed ->> 'arguments'],
            array['the arguments of the callback']);
    end;
    if v_plan -> 0 -> 'Plan' ->> 'Node Type' in ('Aggregate', 'WindowAgg') then
        raise exception '% is not a function', check_call.parsed ->> 'function' using errcode = '42809',
            hint = 'Give a function, not an aggregate.';
    end if;
    -- Stored with the schema in which it is found now, unless functions of that name in several schemas could be meant.
    select pg_catalog.array_agg(distinct n.nspname) into v_schemas from pg_catalog.pg_proc p
        join pg_catalog.pg_namespace n on n.oid = p.pronamespace
    where p.proname = check_call.parsed ->> 'name' and pg_catalog.pg_function_is_visible(p.oid);
    return pg_catalog.jsonb_build_object('arguments', check_call.parsed ->> 'arguments', 'function',
        case when check_call.parsed ->> 'schema' is null and pg_catalog.cardinality(v_schemas) = 1
            then pg_catalog.format('%I.%I', v_schemas[1], check_call.parsed ->> 'name')
                else check_call.parsed ->> 'function' end);
end
$$;
comment on function pgps.check_call(text, jsonb) is
'The part of pgps.check_callback that is about f(arguments). parsed: what pgps.parse_callback returns. Errors: as
there.';

grant execute on function pgps.check_filter(text, text), pgps.check_callback(text, text),
    pgps.check_call(text, jsonb) to public;
