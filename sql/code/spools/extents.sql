-- Extents: how much a message may have. Where a batch is cut its keys go into an index, and its text is measured: one
-- message with which that fails would hold up the messages of all spools.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps._is_readable(message jsonb) returns boolean
language plpgsql immutable
as $$
declare
    -- Not as it is compressed.
    v_size pg_catalog.int4 := pg_catalog.pg_column_size(_is_readable.message operator(pg_catalog.#>) '{}');
begin
    -- A number like 1e131071 takes 16 bytes, and 131 kB as text: what is small is readable whatever it contains.
    return v_size operator(pg_catalog.<=) 16000 or v_size operator(pg_catalog.<=) 200000000
        and pg_catalog.octet_length(_is_readable.message::pg_catalog.text) operator(pg_catalog.<=) 200000000;
exception when program_limit_exceeded or out_of_memory then
    return false;
end
$$;
comment on function pgps._is_readable(jsonb) is
'True for a message that is not larger, nor longer as text, than 200 MB: a longer one could neither be stored where a
batch is cut, nor handed out';

create or replace function pgps._is_shallow(message jsonb) returns boolean
language sql immutable
begin atomic
    -- A level takes eight bytes at least, so most messages are not looked into. A path goes no deeper than it says.
    select pg_column_size(_is_shallow.message #> '{}') <= 8000
        or not _is_shallow.message @? 'strict $.**{1001}';
end;
comment on function pgps._is_shallow(jsonb) is
'True for JSON that is nested at most 1000 deep: PostgreSQL''s stack, which every level takes some of, is enough for it
wherever it is read, and put into other JSON';

create or replace function pgps._has_short_numbers(message jsonb) returns boolean
language sql immutable
begin atomic
    -- Each float8 has less, and strings at most six bytes for one: only numbers of hundreds of digits have more.
    select octet_length(_has_short_numbers.message::text)
        <= 10000 + 32::bigint * pg_column_size(_has_short_numbers.message #> '{}');
end;
comment on function pgps._has_short_numbers(jsonb) is
'True for JSON that has at most 10000 bytes as text, and 32 for each in which it is stored: 1e131071 takes 16, and
131 kB as text. So what a batch of messages costs is bounded by what was spooled.
To be asked of what pgps._is_readable';

create or replace function pgps_internal.check_extent(item jsonb) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if pg_column_size(item -> 'keys') > 2000 then
        raise exception 'the keys of a message have % bytes', pg_column_size(item -> 'keys') using errcode = '54000',
            hint = 'Give shorter names and numbers, of 2000 bytes together; put the rest into the message.';
    elsif pg_column_size(item -> 'keywords') > 1000000 then
        raise exception 'the keywords of a message have % bytes', pg_column_size(item -> 'keywords')
        using errcode = '54000', hint = 'Give a million bytes at most; put the rest into the message.';
    elsif not pgps._is_shallow(item -> 'message') then
        raise exception 'a message is nested more than 1000 deep' using errcode = '54000',
            hint = 'Nest it less, or give what is deep as a text.';
    elsif not pgps._is_readable(item -> 'message') then
        raise exception 'a message has more than 200000000 bytes' using errcode = '54000',
            hint = 'Put less into it; numbers count with all their digits.';
    elsif not pgps._has_short_numbers(item -> 'keys') or not pgps._has_short_numbers(item -> 'message') then
        raise exception 'numbers in a message have too many digits: % bytes of it are % as text',
            pg_column_size(item), octet_length(item::text)
        using errcode = '54000', hint = 'Numbers of up to 300 digits can always be spooled: give others as texts.';
    end if;
end
$$;
comment on function pgps_internal.check_extent(jsonb) is
'Raises 54000 when a message has more than could be stored where a batch is cut: all spools would wait for it';

grant execute on function pgps._is_readable(jsonb), pgps._is_shallow(jsonb), pgps._has_short_numbers(jsonb) to public;
