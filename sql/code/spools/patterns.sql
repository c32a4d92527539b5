-- Patterns: which messages of a spool are replayed or discarded. A pattern is read and checked when it is given, kept
-- as JSON with absolute times, and becomes the text of conditions of a query (find.sql).
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.check_bounds(keys jsonb) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_key record;
begin
    if jsonb_typeof(check_bounds.keys) <> 'object' then
        raise exception 'keys of a pattern are a JSON %', jsonb_typeof(check_bounds.keys) using errcode = '22023',
            hint = 'Give an object with bounds: {"SP_ID": [55, null]}.';
    elsif (select count(*) > 9 from jsonb_object_keys(check_bounds.keys)) then
        raise exception 'a pattern has % numeric keys', (select count(*) from jsonb_object_keys(check_bounds.keys))
        using errcode = '22023', hint = 'Give nine at most, as a message has.';
    end if;
    for v_key in select k.key, k.value from jsonb_each(check_bounds.keys) k loop
        if jsonb_typeof(v_key.value) <> 'array' or jsonb_array_length(v_key.value) <> 2
            or exists (select from jsonb_array_elements(v_key.value) b
                where jsonb_typeof(b) not in ('number', 'null')) then
            raise exception 'invalid bounds % for key "%"', v_key.value, v_key.key using errcode = '22023',
                hint = 'Give a lowest and a highest number, both inclusive; null is open: [55, null].';
        elsif (v_key.value ->> 0)::numeric > (v_key.value ->> 1)::numeric then
            raise exception 'the lower bound of key "%" is above the upper: %', v_key.key, v_key.value
            using errcode = '22023', hint = 'Give the lowest number first.';
        end if;
    end loop;
end
$$;
comment on function pgps_internal.check_bounds(jsonb) is
'Raises 22023 unless these are bounds of at most nine numeric keys';

create or replace function pgps_internal.period_of(at tstzrange, ago interval[]) returns tstzrange
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := pgps_internal.clock();
    v_at tstzrange := coalesce(period_of.at, '(,)');
begin
    if period_of.ago is null then
        return v_at;
    elsif cardinality(period_of.ago) <> 2 then
        raise exception 'spooled_ago has % intervals', cardinality(period_of.ago) using errcode = '22023',
            hint = 'Give two, the longer first: ''{2 hours, 10 minutes}''; null is open.';
    elsif v_now - period_of.ago[1] > v_now - period_of.ago[2] then
        raise exception 'spooled_ago begins % ago, after it ends % ago', period_of.ago[1], period_of.ago[2]
        using errcode = '22023', hint = 'Give the longer interval first: ''{2 hours, 10 minutes}''.';
    end if;
    return v_at * tstzrange(v_now - period_of.ago[1], v_now - period_of.ago[2], '[]');
exception when datetime_field_overflow then
    raise exception 'spooled_ago % is out of the range of times', period_of.ago using errcode = '22023',
        hint = 'Give shorter intervals; null is open.';
end
$$;
comment on function pgps_internal.period_of(tstzrange, interval[]) is
'What both ask for, as absolute times; null asks for nothing. Errors: 22023.';

create or replace function pgps_internal.array_of(list jsonb, what text) returns text[]
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if coalesce(jsonb_typeof(array_of.list), 'null') = 'null' then
        return null;
    elsif jsonb_typeof(array_of.list) <> 'array' or exists (select from jsonb_array_elements(array_of.list) e
            where jsonb_typeof(e) <> 'string') then
        raise exception 'invalid %: %', array_of.what, array_of.list using errcode = '22023',
            hint = 'Give an array of texts without nulls.';
    end if;
    return array(select e from jsonb_array_elements_text(array_of.list) with ordinality t(e, place) order by place);
end
$$;
comment on function pgps_internal.array_of(jsonb, text) is
'A JSON array of texts as an array, null for null; 22023 for anything else. what: for the message';

create or replace function pgps_internal.check_text(value text, type regtype, what text, example text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if check_text.value is not null then
        execute format('select $1::%s', check_text.type) using check_text.value;
    end if;
    return check_text.value;
exception when data_exception then
    raise exception 'invalid % "%": %', check_text.what, check_text.value, sqlerrm using errcode = '22023',
        hint = format('Give it like this: %s', check_text.example);
end
$$;
comment on function pgps_internal.check_text(text, regtype, text, text) is
'A text from a pattern, after a check that it is one of a type; 22023, which names the argument (what), when it is not';

create or replace function pgps_internal.read_pattern(args jsonb) returns jsonb
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_args jsonb;
    v_unknown text;
    v_period tstzrange;
    v_pattern jsonb;
begin
    if coalesce(jsonb_typeof(read_pattern.args), 'null') not in ('object', 'null') then
        raise exception 'a pattern is a JSON object, not a JSON %', jsonb_typeof(read_pattern.args)
        using errcode = '22023', hint = 'Give an object like {"keys": {"SP_ID": [55, null]}}; {} matches all.';
    end if;
    v_args := case jsonb_typeof(read_pattern.args) when 'object' then jsonb_strip_nulls(read_pattern.args - 'keys')
        || case when jsonb_typeof(read_pattern.args -> 'keys') <> 'null'
            then jsonb_build_object('keys', read_pattern.args -> 'keys') else '{}' end else '{}' end;
    select k into v_unknown from jsonb_object_keys(v_args) k
    where k <> all ('{keys,seqn,spooled_at,spooled_ago,sender,spooler,keywords}') limit 1;
    if v_unknown is not null then
        raise exception 'a pattern has no argument "%"', v_unknown using errcode = '22023',
            hint = 'Use keys, seqn, spooled_at, spooled_ago, sender, spooler, keywords.';
    end if;
    if v_args ? 'keys' then
        perform pgps_internal.check_bounds(v_args -> 'keys');
    end if;
    v_pattern := v_args - '{spooled_at,spooled_ago,seqn}'::text[];
    if v_args ? 'keywords' then
        perform pgps_internal.array_of(v_args -> 'keywords', 'keywords');
    end if;
    if v_args ? 'seqn' then
        v_pattern := v_pattern || jsonb_build_object('seqn',
            pgps_internal.check_text(v_args ->> 'seqn', 'int8range', 'seqn', '[10,20]')::int8range);
    end if;
    if v_args ?| '{spooled_at,spooled_ago}' then
        v_period := pgps_internal.period_of(pgps_internal.check_text(v_args ->> 'spooled_at', 'tstzrange',
                'spooled_at', '[2026-01-31 12:00+00,2026-02-01 12:00+00)')::tstzrange,
            pgps_internal.check_text(case jsonb_typeof(v_args -> 'spooled_ago')
                when 'array' then array(select e
                    from jsonb_array_elements_text(read_pattern.args -> 'spooled_ago') with ordinality t(e, place)
                    order by place)::text
                else v_args ->> 'spooled_ago' end, 'interval[]', 'spooled_ago', '{2 hours, 10 minutes}')::interval[]);
        -- Times as JSON have the same form whatever the session's settings are.
        v_pattern := v_pattern || jsonb_build_object('period', case when isempty(v_period) then '"empty"'::jsonb
            else jsonb_build_array(lower(v_period), upper(v_period),
                case when lower_inc(v_period) then '[' else '(' end || case when upper_inc(v_period) then ']'
                    else ')' end) end);
    end if;
    return v_pattern;
end
$$;
comment on function pgps_internal.read_pattern(jsonb) is
'A pattern as it is kept, from the arguments that were given: null asks for nothing. Errors: 22023 unknown argument,
bounds that are reversed or not numeric, texts that are no ranges or times.';

create or replace function pgps_internal.pattern_text(pattern jsonb) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_text text := '';
    v_key record;
    v_period jsonb := pattern_text.pattern -> 'period';
begin
    for v_key in select k.key, k.value from jsonb_each(coalesce(pattern_text.pattern -> 'keys', '{}')) k loop
        continue when v_key.key = pattern_text.pattern ->> 'by';
        v_text := v_text || format(' and m.keys ? %L', v_key.key)
            || pgps_internal.bounds_text(format('(m.keys ->> %L)::numeric', v_key.key), v_key.value);
    end loop;
    if pattern_text.pattern ? 'seqn' then
        v_text := v_text || format(' and m.seqn <@ %L::int8range', pattern_text.pattern ->> 'seqn');
        if lower((pattern_text.pattern ->> 'seqn')::int8range) is not null then
            v_text := v_text || format(' and m.seqn >= %s', lower((pattern_text.pattern ->> 'seqn')::int8range));
        end if;
        if upper((pattern_text.pattern ->> 'seqn')::int8range) is not null then
            v_text := v_text || format(' and m.seqn < %s', upper((pattern_text.pattern ->> 'seqn')::int8range));
        end if;
    end if;
    if jsonb_typeof(v_period) = 'string' then
        v_text := v_text || ' and false';
    elsif v_period is not null then
        v_text := v_text || format(' and m.spooled_at <@ tstzrange(%L::timestamptz, %L::timestamptz, %L)',
            v_period ->> 0, v_period ->> 1, v_period ->> 2);
    end if;
    if pattern_text.pattern ? 'sender' then
        v_text := v_text || format(' and m.sender = %L', pattern_text.pattern ->> 'sender');
    end if;
    if pattern_text.pattern ? 'spooler' then
        v_text := v_text || format(' and m.spooler = %L', pattern_text.pattern ->> 'spooler');
    end if;
    if pattern_text.pattern ? 'keywords' then
        v_text := v_text || format(' and coalesce(m.keywords, ''{}'') = %L::text[]',
            pgps_internal.array_of(pattern_text.pattern -> 'keywords', 'keywords'));
    end if;
    return v_text;
end
$$;
comment on function pgps_internal.pattern_text(jsonb) is
'A pattern that was read as text: conditions on m, a message, each beginning with " and"; not for the key by which a
pattern is looked up (see pgps_internal.planned)';
