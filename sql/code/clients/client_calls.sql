-- The way in for calls that take or return bytes and messages: like pgps_entry.calls (core/entry.sql).
-- Locks: those of the call.
-- Writes: pgps_entry.client_calls.

create or replace function pgps_internal.enter_client() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp set standard_conforming_strings = on
set jit = off set enable_seqscan = off set max_parallel_workers_per_gather = 0
as $$
begin
    case new.verb
        when 'receive_event' then new.result := pgps_internal.receive_event(new.caller, new.args, new.data);
        when 're_receive_event' then new.result := pgps_internal.re_receive_event(new.caller, new.args);
        when 'commit_event' then new.result := pgps_internal.commit_event(new.caller, new.args, new.data);
        when 'fetch_tuples' then new.pushed := pgps_internal.fetch_tuples(new.caller, new.args);
        when 'fetch_direct' then new.pushed := pgps_internal.fetch_direct(new.caller, new.args);
        when 'receive_reply' then new.result := pgps_internal.receive_reply(new.caller, new.args, new.data);
        when 're_receive_reply' then new.result := pgps_internal.re_receive_reply(new.caller, new.args);
        when 'fetch_reply' then new.payloads := pgps_internal.fetch_reply(new.caller, new.args);
        when 'commit_receive' then new.result := pgps_internal.commit_receive(new.caller, new.args, new.data);
        when 'connect_client' then select c.result, c.blobs into new.result, new.blobs
            from pgps_internal.connect_client(new.caller, new.args) c;
        else
            raise exception 'unknown call "%"', new.verb using errcode = '22023',
                hint = 'Use the functions of schema pgps.';
    end case;
    return new;
end
$$;
comment on function pgps_internal.enter_client() is
'Runs a verb about a client for whoever inserts into pgps_entry.client_calls';

do $$
begin
    if to_regclass('pgps_entry.client_calls') is null then
        create view pgps_entry.client_calls as
        select null::text as verb, null::jsonb as args, null::bytea as data, null::name as caller,
            null::jsonb as result, null::bytea[] as blobs,
            null::pgps_internal.handed[] as pushed, null::jsonb[] as payloads where false;
        alter view pgps_entry.client_calls alter column caller set default current_user;
        create trigger enter instead of insert on pgps_entry.client_calls
        for each row execute function pgps_internal.enter_client();
        grant insert (verb, args, data), select (result, blobs, pushed, payloads) on pgps_entry.client_calls to public;
    end if;
end
$$;
comment on view pgps_entry.client_calls is 'The way in of the functions about clients; see pgps._call';

create or replace function pgps._call_client(verb text, args jsonb, data bytea = null) returns jsonb
language plpgsql
as $$
declare
    v_result pg_catalog.jsonb;
begin
    insert into pgps_entry.client_calls (verb, args, data)
    values (_call_client.verb, _call_client.args, _call_client.data)
    returning result into v_result;
    return v_result;
end
$$;
comment on function pgps._call_client(text, jsonb, bytea) is
'Calls an internal verb about a client as the current user. Not for applications: use the functions named in the
reference.';

grant execute on function pgps._call_client(text, jsonb, bytea) to public;
