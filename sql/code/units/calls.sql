-- The public functions of sessions and units of work. Those that send, receive and call SYNCPOINT set the search_path
-- once: what each call runs in this room sets none of its own, since that took a tenth of the time.
-- Locks: see the functions that they call.
-- Writes: pgps_entry.unit_calls.

create or replace function pgps_internal.enter_unit() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp set standard_conforming_strings = on
set jit = off set enable_seqscan = off set max_parallel_workers_per_gather = 0
-- To plan a query over the ledgers, with their four segments each, takes longer than to run it by its indexes; and the
-- plan must not depend on how many rows they had when it was made: queues are read in their order, up to the first row.
set enable_bitmapscan = off set enable_sort = off set enable_memoize = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_row pgps.received_message;
begin
    -- Without args: what calls mostly are, in columns of their own, which cost less than JSON.
    case new.verb
        when 'send' then
            v_row := case when new.args is null then pgps_internal.send_plain(new.caller, new.conversation,
                    new.service, new.option, new.message)
                else pgps_internal.send_message(new.caller, new.args, new.message) end;
        when 'receive' then
            v_row := case when new.args is null then pgps_internal.receive_plain(new.caller, new.conversation,
                    new.option)
                else pgps_internal.receive_message(new.caller, new.args) end;
        when 'end' then v_row := pgps_internal.end_conversation(new.caller, new.args);
        when 'syncpoint' then
            new.result := case when new.args is null then pgps_internal.sync_plain(new.caller, new.uow_id)
                else pgps_internal.sync_units(new.caller, new.args) end;
            return new;
        else
            raise exception 'unknown call "%"', new.verb using errcode = '22023',
                hint = 'Use the functions of schema pgps.';
    end case;
    -- A row is "not null" only when all of its columns are.
    if v_row.conversation is not null or v_row.code is not null then
        new.result := array[v_row];
    end if;
    return new;
end
$$;
comment on function pgps_internal.enter_unit() is
'Runs a verb about units of work for whoever inserts into pgps_entry.unit_calls';

create or replace view pgps_entry.unit_calls as
select null::text as verb, null::jsonb as args, null::bytea as message, null::name as caller,
    null::pgps.received_message[] as result, null::text as conversation, null::text as service, null::text as option,
    null::text as uow_id where false;
alter view pgps_entry.unit_calls alter column caller set default current_user;
create or replace trigger enter instead of insert on pgps_entry.unit_calls
for each row execute function pgps_internal.enter_unit();
grant insert (verb, args, message, conversation, service, option, uow_id), select (result)
on pgps_entry.unit_calls to public;
comment on view pgps_entry.unit_calls is 'The way in of the functions about units of work; see pgps._call';

create or replace function pgps.logon(token text = null) returns void
language sql
begin atomic
    select pgps._call('logon', jsonb_build_object(
        'token', logon.token));
end;
comment on function pgps.logon(text) is
'Lets this database session speak for (role, token), at once and whatever becomes of the transaction; it replaces a
logon that the session had. With a token, units of work are found again after any failure, by any later session; null:
they are this session''s alone, and cannot be persistent. After SET ROLE one must log on again. Uses the loopback
connection (setting loopback). Locks nothing. Errors: 55006 token in use by a session that lives (behind a pooler: whose
lease is not over, see pgps.logon_session), 22023 bad token, 08001 no
loopback connection, 53300 because all are in use.';

create or replace function pgps.logon_session(token text = null) returns bigint
language sql
begin atomic
    select (pgps._call('logon_session', jsonb_build_object(
        'token', logon_session.token)))::bigint;
end;
comment on function pgps.logon_session(text) is
'As pgps.logon, for programs behind a transaction pooler: the session belongs to no backend. Returns its number, which
is given to the other functions as session. It lives until pgps.logoff(session) or a restart of the server, or until
another session takes its token over. That is refused with 55006 while a transaction with a call of it runs, and for the
time of the setting session_lease after its last call. Errors: as pgps.logon.';

create or replace function pgps.logon_session(token text, take_over boolean) returns bigint
language sql
begin atomic
    select (pgps._call('logon_session', jsonb_build_object(
        'token', logon_session.token, 'take_over', logon_session.take_over)))::bigint;
end;
comment on function pgps.logon_session(text, boolean) is
'As pgps.logon_session(token). take_over true: at once, also from a session behind a pooler that was just used, for a
program that was started again and knows that the one before it is gone; what that one had open is backed out. Null, or
false: 55006, as without it. Errors: as pgps.logon; 55006 also when a session of a backend has the token and lives.';

create or replace function pgps.logoff() returns void
language sql
begin atomic
    select pgps._call('logoff', '{}');
end;
comment on function pgps.logoff() is
'Ends what pgps.logon began, at once and whatever becomes of the transaction: units of work that are being sent are
backed out, and those that are held as well. Errors: 55000 not logged on.';

create or replace function pgps.logoff(session bigint) returns void
language sql
begin atomic
    select pgps._call('logoff', jsonb_build_object('session', logoff.session));
end;
comment on function pgps.logoff(bigint) is
'Ends a session that pgps.logon_session began; null: that of this backend. Errors: 55000 no such session, 42501 that of
another role.';

create or replace function pgps.register_service(
    class text, server text, service text, session bigint = null
) returns void
language sql
begin atomic
    select pgps._call('register_service', jsonb_build_object(
        'class', register_service.class, 'server', register_service.server,
        'service', register_service.service, 'session', register_service.session));
end;
comment on function pgps.register_service(text, text, text, bigint) is
'Makes the session a server of a service, until it deregisters or ends; several sessions may serve one. Listen to
pgps.services.channel. Errors: 55000 not logged on, 42704 unknown service, 42501 no right to serve it.';

create or replace function pgps.deregister_service(
    class text, server text, service text, session bigint = null
) returns void
language sql
begin atomic
    select pgps._call('deregister_service', jsonb_build_object(
        'class', deregister_service.class, 'server', deregister_service.server,
        'service', deregister_service.service, 'session', deregister_service.session));
end;
comment on function pgps.deregister_service(text, text, text, bigint) is
'Ends what pgps.register_service began; conversations that are bound to the participant stay bound. Errors: 55000 not
logged on or not registered, 42704 unknown service, 42501.';

create or replace function pgps.session_channels(session bigint = null) returns setof text
language sql
begin atomic
    select jsonb_array_elements_text(
        pgps._call('session_channels', jsonb_build_object('session', session_channels.session)));
end;
comment on function pgps.session_channels(bigint) is
'The channels to LISTEN to for what this session may receive: of the services that it serves, and of conversations that
it has begun or is bound to. Errors: 55000 not logged on, 42501 the session of another role.';

create or replace function pgps.send_message(
    message bytea, conversation text = 'new', to_service text = null, option text = 'sync', store text = 'off',
    lifetime interval = null, status_lifetime integer = 0, user_status text = null, session bigint = null
)
returns setof pgps.unit_of_work
language plpgsql rows 1
as $$
#variable_conflict use_column
declare
    v_rows pgps.received_message[];
    v_row pgps.received_message;
begin
    if pg_catalog.current_setting('transaction_read_only') = 'on' then
        perform pgps._refuse_read_only();
    end if;
    if $5 = 'off' and $6 is null and $7 = 0 and $8 is null and $9 is null then
        insert into pgps_entry.unit_calls (verb, conversation, service, option, message)
        values ('send', $2, $3, $4, $1) returning result into v_rows;
    else
        insert into pgps_entry.unit_calls (verb, args, message)
        values ('send', pg_catalog.jsonb_build_object(
            'conversation', $2, 'to_service', $3, 'option', $4, 'store', $5, 'lifetime', $6,
            'status_lifetime', $7, 'user_status', $8, 'session', $9), $1)
        returning result into v_rows;
    end if;
    if v_rows is not null then
        foreach v_row in array v_rows loop
            return next (v_row.uow_id, v_row.conversation, v_row.status, v_row.user_status, v_row.class,
                v_row.server, v_row.service, v_row.committed_at, v_row.attempts, v_row.store,
                v_row.lifetime_ends, v_row.conversation_state, v_row.code)::pgps.unit_of_work;
        end loop;
    end if;
end
$$;
comment on function pgps.send_message(bytea, text, text, text, text, interval, integer, text, bigint) is
'Sends a message in a conversation, a new one with to_service => ''class/server/service'' or the one of that id.
option: sync (a part of a unit of work, which the first one begins), commit (send and commit in one), msg (no unit of
work). store: off (as the service says), broker, no. lifetime: from the first send on; null: as the service says.
status_lifetime: 0 as the service says, 1 to 254 times the lifetime, 255 none. user_status: at most 32 bytes. The unit
is there when it is committed and this transaction is. Commit locks the conversation until the transaction ends.
Errors: 42704 unknown service or conversation, 42501 no right to send, or the conversation of somebody else, 54000 a
limit, 55000 not logged on, conversation ended or of the other kind, service not registered and not deferred, no
persistent store or no token, 22023 message null or a bad argument; 25006 in a read-only transaction; 25001 in a
repeatable read or serializable one, which may only send in new conversations, with option commit or msg.';

create or replace function pgps.receive_message(
    conversation text = 'any', option text = 'any', class text = null, server text = null, service text = null,
    user_status text = null, session bigint = null
)
returns setof pgps.received_message
language plpgsql rows 1
as $$
#variable_conflict use_column
declare
    v_rows pgps.received_message[];
begin
    if pg_catalog.current_setting('transaction_read_only') = 'on' then
        perform pgps._refuse_read_only();
    end if;
    if $3 is null and $4 is null and $5 is null and $6 is null and $7 is null then
        insert into pgps_entry.unit_calls (verb, conversation, option)
        values ('receive', $1, $2) returning result into v_rows;
    else
        insert into pgps_entry.unit_calls (verb, args)
        values ('receive', pg_catalog.jsonb_build_object(
            'conversation', $1, 'option', $2, 'class', $3, 'server', $4, 'service', $5, 'user_status', $6,
            'session', $7))
        returning result into v_rows;
    end if;
    if v_rows is not null then
        return next v_rows[1];
    end if;
end
$$;
comment on function pgps.receive_message(text, text, text, text, text, text, bigint) is
'The next message: of a new conversation with a service that the session serves, of an old one (it holds a unit of it,
is bound to it as its server, or began it as its client), of any (old ones first), or of the one of that id. option:
sync (units of work only), msg (messages outside of them), any. class, server, service: of these only. No row: nothing
is there that nobody else is receiving. status: RECV_NONE, RECV_FIRST, RECV_MIDDLE, RECV_LAST, RECV_ONLY. By id, a row
with code 00740301 says that the unit of work has been received to its end, so that SYNCPOINT is due. Locks the unit
until the transaction ends; by id, waits for that. NOTIFY on the channels of pgps.session_channels tells of what comes,
is given back or is held by a session that ends: when its connection is lost, a worker says so within a second. A
transaction that has received and is rolled back tells nobody. Errors: 55000 not logged on, new without a service
registered, once when a unit has timed out of which there was more to receive (by id: any that the session holds in that
conversation), 42704 unknown service or conversation, 42501 the conversation of somebody else, 54000 user status too
long, 22023 unknown option, 25001 in a repeatable read or serializable transaction, 25006 in a read-only one.';

create or replace function pgps.syncpoint(
    option text, uow_id text = null, conversation text = null, user_status text = null, session bigint = null
)
returns setof pgps.unit_of_work
language plpgsql rows 1
as $$
#variable_conflict use_column
declare
    v_rows pgps.received_message[];
    v_row pgps.received_message;
begin
    if pg_catalog.current_setting('transaction_read_only') = 'on' then
        if pg_catalog.lower($1) not in ('last', 'query') then
            perform pgps._refuse_read_only();
        end if;
        v_rows := pgps._look_up_unit(
            (select o.secret from pgps_entry.own_sessions o where o.session_id = coalesce($5, pgps._my_session())),
            pg_catalog.jsonb_build_object('option', $1, 'uow_id', $2, 'conversation', $3, 'session', $5));
    elsif $1 = 'commit' and $3 is null and $4 is null and $5 is null then
        insert into pgps_entry.unit_calls (verb, uow_id) values ('syncpoint', $2) returning result into v_rows;
    else
        insert into pgps_entry.unit_calls (verb, args)
        values ('syncpoint', pg_catalog.jsonb_build_object(
            'option', $1, 'uow_id', $2, 'conversation', $3, 'user_status', $4, 'session', $5))
        returning result into v_rows;
    end if;
    if v_rows is not null then
        foreach v_row in array v_rows loop
            return next (v_row.uow_id, v_row.conversation, v_row.status, v_row.user_status, v_row.class,
                v_row.server, v_row.service, v_row.committed_at, v_row.attempts, v_row.store,
                v_row.lifetime_ends, v_row.conversation_state, v_row.code)::pgps.unit_of_work;
        end loop;
    end if;
end
$$;
comment on function pgps.syncpoint(text, text, text, text, bigint) is
'Ends, or asks about, a unit of work: commit (uow_id both: the one received and the one being sent, a row for each),
backout, cancel, delete, eoc and eoccancel (commit, and end the conversation), last, query, setustatus; by whom and in
which status is the table in the how-to of units of work. uow_id null: the only one that the session has open. last and
query return a row with code 00780305 when they find nothing, lock nothing, and are allowed in any transaction (25001
only where its snapshot is older than what became of the unit before a session ended, or its lifetime);
the others lock the units and their conversations until the transaction ends. Errors: 55000 not allowed in that status
(names it, and those that allow it), not logged on, several open or none, conversation ended, 42704 unknown unit of work
or conversation, 42501 somebody else''s, 54000 user status too long, 22023 unknown option, 25001 in a repeatable read or
serializable transaction, 25006 in a read-only one; at the commit of the transaction 55000 when the lifetime of a unit
that it has received and committed, or cancelled, is over.';

create or replace function pgps.cancel_unit(uow_id text) returns setof pgps.unit_of_work
language plpgsql rows 1
as $$
#variable_conflict use_column
declare
    v_rows pgps.received_message[];
begin
    insert into pgps_entry.unit_calls (verb, args)
    values ('syncpoint', pg_catalog.jsonb_build_object(
        'option', 'cancel', 'uow_id', coalesce($1, ''), 'is_for_sender', true))
    returning result into v_rows;
    return query select
    r.uow_id, r.conversation, r.status, r.user_status, r.class, r.server, r.service, r.committed_at,
    r.attempts, r.store, r.lifetime_ends, r.conversation_state, r.code
    from pg_catalog.unnest(v_rows) r;
end
$$;
comment on function pgps.cancel_unit(text) is
'Cancels a unit of work that the caller''s role has sent, as pgps.syncpoint(''cancel'', uow_id) does, without a logon:
for people who look after what a program has sent. It touches no other unit, and no session. Locks the unit and its
conversation until the transaction ends. Errors: 55000 not ACCEPTED (names the status), 42704 unknown unit of work or
null, 42501 somebody else''s, 25001.';

create or replace function pgps.end_conversation(
    conversation text, session bigint = null
)
returns setof pgps.unit_of_work
language plpgsql rows 1
as $$
#variable_conflict use_column
declare
    v_rows pgps.received_message[];
    v_row pgps.received_message;
begin
    if pg_catalog.current_setting('transaction_read_only') = 'on' then
        perform pgps._refuse_read_only();
    end if;
    insert into pgps_entry.unit_calls (verb, args)
    values ('end', pg_catalog.jsonb_build_object(
        'conversation', $1, 'session', $2))
    returning result into v_rows;
    if v_rows is not null then
        foreach v_row in array v_rows loop
            return next (v_row.uow_id, v_row.conversation, v_row.status, v_row.user_status, v_row.class,
                v_row.server, v_row.service, v_row.committed_at, v_row.attempts, v_row.store,
                v_row.lifetime_ends, v_row.conversation_state, v_row.code)::pgps.unit_of_work;
        end loop;
    end if;
end
$$;
comment on function pgps.end_conversation(text, bigint) is
'Ends a conversation (conversation_state eoc), by its client or its server: nothing is sent in it any more, what the
caller is sending is backed out, and what was committed can still be received. Locks the conversation until the
transaction ends. Errors: 55000 not logged on, 42704 unknown conversation, 42501 somebody else''s, 25001.';

grant execute on function
    pgps.session_channels(bigint),
    pgps.logon(text),
    pgps.logon_session(text),
    pgps.logon_session(text, boolean),
    pgps.logoff(),
    pgps.logoff(bigint),
    pgps.register_service(text, text, text, bigint),
    pgps.deregister_service(text, text, text, bigint),
    pgps.send_message(bytea, text, text, text, text, interval, integer, text, bigint),
    pgps.receive_message(text, text, text, text, text, text, bigint),
    pgps.syncpoint(text, text, text, text, bigint),
    pgps.cancel_unit(text),
    pgps.end_conversation(text, bigint)
to public;
