-- One message is spooled in one statement: it finds the spool, if the caller may and no limit is to be looked at, and
-- writes into the log and the control queue. Whatever is out of the ordinary goes the way of sets (requests.sql).
-- Locks: none but those of publishing.
-- Writes: control, pgps_spool_log.

create or replace function pgps_internal.enter_one() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint;
    v_type integer;
begin
    if new.message is not null and new.entry >= 0 and new.network is null and new.sender is null
        and new.ordering in ('fbcast', 'cbcast', 'abcast', 'gbcast') and pgps_internal.are_keys(new.keys)
        and coalesce(array_ndims(new.keywords), 1) = 1 and array_position(new.keywords, null) is null then
        v_id := nextval('pgps_internal.event_id_seq');
        with found as materialized (
            select s.spool_id, s.type_id from pgps_internal.spool s
            where s.name = case when new.name ~ '^[a-z_][a-z0-9_]*$' then new.name
                    else pgps_internal.fold(new.name) end
                and s.network_id is null and (s.on_limit = 'drop_oldest'
                    and coalesce(pgps_internal.size_of(new.message, new.keys, new.keywords) <= s.max_bytes, true)
                    or s.max_messages is null and s.max_bytes is null)
                and (pg_has_role(new.caller, s.owner::oid, 'usage')
                    or pgps_internal.spool_allows(new.caller, s, 'spool'))
        ),
        made as (
            insert into pgps_internal.pgps_spool_log (event_id, spool_id, verb, entry, message, keys, keywords, expires,
                sender, spooler, spooled_at)
            select v_id, f.spool_id, 's', new.entry, new.message, nullif(new.keys, '{}'), new.keywords, new.expires,
                new.caller, new.caller, pgps_internal.clock()
            from found f
        ),
        recorded as (
            insert into pgps_internal.control (hi, lo, xid, type_id, publisher, woken, volatile, published_at)
            select v_id, v_id, pg_current_xact_id(), f.type_id, quote_ident(new.caller)::regrole, false, false,
                pgps_internal.clock()
            from found f
        )
        select f.type_id into v_type from found f;
    end if;
    if v_type is null then
        v_id := (pgps_internal.do_spool(new.caller, jsonb_build_object('name', new.name, 'messages',
            jsonb_build_array(jsonb_build_object('entry', new.entry, 'message', new.message, 'keys', new.keys,
                'keywords', new.keywords, 'expires', new.expires, 'network', new.network, 'ordering', new.ordering,
                'sender', new.sender)))))[1];
    elsif pg_sequence_last_value('pgps_internal.wake_seq') > date_part('epoch', clock_timestamp()) - 5 then
        perform pgps_internal.wake_dispatcher();
    end if;
    new.id := v_id;
    return new;
end
$$;
comment on function pgps_internal.enter_one() is 'Spools a message for whoever inserts into pgps_entry.spooled';

do $$
begin
    if to_regclass('pgps_entry.spooled') is null then
        create view pgps_entry.spooled as
        select null::text as name, null::integer as entry, null::jsonb as message, null::jsonb as keys,
            null::text[] as keywords, null::timestamptz as expires, null::text as network, null::text as ordering,
            null::name as sender, null::name as caller, null::bigint as id where false;
        alter view pgps_entry.spooled alter column caller set default current_user;
        create trigger enter instead of insert on pgps_entry.spooled
        for each row execute function pgps_internal.enter_one();
        grant insert (name, entry, message, keys, keywords, expires, network, ordering, sender), select (id)
            on pgps_entry.spooled to public;
    end if;
end
$$;
comment on view pgps_entry.spooled is 'The way in of pgps.spool; see pgps._call';
