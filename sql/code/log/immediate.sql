-- Immediate events are published in a transaction of their own, over a loopback connection that the session keeps.
-- Locks: none in the caller's transaction.
-- Writes: nothing.

create or replace function pgps_internal.dblink_schema() returns name
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select n.nspname from pg_extension e join pg_namespace n on n.oid = e.extnamespace where e.extname = 'dblink'
$$;
comment on function pgps_internal.dblink_schema() is
'The schema of dblink, which may have been installed before pgps. The functions below are made with its name, since
finding it, and planning a statement with it, took a third of the publisher''s time for each event.';

do $$
declare
    v_schema text := pgps_internal.dblink_schema();
begin
    execute format($sql$create or replace function pgps_internal.has_loopback() returns boolean
        language plpgsql set search_path = pg_catalog, pg_temp as $body$
        begin
            return %2$s;
        end$body$ $sql$, v_schema, case when v_schema = 'pgps_internal'
            -- A connection that was lost or interrupted is renewed; what the client side knows of it needs no round
            -- trip. The second dblink_is_busy notices the end of the connection behind a last message of the server.
            then format($sql$case when 'pgps_loopback' = any (%1$I.dblink_get_connections())
                then %1$I.dblink_is_busy('pgps_loopback') + %1$I.dblink_is_busy('pgps_loopback') = 0
                    and %1$I.dblink_error_message('pgps_loopback') = 'OK' else false end$sql$, v_schema)
                        else 'true' end);
    execute format($sql$create or replace function pgps_internal.ask_loopback(statement text) returns bigint
        language plpgsql set search_path = pg_catalog, pg_temp as $body$
        declare
            v_context text;
        begin
            return (select t.id from %1$I.dblink('pgps_loopback', ask_loopback.statement) t(id bigint));
        exception when lock_not_available or query_canceled then
            -- The connection's own time limits (limit_loopback) ended the statement, and nothing of it is committed. It
            -- is repeated in a way that lets this session be interrupted.
            get stacked diagnostics v_context = pg_exception_context;
            if strpos(v_context, '"pgps_loopback"') = 0 then
                raise;
            end if;
            return pgps_internal.wait_for_loopback(ask_loopback.statement);
        end$body$ $sql$, v_schema);
end
$$;

do $$
begin
    if pgps_internal.dblink_schema() = 'pgps_internal' then
        create or replace function pgps_internal.over_loopback(statement text) returns bigint
        language plpgsql set search_path = pg_catalog, pg_temp as $body$
        begin
            return pgps_internal.ask_loopback(over_loopback.statement);
        end$body$;
    else
        -- In that schema users may call dblink on any connection of their session by its name, and this one has the
        -- rights of pgps's owner. So it is open only while no code of a user runs, and one that a user has opened under
        -- its name is closed first.
        create or replace function pgps_internal.over_loopback(statement text) returns bigint
        language plpgsql set search_path = pg_catalog, pg_temp as $body$
        declare
            v_id bigint;
        begin
            perform pgps_internal.open_loopback();
            begin
                v_id := pgps_internal.ask_loopback(over_loopback.statement);
            exception when others or assert_failure or query_canceled then
                perform pgps_internal.close_loopback();
                raise;
            end;
            perform pgps_internal.close_loopback();
            return v_id;
        end$body$;
    end if;
end
$$;

do $$
declare
    v_schema text := pgps_internal.dblink_schema();
begin
    execute format($sql$create or replace function pgps_internal.close_loopback() returns void
        language plpgsql set search_path = pg_catalog, pg_temp as $body$
        begin
            if 'pgps_loopback' = any (%1$I.dblink_get_connections()) then
                perform %1$I.dblink_cancel_query('pgps_loopback');
                perform %1$I.dblink_disconnect('pgps_loopback');
            end if;
        end$body$ $sql$, v_schema);
    execute format($sql$create or replace function pgps_internal.wait_for_loopback(statement text) returns bigint
        language plpgsql set search_path = pg_catalog, pg_temp as $body$
        declare
            v_pid integer;
            v_pause double precision := 0.001;
            v_id bigint;
        begin
            perform %1$I.dblink_exec('pgps_loopback',
                format('set lock_timeout = %%L; set statement_timeout = 0', current_setting('lock_timeout')));
            v_pid := (select t.pid
                from %1$I.dblink('pgps_loopback', 'select pg_catalog.pg_backend_pid()') t(pid integer));
            perform %1$I.dblink_send_query('pgps_loopback', wait_for_loopback.statement);
            while %1$I.dblink_is_busy('pgps_loopback') = 1 loop
                perform pg_sleep(v_pause);
                v_pause := least(2 * v_pause, 0.05);
                if v_pause >= 0.05 then
                    perform pgps_internal.check_loopback(v_pid);
                end if;
            end loop;
            v_id := (select t.id from %1$I.dblink_get_result('pgps_loopback') t(id bigint));
            perform from %1$I.dblink_get_result('pgps_loopback') t(id bigint);
            perform pgps_internal.limit_loopback();
            return v_id;
        exception when query_canceled or others then
            -- After any error, the next statement begins with a new connection.
            perform pgps_internal.close_loopback();
            raise;
        end$body$ $sql$, v_schema);
    execute format($sql$create or replace function pgps_internal.limit_loopback() returns void
        language plpgsql set search_path = pg_catalog, pg_temp as $body$
        begin
            -- While it waits in libpq, this session reacts neither to a cancellation nor to its statement timeout.
            perform %1$I.dblink_exec('pgps_loopback', 'set lock_timeout = ''100ms''; set statement_timeout = ''1s''');
        end$body$ $sql$, v_schema);
end
$$;
comment on function pgps_internal.has_loopback() is
'True when there is no need to open the session''s loopback connection: it is open and at rest';
comment on function pgps_internal.ask_loopback(text) is 'As over_loopback, on the connection that is open';
comment on function pgps_internal.over_loopback(text) is
'Runs a statement on the loopback connection, in a transaction of its own; returns the number that it selects';
comment on function pgps_internal.close_loopback() is 'Closes the loopback connection, and cancels what runs on it';
comment on function pgps_internal.limit_loopback() is
'Sets how long a statement may take on the loopback connection before it is repeated with wait_for_loopback';
comment on function pgps_internal.wait_for_loopback(text) is
'As over_loopback, for a statement that takes long: this session can be cancelled meanwhile, its statement_timeout and
lock_timeout hold, and a deadlock with this session is detected. Errors: 55P03, 40P01, 57014, and those of the
statement.';

create or replace function pgps_internal.check_loopback(pid integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_path integer[];
begin
    -- The server's deadlock detection does not know that this session waits for the process of the connection.
    with recursive waits(pid, path) as (
        select check_loopback.pid, array[check_loopback.pid]
        union all
        select b.pid, w.path || b.pid from waits w cross join lateral unnest(pg_blocking_pids(w.pid)) b(pid)
            where b.pid <> all (w.path)
    )
    select w.path into v_path from waits w where w.pid = pg_backend_pid() order by cardinality(w.path) limit 1;
    if cardinality(v_path) = 2 then
        raise exception 'an immediate event waits for a lock that its own transaction holds' using errcode = '55P03',
            hint = 'It is published in a transaction of its own: publish it before you change or lock what it needs, '
                'or after that is committed.';
    elsif v_path is not null then
        raise exception 'an immediate event waits for process %, which waits for its publisher', v_path[2]
            using errcode = '40P01',
            detail = format('Processes that wait for each other: %s.', array_to_string(v_path, ', ')),
            hint = 'Roll back and try again.';
    end if;
end
$$;
comment on function pgps_internal.check_loopback(integer) is
'Raises when the loopback connection''s process waits for this session, directly or through others. Errors: 55P03,
40P01.';

create or replace function pgps_internal.open_loopback() returns void
language plpgsql
set search_path = pg_catalog, pg_temp set standard_conforming_strings = on
as $$
declare
    v_conninfo text := pgps_internal.setting('loopback');
    v_schema text := (select n.nspname from pg_extension e join pg_namespace n on n.oid = e.extnamespace
        where e.extname = 'dblink');
    v_detail text;
    v_limit integer;
    v_full boolean;
begin
    if v_conninfo = '' then
        v_conninfo := (select string_agg(format('%s=''%s''', p.key, replace(replace(p.value, '\', '\\'), '''', '\''')),
            ' ')
            from (values ('host', trim(split_part(current_setting('unix_socket_directories'), ',', 1))),
                ('port', current_setting('port')),
                ('dbname', current_database()), ('user', current_user), ('application_name', 'pgps-loopback')) p(key,
                    value));
    end if;
    perform pgps_internal.close_loopback();
    begin
        execute format('select %I.dblink_connect_u(%L, %L)', v_schema, 'pgps_loopback', v_conninfo);
        perform pgps_internal.limit_loopback();
        -- When this session is killed, the statement that it waits for over the connection ends as well.
        execute format('select %I.dblink_exec(%L, %L)', v_schema, 'pgps_loopback',
            'set client_connection_check_interval = ''1s''; set idle_session_timeout = 0');
    exception when others then
        -- Of libpq's message only what the server said: the rest tells what is in the setting.
        get stacked diagnostics v_detail = pg_exception_detail;
        v_limit := current_setting('max_connections')::integer - case when (
            select r.rolsuper from pg_roles r where r.rolname = current_user)
            then 0 else current_setting('superuser_reserved_connections')::integer end;
        v_full := (select count(*) >= v_limit from pg_stat_get_activity(null) a
            where a.datid is not null and a.usesysid is not null);
        raise exception 'this session cannot open its loopback connection: %',
            coalesce(substring(v_detail from 'FATAL: +([^\n]+)'), sqlerrm)
        using errcode = case when v_full then '53300' else '08001' end, hint = case when v_full
            then format('Try again when sessions have ended: the server has room for %s (max_connections).', v_limit)
            else 'Set it as an administrator: select pgps.configure(''loopback'', ''host=… user=… passfile=…'').' end;
    end;
end
$$;
comment on function pgps_internal.open_loopback() is
'Opens the session''s loopback connection as the owner of pgps, and closes the one there was. Errors: 08001,
53300 all connections of the server are in use.';

create or replace function pgps_internal.do_publish_immediately(caller name, args jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'event_type');
    v_raiser xid8 := pg_current_xact_id();
    v_handler text := coalesce(args ->> 'handler', current_setting('pgps.handler', true));
begin
    if not has_table_privilege(caller, v_type.endpoint, 'insert') then
        raise exception 'role "%" may not publish event type "%"', caller, v_type.name
        using errcode = '42501', hint = format('Ask for: grant insert on %s to %I', v_type.endpoint, caller);
    end if;
    if not pgps_internal.has_loopback() then
        perform pgps_internal.open_loopback();
    end if;
    if (args ->> 'whole')::boolean then
        return pgps_internal.over_loopback(format('select pgps_internal.bring_%s(%L, %L, %L, %L, %L, %L, %L)',
            v_type.type_id, args ->> 'payload', caller,
            args ->> 'reliability', v_raiser, v_handler, current_setting('pgps.client', true),
            current_setting('timezone')));
    end if;
    return pgps_internal.over_loopback(format('select pgps_internal.publish_as(%L, %L, %L, %L, %L, %L, %L, %L, %L, %L)',
        caller, v_type.name,
        args ->> 'payload', args ->> 'producer', args ->> 'producer_seq', args ->> 'reliability', v_raiser, v_handler,
        current_setting('pgps.client', true),
        (select jsonb_object_agg(k, current_setting(k))
            from unnest(array['datestyle', 'intervalstyle', 'timezone', 'lc_monetary']) k)));
end
$$;
comment on function pgps_internal.do_publish_immediately(name, jsonb) is
'Publishes in a transaction of its own, committed at once, whatever becomes of the caller''s (paper, section 5.2)';

create or replace function pgps_internal.assume(
    event_type pgps_internal.event_type, publisher name, reliability text, raiser text, handler text, client text
) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_carries boolean := pgps_internal.may_carry(assume.event_type, assume.handler);
    v_set text;
begin
    -- An assignment evaluates an expression, which is cheaper than the statement that a PERFORM runs.
    v_set := concat(set_config('pgps.raiser', coalesce(assume.raiser, ''), true),
        set_config('pgps.visibility', 'deferred', true),
        set_config('pgps.act_as', assume.publisher, true),
            set_config('pgps.reliability', coalesce(assume.reliability, ''), true),
        set_config('pgps.handler', coalesce(assume.handler, ''), true),
            set_config('pgps.client', coalesce(assume.client, ''), true),
        set_config('pgps.carried', case when v_carries then 'on' else '' end, true));
    if coalesce(assume.reliability, (assume.event_type).reliability) = 'non-guaranteed' then
        -- Non-guaranteed events are delivered at most once and may be lost in a crash: nobody waits for the disk.
        v_set := set_config('synchronous_commit', 'off', true);
    end if;
    return v_carries;
end
$$;
comment on function pgps_internal.assume(pgps_internal.event_type, name, text, text, text, text) is
'On the loopback connection: has what is published in the rest of the transaction published by publisher. raiser: the
transaction that raised it; client: the client that did. Returns whether it is to be carried to direct clients.';

drop function if exists pgps_internal.publish_as(name, text, jsonb, text, bigint, text, text, text, text, integer);
drop function if exists pgps_internal.publish_as(name, text, jsonb, text, bigint, text, text, text, text, integer,
    jsonb);

create or replace function pgps_internal.publish_as(
    publisher name, event_type text, payload jsonb, producer text, producer_seq bigint, reliability text, raiser text,
    handler text, client text,
    settings jsonb
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_publisher regrole := quote_ident(publish_as.publisher)::regrole;
    v_count integer := jsonb_array_length(publish_as.payload);
    v_numbers bigint[];
    v_after bigint;
    v_carries boolean;
begin
    -- Text is read under the publisher's settings: 01/02/2024 is the day that it is for the publisher.
    perform set_config(e.key, e.value, true) from jsonb_each_text(publish_as.settings) e
        where current_setting(e.key) <> e.value;
    select t.* into v_type from pgps_internal.event_type t where t.name = publish_as.event_type;
    v_carries := pgps_internal.assume(v_type, publish_as.publisher, publish_as.reliability, publish_as.raiser,
        publish_as.handler, publish_as.client);
    if publish_as.producer is not null then
        v_after := coalesce(pg_sequence_last_value('pgps_internal.event_id_seq'::regclass), 0);
        v_numbers := pgps_internal.claim_numbers(v_type.type_id, v_publisher, publish_as.producer,
            publish_as.producer_seq, v_count);
    end if;
    if v_numbers is distinct from '{}' then
        perform pgps._insert_events(publish_as.event_type, case when v_numbers is null then publish_as.payload
            else pgps._numbered(publish_as.payload, publish_as.producer_seq, v_numbers) end,
            publish_as.producer, v_numbers, format('pgps_event.%I', publish_as.event_type));
        if v_carries then
            perform pgps_internal.carry(v_type, currval('pgps_internal.event_id_seq'));
        end if;
    end if;
    if publish_as.producer is null then
        return currval('pgps_internal.event_id_seq');
    elsif v_numbers <> '{}' then
        perform pgps_internal.note_ids(v_type, v_publisher, publish_as.producer, v_numbers, v_after);
    end if;
    return pgps_internal.id_of_number(v_type.type_id, v_publisher, publish_as.producer,
        publish_as.producer_seq + (v_count - 1));
end
$$;
comment on function pgps_internal.publish_as(name, text, jsonb, text, bigint, text, text, text, text, jsonb) is
'On the loopback connection: publishes objects with the rights of publisher, see assume. settings: those of the
publisher''s session under which text is converted to values';

create or replace function pgps_internal.note_publisher() returns trigger
language plpgsql
as $$
declare
    v_publisher pg_catalog.text;
begin
    -- Runs with the publisher's rights, as the last trigger before forward_stage: no code of the user runs in between.
    v_publisher := pg_catalog.set_config('pgps.publisher', case
        when pg_catalog.current_setting('pgps.act_as', true) operator(pg_catalog.<>) ''
            and pg_catalog.current_setting('is_superuser')::boolean and session_user operator(pg_catalog.=) current_user
        then pg_catalog.current_setting('pgps.act_as') else current_user end, true);
    return new;
end
$$;
comment on function pgps_internal.note_publisher() is 'After a publishing statement: tells forward_stage who publishes';

create or replace function pgps_internal.forward_stage() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp set datestyle = 'ISO, '
    'YMD' set intervalstyle = postgres set extra_float_digits = 1 set lc_monetary = 'C'
as $$
declare
    v_events jsonb := (select to_jsonb(array_agg(pgps_row)) from staged pgps_row);
begin
    if v_events is not null then
        perform pgps_internal.do_publish_immediately(current_setting('pgps.publisher')::name,
            jsonb_build_object('event_type', quote_ident(tg_argv[0]), 'payload', v_events, 'whole', true));
    end if;
    return null;
end
$$;
comment on function pgps_internal.forward_stage() is
'After an INSERT into an immediate event type: publishes the set in a transaction of its own';
