-- The way in for calls that take or return bytes and messages: like pgps_entry.calls (core/entry.sql).
-- Locks: those of the call.
-- Writes: pgps_entry.client_calls.

create or replace function pgps_internal.call_client(verb text, caller name, args jsonb, data bytea,
    out result jsonb, out blobs bytea[], out pushed pgps_internal.handed[], out payloads jsonb[]) returns record
language plpgsql
as $$
begin
    case verb
        when 'receive_event' then result := pgps_internal.receive_event(caller, args, data);
        when 're_receive_event' then result := pgps_internal.re_receive_event(caller, args);
        when 'commit_event' then result := pgps_internal.commit_event(caller, args, data);
        when 'fetch_tuples' then pushed := pgps_internal.fetch_tuples(caller, args);
        when 'fetch_direct' then pushed := pgps_internal.fetch_direct(caller, args);
        when 'receive_reply' then result := pgps_internal.receive_reply(caller, args, data);
        when 're_receive_reply' then result := pgps_internal.re_receive_reply(caller, args);
        when 'fetch_reply' then payloads := pgps_internal.fetch_reply(caller, args);
        when 'commit_receive' then result := pgps_internal.commit_receive(caller, args, data);
        when 'connect_client' then select c.result, c.blobs into result, blobs
            from pgps_internal.connect_client(caller, args) c;
        else
            raise exception 'unknown call "%"', verb using errcode = '22023',
                hint = 'Use the functions of schema pgps.';
    end case;
end
$$;
comment on function pgps_internal.call_client(text, name, jsonb, bytea) is
'Runs a verb about a client; what it does not return is null';

create or replace function pgps_internal.enter_client() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp set standard_conforming_strings = on
set jit = off set enable_seqscan = off set max_parallel_workers_per_gather = 0
as $$
declare
    v_left integer := 4;
    v_state text;
    v_schema text;
    v_error text;
begin
    loop
        begin
            select c.* into new.result, new.blobs, new.pushed, new.payloads
            from pgps_internal.call_client(new.verb, new.caller, new.args, new.data) c;
            return new;
        exception when undefined_table or undefined_column or undefined_object or undefined_function or internal_error
            then
            get stacked diagnostics v_state = returned_sqlstate, v_schema = schema_name, v_error = message_text;
            v_left := v_left - 1;
            if v_left = 0 or not pgps_internal.is_race(v_state, v_schema, v_error) then
                raise;
            end if;
        end;
    end loop;
end
$$;
comment on function pgps_internal.enter_client() is
'Runs a verb about a client for whoever inserts into pgps_entry.client_calls; once more, at most three times, when the
type that it was about to read has been dropped or changed while it waited for that (see core/races.sql)';

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
