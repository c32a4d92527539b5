-- Replies to queued requests, in the order of the requests. Locks: the turn of the client, until the transaction ends.
-- Writes: pgps_entry.client_calls, reply_mark.

create or replace function pgps_internal.last_reply_mark(client_id bigint) returns pgps_internal.reply_mark
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_mark pgps_internal.reply_mark;
begin
    select m.* into v_mark from pgps_internal.reply_mark m where m.client_id = last_reply_mark.client_id
        order by m.mark_id desc limit 1;
    return v_mark;
end
$$;
comment on function pgps_internal.last_reply_mark(bigint) is
'The request whose reply a client has received last, and the one whose reply it has completed last; null before the
first';

create or replace function pgps_internal.describe_reply(client_id bigint, request_id bigint) returns jsonb
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select to_jsonb(p) || jsonb_build_object('sent_at',
        (select r.sent_at from pgps_internal.request r where r.request_no = p.request_no limit 1))
    from pgps_internal.reply p where p.client_id = describe_reply.client_id and p.request_id = describe_reply.request_id
        order by p.request_no desc limit 1
$$;
comment on function pgps_internal.describe_reply(bigint, bigint) is
'A reply as pgps.receive_reply returns it; null when there is none';

create or replace function pgps_internal.receive_reply(caller name, args jsonb, checkpoint bytea) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client;
    v_mark pgps_internal.reply_mark;
    v_next bigint;
begin
    perform pgps_internal.require_read_committed();
    v_client := pgps_internal.look_session(caller, args);
    v_mark := pgps_internal.last_reply_mark(v_client.client_id);
    if receive_reply.checkpoint is null and v_mark.received is not distinct from v_mark.committed and not exists (
            select from pgps_internal.reply p where p.client_id = v_client.client_id
                and p.request_id > coalesce(v_mark.received, 0)) then
        -- A call that finds nothing does not take the client's turn, since locking a row is a write.
        return null;
    end if;
    v_client := pgps_internal.enter_session(caller, args);
    v_mark := pgps_internal.last_reply_mark(v_client.client_id);
    v_next := (select p.request_id from pgps_internal.reply p
        where p.client_id = v_client.client_id and p.request_id > coalesce(v_mark.received, 0)
            order by p.request_id limit 1);
    perform pgps_internal.keep_checkpoint(v_client.client_id, 'reply', receive_reply.checkpoint);
    if v_next is not null or v_mark.received is distinct from v_mark.committed then
        insert into pgps_internal.reply_mark (client_id, received, committed)
        values (v_client.client_id, coalesce(v_next, v_mark.received), v_mark.received);
    end if;
    return pgps_internal.describe_reply(v_client.client_id, v_next);
end
$$;
comment on function pgps_internal.receive_reply(name, jsonb, bytea) is 'See pgps.receive_reply';

create or replace function pgps_internal.re_receive_reply(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client := pgps_internal.look_session(caller, args);
begin
    return pgps_internal.describe_reply(v_client.client_id,
        (pgps_internal.last_reply_mark(v_client.client_id)).received);
end
$$;
comment on function pgps_internal.re_receive_reply(name, jsonb) is 'See pgps.re_receive_reply';

create or replace function pgps_internal.commit_receive(caller name, args jsonb, checkpoint bytea) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client := pgps_internal.enter_session(caller, args);
    v_mark pgps_internal.reply_mark := pgps_internal.last_reply_mark(v_client.client_id);
begin
    perform pgps_internal.keep_checkpoint(v_client.client_id, 'reply', commit_receive.checkpoint);
    if v_mark.received is not distinct from v_mark.committed then
        return null;
    end if;
    insert into pgps_internal.reply_mark (client_id, received, committed)
        values (v_client.client_id, v_mark.received, v_mark.received);
    return to_jsonb(v_mark.received);
end
$$;
comment on function pgps_internal.commit_receive(name, jsonb, bytea) is 'See pgps.commit_receive';

create or replace function pgps_internal.fetch_reply(caller name, args jsonb) returns jsonb[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client := pgps_internal.look_session(caller, args);
    v_received bigint := (pgps_internal.last_reply_mark(v_client.client_id)).received;
    v_after bigint := coalesce((args ->> 'after')::bigint, 0);
    v_max integer := pgps_internal.limit_of(args, 'max_rows');
begin
    if v_after < 0 then
        raise exception 'invalid after %', v_after using errcode = '22023',
            hint = 'Give the number of the last row that came, 0 for the first rows.';
    end if;
    -- No reply has so many rows, and nothing behind this can be added up.
    v_after := least(v_after, 9223372036854775807 - v_max - 1000);
    return array(
        select u.payload
        from pgps_internal.reply p
        join pgps_internal.reply_rows c using (request_no)
        cross join lateral unnest(c.payloads) with ordinality u(payload, place)
        where p.client_id = v_client.client_id
            and p.request_id = v_received
            -- A chunk has at most 1,000 rows: no other chunk can have a row that is asked for.
            and c.upto > v_after and c.upto <= v_after + v_max + 1000
            and c.from_row + u.place - 1 > v_after and c.from_row + u.place - 1 <= v_after + v_max
        order by c.from_row + u.place);
end
$$;
comment on function pgps_internal.fetch_reply(name, jsonb) is 'See pgps.fetch_reply';

create or replace function pgps.receive_reply(client text, checkpoint bytea = null, session bigint = null)
returns table (request_id bigint, status text, columns text[], row_count bigint, sqlstate text, error text, detail text,
    hint text,
    sent_at timestamptz, replied_at timestamptz, attempts integer)
language sql rows 1
begin atomic
    select r.request_id, r.status, r.columns, r.row_count, r.sqlstate, r.error, r.detail, r.hint, r.sent_at,
        r.replied_at, r.attempts
    from jsonb_to_record(pgps._call_client('receive_reply',
        jsonb_build_object('client', receive_reply.client, 'session', receive_reply.session),
        receive_reply.checkpoint)) r(request_id bigint, status text, columns text[], row_count bigint, sqlstate text,
            error text, detail text, hint text,
        sent_at timestamptz, replied_at timestamptz, attempts integer)
    where r.request_id is not null;
end;
comment on function pgps.receive_reply(text, bytea, bigint) is
'The next reply to a client''s requests, in the order of the requests (Ariel, section 5, Receive); no row when there is
none yet. Completes the reply received before and stores the checkpoint (null: keeps the stored one). status: done, or
failed with sqlstate and error. Rows: pgps.fetch_reply. Locks the client until the transaction ends. Errors: 42704,
42501, 08003, 54000, 25001.';

create or replace function pgps.re_receive_reply(client text, session bigint = null)
returns table (request_id bigint, status text, columns text[], row_count bigint, sqlstate text, error text, detail text,
    hint text,
    sent_at timestamptz, replied_at timestamptz, attempts integer)
language sql rows 1
begin atomic
    select r.request_id, r.status, r.columns, r.row_count, r.sqlstate, r.error, r.detail, r.hint, r.sent_at,
        r.replied_at, r.attempts
    from jsonb_to_record(pgps._call_client('re_receive_reply', jsonb_build_object('client', re_receive_reply.client,
        'session', re_receive_reply.session))) r(request_id bigint, status text, columns text[], row_count bigint,
            sqlstate text, error text, detail text, hint text,
        sent_at timestamptz, replied_at timestamptz, attempts integer)
    where r.request_id is not null;
end;
comment on function pgps.re_receive_reply(text, bigint) is
'The reply that pgps.receive_reply returned last, in this or an earlier session; no row when there was none. Errors:
42704, 42501, 08003.';

create or replace function pgps.fetch_reply(
    client text, after bigint = 0, max_rows integer = 1000, session bigint = null
)
returns table (row_number bigint, payload jsonb)
language plpgsql rows 1000
as $$
#variable_conflict use_column
begin
    return query
    with fetched as (
        insert into pgps_entry.client_calls (verb, args)
            values ('fetch_reply', pg_catalog.jsonb_build_object('client', fetch_reply.client,
            'after', fetch_reply.after, 'max', fetch_reply.max_rows, 'session', fetch_reply.session)) returning payloads
    )
    select coalesce(fetch_reply.after, 0) operator(pg_catalog.+) u.place, u.payload
    from fetched f cross join lateral pg_catalog.unnest(f.payloads) with ordinality u(payload, place);
end
$$;
comment on function pgps.fetch_reply(text, bigint, integer, bigint) is
'Up to max_rows rows of the reply received last, with row numbers above after (rows count from 1). To read all of them
in bounded memory, call it again with the last row number until no row comes. Errors: 42704, 42501, 08003, 22023.';

create or replace function pgps.commit_receive(client text, checkpoint bytea = null, session bigint = null)
returns bigint
language sql
begin atomic
    select (pgps._call_client('commit_receive',
        jsonb_build_object('client', commit_receive.client, 'session', commit_receive.session),
        commit_receive.checkpoint) #>> '{}')::bigint;
end;
comment on function pgps.commit_receive(text, bytea, bigint) is
'Completes the reply received last and stores the checkpoint (null: keeps the stored one), atomically; returns its
request id, null when nothing was open. Errors: 42704, 42501, 08003, 54000, 25001.';

grant execute on function
    pgps.receive_reply(text, bytea, bigint),
    pgps.re_receive_reply(text, bigint),
    pgps.fetch_reply(text, bigint, integer, bigint),
    pgps.commit_receive(text, bytea, bigint)
to public;
