-- What a login without any right has made of an event type: names can be looked up in the schemas of pgps by everybody,
-- and PostgreSQL asks for rights when a view or a function is used, not when it is made. Such a temporary view would
-- have the type's attributes stay as they are until its session ends.
-- Locks: these objects, exclusively.
-- Writes: nothing.

create or replace function pgps_internal.powerless(event_type pgps_internal.event_type) returns text[]
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with over as (
        select c.oid, c.reltype, t.typarray from pg_class c join pg_type t on t.oid = c.reltype
        where c.oid = (powerless.event_type).endpoint
            or c.oid in (select to_regclass(g.name) from pgps_internal.generated g
                where g.type_id = (powerless.event_type).type_id and g.kind = 'view')
    ),
    used as (
        select d.classid, d.objid from over o join pg_depend d on d.deptype in ('n', 'a')
            and (d.refclassid = 'pg_class'::regclass and d.refobjid = o.oid
                or d.refclassid = 'pg_type'::regclass and d.refobjid in (o.reltype, o.typarray))
    ),
    made as (
        select c.relowner as owner, c.relnamespace as schema, format('%s %s',
            case c.relkind when 'v' then 'view' when 'c' then 'type' else 'table' end, c.oid::regclass) as what
        from used u left join pg_rewrite w on u.classid = 'pg_rewrite'::regclass and w.oid = u.objid
        join pg_class c on c.oid = case when u.classid = 'pg_class'::regclass then u.objid else w.ev_class end
        union all
        select p.proowner, p.pronamespace, format('routine %s', p.oid::regprocedure)
        from used u join pg_proc p on u.classid = 'pg_proc'::regclass and p.oid = u.objid
        union all
        select t.typowner, t.typnamespace, format('%s %s', case t.typtype when 'd' then 'domain' else 'type' end,
            t.oid::regtype)
        from used u join pg_type t on u.classid = 'pg_type'::regclass and t.oid = u.objid and t.typrelid = 0
            and t.typcategory <> 'A'
    )
    select coalesce(array_agg(distinct m.what), '{}') from made m join pg_namespace n on n.oid = m.schema
    where n.nspname ~ '^pg_temp_'
        and not has_any_column_privilege(m.owner, (powerless.event_type).endpoint, 'select, insert')
$$;
comment on function pgps_internal.powerless(pgps_internal.event_type) is
'Kinds and names of temporary objects that roles without a right to an event type have made of it or its queues';

create or replace function pgps_internal.drop_powerless(event_type pgps_internal.event_type) returns void
language plpgsql
set search_path = pg_catalog, pg_temp set client_min_messages = warning
as $$
declare
    v_what text;
begin
    foreach v_what in array pgps_internal.powerless(drop_powerless.event_type) loop
        -- "if exists": one may have gone with another.
        execute format('drop %s if exists %s cascade', split_part(v_what, ' ', 1),
            substr(v_what, strpos(v_what, ' ') + 1));
    end loop;
end
$$;
comment on function pgps_internal.drop_powerless(pgps_internal.event_type) is
'Drops temporary objects of roles that have no right to an event type, and that would keep it from being changed or
dropped. Errors: 55P03 the session that has one is changing it';
