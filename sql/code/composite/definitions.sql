-- Composite events: what a definition says. It is taken apart by pgps.describe_composite and checked against the
-- catalogue; what is checked with the creator's rights is checked before pgps._call.
-- Locks: none.
-- Writes: nothing.

-- Stable, as what they call is: the planner puts the expression in the place of the call, which else takes 5 µs.
create or replace function pgps_internal.moment(at bigint) returns timestamptz
language sql stable
as $$ select 'epoch'::timestamptz + moment.at * interval '1 microsecond' $$;
comment on function pgps_internal.moment(bigint) is 'A time of the detector: microseconds since 1970';

create or replace function pgps_internal.microseconds(at timestamptz) returns bigint
language sql stable
as $$
    select case when microseconds.at < '146000-01-01 00:00Z' and microseconds.at > '-infinity'
        then (extract(epoch from microseconds.at) * 1000000)::bigint end
$$;
comment on function pgps_internal.microseconds(timestamptz) is
'A time as the detector takes it; null for infinity, and for what is so late that a deadline behind it would be no
time';

create or replace function pgps_internal.write_span(span interval, what text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if extract(month from write_span.span) <> 0 or extract(year from write_span.span) <> 0 then
        raise exception '% "%" has no fixed length', write_span.what, write_span.span using errcode = '22023',
            hint = 'Give days, hours, minutes and seconds: a month may have 28 days or 31.';
    elsif write_span.span < interval '0' then
        raise exception '% "%" is less than nothing', write_span.what, write_span.span using errcode = '22023',
            hint = 'Give a duration above zero, or leave it out.';
    end if;
    perform pgps_internal.check_age(write_span.span, write_span.what);
    return (extract(epoch from write_span.span) * 1000000)::bigint || ' us';
end
$$;
comment on function pgps_internal.write_span(interval, text) is
'A duration as the detector reads it; null for null. Errors: 22023 with months, below zero, or above 1000 years';

create or replace function pgps_internal.given_of(args jsonb) returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select jsonb_strip_nulls(jsonb_build_object('name', args ->> 'name', 'expression', args ->> 'expression',
        'context', lower(args ->> 'context'), 'partition_by', args ->> 'partition_by',
        'within', pgps_internal.write_span((args ->> 'within')::interval, 'within'), 'filter', args ->> 'filter',
        'attributes', args ->> 'attributes', 'time_basis', lower(args ->> 'time_basis'),
        'lateness', pgps_internal.write_span((args ->> 'lateness')::interval, 'lateness'),
        'max_open', (args ->> 'max_open')::integer, 'zone', args ->> 'zone'))
$$;
comment on function pgps_internal.given_of(jsonb) is
'The arguments of a definition as pgps.describe_composite takes them';

create or replace function pgps_internal.describe(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_given jsonb := pgps_internal.given_of(args);
    v_parsed jsonb;
    v_leaf jsonb;
    v_types jsonb := '{}';
    v_type pgps_internal.event_type;
    v_at integer;
begin
    if args ->> 'expression' is null then
        raise exception 'the expression is null' using errcode = '22023',
            hint = 'Say what is to be detected, for example ''deposit ; withdrawal''.';
    end if;
    v_parsed := pgps.describe_composite(v_given::text);
    if (v_parsed -> 'fastest' ->> 'period')::bigint < extract(epoch
            from pgps_internal.setting('tick_interval')::interval) * 1000000 then
        raise exception '% ticks more often than the setting tick_interval (%) allows',
            v_parsed -> 'fastest' ->> 'text', pgps_internal.setting('tick_interval') using errcode = '22023',
            hint = 'Make its period longer, or have an administrator change the setting: '
                'select pgps.configure(''tick_interval'', …)';
    end if;
    for v_leaf in select l from jsonb_array_elements(v_parsed -> 'leaves') l loop
        select t.* into v_type from pgps_internal.event_type t where t.name = v_leaf ->> 'type';
        if v_leaf ->> 'type' = pgps_internal.fold(coalesce(args ->> 'name', 'null')) then
            raise exception 'composite event "%" would be made of itself', v_leaf ->> 'type' using errcode = '22023',
                hint = 'Give it another name, or make it of other events.';
        elsif v_type.type_id is null then
            v_at := strpos(lower(args ->> 'expression'), lower(v_leaf ->> 'type'));
            raise exception 'event type "%" does not exist', v_leaf ->> 'type' using errcode = '42704',
                detail = format('At character %s of the expression.', v_at),
                hint = 'See pgps.event_types, or create it with pgps.create_event_type(name, attributes).';
        end if;
        -- Raises unless the caller may subscribe to it.
        perform pgps_internal.do_types_for(caller, jsonb_build_object('event_type', quote_ident(v_type.name)));
        v_types := v_types || jsonb_build_object(v_type.name,
            (select jsonb_object_agg(a.name, a.type) from pgps_internal.attributes_of(v_type.endpoint) a));
        if v_leaf ->> 'source' <> '' and not coalesce(args -> 'sources' ? (v_leaf ->> 'source'), false)
            and not exists (select from pgps_internal.source s
                where s.name = v_leaf ->> 'source') then
            raise exception 'source "%" does not exist', v_leaf ->> 'source' using errcode = '42704',
                hint = format('See pgps.sources, or create it: select pgps.create_source(%L, broker)',
                    quote_ident(v_leaf ->> 'source'));
        end if;
    end loop;
    if v_given ->> 'time_basis' = 'event' then
        perform pgps_internal.require_time_attribute(v_parsed);
    end if;
    return pgps.describe_composite((v_given || jsonb_build_object('types', v_types))::text) || jsonb_build_object(
        'types', v_types, 'given', v_given);
end
$$;
comment on function pgps_internal.describe(name, jsonb) is
'Takes a definition apart and checks it against the catalogue; caller must be able to subscribe to each leaf. Errors:
those of pgps.describe_composite, 42704, 42501, 55000 not advertised, 22023 no time attribute';

create or replace function pgps_internal.require_time_attribute(parsed jsonb) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_missing text;
begin
    select l ->> 'type' into v_missing from jsonb_array_elements(require_time_attribute.parsed -> 'leaves') l
    where not exists (select from pgps_internal.time_attribute a join pgps_internal.event_type t using (type_id)
        where t.name = l ->> 'type') limit 1;
    if found then
        raise exception 'event type "%" has no time attribute', v_missing using errcode = '22023',
            hint = format('Say which it is: select pgps.alter_event_type(%L, time_attribute => ''at'')',
                quote_ident(v_missing));
    end if;
end
$$;
comment on function pgps_internal.require_time_attribute(jsonb) is
'Raises 22023 unless every leaf has an attribute by which its events can be taken in order';

create or replace function pgps_internal.require_no_event_time(event_type pgps_internal.event_type) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_composite text;
begin
    select t.name into v_composite from pgps_internal.composite_leaf l
    join pgps_internal.composite c using (composite_id) join pgps_internal.event_type t on t.type_id = c.type_id
    where l.type_id = (require_no_event_time.event_type).type_id and c.time_basis = 'event' limit 1;
    if found then
        raise exception 'event type "%" needs its time attribute: composite event "%" takes it in order of that',
            (require_no_event_time.event_type).name, v_composite
        using errcode = '2BP01', hint = format('First: select pgps.drop_event_type(%L)', quote_ident(v_composite));
    end if;
end
$$;
comment on function pgps_internal.require_no_event_time(pgps_internal.event_type) is
'Raises 2BP01 while a composite event of the time basis event is made of a type';

create or replace function pgps_internal.do_describe(caller name, args jsonb) returns jsonb
language sql
set search_path = pg_catalog, pg_temp
as $$ select pgps_internal.describe(caller, args) $$;
comment on function pgps_internal.do_describe(name, jsonb) is 'See pgps_internal.describe';

-- ---------------------------------------------------------------------------------------------------------------------
-- What conditions and attributes become in SQL
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.write_names(parsed jsonb, names jsonb, out ones text, out sets text)
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    -- An expression is asked for a set of candidates, which come as JSON: for each name the payload of an event or, in
    -- cumulative context and for A*, P* and repeat, an array of them. Of several names that stand for sets the n-th
    -- events stand beside each other, and what is missing is null, which aggregates pass over.
    with alias as (
        select a ->> 'name' as name, a ->> 'type' as type, (a ->> 'many')::boolean as many,
            row_number() over (partition by a ->> 'many' order by a ->> 'leaf') as place
        from jsonb_array_elements(write_names.parsed -> 'aliases') a
        where write_names.names ? (a ->> 'name') and a ->> 'name' <> ''
    )
    select coalesce(string_agg(format(E'\n    cross join lateral pg_catalog.jsonb_populate_record(null::pgps_event.%I, '
            'pgps_g.pgps_x operator(pg_catalog.->) %L) as %I', a.type, a.name, a.name), '' order by a.place)
            filter (where not a.many), ''),
        string_agg(case a.place when 1 then '' else ' full join ' end
            || case when (select count(*) from alias m where m.many) = 1
            then format('pg_catalog.jsonb_populate_recordset(null::pgps_event.%I, '
                'coalesce(pgps_g.pgps_x operator(pg_catalog.->) %L, ''[]'')) as %I', a.type, a.name, a.name)
            else format('(select pgps_r.*, pg_catalog.row_number() over () as pgps_o from '
                'pg_catalog.jsonb_populate_recordset(null::pgps_event.%I, '
                'coalesce(pgps_g.pgps_x operator(pg_catalog.->) %L, ''[]'')) pgps_r) as %I%s', a.type, a.name, a.name,
                case a.place when 1 then '' else ' using (pgps_o)' end) end, '' order by a.place)
            filter (where a.many)
    from alias a
$$;
comment on function pgps_internal.write_names(jsonb, jsonb) is
'For an expression over aliases (names, an array) what stands behind FROM: ones, those that stand for one event; sets,
null when there are none';

create or replace function pgps_internal.write_value(parsed jsonb, part jsonb, cast_to text) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select case when n.sets is null then format(E'(%s\n)%s', write_value.part ->> 'text', write_value.cast_to)
        else format(E'(select (%s\n)%s from %s having true)', write_value.part ->> 'text', write_value.cast_to, n.sets)
        end
    from pgps_internal.write_names(write_value.parsed, write_value.part -> 'names') n
$$;
comment on function pgps_internal.write_value(jsonb, jsonb, text) is
'An expression over aliases as SQL; where one stands for a set, an aggregate over it';

create or replace function pgps_internal.write_test(parsed jsonb, condition jsonb) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select format(E'select pgps_g.pgps_n, %s as pgps_ok\nfrom pg_catalog.jsonb_array_elements($1::pg_catalog.jsonb) '
        'with ordinality pgps_g(pgps_x, pgps_n)%s',
        pgps_internal.write_value(write_test.parsed, write_test.condition, '::pg_catalog.bool'), n.ones)
    from pgps_internal.write_names(write_test.parsed, write_test.condition -> 'names') n
$$;
comment on function pgps_internal.write_test(jsonb, jsonb) is
'The query that asks a condition of candidates, $1: a JSON array of what its names stand for';

create or replace function pgps_internal.write_attributes(parsed jsonb) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select format(E'select pgps_g.pgps_n%s\nfrom pg_catalog.jsonb_array_elements($1::pg_catalog.jsonb) '
        'with ordinality pgps_g(pgps_x, pgps_n)%s',
        (select string_agg(format(E',\n    %s as %I', pgps_internal.write_value(write_attributes.parsed, a,
                '::' || (a ->> 'type')), a ->> 'name'), '' order by o)
            from jsonb_array_elements(write_attributes.parsed -> 'attributes') with ordinality x(a, o)), n.ones)
    from pgps_internal.write_names(write_attributes.parsed, (select coalesce(to_jsonb(array_agg(distinct m)), '[]')
        from jsonb_array_elements(write_attributes.parsed -> 'attributes') a,
            jsonb_array_elements(a -> 'names') m)) n
$$;
comment on function pgps_internal.write_attributes(jsonb) is
'The query that makes attributes, $1: a JSON array of what the names of each detection stand for';

create or replace function pgps_internal.asking_body() returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $write$
    -- Who detects goes on without what raises, but for the SQLSTATEs by which the server tells of a conflict, of
    -- resources that are short, of a cancellation or a shutdown. Code of the owner's may RAISE these, too: then they
    -- become its own error, which the innermost line of the context tells in every language of messages.
    select $body$
            #variable_conflict use_column
            declare
                pgps_state text;
                pgps_message text;
                pgps_context text;
            begin
                return query {query};
            exception when sqlstate '25000' or sqlstate '40000' or sqlstate '53000' or sqlstate '57000'
                or sqlstate '58000' or sqlstate 'XX000' then
                get stacked diagnostics pgps_state = returned_sqlstate, pgps_message = message_text,
                    pgps_context = pg_exception_context;
                if pg_catalog.right(pg_catalog.split_part(pgps_context, E'\n', 1), 6) operator(pg_catalog.=) ' RAISE'
                then
                    raise exception '%', pgps_message
                    using errcode = 'P0001',
                        detail = pg_catalog.concat('It was raised with SQLSTATE ', pgps_state, '.');
                end if;
                raise;
            end$body$
$write$;
comment on function pgps_internal.asking_body() is
'The body of the generated functions in which a composite event''s filter and attributes are evaluated, a template';

create or replace function pgps_internal.making_body() returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $write$
    -- What a user's code does is rolled back, as in pgps_internal.taken_back; here the plan of the query is kept.
    select $body$
            declare
                v_events pgps_event.{name}[];
                v_prepared text := pgps_internal.prepared();
                v_done boolean := false;
            begin
                begin
                    v_events := array(select row({attributes}, null, null, null, null, null, null)::pgps_event.{name}
                        from pgps_internal.composite_make_{composite_id}(pgps_given) m order by m.pgps_n);
                    v_done := true;
                    raise exception 'take back' using errcode = 'PS001';
                exception
                    when sqlstate 'PS001' then
                        if not v_done then
                            raise;
                        end if;
                    when others or assert_failure or query_canceled then
                        perform pgps_internal.forget_prepared(v_prepared);
                        raise;
                end;
                perform pgps_internal.forget_prepared(v_prepared);
                return v_events;
            end$body$
$write$;
comment on function pgps_internal.making_body() is
'The body of the generated functions that return events of a composite type with their attributes and nothing else, a
template';

create or replace function pgps_internal.pieces_of_composite(composite pgps_internal.composite)
returns setof pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
declare
    v_names jsonb := jsonb_build_object('composite_id', (pieces_of_composite.composite).composite_id, 'settings',
        pgps_internal.environment_clause((pieces_of_composite.composite).environment));
    v_parsed jsonb := (pieces_of_composite.composite).parsed;
    v_filter text := pgps_internal.environment_clause(coalesce((pieces_of_composite.composite).filter_environment,
        (pieces_of_composite.composite).environment));
    v_condition jsonb;
    v_place bigint;
begin
    for v_condition, v_place in select c, o from jsonb_array_elements(v_parsed -> 'conditions')
        with ordinality x(c, o) loop
        return next pgps_internal.write_function('pgps_internal.composite_test_{composite_id}_{place}',
            $head$(pgps_given text) returns table (pgps_n bigint, pgps_ok boolean)
            language plpgsql stable security definer {settings}$head$, pgps_internal.asking_body(),
            v_names || jsonb_build_object('place', v_place, 'settings', v_filter,
                'query', pgps_internal.write_test(v_parsed, v_condition)), (pieces_of_composite.composite).owner);
    end loop;
    if jsonb_array_length(v_parsed -> 'attributes') > 0 then
        return next pgps_internal.write_function('pgps_internal.composite_make_{composite_id}',
            $head$(pgps_given text) returns table (pgps_n bigint{columns})
            language plpgsql stable security definer {settings}$head$, pgps_internal.asking_body(),
            v_names || jsonb_build_object('query', pgps_internal.write_attributes(v_parsed), 'columns',
                (select string_agg(format(', %I %s', a ->> 'name', a ->> 'type'), '' order by o)
                from jsonb_array_elements(v_parsed -> 'attributes') with ordinality x(a, o))),
            (pieces_of_composite.composite).owner);
        return next pgps_internal.write_function('pgps_internal.composite_made_{composite_id}',
            $head$(pgps_given text) returns pgps_event.{name}[]
            language plpgsql set search_path = pg_catalog, pg_temp$head$, pgps_internal.making_body(),
            v_names || jsonb_build_object('attributes', (
                select string_agg(format('m.%I', a ->> 'name'), ', ' order by o)
                from jsonb_array_elements(v_parsed -> 'attributes') with ordinality x(a, o)),
                'name', (select quote_ident(t.name) from pgps_internal.event_type t
                    where t.type_id = (pieces_of_composite.composite).type_id)));
    end if;
end
$write$;
comment on function pgps_internal.pieces_of_composite(pgps_internal.composite) is
'The generated functions of a composite event, which run with its owner''s rights: one for each condition of the filter,
and one that makes the attributes; and what calls that one, with the rights of pgps';
