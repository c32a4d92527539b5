-- Clients and their sessions (decision 15). A session is a number that fences the sessions before it; whoever knows the
-- number, and may act as the client's owner, may continue the session.
-- Locks: the turn of the client, until the transaction ends, for calls that change what it has received, sent or
-- registered; the client's row in connect and disconnect.
-- Writes: client, pgps_entry.client_calls, turn.

create or replace function pgps_internal.find_client(caller name, name text) returns pgps_internal.client
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client;
begin
    select c.* into v_client from pgps_internal.client c where c.name = pgps_internal.fold(find_client.name);
    if not found then
        raise exception 'client "%" does not exist', pgps_internal.fold(find_client.name)
        using errcode = '42704', hint = 'See pgps.clients; it is made by: select * from pgps.connect_client(name).';
    elsif not pg_has_role(find_client.caller, v_client.owner::oid, 'usage') then
        raise exception 'client "%" belongs to role %', v_client.name, v_client.owner
        using errcode = '42501',
            hint = format('Become a member of role %s, or connect under another name.', v_client.owner);
    end if;
    return v_client;
end
$$;
comment on function pgps_internal.find_client(name, text) is
'The client of that name; 42704 when there is none, 42501 when it belongs to a role that caller is not a member of';

create or replace function pgps_internal.find_administered_client(caller name, name text) returns pgps_internal.client
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client;
begin
    select c.* into v_client from pgps_internal.client c
    where c.name = pgps_internal.fold(find_administered_client.name)
        and pg_has_role(find_administered_client.caller, 'pgps_admin', 'usage');
    return case when found then v_client
        else pgps_internal.find_client(find_administered_client.caller, find_administered_client.name) end;
end
$$;
comment on function pgps_internal.find_administered_client(name, text) is
'The client of that name, as find_client, except that pgps_admin may have any client';

create or replace function pgps_internal.limit_of(args jsonb, what text) returns integer
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_max integer := coalesce((limit_of.args ->> 'max')::integer, 1000);
begin
    if v_max <= 0 then
        raise exception 'invalid % %', limit_of.what, v_max using errcode = '22023', hint = 'Give a positive number.';
    end if;
    return v_max;
end
$$;
comment on function pgps_internal.limit_of(jsonb, text) is
'The limit in the arguments of a call (null: 1,000); 22023 unless it is positive. what: the argument''s name, for the
message';

create or replace function pgps_internal.is_reachable(client pgps_internal.client) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select coalesce((is_reachable.client).pid is not null and exists (
        select from pg_stat_get_activity((is_reachable.client).pid) a
        where format('%s@%s', a.pid, extract(epoch from a.backend_start)) = (is_reachable.client).holder), false)
$$;
comment on function pgps_internal.is_reachable(pgps_internal.client) is
'True while the backend lives that connected the client''s newest session';

create or replace function pgps_internal.require_session(client pgps_internal.client, session bigint) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client := require_session.client;
begin
    if require_session.session is not null and require_session.session <> v_client.session then
        raise exception 'session % of client "%" has ended: session % followed', require_session.session, v_client.name,
            v_client.session
        using errcode = '08003', hint = 'Another program has taken the name over. Connect again to have it back.';
    elsif v_client.holder is null then
        raise exception 'client "%" is not connected', v_client.name
        using errcode = '08003',
            hint = format('First: select * from pgps.connect_client(%L)', quote_ident(v_client.name));
    elsif require_session.session is null and (v_client.pid <> pg_backend_pid()
            -- Not compared by the backend's start: reading it copies the state of all backends (0.1 ms).
            or current_setting('pgps.session_' || v_client.client_id,
                true) is distinct from v_client.session::text) then
        raise exception 'client "%" is not connected in this database session, but in that of process %', v_client.name,
            v_client.pid
        using errcode = '08003', hint = 'Give the session number that pgps.connect_client returned, or connect here.';
    end if;
end
$$;
comment on function pgps_internal.require_session(pgps_internal.client, bigint) is
'Raises 08003 unless the client is connected and session is its newest one; session null: unless this database session
has connected it';

create or replace function pgps_internal.enter_session(caller name, args jsonb) returns pgps_internal.client
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client := pgps_internal.find_client(caller, args ->> 'client');
begin
    perform pgps_internal.require_read_committed(), pgps_internal.hold_client(v_client.client_id);
    select c.* into v_client from pgps_internal.client c where c.client_id = v_client.client_id;
    if not found then
        raise exception 'client "%" does not exist any more', args ->> 'client' using errcode = '42704',
            hint = 'It was dropped just now. Connect again, to begin anew.';
    end if;
    perform pgps_internal.require_session(v_client, (args ->> 'session')::bigint);
    return v_client;
end
$$;
comment on function pgps_internal.enter_session(name, jsonb) is
'The client of a call that changes its state, locked until the transaction ends, after a check of the session';

create or replace function pgps_internal.look_session(caller name, args jsonb) returns pgps_internal.client
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client := pgps_internal.find_client(caller, args ->> 'client');
begin
    perform pgps_internal.require_session(v_client, (args ->> 'session')::bigint);
    return v_client;
end
$$;
comment on function pgps_internal.look_session(name, jsonb) is
'The client of a call that only reads, after a check of the session; not locked';

create or replace function pgps_internal.connect_client(caller name, args jsonb, out result jsonb, out blobs bytea[])
returns record
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.check_name(args ->> 'client', 'client');
    v_session bigint := (args ->> 'session')::bigint;
    v_token text := args ->> 'token';
    v_id bigint;
    v_before pgps_internal.client;
    v_client pgps_internal.client;
    v_is_same boolean;
begin
    perform pgps_internal.require_read_committed(), pg_stat_clear_snapshot();
    if octet_length(v_token) > 100 then
        raise exception 'the token has % bytes', octet_length(v_token)
            using errcode = '22023', hint = 'Give one of at most 100 bytes, such as a UUID.';
    end if;
    loop
        insert into pgps_internal.client (name, owner) values (v_name, quote_ident(caller)::regrole)
            on conflict do nothing;
        v_before := pgps_internal.find_client(caller, quote_ident(v_name));
        v_id := v_before.client_id;
        perform pgps_internal.hold_client(v_id);
        select c.* into v_before from pgps_internal.client c where c.client_id = v_id;
        exit when found;
        -- It was dropped meanwhile: this one is another.
        delete from pgps_internal.turn t where t.kind = 'c' and t.id = v_id;
    end loop;
    -- It may have connected, or gone on, and not been told so: then the newest session is its own.
    v_is_same := coalesce(v_token = v_before.token and v_before.holder is not null, false);
    if v_session <> v_before.session and not v_is_same then
        perform pgps_internal.require_session(v_before, v_session);
    elsif v_session is null and not coalesce((args ->> 'take_over')::boolean, false)
        and not v_is_same and v_before.holder <> pgps_internal.holder()
            and pgps_internal.is_reachable(v_before) then
        raise exception 'client "%" is connected by process % since %', v_name, v_before.pid, v_before.connected_at
            using errcode = '55006',
            hint = 'Let it disconnect, or take over: select * from pgps.connect_client(name, take_over => true).';
    end if;
    update pgps_internal.client c
    set session = c.session + 1, holder = pgps_internal.holder(), pid = pg_backend_pid(), address = inet_client_addr(),
        connected_at = pgps_internal.clock(), disconnected = false, connected_as = quote_ident(caller)::regrole,
        token = v_token,
        -- A program that resumes its session as the same role listens to the secret channel already; anybody else gets
        -- a new one.
        secret = case when v_session is not null and c.connected_as = quote_ident(caller)::regrole then c.secret
            else replace(gen_random_uuid()::text, '-', '') end
    where c.client_id = v_before.client_id returning * into v_client;
    perform set_config('pgps.client', v_client.client_id::text, false), pgps_internal.note_missed(v_before),
        set_config('pgps.session_' || v_client.client_id, v_client.session::text, false);
    result := jsonb_build_object('session', v_client.session, 'channel', 'pgps_client_' || v_client.client_id,
        'resumed', v_session is not null,
        'disconnected', v_before.disconnected, 'previous_at', v_before.connected_at)
            || pgps_internal.standing_of(v_client.client_id);
    blobs := array[pgps_internal.checkpoint_of(v_client.client_id, 'reply'),
        pgps_internal.checkpoint_of(v_client.client_id, 'event')];
end
$$;
comment on function pgps_internal.connect_client(name, jsonb) is 'See pgps.connect_client';

create or replace function pgps_internal.standing_of(client_id bigint) returns jsonb
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object(
        'last_sent_request', (select r.request_id from pgps_internal.request r where r.client_id = standing_of.client_id
            order by r.request_id desc limit 1),
        'last_received_request', k.received, 'last_committed_request', k.committed,
        'last_received_event', coalesce((select m.first_event
            from pgps_internal.last_mark(pgps_internal.among(standing_of.client_id, '{}')) m
            where not m.completed), c.first_event),
        'last_committed_event', c.first_event)
    from (select) one
    left join lateral (select k.received, k.committed from pgps_internal.reply_mark k
        where k.client_id = standing_of.client_id
        order by k.mark_id desc limit 1) k on true
    left join lateral (select m.first_event from pgps_internal.client_mark m
        where m.client_id = standing_of.client_id and m.completed
        order by m.mark_id desc limit 1) c on true
$$;
comment on function pgps_internal.standing_of(bigint) is
'Where a client stands: the request that it sent last, and the replies and events that it received and completed last;
an event that it has not completed counts as the one received last';

create or replace function pgps_internal.do_use_client(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if not args ? 'client' then
        raise exception 'no client is given' using errcode = '22023',
            hint = 'Use pgps.use_client(name), or pgps.use_client(null).';
    end if;
    perform set_config('pgps.client', case when args ->> 'client' is null then ''
        else (pgps_internal.look_session(caller, args)).client_id::text end, false);
end
$$;
comment on function pgps_internal.do_use_client(name, jsonb) is 'See pgps.use_client';

create or replace function pgps_internal.do_disconnect_client(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client := pgps_internal.enter_session(caller, args);
    v_pending text := pgps_internal.pending_event(v_client);
    v_standing jsonb := pgps_internal.standing_of(v_client.client_id);
begin
    v_pending := coalesce(v_pending, (select 'the reply to request ' || min(r.request_id) from pgps_internal.request r
        where r.client_id = v_client.client_id
            and r.request_id > coalesce((v_standing ->> 'last_committed_request')::bigint, 0)));
    if v_pending is not null then
        raise exception 'client "%" cannot disconnect: % is pending', v_client.name, v_pending using errcode = '55006',
            hint = 'Receive and commit what waits, or unregister; a program that just leaves loses nothing either.';
    end if;
    update pgps_internal.client c set holder = null, pid = null, disconnected = true
        where c.client_id = v_client.client_id;
    if current_setting('pgps.client', true) = v_client.client_id::text then
        perform set_config('pgps.client', '', false);
    end if;
end
$$;
comment on function pgps_internal.do_disconnect_client(name, jsonb) is 'See pgps.disconnect_client';

create or replace function pgps_internal.do_drop_client(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client := pgps_internal.find_administered_client(caller, args ->> 'client');
    v_types integer[];
begin
    perform pgps_internal.hold_client(v_client.client_id);
    v_types := array(select distinct t.type_id from pgps_internal.registration r join pgps_internal.registration_type t
        using (registration_id)
        where r.client_id = v_client.client_id);
    perform pgps_internal.drop_subscription(r.subscription_id) from pgps_internal.registration r
    where r.client_id = v_client.client_id and r.subscription_id is not null;
    perform pgps_internal.remember_had(v_client.client_id);
    delete from pgps_internal.client c where c.client_id = v_client.client_id;
    delete from pgps_internal.turn t where t.kind = 'c' and t.id = v_client.client_id;
    perform pgps_internal.refresh_direct(t) from unnest(v_types) t;
    perform pgps_internal.drop_requester(v_client.owner);
end
$$;
comment on function pgps_internal.do_drop_client(name, jsonb) is 'See pgps.drop_client';

create or replace function pgps.connect_client(
    client text, take_over boolean = false, resume bigint = null, token text = null
)
returns table (session bigint, channel text, resumed boolean, disconnected boolean, previous_at timestamptz,
    last_sent_request bigint,
    last_received_request bigint, last_committed_request bigint, last_received_event bigint,
    last_committed_event bigint,
    reply_checkpoint bytea, event_checkpoint bytea)
language plpgsql rows 1
as $$
#variable_conflict use_column
begin
    return query
    with made as (
        insert into pgps_entry.client_calls (verb, args)
            values ('connect_client', pg_catalog.jsonb_build_object('client', $1, 'take_over', $2, 'session', $3,
                'token', $4))
        returning result, blobs
    )
    select r.*, m.blobs[1], m.blobs[2]
    from made m cross join lateral pg_catalog.jsonb_to_record(m.result) r(session bigint, channel text, resumed boolean,
        disconnected boolean,
        previous_at timestamptz, last_sent_request bigint, last_received_request bigint, last_committed_request bigint,
        last_received_event bigint, last_committed_event bigint);
end
$$;
comment on function pgps.connect_client(text, boolean, bigint, text) is
'Begins a session of a client (Ariel, section 5), and makes the client if there is none; returns where the last session
stood: null where there was nothing; disconnected: true when it ended with pgps.disconnect_client. resume: the number of
the session that this program had and continues. take_over: also when another program is connected, whose calls raise
08003 from then on. token: something random, the same in all calls of one program (100 bytes at most): with it a session
that this program has begun or continued is continued although its number is not known, since the answer was lost.
Listen to the channel returned. Locks the client until the transaction ends. Errors: 55006 connected elsewhere, 08003
another session followed, 42501 the client of another role, 42602/42622 bad name, 22023 token too long, 25001.';

create or replace function pgps.use_client(client text, session bigint = null) returns void
language sql
begin atomic
    select pgps._call('use_client', jsonb_build_object('client', use_client.client, 'session', use_client.session));
end;
comment on function pgps.use_client(text, bigint) is
'Makes a client the raiser of what this database session raises from now on (for handler => ''raiser''); client null: no
client is the raiser. Errors: 42704, 42501, 08003.';

create or replace function pgps.disconnect_client(client text, session bigint = null) returns void
language sql
begin atomic
    select pgps._call('disconnect_client',
        jsonb_build_object('client', disconnect_client.client, 'session', disconnect_client.session));
end;
comment on function pgps.disconnect_client(text, bigint) is
'Ends the session of a client; registrations and checkpoints stay. Refused (55006) while an event or a reply is pending
or a request has no reply. Errors: 55006, 42704, 42501, 08003, 25001.';

create or replace function pgps.drop_client(client text) returns void
language sql
begin atomic
    select pgps._call('drop_client', jsonb_build_object('client', drop_client.client));
end;
comment on function pgps.drop_client(text) is
'Drops a client with its registrations, the events that they have not received, its requests, replies and checkpoints.
For pgps.spool_cancel what it had as a member of groups stays what somebody had: waits for a transaction that changes
the spool of such a group. Needs to own it, or pgps_admin. Errors: 42704, 42501.';

grant execute on function pgps.connect_client(text, boolean, bigint, text), pgps.use_client(text, bigint),
    pgps.disconnect_client(text, bigint), pgps.drop_client(text) to public;
