-- The public functions about spools' messages, pointers, groups and replay.
-- Locks: see the functions that they call.
-- Writes: pgps_entry.plain_spooled, pgps_entry.spool_calls.

create or replace function pgps.spool(
    name text, entry integer, message jsonb, keys jsonb = null, keywords text[] = null, expires timestamptz = null,
    network text = null, ordering text = 'cbcast', sender name = null
) returns bigint
language plpgsql
as $$
#variable_conflict use_column
declare
    v_id pg_catalog.int8;
begin
    -- A plain message goes this way; whatever is out of the ordinary, or wrong, gets no id here, and the way of sets.
    if $7 is null and $9 is null and $8 operator(pg_catalog.=) any ('{fbcast,cbcast,abcast,gbcast}') then
        insert into pgps_entry.plain_spooled (name, entry, message, keys, keywords, expires)
        values ($1, $2, $3, $4, $5, $6) returning id into v_id;
        if v_id is not null then
            return v_id;
        end if;
    end if;
    if $3 is null then
        raise exception 'the message is null' using errcode = '22023',
            hint = 'Give any JSON; ''null''::jsonb is one.';
    end if;
    return (pgps._call_spool('spool', pg_catalog.jsonb_build_object('name', $1, 'messages',
        pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object('entry', $2, 'message', $3, 'keys', $4,
            'keywords', $5, 'expires', $6, 'network', $7, 'ordering', $8, 'sender', $9))))
        operator(pg_catalog.->>) 0)::pg_catalog.int8;
end
$$;
comment on function pgps.spool(text, integer, jsonb, jsonb, text[], timestamptz, text, text, name) is
'Keeps a message for a process group, and plays it through if the group is operational; returns the id of the request.
It gets its number when the transaction is dispatched, in the order of commit (pgps.spool_getseqn). entry: the entry
point it is for, from 0 on. keys: up to nine numbers, {"SP_ID": 17}, of 2000 bytes together with their names. keywords:
texts, of a million bytes together. expires: nobody gets it after that. sender: a role that the caller is a member of,
whose message is passed on; null = the caller. network: null or local = here. ordering: fbcast, cbcast, abcast or
gbcast; here the order of the numbers keeps all of them. Needs the privilege spool. Errors: 42704 spool, sender,
network, 22023 bad argument, 54000 the spool is full, or the message, its keys or its keywords are too large (a message
has 200 MB at most), 42501.';

create or replace function pgps.spool_many(name text, messages jsonb) returns bigint[]
language plpgsql
as $$
begin
    return array(select i::bigint from pg_catalog.jsonb_array_elements_text(pgps._call_spool('spool',
        pg_catalog.jsonb_build_object('name', spool_many.name, 'messages', spool_many.messages)))
        with ordinality t(i, place) order by place);
end
$$;
comment on function pgps.spool_many(text, jsonb) is
'As pgps.spool, for a set: an array of objects with its arguments as keys, {"entry": 1, "message": …}; returns the ids
of the requests in the same order. All of them or none. Errors: as pgps.spool.';

create or replace function pgps.spool_and_discard(
    name text, entry integer, message jsonb, keys jsonb = null, keywords text[] = null, expires timestamptz = null,
    discard jsonb = '{}', prepend boolean = false
) returns bigint
language plpgsql
as $$
begin
    if spool_and_discard.message is null then
        raise exception 'the message is null' using errcode = '22023',
            hint = 'Give any JSON; ''null''::jsonb is one.';
    end if;
    return (pgps._call_spool('spool', pg_catalog.jsonb_build_object('name', spool_and_discard.name,
        'verb', case when spool_and_discard.prepend then 'p' else 'c' end, 'discard', spool_and_discard.discard,
        'messages', pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object('entry', spool_and_discard.entry,
            'message', spool_and_discard.message, 'keys', spool_and_discard.keys,
            'keywords', spool_and_discard.keywords, 'expires', spool_and_discard.expires)))) ->> 0)::bigint;
end
$$;
comment on function pgps.spool_and_discard(text, integer, jsonb, jsonb, text[], timestamptz, jsonb, boolean) is
'In one step, when the transaction is dispatched: discards what lies up to the replay pointer and matches discard (the
arguments of pgps.spool_discard as keys of an object; {} = all), keeps a message, as a rule a checkpoint, and moves the
checkpoint pointer to it. The message is not played through. prepend: at the front of the spool, with the next number
below 0. Returns the id of the request. Needs the privileges spool and replay. Errors: 42704, 22023, 42501.';

create or replace function pgps.prepend_and_discard(
    name text, entry integer, message jsonb, keys jsonb = null, keywords text[] = null, expires timestamptz = null,
    discard jsonb = '{}'
) returns bigint
language sql
begin atomic
    select pgps.spool_and_discard(prepend_and_discard.name, prepend_and_discard.entry, prepend_and_discard.message,
        prepend_and_discard.keys, prepend_and_discard.keywords, prepend_and_discard.expires,
        prepend_and_discard.discard, true);
end;
comment on function pgps.prepend_and_discard(text, integer, jsonb, jsonb, text[], timestamptz, jsonb) is
'As pgps.spool_and_discard with prepend => true: the message is stored at the front of the spool';

create or replace function pgps.spool_discard(
    name text, keys jsonb = null, seqn int8range = null, spooled_at tstzrange = null,
    spooled_ago interval[] = null, sender name = null, spooler name = null, keywords text[] = null
) returns bigint
language sql
begin atomic
    select (pgps._call('spool_discard',
        jsonb_build_object('name', spool_discard.name, 'pattern', jsonb_build_object(
        'keys', spool_discard.keys, 'seqn', spool_discard.seqn, 'spooled_at', spool_discard.spooled_at,
        'spooled_ago', spool_discard.spooled_ago, 'sender', spool_discard.sender, 'spooler', spool_discard.spooler,
        'keywords', spool_discard.keywords))) #>> '{}')::bigint;
end;
comment on function pgps.spool_discard(text, jsonb, int8range, tstzrange, interval[], name, name, text[]) is
'Discards, when the transaction is dispatched, what lies up to the replay pointer and satisfies everything given, and
what has expired; returns how many lie there and match now, 0 while the replay pointer is unset. Null asks for nothing;
see pgps.spool_replay for the arguments. Needs the privilege replay. Errors: 42704, 22023, 42501.';

create or replace function pgps.spool_replay(
    name text, keys jsonb = null, seqn int8range = null, spooled_at tstzrange = null,
    spooled_ago interval[] = null, sender name = null, spooler name = null, keywords text[] = null
) returns bigint
language sql
begin atomic
    select (pgps._call('spool_replay',
        jsonb_build_object('name', spool_replay.name, 'pattern', jsonb_build_object(
        'keys', spool_replay.keys, 'seqn', spool_replay.seqn, 'spooled_at', spool_replay.spooled_at,
        'spooled_ago', spool_replay.spooled_ago, 'sender', spool_replay.sender, 'spooler', spool_replay.spooler,
        'keywords', spool_replay.keywords))) #>> '{}')::bigint;
end;
comment on function pgps.spool_replay(text, jsonb, int8range, tstzrange, interval[], name, name, text[]) is
'Hands what lies between the checkpoint pointer and the replay pointer, inclusive, and satisfies everything given, to
every member present once more; returns how many messages. Null asks for nothing. keys: bounds, {"SP_ID": [55, null]},
null is open; a message without the key does not match. seqn: numbers. spooled_at: a period. spooled_ago: a period
reckoned from now, the longer interval first: {2 hours, 10 minutes}. sender, spooler: roles. keywords: exactly these, in
this order. Afterwards a marker, and then what is new to each member, whether it matches or not. A member that is in
another replay has that first. What the spool was asked for before (pointers, discards, checkpoints) takes effect before
it, at dispatch; it begins then. Waits for a transaction that asks for another replay of the spool. Needs the privilege
replay. Errors: 42704, 22023, 42501, 25001.';

create or replace function pgps.spool_set_replay_pointer(name text, seqn bigint) returns void
language sql
begin atomic
    select pgps._call('spool_set_replay_pointer', jsonb_build_object('name', spool_set_replay_pointer.name,
        'seqn', spool_set_replay_pointer.seqn));
end;
comment on function pgps.spool_set_replay_pointer(text, bigint) is
'Notes, when the transaction is dispatched, up to which number a spool has been processed. Only ahead, and not beyond
the last message (22023). Needs the privilege replay. Errors: 42704, 22023, 42501.';

create or replace function pgps.spool_set_checkpoint_pointer(name text, seqn bigint) returns void
language sql
begin atomic
    select pgps._call('spool_set_checkpoint_pointer', jsonb_build_object('name', spool_set_checkpoint_pointer.name,
        'seqn', spool_set_checkpoint_pointer.seqn));
end;
comment on function pgps.spool_set_checkpoint_pointer(text, bigint) is
'Sets, when the transaction is dispatched, the number with which a replay begins, ahead or back; null = the first that
is there. Needs the privilege replay. Errors: 42704, 42501.';

create or replace function pgps.spool_play_through(name text, play boolean) returns void
language sql
begin atomic
    select pgps._call('spool_play_through', jsonb_build_object('name', spool_play_through.name,
        'play', spool_play_through.play));
end;
comment on function pgps.spool_play_through(text, boolean) is
'Switches off, or on again, that members get what is new; it waits for them in the spool. Switched off before a replay,
or before joining with one, nothing slips in between. Waits for a transaction that changes the spool. Needs the
privilege replay. Errors: 42704, 22023 null, 42501.';

create or replace function pgps.spool_getseqn(id bigint) returns bigint
language sql
begin atomic
    select case when spool_getseqn.id is not null
        then (pgps._call('spool_getseqn', jsonb_build_object('id', spool_getseqn.id)) #>> '{}')::bigint end;
end;
comment on function pgps.spool_getseqn(bigint) is
'The number that the message of a request has in its spool: null until it is dispatched, 0 for what was never spooled,
is not there any more (discarded, and its space given back), or is not the caller''s business. Of a message for a
network: its number among all that this broker has spooled for that network; over there it gets another.';

create or replace function pgps.spool_cancel(id bigint) returns boolean
language sql
begin atomic
    select case when spool_cancel.id is not null
        then (pgps._call('spool_cancel', jsonb_build_object('id', spool_cancel.id)) #>> '{}')::boolean else false end;
end;
comment on function pgps.spool_cancel(bigint) is
'Takes a message back: true if no member had it yet; nobody gets it then, and its number stays unused. false when it is
too late, or for an unknown id. Waits for members that are receiving; where some always are, these wait,
too. For whoever spooled it, while it has the privilege spool, and with the privilege replay. Errors: 42501, 25001.';

create or replace function pgps.spool_inquire(id bigint) returns integer
language sql
begin atomic
    select case when spool_inquire.id is not null
        then (pgps._call('spool_inquire', jsonb_build_object('id', spool_inquire.id)) #>> '{}')::integer end;
end;
comment on function pgps.spool_inquire(bigint) is
'1 when every member present has acknowledged the message of a request (a member that joined later and does not get it
is not waited for), else 0; null for ids that are unknown, cancelled, discarded, or not the caller''s business, and for
a message that has expired: members pass over it, and who had it before is not known any more. Of a message for a
network: 1 when it has arrived there, until its space here is given back, as early as seconds after it has arrived at
all contact points, and null from then on; null, too, when it has expired and is not known to have arrived before.';

create or replace function pgps.spool_wait(id bigint, timeout interval = '0') returns integer
language sql
begin atomic
    select pgps.spool_inquire(spool_wait.id);
end;
comment on function pgps.spool_wait(bigint, interval) is
'What pgps.spool_inquire says, at once: a statement that waited would see nothing of what others do meanwhile. The
client library waits; timeout is for it.';

create or replace function pgps.join_group(
    name text, member text, replay boolean = false, ready boolean = true, session bigint = null,
    resume boolean = false
) returns void
language sql
begin atomic
    select pgps._call('join_group', jsonb_build_object('name', join_group.name, 'member', join_group.member,
        'replay', join_group.replay, 'ready', join_group.ready, 'session', join_group.session,
        'resume', join_group.resume));
end;
comment on function pgps.join_group(text, text, boolean, boolean, bigint, boolean) is
'Makes a client (pgps.connect_client) a member of the process group of a spool, until it leaves or its session ends.
It gets what is spooled from now on; replay: first what pgps.spool_replay without a pattern hands out, to it alone, then
what it has not acknowledged beyond the replay pointer. ready: false = nothing new before pgps.group_ready. session: for
programs behind a pooler. resume: a member that has not left goes on where it was, in a session that it has resumed
(pgps.connect_client). Locks the client until the transaction ends. Needs the privilege replay. Errors: 42704 spool
or client, 42501 also for a client of another role, 08003, 25001.';

create or replace function pgps.leave_group(name text, member text, session bigint = null) returns void
language sql
begin atomic
    select pgps._call('leave_group', jsonb_build_object('name', leave_group.name, 'member', leave_group.member,
        'session', leave_group.session));
end;
comment on function pgps.leave_group(text, text, bigint) is
'Ends the membership of a client in a process group, also without the privilege replay. Errors: 42704, 42501, 55000 not
a member, 08003.';

create or replace function pgps.group_ready(name text, member text, session bigint = null) returns void
language sql
begin atomic
    select pgps._call('group_ready', jsonb_build_object('name', group_ready.name, 'member', group_ready.member,
        'session', group_ready.session));
end;
comment on function pgps.group_ready(text, text, bigint) is
'Lets a member that has joined with ready => false get what is new. Errors: 42704, 42501, 55000 not a member, 08003.';

create or replace function pgps.receive_spooled(
    name text, member text, max_messages integer = 100, session bigint = null
) returns table (
    seqn bigint, entry integer, message jsonb, keys jsonb, keywords text[], sender name, spooler name,
    spooled_at timestamptz, in_replay boolean, id bigint
)
language plpgsql rows 100
as $$
#variable_conflict use_column
declare
    v_spooled pg_catalog.text[];
    v_portal pg_catalog.refcursor;
begin
    insert into pgps_entry.spool_calls (verb, args)
    values ('receive_spooled', pg_catalog.jsonb_build_object('name', $1, 'member', $2, 'max_messages', $3,
        'session', $4))
    returning spooled into v_spooled;
    foreach v_portal in array v_spooled loop
        return query execute pg_catalog.format('fetch all from %I', v_portal);
        close v_portal;
    end loop;
end
$$;
comment on function pgps.receive_spooled(text, text, integer, bigint) is
'What a member of a process group gets next, in order: in_replay messages if it replays, a marker (entry null, seqn 0,
message {"replay": "ended"}), then what is new; at most max_messages, and 128 MB of them or one message. Where a full
spool has dropped messages there is a row with entry null, seqn the number of the last of them, and the message {"gap":
[first number, last number]}. Repeats all until pgps.ack_spooled. Listen to the channel in pgps.spools to be told. Locks
the member''s client until the transaction ends when there is something. Errors: 42704, 42501, 55000 not a member in
this session, 22023, 08003, 25001.';

create or replace function pgps.ack_spooled(name text, member text, id bigint, session bigint = null) returns bigint
language sql
begin atomic
    select (pgps._call_spool('ack_spooled', jsonb_build_object('name', ack_spooled.name, 'member', ack_spooled.member,
        'id', ack_spooled.id, 'session', ack_spooled.session)) #>> '{}')::bigint;
end;
comment on function pgps.ack_spooled(text, text, bigint, bigint) is
'Acknowledges what a member has received, up to and including the delivery of that id (null: what its newest
pgps.receive_spooled returned, and nothing else); returns how many deliveries. Locks the member''s client until the
transaction ends. Errors: 42704, 42501, 55000 not a member, 22023 an id that it has not received, 08003, 25001.';

grant execute on function
    pgps.spool(text, integer, jsonb, jsonb, text[], timestamptz, text, text, name),
    pgps.spool_many(text, jsonb),
    pgps.spool_and_discard(text, integer, jsonb, jsonb, text[], timestamptz, jsonb, boolean),
    pgps.prepend_and_discard(text, integer, jsonb, jsonb, text[], timestamptz, jsonb),
    pgps.spool_discard(text, jsonb, int8range, tstzrange, interval[], name, name, text[]),
    pgps.spool_replay(text, jsonb, int8range, tstzrange, interval[], name, name, text[]),
    pgps.spool_set_replay_pointer(text, bigint),
    pgps.spool_set_checkpoint_pointer(text, bigint),
    pgps.spool_play_through(text, boolean),
    pgps.spool_getseqn(bigint),
    pgps.spool_cancel(bigint),
    pgps.spool_inquire(bigint),
    pgps.spool_wait(bigint, interval),
    pgps.join_group(text, text, boolean, boolean, bigint, boolean),
    pgps.leave_group(text, text, bigint),
    pgps.group_ready(text, text, bigint),
    pgps.receive_spooled(text, text, integer, bigint),
    pgps.ack_spooled(text, text, bigint, bigint)
to public;
