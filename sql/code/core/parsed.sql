-- Where the server has no PL/Python, the client parses (decision 81). pgps.parse_filter and its sisters then look a
-- result up that was stored before, and without one raise an error that says what is to be parsed. The results decide
-- which code runs with whose rights, so only the owner of pgps stores them.
-- Locks: none.
-- Writes: parsed_text.

create or replace function pgps_internal.parsed_key(function text, arguments jsonb) returns bytea
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
begin atomic
    select sha256(convert_to(concat(parsed_key.function, E'\n', parsed_key.arguments), 'UTF8'));
end;
comment on function pgps_internal.parsed_key(text, jsonb) is 'What the result of a parser is found by';

create or replace function pgps_internal.find_parsed(function text, arguments jsonb) returns jsonb
language sql stable parallel safe
set search_path = pg_catalog, pg_temp
begin atomic
    select p.result from pgps_internal.parsed_text p
    where p.key = pgps_internal.parsed_key(find_parsed.function, find_parsed.arguments)
        and p.parser = pgps_internal.client_parser();
end;
comment on function pgps_internal.find_parsed(text, jsonb) is
'What this release''s parser in the client has made of a text; null when that is not stored';

create or replace function pgps_internal.ask_client(questions jsonb) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'this server has no PL/Python, and nobody has stored what % makes of %',
        ask_client.questions -> 0 ->> 'function', left(ask_client.questions -> 0 ->> 'arguments', 200)
    using errcode = '0A000',
        detail = jsonb_build_object('parser', pgps_internal.client_parser(), 'questions', ask_client.questions),
        hint = 'As the role that installed pgps, or a superuser: pgps sql, or pgps parse with this detail; see the '
            'how-to page about managed PostgreSQL.';
end
$$;
comment on function pgps_internal.ask_client(jsonb) is
'Raises the error that has the client parse texts: [{function, arguments}]';

create or replace function pgps_internal.parsed(function text, arguments jsonb) returns jsonb
language plpgsql stable parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_result jsonb := pgps_internal.find_parsed(parsed.function, parsed.arguments);
begin
    if v_result is null then
        perform pgps_internal.ask_client(jsonb_build_array(
            jsonb_build_object('function', parsed.function, 'arguments', parsed.arguments)));
    end if;
    return v_result;
end
$$;
comment on function pgps_internal.parsed(text, jsonb) is
'What the client''s parser has made of a text. Errors: 0A000 nothing is stored.';

create or replace function pgps_internal.filter_if_parsed(filter text, type_name text, attributes text[])
returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select case when pgps_internal.client_parser() is null or pgps_internal.find_parsed('parse_filter',
            jsonb_build_array(filter_if_parsed.filter, filter_if_parsed.type_name, filter_if_parsed.attributes))
            is not null
        then pgps.parse_filter(filter_if_parsed.filter, filter_if_parsed.type_name, filter_if_parsed.attributes)
        else '{"safe": false}' end
$$;
comment on function pgps_internal.filter_if_parsed(text, text, text[]) is
'As pgps.parse_filter, for where a filter may be left out; only safe = false when the client would have to parse it and
has not';

create or replace function pgps.store_parsed(parser text, results jsonb) returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_parser text := pgps_internal.client_parser();
    v_wrong jsonb;
    v_stored integer;
begin
    if v_parser is null then
        raise exception 'this server parses itself' using errcode = '55000',
            hint = 'Nothing is to be stored; a server without PL/Python: pgps install --parser client';
    elsif store_parsed.parser is distinct from v_parser then
        raise exception 'the parser "%" is not that of the installed release, "%"', store_parsed.parser, v_parser
        using errcode = '55000', hint = 'Use the release of pgps that is installed here, or: pgps upgrade';
    elsif jsonb_typeof(store_parsed.results) is distinct from 'array' then
        raise exception 'the results are not a JSON array' using errcode = '22023',
            hint = 'Give [{"function": …, "arguments": […], "result": {…}}].';
    end if;
    select r into v_wrong from jsonb_array_elements(store_parsed.results) r
    where (r ->> 'function' in ('parse_filter', 'parse_statement', 'parse_attributes', 'parse_callback')
        and jsonb_typeof(r -> 'arguments') = 'array' and jsonb_typeof(r -> 'result') in ('object', 'null')) is not true
    limit 1;
    if found then
        raise exception 'not the result of a parser: %', left(v_wrong::text, 200) using errcode = '22023',
            hint = 'Give [{"function": …, "arguments": […], "result": {…}}].';
    end if;
    insert into pgps_internal.parsed_text (key, function, arguments, parser, result, kept_at)
    -- Statements may hold passwords, and are not needed again.
    select distinct on (k.key) k.key, r ->> 'function',
        case when r ->> 'function' <> 'parse_statement' then r -> 'arguments' else '[]' end, v_parser, r -> 'result',
        pgps_internal.clock()
    from jsonb_array_elements(store_parsed.results) r
    cross join lateral pgps_internal.parsed_key(r ->> 'function', r -> 'arguments') k(key)
    where r ->> 'result' is not null
    order by k.key
    on conflict (key) do update
        set parser = excluded.parser, result = excluded.result, kept_at = excluded.kept_at;
    get diagnostics v_stored = row_count;
    delete from pgps_internal.parsed_text p
    using jsonb_array_elements(store_parsed.results) r
    where r ->> 'result' is null and p.key = pgps_internal.parsed_key(r ->> 'function', r -> 'arguments');
    return v_stored;
end
$$;
comment on function pgps.store_parsed(text, jsonb) is
'For servers without PL/Python: stores what the client has parsed, for pgps.parse_filter and its sisters to return. It
is believed, and decides what runs with whose rights: only the role that installed pgps, its members and superusers may.
pgps sql, pgps parse and pgps.parsing call it. parser: the digest of the modules, as the detail of the error 0A000 has
it. results: [{function, arguments, result}]; the same again replaces what is stored, and a result that is null takes it
away. Returns how many were stored.
Errors: 42501, 55000 another parser, or the server parses itself, 22023. Locks: the rows it stores.';
revoke all on function pgps.store_parsed(text, jsonb) from public;

create or replace function pgps.parser() returns text
language sql immutable security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select case when pgps_internal.client_parser() is null then 'server' else 'client' end;
end;
comment on function pgps.parser() is
'Who takes definitions apart: server, or client where the server has no PL/Python (pgps install --parser client).';
grant execute on function pgps.parser() to public;
