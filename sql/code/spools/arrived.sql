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

create or replace function pgps_internal.make_arrived(caller name, names text[], is_trusted boolean) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_role regrole := quote_ident(make_arrived.caller)::regrole;
    v_owner regrole := (select n.nspowner from pg_namespace n where n.nspname = 'pgps_internal');
    v_missing text[] := array(select m from unnest(make_arrived.names) m
        where not exists (select from pgps_internal.spool s where s.name = m and s.network_id is null));
begin
    if v_missing = '{}' then
        return;
    end if;
    perform pgps_internal.require_few(count(*) + cardinality(v_missing), 'link_spools', v_role, 'make too many spools',
        'Drop there those that nobody needs: select pgps.drop_spool(name).')
    from pgps_internal.spool s
    where s.owner = v_owner and v_role = any (s.spoolers) and not make_arrived.is_trusted;
    perform pgps_internal.make_spool_type();
    insert into pgps_internal.spool (name, owner, type_id, persistent, on_limit, spoolers)
    select m, v_owner, pgps_internal.spool_type(), true, 'refuse',
        case when make_arrived.is_trusted then '{}' else array[v_role] end
    from unnest(v_missing) m
    on conflict do nothing;
end
$$;
comment on function pgps_internal.make_arrived(name, text[], boolean) is
'Makes the spools of these names that do not exist; the role for which messages come may spool into them. is_trusted: it
is a worker''s or an administrator''s here, and needs no privilege. Errors: 54000 its role has made too many.';

create or replace function pgps_internal.require_arriving(caller name, names text[]) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_refused text := (select s.name from pgps_internal.spool s
        where s.name = any (require_arriving.names) and s.network_id is null
            and not pgps_internal.spool_allows(require_arriving.caller, s, 'spool')
        order by s.name limit 1);
begin
    if v_refused is not null then
        raise exception 'role "%" may not spool into spool "%" of broker "%"', require_arriving.caller, v_refused,
            pgps_internal.broker_name()
        using errcode = '42501', hint = format('Over there, as the owner of that spool or an administrator: select '
            'pgps.grant_spool(%L, ''spool'', %L)', quote_ident(v_refused), require_arriving.caller);
    end if;
end
$$;
comment on function pgps_internal.require_arriving(name, text[]) is
'Raises 42501 unless a role may spool into all of these spools, in which messages of another broker arrive';

create or replace function pgps_internal.spool_arrived(caller name, messages jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    -- Those are whom this broker trusts with its own spools, too: who spooled a message is what they say.
    v_is_trusted boolean := pg_has_role(caller, 'pgps_worker', 'usage') or pg_has_role(caller, 'pgps_admin', 'usage');
    v_names text[] := array(select distinct m ->> 'spool' from jsonb_array_elements(spool_arrived.messages) m);
    v_spool pgps_internal.spool;
    v_ids bigint[];
begin
    perform pgps_internal.make_arrived(caller, v_names, v_is_trusted);
    perform pgps_internal.require_arriving(caller, v_names) where not v_is_trusted;
    with made as (
        insert into pgps_internal.pgps_spool_log (spool_id, verb, entry, message, keys, keywords, expires, sender,
            spooler, spooled_at)
        select s.spool_id, 's', (m ->> 'entry')::numeric, m -> 'message', nullif(m -> 'keys', 'null'),
            pgps_internal.array_of(m -> 'keywords', 'keywords'), (m ->> 'expires')::timestamptz,
            m ->> 'sender',
            case when v_is_trusted then m ->> 'spooler' else caller::text end,
            pgps_internal.told_time(m ->> 'spooled_at')
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
into a spool that is full: whoever spooled them was told that they will arrive, and others would wait behind them. The
sender is whom the other broker names, the spooler the role of the connection. Errors: 42501, 54000.';
