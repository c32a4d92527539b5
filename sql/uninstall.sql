-- Removes pgps from this database: its schemas, and its roles unless another database of the cluster still uses them.
-- Runs in one transaction: `pgps uninstall`, or `psql -1 -f sql/uninstall.sql`.

do $$
declare
    v_made_language boolean := false;
    v_role text;
    v_owned text;
begin
    if to_regclass('pgps_internal.installation') is not null then
        select exists (select from pgps_internal.installation where key = 'made_plpython3u') into v_made_language;
    end if;

    -- Triggers that rules put on other tables depend on functions in here, and go with them.
    drop schema if exists pgps_queue, pgps_link, pgps_load, pgps_event, pgps, pgps_entry, pgps_stage, pgps_log_0,
        pgps_log_1, pgps_log_2, pgps_log_3, pgps_internal cascade;

    if v_made_language then
        begin
            drop extension if exists plpython3u;
        exception when dependent_objects_still_exist then
            raise notice 'extension plpython3u stays: functions that are not of pgps use it';
        end;
    end if;

    foreach v_role in array array['pgps_admin', 'pgps_worker', 'pgps_link', 'pgps_neighbour'] loop
        continue when not exists (select from pg_catalog.pg_roles where rolname = v_role);
        -- What somebody made while being this role is not dropped, and not given to whoever uninstalls: a function that
        -- runs with its owner's rights would have more than before.
        select string_agg(pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid), ', ') into v_owned
        from pg_catalog.pg_shdepend d
        where d.refclassid = 'pg_authid'::regclass and d.refobjid = quote_ident(v_role)::regrole and d.deptype = 'o'
            and d.dbid = (select b.oid from pg_catalog.pg_database b where b.datname = current_database());
        if v_owned is not null then
            raise notice 'role % stays, since it owns %', v_role, v_owned;
            continue;
        end if;
        execute format('drop owned by %I', v_role);
        begin
            execute format('drop role %I', v_role);
        exception when dependent_objects_still_exist then
            raise notice 'role % stays: another database of this cluster uses it', v_role;
        end;
    end loop;
end
$$;
