-- What stands in expressions already and would be refused today to an administrator: event types and policies of older
-- releases, or of a restored dump, in which the text of an expression was read again (decision 106).
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.suspects() returns table (event_type text, policy text, fault text)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- A superuser may have put anything there. What is told is that somebody who is none could exchange it. Each tree
    -- is looked at once, and only if it names something with a number from 16384 on: the rest is of PostgreSQL itself.
    with used (name, tree) as (
        select e.name, d.adbin::text
        from pgps_internal.event_type e join pg_attrdef d on d.adrelid in (e.endpoint, e.log)
        union
        select e.name, c.conbin::text
        from pgps_internal.event_type e join pg_constraint c on c.conrelid in (e.endpoint, e.log)
        where c.conbin is not null
    ),
    callee (tree, callee) as materialized (
        select t.tree, pgps_internal.foreign_callee(t.tree)
        from (select distinct u.tree from used u where u.tree ~ ' (1[6-9]|[2-9]\d|\d{3,})\d{3}\M') t
    ),
    typed (name, type_id) as (
        select distinct e.name, a.atttypid
        from pgps_internal.event_type e join pg_attribute a on a.attrelid = e.endpoint
        where a.attnum > 0 and not a.attisdropped and a.atttypid >= 16384
    ),
    brought (type_id, within, callee) as materialized (
        select t.type_id, u.type_id, pgps_internal.type_callee(u.type_id)
        from (select distinct t.type_id from typed t) t
        cross join lateral pgps_internal.types_within(array[t.type_id]) u(type_id)
    )
    select distinct u.name, null::text, 'a default or check calls ' || c.callee
    from used u join callee c using (tree) where c.callee is not null
    union all
    select t.name, null, 'attributes are of data type ' || format_type(b.within, null) || ', which calls ' || b.callee
    from typed t join brought b using (type_id) where b.callee is not null
    union all
    select e.name, p.name, x.fault
    from pgps_internal.policy p join pgps_internal.event_type e using (type_id)
    join pg_policy o on o.polrelid = e.log and o.polname = ('user_' || p.name)::name
    cross join lateral (
        select 'it calls ' || pgps_internal.foreign_callee(o.polqual::text, p.role)
        union
        -- What an administrator may have written when all functions of PostgreSQL were allowed.
        select format('it calls function %s', f.function_id::regprocedure)
        from pgps_internal.functions_in(o.polqual::text) f(function_id) join pg_proc p on p.oid = f.function_id
        where p.pronamespace = 'pg_catalog'::regnamespace and not pgps_internal.is_listed(p.oid)
        union
        select 'it ' || pgps_internal.table_fault(t.relation)
        from pgps_internal.tables_of_policy(o.polqual::text) t(relation)
    ) x(fault)
    where x.fault is not null
$$;
comment on function pgps_internal.suspects() is
'Event types and policies (null: the type itself) through which a role that is no superuser could run code as the owner
of pgps or as whoever receives, and how';

create or replace function pgps_internal.do_suspects(caller name, args jsonb) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.require_admin(caller, 'examine expressions');
    return (select coalesce(to_jsonb(array_agg(s order by s.event_type, s.policy nulls first, s.fault)), '[]')
        from pgps_internal.suspects() s);
end
$$;
comment on function pgps_internal.do_suspects(name, jsonb) is
'See pgps.suspects';

create or replace function pgps.suspects() returns jsonb
language sql
begin atomic
    select pgps._call('suspects', '{}');
end;
comment on function pgps.suspects() is
'Event types and policies through which a role that is no superuser could run code as the owner of pgps, or as whoever
receives: event_type, policy (null: a default, check or data type of the event type itself), fault. Older releases let
administrators define such; later only superusers can. Needs pgps_admin. Errors: 42501.';

grant execute on function pgps.suspects() to public;

do $$
declare
    v_found record;
begin
    for v_found in select * from pgps_internal.suspects() loop
        raise warning 'event type "%"%: %', v_found.event_type,
            coalesce(', policy "' || v_found.policy || '"', ''), v_found.fault
        using hint = 'Drop it, unless you trust that role as yourself; pgps doctor tells it again.';
    end loop;
end
$$;
