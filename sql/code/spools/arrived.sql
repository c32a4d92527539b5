-- Messages that come from another broker of a network (long_haul.sql): what they have to be, and how they are spooled.
-- Locks: none but those of publishing.
-- Writes: pgps_spool_log, spool.

create or replace function pgps_internal.check_arrived(messages jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_wrong jsonb;
begin
    -- What is not in order would fail where a batch is cut, and hold up the messages of all spools here.
    perform pgps_internal.check_message(a.item)
    from (select case jsonb_typeof(m) when 'object' then m - '{spool,spooler,spooled_at}'::text[] else m end as item
        from jsonb_array_elements(check_arrived.messages) m) a
    where not pgps_internal.is_message(a.item);
    select m into v_wrong from jsonb_array_elements(check_arrived.messages) m
    where not coalesce(m ->> 'sender' <> '' and m ->> 'spooler' <> '' and m ->> 'spooled_at' <> ''
        and octet_length(m ->> 'spool') between 1 and 40 and m ->> 'spool' !~ '[[:cntrl:]*]', false) limit 1;
    if found then
        raise exception 'this is no message of a network: %', left(v_wrong::text, 100) using errcode = '22023',
            hint = 'Pass what pgps.network_next(contact, upto) returned at the other broker.';
    end if;
end
$$;
comment on function pgps_internal.check_arrived(jsonb) is
'Raises 22023 unless these are messages as they come from another broker of a network';

create or replace function pgps_internal.spool_arrived(caller name, messages jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_missing text[];
    v_spool pgps_internal.spool;
    v_ids bigint[];
begin
    v_missing := array(select distinct m ->> 'spool' from jsonb_array_elements(spool_arrived.messages) m
        where not exists (select from pgps_internal.spool s where s.name = m ->> 'spool' and s.network_id is null));
    if v_missing <> '{}' then
        perform pgps_internal.make_spool_type();
        insert into pgps_internal.spool (name, owner, type_id, persistent, on_limit)
        select m, n.nspowner::regrole, pgps_internal.spool_type(), true, 'refuse'
        from unnest(v_missing) m, pg_namespace n where n.nspname = 'pgps_internal'
        on conflict do nothing;
    end if;
    with made as (
        insert into pgps_internal.pgps_spool_log (spool_id, verb, entry, message, keys, keywords, expires, sender,
            spooler, spooled_at)
        select s.spool_id, 's', (m ->> 'entry')::integer, m -> 'message', nullif(m -> 'keys', 'null'),
            pgps_internal.array_of(m -> 'keywords', 'keywords'), (m ->> 'expires')::timestamptz, m ->> 'sender',
            m ->> 'spooler', (m ->> 'spooled_at')::timestamptz
        from jsonb_array_elements(spool_arrived.messages) with ordinality a(m, place)
        join pgps_internal.spool s on s.name = m ->> 'spool' order by place
        returning event_id
    )
    select array_agg(m.event_id order by m.event_id) into v_ids from made m;
    select s.* into v_spool from pgps_internal.spool s where s.name = spool_arrived.messages -> 0 ->> 'spool';
    perform pgps_internal.note_asked(caller, v_spool, v_ids);
end
$$;
comment on function pgps_internal.spool_arrived(name, jsonb) is
'Spools messages that came from another network, in the order of the array; makes the spools that do not exist. Also
into a spool that is full: whoever spooled them was told that they will arrive, and others would wait behind them.';
