-- Generated code is made when something is defined, by the generators of that day. This script is the last of the code: whenever the code is
-- applied to a database, what older generators made in it is made again by today's.
-- Locks: those of dropping and creating the generated functions and views of each event type, until the transaction ends.
-- Writes: nothing.

create or replace function pgps_internal.rebuild_type(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text;
    v_endpoint regclass;
    v_detail text;
begin
    select t.name, t.endpoint into v_name, v_endpoint from pgps_internal.event_type t where t.type_id = rebuild_type.type_id;
    -- The rules of an immediate type stand on tables that are made anew.
    execute format('drop rule if exists publish on %s', v_endpoint);
    execute format('drop rule if exists publish_deferred on %s', v_endpoint);
    begin
        perform pgps_internal.drop_functions(rebuild_type.type_id);
        perform pgps_internal.build_endpoint(rebuild_type.type_id), pgps_internal.build_code(rebuild_type.type_id);
    exception when invalid_table_definition then
        -- This release gives a view other columns, which PostgreSQL does not allow in place.
        perform pgps_internal.drop_code(rebuild_type.type_id);
        perform pgps_internal.build_endpoint(rebuild_type.type_id), pgps_internal.build_code(rebuild_type.type_id);
    end;
exception when dependent_objects_still_exist then
    get stacked diagnostics v_detail = pg_exception_detail;
    raise exception 'the generated code of event type "%" cannot be made again: something of yours depends on it', v_name
    using errcode = '2BP01', detail = v_detail, hint = 'Drop what the detail names, upgrade, and create it again.';
end
$$;
comment on function pgps_internal.rebuild_type(integer) is
'Makes all generated code of an event type again; views of users on its queues stay where the columns do. Errors: 2BP01 when they cannot.';

do $$
declare
    v_function regprocedure;
    v_type integer;
begin
    -- What runs requests as a role, and what reads the log as one, is made again when it is needed.
    for v_function in select p.oid from pg_proc p
        where p.pronamespace = 'pgps_internal'::regnamespace and p.proname ~ '^(request_as_|visible_\d+_)\d+$' loop
        execute format('drop function %s', v_function);
    end loop;
    for v_type in select t.type_id from pgps_internal.event_type t order by t.type_id loop
        perform pgps_internal.rebuild_type(v_type);
    end loop;
end
$$;

revoke all on all functions in schema pgps_internal from public;
