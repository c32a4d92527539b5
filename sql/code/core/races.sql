-- Calls that meet one another. Whoever subscribes, alters or drops looks up what others may drop at that moment; most
-- of it is not locked before, since a lock on it would have everybody wait for everybody. What then fails is internal
-- and says nothing to the caller: so it is taken back and done anew, from the first look on (decision 131).
-- Locks: those of the verb; what a failed attempt had locked is free again.
-- Writes: nothing.

create or replace function pgps_internal.is_race(sqlstate text, schema text, message text) returns boolean
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select case when is_race.sqlstate in ('23502', '23503', '23505')
            then is_race.schema in ('pgps_internal', 'pg_catalog')
        when is_race.sqlstate in ('42P01', '42703', '42704', '42883')
            then is_race.message ~ '\mpgps_(internal|event|queue|stage)\.'
        -- Who may do what is looked up anew (pgps_internal.require_subscription).
        when is_race.sqlstate = '42501' then is_race.message
            ~ '^subscription ".*" has been given to another role just now$'
        when is_race.sqlstate = 'XX000' then is_race.message
            ~ '^(could not open relation with OID|cache lookup failed for|tuple concurrently (updated|deleted))'
        -- Not one that pgps_internal.require_patience has found: the caller's transaction has what the others want.
        else is_race.sqlstate = '40P01' and is_race.message not like 'event type%' end
$$;
comment on function pgps_internal.is_race(text, text, text) is
'True when a caught error says that another session has changed or dropped what was looked up before, or of a deadlock.
schema: of the diagnostics';

create or replace function pgps_internal.is_passing(sqlstate text, context text, schema text, message text)
returns boolean
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select pgps_internal.is_cancelled(is_passing.sqlstate, is_passing.context)
        or pgps_internal.is_held_up(is_passing.sqlstate, is_passing.context)
        or pgps_internal.is_race(is_passing.sqlstate, is_passing.schema, is_passing.message)
$$;
comment on function pgps_internal.is_passing(text, text, text, text) is
'True when a caught error is no fault of the filter that was run: it was cancelled, waited too long for a lock, or met
another session. Whoever takes it for the filter''s leaves a subscription without an event type for good';

create or replace function pgps_internal.attempt(verb text, caller name, args jsonb) returns jsonb
language plpgsql
as $$
declare
    v_left integer := 4;
    v_result jsonb;
    v_state text;
    v_schema text;
    v_error text;
begin
    loop
        begin
            if attempt.verb = 'subscribe' then
                return pgps_internal.do_subscribe(attempt.caller, attempt.args);
            end if;
            execute format('select to_jsonb(pgps_internal.%I($1, $2))', 'do_' || attempt.verb)
                using attempt.caller, attempt.args into v_result;
            return v_result;
        exception when not_null_violation or foreign_key_violation or unique_violation or undefined_table
            or undefined_column or undefined_object or undefined_function or insufficient_privilege or internal_error
            or deadlock_detected then
            get stacked diagnostics v_state = returned_sqlstate, v_schema = schema_name, v_error = message_text;
            v_left := v_left - 1;
            if v_left = 0 or not pgps_internal.is_race(v_state, v_schema, v_error) then
                raise;
            end if;
        end;
    end loop;
end
$$;
comment on function pgps_internal.attempt(text, name, jsonb) is
'Runs do_<verb>, and again when it has met what another session did, three times more at most. A deadlock with another
call is resolved so, unless the caller''s transaction has locked before what the other one wants';
