-- One message that is plain goes the way of an event: a rule makes one statement of it, planned with the caller's, that
-- finds the spool, asks whether the caller may, and writes into the log and the control queue. Whatever is out of the
-- ordinary, or wrong, is not written here and gets no id: pgps.spool takes the way of sets for it (requests.sql).
-- Locks: none but those of publishing.
-- Writes: control, spool_cancelled; by name: the log of pgps_spool (generated).

create or replace function pgps._are_keywords(keywords text[]) returns boolean
language plpgsql immutable
as $$
begin
    return coalesce(pg_catalog.array_ndims(_are_keywords.keywords), 1) operator(pg_catalog.=) 1
        and pg_catalog.array_position(_are_keywords.keywords, null) is null
        and (pg_catalog.octet_length(pg_catalog.array_to_string(_are_keywords.keywords, '')) operator(pg_catalog.+)
            (4 operator(pg_catalog.*) pg_catalog.cardinality(_are_keywords.keywords))) operator(pg_catalog.<=) 1000000;
end
$$;
comment on function pgps._are_keywords(text[]) is 'True for a list of texts without nulls, of a million bytes at most';
grant execute on function pgps._are_keywords(text[]) to public;

create or replace function pgps_internal.write_spooling(event_type pgps_internal.event_type) returns pgps_internal.piece
language sql stable
set search_path = pg_catalog, pg_temp
as $write$
    -- As pgps_internal.publication, which says why what stands where. Tables are accessed with the rights of the owner
    -- of pgps, functions run with those of the caller. Nothing volatile is selected, so that PostgreSQL does not put
    -- the selection into a plan node of its own: ids are the default of the log. What is given is computed once, in
    -- a subquery that is not merged (OFFSET 0): anybody may insert into the view, and an expression that stands in a
    -- condition and in the selection has another value in each when it is volatile.
    select ('relation', 'pgps_entry.plain_spooled', format($rule$
        create or replace rule enter as on insert to pgps_entry.plain_spooled do instead
        with pgps_opened as materialized (
            select coalesce(pg_sequence_last_value('pgps_internal.event_id_seq'::regclass), 0) as lo,
                quote_ident(current_user)::regrole as publisher, current_user::text as caller, pgps._clock() as now
        ),
        pgps_recorded as (
            insert into pgps_internal.control (hi, lo, xid, type_id, publisher, woken, volatile, published_at, raiser,
                origin_id, handler, client_id)
            select
                pg_sequence_last_value('pgps_internal.event_id_seq'::regclass), o.lo + 1, pg_current_xact_id(), %1$s,
                o.publisher, case when pg_sequence_last_value('pgps_internal.wake_seq'::regclass) > 0
                    then pgps._wake('pgps_internal.wake_seq'::regclass) else false end,
                false, o.now, null::xid8, null::integer, null::text, null::bigint
            from pgps_opened o where pg_sequence_last_value('pgps_internal.event_id_seq'::regclass) > o.lo
        )
        insert into %2$s (spool_id, verb, entry, message, keys, keywords, expires, sender, spooler, spooled_at)
        select s.spool_id, 's', n.entry, n.message, n.keys, n.keywords, n.expires, o.caller, o.caller, o.now
        from pgps_opened o
        cross join lateral (select new.name as name, new.entry as entry, new.message as message, new.keys as keys,
            new.keywords as keywords, new.expires as expires offset 0) n
        join pgps_internal.spool s on s.name = n.name
        where s.is_plain and n.message is not null and n.entry >= 0
            and case when s.owner = o.publisher then true when o.publisher = any (s.spoolers) then true
                else pgps._uses_role(current_user, s.owner || s.spoolers) end
            and case when pg_column_size(n.message #> '{}') <= 8000
                    or pgps._is_shallow(n.message) and pgps._is_readable(n.message)
                then pgps._has_short_numbers(n.message) end
            -- One to nine numbers; other keys may still be in order (see pgps_internal.are_keys, also for strict).
            and (n.keys is null or pg_column_size(n.keys #> '{}') <= 2000 and pgps._has_short_numbers(n.keys)
                and jsonb_path_query_array(n.keys, 'strict $.*', '{}', true)
                @@ 'strict $.size() >= 1 && $.size() <= 9 && !exists($[*] ? (@.type() <> "number"))')
            and case when n.keywords is null then true else pgps._are_keywords(n.keywords) end
        returning null::text, entry, message, keys, keywords, expires, event_id$rule$,
        (write_spooling.event_type).type_id, (write_spooling.event_type).log), null, null)::pgps_internal.piece
$write$;
comment on function pgps_internal.write_spooling(pgps_internal.event_type) is
'Writes the rule of pgps_entry.plain_spooled, which spools a plain message: into the log of the type pgps_spool';

create or replace function pgps_internal.close_spooling() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Without a spool there is no log to write into: nobody gets an id.
    create or replace rule enter as on insert to pgps_entry.plain_spooled do instead
    insert into pgps_internal.spool_cancelled (id, spool_id, request) select 0, 0, 0 where false
    returning null::text, null::integer, null::jsonb, null::jsonb, null::text[], null::timestamptz, id;
end
$$;
comment on function pgps_internal.close_spooling() is
'Makes the rule of pgps_entry.plain_spooled for a broker that has no spools, and has not had any';

do $$
begin
    if to_regclass('pgps_entry.plain_spooled') is null then
        create view pgps_entry.plain_spooled as
        select null::text as name, null::integer as entry, null::jsonb as message, null::jsonb as keys,
            null::text[] as keywords, null::timestamptz as expires, null::bigint as id where false;
        perform pgps_internal.close_spooling();
        -- Not by columns, each of which would be checked with each message.
        grant insert, select on pgps_entry.plain_spooled to public;
    end if;
end
$$;
comment on view pgps_entry.plain_spooled is 'The way in of pgps.spool for one message that is plain';
