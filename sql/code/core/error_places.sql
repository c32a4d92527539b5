-- Errors in texts that a user gives: a filter, the expressions of a rule, a policy. PostgreSQL checks them inside a
-- statement that pgps has built, and counts characters in that; the user is told the place in the text that was given.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps._attribute_names(endpoint regclass) returns text
language sql stable
begin atomic
    select string_agg(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' order by a.attnum)
    from pg_attribute a where a.attrelid = _attribute_names.endpoint and a.attnum > 0 and not a.attisdropped
        and a.attname not in ('_producer', '_producer_seq');
end;
comment on function pgps._attribute_names(regclass) is
'The attributes of an event type, or the columns of a table, with their types: for hints';

create or replace function pgps._hint_for(sqlstate text, names text, wanted text) returns text
language sql immutable
begin atomic
    select case
        when _hint_for.sqlstate in ('42703', '42702') then 'There are: ' || _hint_for.names
        when _hint_for.sqlstate in ('42P01', '3F000')
            then 'Give a table or view with its schema, as in public.portfolio, or set search_path.'
        when _hint_for.sqlstate = '42704' then 'Give the name of a type, or of what else is meant, with its schema; '
            'see \dT.'
        when _hint_for.sqlstate = '42883' then 'Functions are found in search_path, or with their schema; types may '
            'have to be cast: value::type.'
        when _hint_for.sqlstate = '42501' 
            then 'It is evaluated with your rights: ask the owner to grant what is missing.'
        when _hint_for.sqlstate in ('42804', '42846') then _hint_for.wanted
        when left(_hint_for.sqlstate, 2) = '22' then 'Write the constant as its type wants it.'
        when left(_hint_for.sqlstate, 2) in ('42', '0A') then _hint_for.wanted
    end;
end;
comment on function pgps._hint_for(text, text, text) is
'What to do about an error of PostgreSQL that has no hint of its own. names: those that may be used; wanted: what the
text is to be';

create or replace function pgps._refuse_text(
    state text, message text, detail text, hint text, query text, texts text[], labels text[]
) returns void
language plpgsql
as $$
declare
    v_place integer := pgps._error_place(_refuse_text.query);
    v_said text := pg_catalog.format('In %s.', pg_catalog.array_to_string(_refuse_text.labels, ' or '));
    v_from integer := 1;
    v_start integer;
begin
    for v_index in 1 .. pg_catalog.cardinality(_refuse_text.texts) loop
        -- The texts stand in the query one after the other, each between parentheses and before an end of line.
        v_start := pg_catalog.strpos(pg_catalog.substr(_refuse_text.query, v_from),
            pg_catalog.concat('(', _refuse_text.texts[v_index], E'\n)'));
        continue when v_start = 0;
        v_start := v_from + v_start;
        v_from := v_start + pg_catalog.length(_refuse_text.texts[v_index]);
        -- An error at the end is found behind it.
        if v_place between v_start and v_from + 1 then
            v_said := pg_catalog.format('At character %s of %s.', v_place - v_start + 1, _refuse_text.labels[v_index]);
        end if;
    end loop;
    raise exception using errcode = _refuse_text.state, message = _refuse_text.message,
        detail = pg_catalog.concat_ws(E'\n', v_said, nullif(_refuse_text.detail, '')),
        hint = coalesce(_refuse_text.hint, '');
end
$$;
comment on function pgps._refuse_text(text, text, text, text, text, text[], text[]) is
'Raises an error of PostgreSQL again, with its place in the text that the user gave. query: what was run, with each of
the texts in it as (text, end of line); labels: what they are called';

grant execute on function pgps._error_place(text), pgps._attribute_names(regclass), pgps._hint_for(text, text, text),
    pgps._refuse_text(text, text, text, text, text, text[], text[]) to public;
