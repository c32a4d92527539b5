-- PostgreSQL locks the relation that a rule or a trigger is for before it looks whether the role may make one, for as
-- long as the statement is analysed. So a role with nothing but a login could hold up publishers and consumers. A role
-- that has no relation of its own has nothing to make a rule or a trigger for: it is told so before anything is locked.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.keep_out_rules() returns event_trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Not with the rights of the owner: who makes it is current_user, also inside a function.
    if (select r.rolsuper from pg_roles r where r.rolname = current_user) or exists (
            select from pg_shdepend d
            where d.dbid = (select b.oid from pg_database b where b.datname = current_database())
                and d.classid = 'pg_class'::regclass and d.refclassid = 'pg_authid'::regclass
                and d.deptype in ('o', 'a') and pg_has_role(d.refobjid, 'usage')
                and has_table_privilege(d.objid, 'trigger')
                and exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace
                    where c.oid = d.objid and n.nspname !~ '^(pg_temp_|pgps$|pgps_)')) then
        return;
    end if;
    raise exception 'role "%" has no table or view for which to %', current_user, lower(tg_tag)
    using errcode = '42501',
        hint = 'It may have some for its own tables and views, and where it has the privilege TRIGGER; not for '
            'temporary ones as long as it has no others.';
end
$$;
comment on function pgps_internal.keep_out_rules() is
'Before a rule or a trigger is made: refuses it (42501) to a role that owns no table or view, directly or as a member of
a role, and has the privilege TRIGGER on none, but for temporary ones and those of pgps';

do $$
begin
    if not exists (select from pg_event_trigger e where e.evtname = 'pgps_keep_out_rules') then
        create event trigger pgps_keep_out_rules on ddl_command_start when tag in ('CREATE RULE', 'CREATE TRIGGER')
        execute function pgps_internal.keep_out_rules();
    end if;
end
$$;
