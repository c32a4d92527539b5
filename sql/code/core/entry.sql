-- The way in. A public function runs with the caller's rights and reaches the internals only through pgps._call: an
-- INSERT into a view whose column "caller" defaults to current_user and cannot be given. So the trigger behind the view
-- knows who really calls, even inside a SECURITY DEFINER function, where session_user or the role setting would name
-- somebody else (decision 1).
-- Entry points set jit = off: the planner estimates unnested ids far too high, and compiling a receive that runs in 1
-- ms took seconds. They set enable_seqscan = off: a plan that is made while a segment is empty scans it sequentially,
-- and is kept while the segment grows to 65,536 events (a receive then takes 0.7 s, until autovacuum has analyzed the
-- segment). Filters, policies and callbacks run with sequential scans enabled again. With them disabled, what can only
-- be scanned looks costly enough for parallel workers, which take 20 ms to start: these are disabled, too.
-- Writes: pgps_entry.calls.

create or replace function pgps_internal.enter() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp set standard_conforming_strings = on
set jit = off set enable_seqscan = off set max_parallel_workers_per_gather = 0
as $$
begin
    case new.verb
        when 'ack' then new.result := pgps_internal.do_ack(new.caller, new.args);
        when 'publication' then new.result := pgps_internal.do_publication(new.caller, new.args);
        when 'published' then new.result := to_jsonb(pgps_internal.do_published(new.caller, new.args));
        when 'subscribe' then new.result := pgps_internal.attempt(new.verb, new.caller, new.args);
        when 'link_next' then new.result := pgps_internal.do_link_next(new.caller, new.args);
        when 'link_take' then new.result := pgps_internal.do_link_take(new.caller, new.args);
        when 'types_for' then new.result := pgps_internal.do_types_for(new.caller, new.args);
        else
            -- The call below runs with the rights of the owner of pgps, so a verb must be a plain name.
            if new.verb !~ '^[a-z_]+$'
                or to_regprocedure(format('pgps_internal.do_%s(name, jsonb)', new.verb)) is null then
                raise exception 'unknown call "%"', new.verb using errcode = '22023',
                    hint = 'Use the functions of schema pgps.';
            end if;
            new.result := pgps_internal.attempt(new.verb, new.caller, new.args);
    end case;
    return new;
end
$$;
comment on function pgps_internal.enter() is
'Runs the internal verb do_<verb>(caller, args) for whoever inserts into pgps_entry.calls; the verb checks the caller''s
rights.';

do $$
begin
    if to_regclass('pgps_entry.calls') is null then
        create view pgps_entry.calls as
        select null::text as verb, null::jsonb as args, null::name as caller, null::jsonb as result where false;
        alter view pgps_entry.calls alter column caller set default current_user;
        create trigger enter instead of insert on pgps_entry.calls
        for each row execute function pgps_internal.enter();
        grant insert (verb, args), select (result) on pgps_entry.calls to public;
    end if;
end
$$;
comment on view pgps_entry.calls is 'The only way from public functions to internals; see pgps._call';

-- Written in PL/pgSQL, which keeps the plan of the INSERT from call to call. The view is in a schema of its own, since
-- callers must be able to name it, and whoever lists the views of pgps is to see those for applications.
create or replace function pgps._call(verb text, args jsonb) returns jsonb
language plpgsql
as $$
declare
    v_result pg_catalog.jsonb;
begin
    insert into pgps_entry.calls (verb, args) values (_call.verb, _call.args) returning result into v_result;
    return v_result;
end
$$;
comment on function pgps._call(text, jsonb) is
'Calls an internal verb as the current user. Not for applications: use the functions named in the reference.';

create or replace function pgps.version() returns text
language sql immutable parallel safe
as $$ select '0.2.0.dev0' $$;
comment on function pgps.version() is 'Version of the pgps code in this database';

grant execute on function pgps._call(text, jsonb), pgps.version() to public;
