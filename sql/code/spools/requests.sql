-- What a spool is asked for: messages, pointers, discards. Each is an event of the hidden type pgps_spool, so that it
-- happens when the caller's transaction commits, in the order of commit, and everything that one transaction asks for
-- happens together: at dispatch (number.sql).
-- Verbs: s a message; c, p a checkpoint at the end, at the front; r, k the replay and the checkpoint pointer; d a
-- discard; x a message that was cancelled; l the limits are to be applied; y a replay that waits for other requests.
-- Locks: none but those of publishing.
-- Writes: pgps_spool_log.

create or replace function pgps_internal.standing_of_spool(spool_id integer) returns pgps_internal.spool_state
language plpgsql volatile
as $$
declare
    v_state pgps_internal.spool_state;
begin
    select s.* into v_state from pgps_internal.spool_state s where s.spool_id = standing_of_spool.spool_id
        order by s.batch_id desc limit 1;
    if not found then
        v_state := row(0, standing_of_spool.spool_id, 0, 0, null, null, 0, 0, 0, '{}')::pgps_internal.spool_state;
    end if;
    return v_state;
end
$$;
comment on function pgps_internal.standing_of_spool(integer) is
'The standing of a spool after the last batch that asked for something';

create or replace function pgps_internal.spool_type() returns integer
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select t.type_id from pgps_internal.event_type t where t.name = 'pgps_spool');
end
$$;
comment on function pgps_internal.spool_type() is 'The event type of what spools are asked for; null before the first';

create or replace function pgps_internal.note_asked(caller name, spool pgps_internal.spool, ids bigint[]) returns void
language plpgsql
as $$
begin
    -- The ids of one statement ascend.
    perform pgps_internal.record(array[(note_asked.spool).type_id], array[note_asked.ids[1]],
        array[note_asked.ids[cardinality(note_asked.ids)]], quote_ident(note_asked.caller)::regrole, array[false], null,
        null, false);
end
$$;
comment on function pgps_internal.note_asked(name, pgps_internal.spool, bigint[]) is
'Publishes requests that one statement has written into the log; their ids in ascending order';

create or replace function pgps_internal.ask_spool(
    caller name, spool pgps_internal.spool, verb text, value bigint = null, pattern jsonb = null
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint;
begin
    insert into pgps_internal.pgps_spool_log (spool_id, verb, value, pattern)
    values ((ask_spool.spool).spool_id, ask_spool.verb, ask_spool.value, ask_spool.pattern)
    returning event_id into v_id;
    perform pgps_internal.note_asked(ask_spool.caller, ask_spool.spool, array[v_id]);
    return v_id;
end
$$;
comment on function pgps_internal.ask_spool(name, pgps_internal.spool, text, bigint, jsonb) is
'Asks a spool for something that is no message; returns the id of the request';

create or replace function pgps_internal.asked_of(spool_id integer) returns setof pgps_internal.spool_request
language plpgsql stable rows 10
set search_path = pg_catalog, pg_temp
as $$
declare
    v_last pgps_internal.batch := pgps_internal.last_batch();
    v_from xid8;
begin
    -- What was set aside may be of any age.
    select x into v_from from pgps_internal.set_aside s cross join lateral unnest(s.xids) x
    where s.batch_id is null order by x limit 1;
    v_from := least(v_from, pg_snapshot_xmin(v_last.previous));
    return query select l.event_id, l.verb, l.value, l.pattern from pgps_internal.pgps_spool_log l
    where l.spool_id = asked_of.spool_id and l.verb <> 's' and l.verb in ('r', 'k', 'd', 'c', 'p', 'y')
        and not exists (select from pgps_internal.spool_cancelled c where c.id = l.event_id)
        and (v_last.batch_id is null or l.xid >= v_from
            and not pgps_internal.is_past(l.xid, l.event_id, v_last));
end
$$;
comment on function pgps_internal.asked_of(integer) is
'What a spool was asked for besides messages, that is not dispatched yet, as far as the caller can see';

create or replace function pgps_internal.asked_pointer(spool_id integer) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select max(a.value) from pgps_internal.asked_of(asked_pointer.spool_id) a where a.verb = 'r');
end
$$;
comment on function pgps_internal.asked_pointer(integer) is
'The highest replay pointer that a spool was asked for and that is not dispatched yet, as far as the caller can see';

create or replace function pgps_internal.check_message(item jsonb) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_unknown text;
    v_keys jsonb := nullif(item -> 'keys', 'null');
begin
    if jsonb_typeof(item) <> 'object' then
        raise exception 'a message is a JSON object, not a JSON %', jsonb_typeof(item) using errcode = '22023',
            hint = 'Give the arguments of pgps.spool as keys: {"entry": 1, "message": …}.';
    end if;
    select k into v_unknown from jsonb_object_keys(item) k
    where k <> all ('{entry,message,keys,keywords,expires,network,ordering,sender}') limit 1;
    if v_unknown is not null then
        raise exception 'a message has no argument "%"', v_unknown using errcode = '22023',
            hint = 'Use entry, message, keys, keywords, expires, network, ordering, sender.';
    elsif not item ? 'message' then
        raise exception 'the message is missing' using errcode = '22023',
            hint = 'Give any JSON as message; ''null''::jsonb is one.';
    elsif coalesce(jsonb_typeof(item -> 'entry') = 'number'
        and (item ->> 'entry')::numeric between 0 and 2147483647
        and (item ->> 'entry')::numeric % 1 = 0, false) is not true then
        raise exception 'invalid entry %', coalesce(item ->> 'entry', 'null') using errcode = '22023',
            hint = 'Give the entry point that the message is for, a whole number from 0 on.';
    elsif jsonb_typeof(v_keys) <> 'object' then
        raise exception 'keys are a JSON %', jsonb_typeof(v_keys) using errcode = '22023',
            hint = 'Give an object with numbers: {"SP_ID": 17}.';
    elsif (select count(*) from jsonb_object_keys(v_keys)) > 9 then
        raise exception 'a message has % numeric keys', (select count(*) from jsonb_object_keys(v_keys))
        using errcode = '22023', hint = 'Give nine at most; put the rest into the message.';
    end if;
    select k.key into v_unknown from jsonb_each(v_keys) k where jsonb_typeof(k.value) <> 'number' limit 1;
    if v_unknown is not null then
        raise exception 'key "%" is not a number: %', v_unknown, v_keys -> v_unknown using errcode = '22023',
            hint = 'Keys are numeric; use keywords for texts.';
    end if;
    perform pgps_internal.array_of(item -> 'keywords', 'keywords'), pgps_internal.check_extent(item),
        pgps_internal.check_text(item ->> 'expires', 'timestamptz', 'expires', '2026-01-31 12:00+00');
    select k into v_unknown from unnest('{sender,network}'::text[]) k
    where jsonb_typeof(item -> k) not in ('string', 'null') limit 1;
    if v_unknown is not null then
        raise exception 'invalid % %', v_unknown, item -> v_unknown using errcode = '22023',
            hint = 'Give its name as a text.';
    end if;
    if coalesce(item ->> 'ordering', 'cbcast') not in ('fbcast', 'cbcast', 'abcast', 'gbcast') then
        raise exception 'invalid ordering "%"', item ->> 'ordering' using errcode = '22023',
            hint = 'Use fbcast, cbcast, abcast or gbcast.';
    end if;
end
$$;
comment on function pgps_internal.check_message(jsonb) is
'Raises 22023 unless these are the arguments of a message that can be spooled';

create or replace function pgps_internal.check_senders(caller name, senders text[]) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_sender text;
begin
    foreach v_sender in array check_senders.senders loop
        if not exists (select from pg_roles r where r.rolname = v_sender) then
            raise exception 'role "%" does not exist', v_sender using errcode = '42704',
                hint = 'Give as sender a role that you are a member of, or nothing.';
        elsif not pgps_internal.may_become(check_senders.caller, quote_ident(v_sender)::regrole::oid) then
            raise exception 'role "%" may not spool for sender "%"', check_senders.caller, v_sender
            using errcode = '42501', hint = 'Become a member of that role, with its rights, or leave the sender out.';
        end if;
    end loop;
end
$$;
comment on function pgps_internal.check_senders(name, text[]) is
'Raises 42704 or 42501 unless caller may pass messages of these senders on';

create or replace function pgps_internal.check_room(spool pgps_internal.spool, messages bigint, bytes bigint)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_messages bigint;
    v_bytes bigint;
begin
    -- What is not dispatched yet counts, as far as the caller can see it. One statement: no dispatch comes in between.
    select t.messages + w.messages, t.bytes + w.bytes into v_messages, v_bytes
    from pgps_internal.spool_standing t cross join lateral pgps_internal.waiting_in(t.spool_id) w
    where t.spool_id = (check_room.spool).spool_id;
    if v_messages + check_room.messages > (check_room.spool).max_messages then
        raise exception 'spool "%" is full: % messages of %', (check_room.spool).name, v_messages,
            (check_room.spool).max_messages
        using errcode = '54000', hint = format('Discard what was replayed (pgps.spool_discard), or: select '
            'pgps.spool_advise(%L, max_messages => …)', quote_ident((check_room.spool).name));
    elsif v_bytes + check_room.bytes > (check_room.spool).max_bytes then
        raise exception 'spool "%" is full: % bytes of %', (check_room.spool).name, v_bytes,
            (check_room.spool).max_bytes
        using errcode = '54000', hint = format('Discard what was replayed (pgps.spool_discard), or: select '
            'pgps.spool_advise(%L, max_bytes => …)', quote_ident((check_room.spool).name));
    end if;
end
$$;
comment on function pgps_internal.check_room(pgps_internal.spool, bigint, bigint) is
'Raises 54000 when so many messages and bytes more would exceed the limits of a spool';

create or replace function pgps_internal.check_room_for(spool pgps_internal.spool, items jsonb) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if (spool).on_limit = 'drop_oldest' then
        perform pgps_internal.check_sizes(spool, items);
        return;
    end if;
    perform pgps_internal.check_room(spool, count(*), sum(pgps_internal.size_of(e -> 'message',
        nullif(e -> 'keys', 'null'), pgps_internal.array_of(e -> 'keywords', 'keywords'))))
    from jsonb_array_elements(check_room_for.items) e where coalesce(e ->> 'network', 'local') = 'local';
end
$$;
comment on function pgps_internal.check_room_for(pgps_internal.spool, jsonb) is
'As check_room, for messages as they were given; where the oldest are dropped, as check_sizes';

create or replace function pgps_internal.check_sizes(spool pgps_internal.spool, items jsonb) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_bytes bigint := (select max(pgps_internal.size_of(e -> 'message', nullif(e -> 'keys', 'null'),
            pgps_internal.array_of(e -> 'keywords', 'keywords')))
        from jsonb_array_elements(check_sizes.items) e where coalesce(e ->> 'network', 'local') = 'local');
begin
    if v_bytes > (check_sizes.spool).max_bytes then
        raise exception 'a message of % bytes is too large for spool "%", which keeps %', v_bytes,
            (check_sizes.spool).name, (check_sizes.spool).max_bytes
        using errcode = '54000', hint = format('Put less into it, or: select pgps.spool_advise(%L, max_bytes => …)',
            quote_ident((check_sizes.spool).name));
    end if;
end
$$;
comment on function pgps_internal.check_sizes(pgps_internal.spool, jsonb) is
'Raises 54000 when one of the messages alone exceeds max_bytes: dropping others makes no room for it';

create or replace function pgps_internal.size_of(message jsonb, keys jsonb, keywords text[]) returns integer
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select octet_length(size_of.message::text) + coalesce(octet_length(size_of.keys::text), 0)
        + coalesce(octet_length(size_of.keywords::text), 0)
$$;
comment on function pgps_internal.size_of(jsonb, jsonb, text[]) is 'What a message counts for in the bytes of a spool';

create or replace function pgps_internal.do_spool(caller name, args jsonb) returns bigint[]
language plpgsql
as $$
declare
    v_spool pgps_internal.spool;
    v_verb text := coalesce(args ->> 'verb', 's');
    v_items jsonb := args -> 'messages';
    v_is_bad boolean;
    v_senders text[];
    v_networks text[];
    v_is_here boolean;
    v_pattern jsonb;
    v_ids bigint[];
begin
    if v_verb not in ('s', 'c', 'p') or jsonb_typeof(v_items) is distinct from 'array' then
        raise exception 'the messages are %', coalesce('a JSON ' || jsonb_typeof(v_items), 'missing')
        using errcode = '22023', hint = 'Give a JSON array of objects.';
    end if;
    -- One pass finds messages that are not in order; what is wrong with them is found out afterwards.
    select bool_or(not pgps_internal.is_message(e)),
        array_agg(distinct e ->> 'sender') filter (where e ->> 'sender' <> caller),
        array_agg(distinct e ->> 'network') filter (where e ->> 'network' <> 'local'),
        coalesce(bool_or(coalesce(e ->> 'network', 'local') = 'local'), true)
    into v_is_bad, v_senders, v_networks, v_is_here from jsonb_array_elements(v_items) e;
    if v_is_here then
        v_spool := pgps_internal.find_spool(caller, args ->> 'name', 'spool');
    end if;
    if v_verb <> 's' then
        v_spool := pgps_internal.find_spool(caller, args ->> 'name', 'replay');
        v_pattern := pgps_internal.read_pattern(args -> 'discard');
    end if;
    perform pgps_internal.check_message(e) from jsonb_array_elements(v_items) e
    where v_is_bad and not pgps_internal.is_message(e);
    perform pgps_internal.check_senders(caller, v_senders) where v_senders is not null;
    if coalesce(v_spool.max_messages, v_spool.max_bytes) is not null
        and (v_verb = 's' or v_spool.on_limit = 'drop_oldest') then
        perform pgps_internal.check_room_for(v_spool, v_items);
    end if;
    if v_networks is not null then
        v_items := pgps_internal.addressed(caller, args ->> 'name', v_items, v_networks);
        v_spool.type_id := pgps_internal.spool_type();
    end if;
    with made as (
        insert into pgps_internal.pgps_spool_log (spool_id, verb, entry, message, keys, keywords, expires, sender,
            spooler, spooled_at, pattern)
        select coalesce((e ->> 'outbox')::integer, v_spool.spool_id), v_verb, (e ->> 'entry')::numeric, e -> 'message',
            nullif(nullif(e -> 'keys', 'null'), '{}'),
            case when jsonb_typeof(e -> 'keywords') = 'array'
                then pgps_internal.array_of(e -> 'keywords', 'keywords') end,
            (e ->> 'expires')::timestamptz, coalesce(e ->> 'sender', caller), caller, pgps_internal.clock(), v_pattern
        from jsonb_array_elements(v_items) with ordinality m(e, place) order by place
        returning event_id
    )
    select array_agg(m.event_id order by m.event_id) into v_ids from made m;
    if v_ids is not null then
        perform pgps_internal.note_asked(caller, v_spool, v_ids);
    end if;
    return coalesce(v_ids, '{}');
end
$$;
comment on function pgps_internal.do_spool(name, jsonb) is
'See pgps.spool, pgps.spool_many and pgps.spool_and_discard: verb s, c or p; returns the ids of the requests';

create or replace function pgps_internal.addressed(caller name, name text, items jsonb, networks text[]) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return (with network as materialized (
            select n, pgps_internal.outbox_of(caller, addressed.name, n) as outbox
            from unnest(addressed.networks) n order by n)
        select to_jsonb(array_agg(case when n.outbox is null then e else e || jsonb_build_object('outbox', n.outbox,
                'message', jsonb_build_object('spool', pgps_internal.fold(addressed.name), 'message', e -> 'message'))
            end order by place))
        from jsonb_array_elements(addressed.items) with ordinality m(e, place)
        left join network n on n.n = e ->> 'network');
end
$$;
comment on function pgps_internal.addressed(name, text, jsonb, text[]) is
'Messages, some of them for networks: these as they wait in the spools of the networks, whose ids are their outbox.
Errors: 42704 network, 42501.';

create or replace function pgps_internal.are_keys(keys jsonb) returns boolean
language sql stable
as $$
    -- Without SET and without sub-selects, as is_message. Strict: a lax filter takes an array for what is in it.
    select case coalesce(jsonb_typeof(are_keys.keys), 'null') when 'null' then true
        when 'object' then not are_keys.keys @? 'strict $.* ? (@.type() != "number")'
            and jsonb_array_length(jsonb_path_query_array(are_keys.keys, '$.*')) <= 9
            and pg_column_size(are_keys.keys) <= 2000 and pgps._has_short_numbers(are_keys.keys)
        else false end
$$;
comment on function pgps_internal.are_keys(jsonb) is
'True for at most nine numeric keys, that an index takes, or none';

create or replace function pgps_internal.is_message(item jsonb) returns boolean
language sql stable
as $$
    -- Without SET and without sub-selects, and stable as what it calls, so that it is put into the statement that calls
    -- it for all messages.
    select coalesce(jsonb_typeof(item) = 'object' and item ? 'message'
        and item - '{entry,message,keys,keywords,expires,network,ordering,sender}'::text[] = '{}'
        and jsonb_typeof(item -> 'entry') = 'number' and (item ->> 'entry') ~ '^\d{1,9}$'
        and pgps_internal.are_keys(item -> 'keys')
        and case coalesce(jsonb_typeof(item -> 'keywords'), 'null') when 'null' then true
            when 'array' then not (item -> 'keywords') @? 'strict $[*] ? (@.type() != "string")'
            else false end
        and case when pg_column_size(item) <= 8000 then pgps._has_short_numbers(item -> 'message')
            when not pgps._is_shallow(item -> 'message') then false
            when pg_column_size(item) <= 16000
                or coalesce(pg_column_size(item -> 'keywords') <= 1000000, true)
                    and pgps._is_readable(item -> 'message')
            then pgps._has_short_numbers(item -> 'message') end
        and coalesce(jsonb_typeof(item -> 'sender'), 'null') in ('string', 'null')
        and coalesce(jsonb_typeof(item -> 'network'), 'null') in ('string', 'null')
        -- Of other times only a cast says: check_message asks.
        and coalesce(item ->> 'expires' ~ ('^[1-9]\d{3}-(0[1-9]|1[0-2])-([01][1-9]|10|2[0-8])T([01]\d|2[0-3]):[0-5]\d'
            || ':[0-5]\d(\.\d{1,6})?(Z|[+-](0\d|1[0-4])(:[0-5]\d)?)$'), true)
        and coalesce(item ->> 'ordering', 'cbcast') in ('fbcast', 'cbcast', 'abcast', 'gbcast'), false)
$$;
comment on function pgps_internal.is_message(jsonb) is
'True for arguments of a message that are in order; false: pgps_internal.check_message says why, if there is a reason';

create or replace function pgps_internal.enter_store() returns void
language plpgsql
as $$
begin
    lock table pgps_internal.spool_slot, pgps_internal.spool_state, pgps_internal.spool_mark in access share mode;
end
$$;
comment on function pgps_internal.enter_store() is
'Keeps the slots of the store (whoever truncates one locks the list of the slots), and the ledgers, from being truncated
until the transaction ends. Called before the statement that reads: one that took its snapshot first, and waited for the
lock of a slot that is being copied, would find neither the rows that were truncated nor their copies';
