-- Cancelling queued requests. A cancellation is noted in request_attempt, as a row with an empty holder. The worker
-- cancels the session that executes the request only after this row is committed, so that whoever replies for the
-- request finds it. Locks: none for the client; for the worker the rows of client_turn, skipping locked ones.
-- Writes: request_attempt.

create or replace function pgps_internal.is_marked(request_no bigint) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from pgps_internal.request_attempt a where a.request_no = is_marked.request_no
        and a.holder = '');
end
$$;
comment on function pgps_internal.is_marked(bigint) is
'True when a request was cancelled by its client or an administrator';

create or replace function pgps_internal.do_cancel_request(caller name, args jsonb) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client := pgps_internal.find_administered_client(caller, args ->> 'client');
    v_request pgps_internal.request;
begin
    if not pg_has_role(caller, 'pgps_admin', 'usage') or (args ->> 'session')::bigint is not null then
        perform pgps_internal.require_session(v_client, (args ->> 'session')::bigint);
    end if;
    select r.* into v_request from pgps_internal.request r
    where r.client_id = v_client.client_id and r.request_id = (args ->> 'id')::bigint and r.request is not null;
    if not found then
        raise exception 'client "%" has sent no request %', v_client.name, coalesce(args ->> 'id', 'null')
        using errcode = '42704',
            hint = format('select request_id, state from pgps.requests where client = %L', v_client.name);
    elsif exists (select from pgps_internal.reply p where p.request_no = v_request.request_no) then
        return false;
    end if;
    insert into pgps_internal.request_attempt (request_no, holder) values (v_request.request_no, '');
    perform pg_notify('pgps_request', '');
    return true;
end
$$;
comment on function pgps_internal.do_cancel_request(name, jsonb) is 'See pgps.cancel_request';

create or replace function pgps.cancel_request(client text, request_id bigint, session bigint = null) returns boolean
language sql
begin atomic
    select (pgps._call('cancel_request',
        jsonb_build_object('client', cancel_request.client, 'id', cancel_request.request_id,
        'session', cancel_request.session)) #>> '{}')::boolean;
end;
comment on function pgps.cancel_request(text, bigint, bigint) is
'Cancels a queued request, whether it waits or runs: its effects are rolled back, and its reply, in its turn, is an
error 57014. Returns false when it has a reply already; true says that the cancellation is noted, not that it comes
before the request ends. Takes effect at commit. For the session that is connected, or pgps_admin. Errors: 42704, 42501,
08003.';

create or replace function pgps.cancel_running_requests() returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off
as $$
declare
    v_running pgps_internal.request_attempt[];
    v_cancelled bigint;
begin
    -- Only the first waiting request of a client can be running. A cancelled one that nobody executes is answered when
    -- its turn comes. Whoever executes one comes to its end through the row of his attempt (end_attempt): while that is
    -- locked here, his session executes this request and no other.
    with marked as materialized (
        select w.request_no, w.client_id from pgps_internal.waiting_requests() w
            where pgps_internal.is_marked(w.request_no)
    ),
    free as materialized (
        select t.client_id from pgps_internal.client_turn t
            where t.client_id in (select m.client_id from marked m) for update skip locked
    )
    select array_agg(r.a) into v_running
    from (
        select a from marked m join pgps_internal.request_attempt a on a.request_no = m.request_no
        where a.holder <> '' and m.client_id not in (select f.client_id from free f) for update of a skip locked
    ) r;
    if v_running is null then
        return 0;
    end if;
    perform pg_stat_clear_snapshot();
    -- Code that catches its cancellation, and goes on, has its session ended.
    select count(*) into v_cancelled
    from unnest(v_running) r
    join pg_stat_get_activity(null) s on r.holder = format('%s@%s', s.pid, extract(epoch from s.backend_start))
    where not exists (select from pgps_internal.reply p where p.request_no = r.request_no)
        and case when (select min(k.started_at) from pgps_internal.request_attempt k
                where k.request_no = r.request_no and k.holder = '') < pgps_internal.clock() - interval '5 seconds'
            then pg_terminate_backend(s.pid) else pg_cancel_backend(s.pid) end;
    return v_cancelled;
end
$$;
comment on function pgps.cancel_running_requests() is
'Cancels the sessions that execute a cancelled request, while they execute that one, and ends those that still do 5 s
after it was cancelled; returns how many. The worker calls it when it is notified of requests, and once in each poll.
Needs pgps_worker or pgps_admin.';

revoke all on function pgps.cancel_running_requests() from public;
grant execute on function pgps.cancel_request(text, bigint, bigint) to public;
grant execute on function pgps.cancel_running_requests() to pgps_worker, pgps_admin;
