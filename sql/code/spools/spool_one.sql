-- One message is spooled in three small statements: one finds the spool, if the caller may and no limit is to be looked
-- at, and two write into the log and the control queue. Whatever is out of the ordinary goes the way of sets
-- (requests.sql).
-- Locks: none but those of publishing.
-- Writes: control, pgps_spool_log.

create or replace function pgps_internal.has_plain_keys(keys jsonb) returns boolean
language sql immutable
as $$
    -- Without SET, so that it becomes a part of the expression that calls it. What is no object has no values.
    select has_plain_keys.keys is null or jsonb_path_query_array(has_plain_keys.keys, 'strict $.*', '{}', true)
        @@ '$.size() >= 1 && $.size() <= 9 && !exists($[*] ? (@.type() <> "number"))'
$$;
comment on function pgps_internal.has_plain_keys(jsonb) is
'True for one to nine numeric keys, or null; other keys may still be in order (see pgps_internal.are_keys)';

create or replace function pgps_internal.makes_room(
    spool pgps_internal.spool, message jsonb, keys jsonb, keywords text[]
) returns boolean
language plpgsql immutable
as $$
begin
    return (makes_room.spool).on_limit = 'drop_oldest' and coalesce(
        pgps_internal.size_of(makes_room.message, makes_room.keys, makes_room.keywords)
            <= (makes_room.spool).max_bytes, true);
end
$$;
comment on function pgps_internal.makes_room(pgps_internal.spool, jsonb, jsonb, text[]) is
'True when a spool with limits drops its oldest messages, and a message is not larger than all that it may keep';

create or replace function pgps_internal.enter_one() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := new.name;
    v_spool pgps_internal.spool;
    v_is_plain boolean := false;
    v_id bigint;
    v_now timestamptz;
begin
    -- Each transaction sets up anew every function of an expression that it reaches, whether the function is called or
    -- not. So what is seldom needed is in a statement of its own (decision 63).
    if new.message is not null and new.entry >= 0 and new.network is null and new.sender is null
        and new.ordering in ('fbcast', 'cbcast', 'abcast', 'gbcast') and pgps_internal.has_plain_keys(new.keys) then
        if v_name !~ '^[a-z_][a-z0-9_]*$' then
            v_name := pgps_internal.fold(v_name);
        end if;
        select s.* into v_spool from pgps_internal.spool s where s.name = v_name and s.network_id is null;
        v_is_plain := found;
        if v_is_plain and (v_spool.max_messages is not null or v_spool.max_bytes is not null) then
            v_is_plain := pgps_internal.makes_room(v_spool, new.message, new.keys, new.keywords);
        end if;
        if v_is_plain and new.keywords is not null then
            v_is_plain := coalesce(array_ndims(new.keywords), 1) = 1 and array_position(new.keywords, null) is null;
        end if;
        if v_is_plain and not pg_has_role(new.caller, v_spool.owner::oid, 'usage') then
            v_is_plain := pgps_internal.spool_allows(new.caller, v_spool, 'spool');
        end if;
    end if;
    if not v_is_plain then
        new.id := (pgps_internal.do_spool(new.caller, jsonb_build_object('name', new.name, 'messages',
            jsonb_build_array(to_jsonb(new) - '{name,caller,id}'::text[]))))[1];
        return new;
    end if;
    v_id := nextval('pgps_internal.event_id_seq');
    v_now := pgps_internal.clock();
    insert into pgps_internal.pgps_spool_log (event_id, spool_id, verb, entry, message, keys, keywords, expires,
        sender, spooler, spooled_at)
    values (v_id, v_spool.spool_id, 's', new.entry, new.message, new.keys, new.keywords, new.expires, new.caller,
        new.caller, v_now);
    insert into pgps_internal.control (hi, lo, xid, type_id, publisher, woken, volatile, published_at)
    values (v_id, v_id, pg_current_xact_id(), v_spool.type_id, quote_ident(new.caller)::regrole, false, false, v_now);
    if pg_sequence_last_value('pgps_internal.wake_seq') > 0 then
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
