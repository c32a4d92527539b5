-- Queued requests: SQL that a worker executes with the rights of the role that sent it. SET ROLE would be no
-- protection, since a request may contain RESET ROLE: as callbacks do, the request runs in a function that this role
-- owns, where a change of role is refused. Its effects, its reply and its completion commit together (decision 15).
-- Locks: the turn of the client in send; the client's row in client_turn while a request of it runs.
-- Writes: client_turn, reply, reply_rows, request, request_attempt.

create or replace function pgps_internal.requester(role regrole) returns regproc
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select p.oid from pg_proc p
    where p.pronamespace = 'pgps_internal'::regnamespace and p.proowner = requester.role
        and p.proname between 'request_as_' and 'request_as_:' limit 1
$$;
comment on function pgps_internal.requester(regrole) is
'The function that build_requester has made for a role; found by its owner, since the OID of a role is another one in a
restored database';

create or replace function pgps_internal.build_requester(role regrole) returns regproc
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text;
begin
    if pgps_internal.requester(build_requester.role) is null then
        perform pgps_internal.hold_owner(build_requester.role::oid);
        -- The number only makes the name unique, so that two roles that send their first request need not wait for each
        -- other.
        v_name := 'pgps_internal.request_as_' || nextval('pgps_internal.client_client_id_seq'::regclass);
        perform pgps_internal.build(pgps_internal.write_requester(v_name, build_requester.role), null);
    end if;
    return pgps_internal.requester(build_requester.role);
end
$$;
comment on function pgps_internal.build_requester(regrole) is
'The function, owned by a role that sends requests, in which they run; made if it is not there. It returns rows in
chunks, of which the last may be empty.';

create or replace function pgps_internal.drop_requester(role regrole) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_function regproc := pgps_internal.requester(drop_requester.role);
begin
    -- A role that owns a function cannot be dropped.
    if v_function is not null and
        not exists (select from pgps_internal.client c where c.owner = drop_requester.role) then
        perform pgps_internal.drop_piece('function', v_function::text);
    end if;
end
$$;
comment on function pgps_internal.drop_requester(regrole) is
'Drops the function in which a role''s requests ran, when the role has no client any more; it is made again when
needed';

create or replace function pgps_internal.do_send_request(caller name, args jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client := pgps_internal.enter_session(caller, args);
    v_last bigint := coalesce((pgps_internal.standing_of(v_client.client_id) ->> 'last_sent_request')::bigint, 0);
    v_id bigint := coalesce((args ->> 'id')::bigint, v_last + 1);
begin
    if args ->> 'request' is null then
        raise exception 'the request is null' using errcode = '22023', hint = 'Give one SQL statement, or several.';
    elsif v_id < 1 then
        raise exception 'invalid request id %', v_id using errcode = '22023',
            hint = 'Ids of a client begin at 1 and grow; null takes the next one.';
    elsif v_id <= v_last then
        return v_id;
    end if;
    perform pgps_internal.build_requester(quote_ident(caller)::regrole);
    insert into pgps_internal.client_turn (client_id) values (v_client.client_id) on conflict do nothing;
    insert into pgps_internal.request (client_id, request_id, role, request, environment)
    values (v_client.client_id, v_id, quote_ident(caller)::regrole, args ->> 'request',
        pgps_internal.current_environment(args -> 'schemas', args ->> 'request'));
    perform pg_notify('pgps_request', '');
    return v_id;
end
$$;
comment on function pgps_internal.do_send_request(name, jsonb) is 'See pgps.send_request';

create or replace function pgps.send_request(client text, request text, id bigint = null, session bigint = null)
returns bigint
language sql
begin atomic
    select (pgps._call('send_request',
        jsonb_build_object('client', send_request.client, 'request', send_request.request, 'id', send_request.id,
        'session', send_request.session, 'schemas', to_jsonb(current_schemas(false)))) #>> '{}')::bigint;
end;
comment on function pgps.send_request(text, text, bigint, bigint) is
'Puts SQL into the request queue of a client (Ariel, section 5); a worker executes it, in a transaction of its own, with
the rights of the current role and the search_path, time zone, DateStyle and IntervalStyle of this session, and puts the
reply into the reply queue. id: ids of a client increase; null = the next one; an id not above the last one sent is a
repeat and changes nothing. Returns the id. A single statement may return rows (columns of the same name count as one).
Errors: 42704, 42501, 08003, 22023, 25001.';

-- ---------------------------------------------------------------------------------------------------------------------
-- What the worker calls
-- ---------------------------------------------------------------------------------------------------------------------

drop function if exists pgps.claim_request(), pgps.pending_requests(), pgps_internal.waiting_requests();
create or replace function pgps_internal.waiting_requests(besides name[] = null) returns setof pgps_internal.request
language sql volatile rows 10
set search_path = pg_catalog, pg_temp
as $$
    select r.* from pgps_internal.client_turn t
    join pgps_internal.client c on c.client_id = t.client_id and (cardinality(besides) > 0
        and (select o.rolname from pg_roles o where o.oid = c.owner::oid) = any (besides)) is not true
    left join lateral (select p.request_id from pgps_internal.reply p where p.client_id = t.client_id
        order by p.request_id desc limit 1) p on true
    cross join lateral (select r.* from pgps_internal.request r
        where r.client_id = t.client_id and r.request_id > coalesce(p.request_id, 0) and r.request is not null
            order by r.request_id limit 1) r
    order by r.request_no
$$;
comment on function pgps_internal.waiting_requests(name[]) is
'The first request without a reply, of each client that has one; none of the roles besides';

create or replace function pgps.pending_requests(besides name[] = null) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off
as $$
declare
    v_pending bigint;
begin
    with free as (
        select t.client_id from pgps_internal.client_turn t
        where t.client_id in (select w.client_id from pgps_internal.waiting_requests(pending_requests.besides) w)
        for update skip locked
    )
    select count(*) into v_pending from free;
    return v_pending;
end
$$;
comment on function pgps.pending_requests(name[]) is
'How many clients have a request that nobody executes. besides: roles whose clients do not count, null for none. Needs
pgps_worker or pgps_admin.';

create or replace function pgps_internal.give_up(request pgps_internal.request) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if pgps_internal.is_marked((give_up.request).request_no) then
        perform pgps_internal.note_reply(give_up.request, 'failed', null, null, '57014', 'the request was cancelled',
            null, null);
        return true;
    -- A session that ended without a reply counts as ended by the request. Its own transaction could not record that,
    -- so it is counted here.
    elsif pgps_internal.deaths((give_up.request).request_no) >= pgps_internal.setting('request_attempts')::integer then
        perform pgps_internal.note_reply(give_up.request, 'failed', null, null, '57P02',
            'the session that executed it ended each time', null,
            'See the server''s log.');
        return true;
    end if;
    return false;
end
$$;
comment on function pgps_internal.give_up(pgps_internal.request) is
'Answers with an error a request that was cancelled or whose sessions have ended too often; false for any other
request';

create or replace function pgps.claim_request(besides name[] = null)
returns table (request_no bigint, client text, request_id bigint, timeout_ms bigint, owner name)
language plpgsql security definer rows 1
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    v_request pgps_internal.request;
    v_answered boolean;
begin
    loop
        v_answered := false;
        for v_request in select w.* from pgps_internal.waiting_requests(claim_request.besides) w loop
            perform from pgps_internal.client_turn t where t.client_id = v_request.client_id for update skip locked;
            -- Looked at again behind the lock: it may have been answered meanwhile.
            continue when not found or exists (select from pgps_internal.reply p
                where p.request_no = v_request.request_no);
            v_answered := pgps_internal.give_up(v_request) or v_answered;
            continue when v_answered or pgps_internal.is_being_taken(v_request.request_no);
            insert into pgps_internal.request_attempt (request_no, holder)
                values (v_request.request_no, pgps_internal.holder());
            return query select v_request.request_no, c.name, v_request.request_id,
                (extract(epoch from pgps_internal.setting('request_timeout')::interval) * 1000)::bigint,
                (select o.rolname from pg_roles o where o.oid = c.owner::oid)
            from pgps_internal.client c where c.client_id = v_request.client_id;
            return;
        end loop;
        -- A client whose request was answered here may have another one waiting.
        exit when not v_answered;
    end loop;
end
$$;
comment on function pgps.claim_request(name[]) is
'Claims the next request that nobody executes; no row when there is none. besides: roles whose clients are left out,
since enough of theirs runs, null for none. owner: the role of the client. Commit before pgps.run_request, so that a
request that ends its backend is known. Needs pgps_worker or pgps_admin.';

create or replace function pgps_internal.note_reply(
    request pgps_internal.request, status text, columns text[], row_count bigint, sqlstate text, error text,
    detail text, hint text
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgps_internal.reply (request_no, client_id, request_id, status, columns, row_count, sqlstate, error,
        detail, hint, attempts)
    values ((note_reply.request).request_no, (note_reply.request).client_id, (note_reply.request).request_id,
        note_reply.status, note_reply.columns,
        note_reply.row_count, note_reply.sqlstate, note_reply.error, nullif(note_reply.detail, ''),
        nullif(note_reply.hint, ''),
        (select count(distinct a.holder) from pgps_internal.request_attempt a
            where a.request_no = (note_reply.request).request_no and a.holder <> ''));
    perform pg_notify('pgps_client_' || (note_reply.request).client_id, 'reply');
end
$$;
comment on function pgps_internal.note_reply(pgps_internal.request, text, text[], bigint, text, text, text, text) is
'Puts a reply into the reply queue, and notifies the client at commit';

create or replace function pgps_internal.next_request(request_no bigint) returns pgps_internal.request
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_request pgps_internal.request;
begin
    perform from pgps_internal.client_turn t
    where t.client_id = (select r.client_id from pgps_internal.request r
        where r.request_no = next_request.request_no) for update skip locked;
    if found then
        select w.* into v_request from pgps_internal.waiting_requests() w where w.request_no = next_request.request_no;
    end if;
    return v_request;
end
$$;
comment on function pgps_internal.next_request(bigint) is
'A request that is the next of its client, whose turn is then locked; null when another session executes the request, or
has executed it';

create or replace function pgps_internal.execute_request(request pgps_internal.request) returns void
language plpgsql
set search_path = pg_catalog, pg_temp set datestyle = 'ISO, MDY' set intervalstyle = postgres set timezone = 'UTC'
as $$
declare
    v_function regproc;
    v_before pgps_internal.session_state;
    v_columns text[];
    v_count bigint;
begin
    if not exists (select from pg_roles r where r.oid = (execute_request.request).role) then
        raise exception 'role % does not exist any more', (execute_request.request).role using errcode = '42704',
            hint = 'Send the request as another role.';
    end if;
    v_function := pgps_internal.build_requester((execute_request.request).role);
    -- What a request means, and how it is answered, does not depend on this session. The settings of the one that sent
    -- it; they end with this function.
    perform set_config(s.name, s.value, true) from pgps_internal.settled() s;
    perform set_config(e.key, e.value, true) from jsonb_each_text((execute_request.request).environment) e
    where e.key <> 'search_path';
    v_before := pgps_internal.session_state(false);
    execute format('with chunk as materialized (
            select f.pgps_payloads, f.pgps_columns, f.pgps_upto, f.n from %s($1, $2) with ordinality f(pgps_payloads, '
                'pgps_columns, pgps_upto, n)
        ),
        kept as (
            insert into pgps_internal.reply_rows (request_no, from_row, upto, payloads)
            select $3, c.pgps_upto - cardinality(c.pgps_payloads) + 1, c.pgps_upto, c.pgps_payloads from chunk c '
                'where c.pgps_payloads is not null
        )
        select c.pgps_columns, c.pgps_upto from chunk c order by c.n desc limit 1', v_function)
    using (execute_request.request).request, (execute_request.request).environment ->> 'search_path',
        (execute_request.request).request_no
    into v_columns, v_count;
    -- All names from here on are qualified, since the request may have left another search_path behind. check_settings
    -- raises then, and the rollback restores it.
    perform pgps_internal.run_deferred(pg_catalog.format('select %s(null, null)', v_function), 'the request');
    perform pgps_internal.check_settings(v_before, 'the request');
    perform pgps_internal.check_session(v_before, 'the request');
    perform pgps_internal.note_reply(execute_request.request, 'done', v_columns, v_count, null, null, null, null);
end
$$;
comment on function pgps_internal.execute_request(pgps_internal.request) is
'Executes a request and notes its reply; passes on the errors of the request';

create or replace function pgps.run_request(request_no bigint) returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_request pgps_internal.request;
    v_state text;
    v_error text;
    v_detail text;
    v_hint text;
    v_context text;
    v_prepared text := pgps_internal.prepared();
begin
    perform pgps_internal.require_unwritten('a request cannot be run');
    v_request := pgps_internal.next_request(run_request.request_no);
    if v_request.request_no is null then
        return null;
    end if;
    begin
        perform pgps_internal.execute_request(v_request);
    exception when others or assert_failure or query_canceled then
        get stacked diagnostics v_state = returned_sqlstate, v_error = message_text, v_detail = pg_exception_detail,
        v_hint = pg_exception_hint,
            v_context = pg_exception_context;
        perform pgps_internal.forget_prepared(v_prepared);
        if pgps_internal.is_cancelled(v_state, v_context) then
            raise;
        end if;
    end;
    perform pgps_internal.end_attempt(run_request.request_no);
    if v_state is null then
        return 'done';
    end if;
    perform pgps_internal.note_reply(v_request, 'failed', null, null, v_state, v_error, v_detail, v_hint);
    return 'failed';
end
$$;
comment on function pgps.run_request(bigint) is
'Executes a claimed request in this transaction; returns done, failed (its effects are rolled back, and the error is the
reply), or null when another session executes it or has executed it. A cancellation is raised: call pgps.fail_request
then. Needs pgps_worker or pgps_admin.';

create or replace function pgps.release_request(request_no bigint) returns void
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
    delete from pgps_internal.request_attempt a where a.request_no = release_request.request_no
        and a.holder = pgps_internal.holder()
$$;
comment on function pgps.release_request(bigint) is
'Withdraws this session''s claim to a request that it has not executed, so that a worker that stops is not counted as
ended by the request. Needs pgps_worker or pgps_admin.';

create or replace function pgps.fail_request(request_no bigint, sqlstate text, error text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_request pgps_internal.request := pgps_internal.next_request(fail_request.request_no);
begin
    if v_request.request_no is null then
        return false;
    end if;
    if pgps_internal.is_marked(fail_request.request_no) then
        perform pgps_internal.note_reply(v_request, 'failed', null, null, '57014', 'the request was cancelled', null,
            null);
        return true;
    end if;
    perform pgps_internal.note_reply(v_request, 'failed', null, null, fail_request.sqlstate, fail_request.error, null,
        case fail_request.sqlstate when '57014'
            then 'Send it in parts, or have an administrator allow more: select '
            'pgps.configure(''request_timeout'', ''1 hour'').' end);
    return true;
end
$$;
comment on function pgps.fail_request(bigint, text, text) is
'Notes an error as the reply to a request that was cancelled, by a time limit or by pgps.cancel_request; false when it
has a reply already, or another session executes it. Needs pgps_worker or pgps_admin.';

revoke all on function pgps.pending_requests(name[]), pgps.claim_request(name[]), pgps.release_request(bigint),
    pgps.run_request(bigint), pgps.fail_request(bigint, text, text) from public;
grant execute on function pgps.send_request(text, text, bigint, bigint) to public;
grant execute on function
    pgps.pending_requests(name[]),
    pgps.claim_request(name[]),
    pgps.release_request(bigint),
    pgps.run_request(bigint),
    pgps.fail_request(bigint, text, text)
to pgps_worker, pgps_admin;
