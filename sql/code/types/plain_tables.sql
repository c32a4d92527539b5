-- What a policy may read of tables. Whoever reads a table also runs what its owner has tied to it: row-level security,
-- a rule that makes a view of it, and expressions of indexes, statistics, partitions and checks, which the planner
-- evaluates where they are constant. A policy runs with the rights of the role that receives, so none of these may be
-- there when it is made, or come later (decision 100). The event trigger reads only catalogues and tables of pgps, and
-- runs no user code.
-- Locks: that of CREATE INDEX CONCURRENTLY on the tables that a new policy reads, and on what inherits from them, until
-- the transaction ends.
-- Writes: policy.

create or replace function pgps_internal.trees_of_table(relation oid) returns setof text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select t.tree
    from pg_index i cross join unnest(array[i.indexprs::text, i.indpred::text]) t(tree)
    where i.indrelid = trees_of_table.relation and t.tree is not null
    union all
    select c.conbin::text from pg_constraint c where c.conrelid = trees_of_table.relation and c.conbin is not null
    union all
    select s.stxexprs::text from pg_statistic_ext s
    where s.stxrelid = trees_of_table.relation and s.stxexprs is not null
    union all
    select p.partexprs::text from pg_partitioned_table p
    where p.partrelid = trees_of_table.relation and p.partexprs is not null
    union all
    -- Of generated columns that are not stored.
    select d.adbin::text from pg_attrdef d join pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum
    where d.adrelid = trees_of_table.relation and a.attgenerated = 'v'
$$;
comment on function pgps_internal.trees_of_table(oid) is
'The trees of all expressions that whoever reads a table may evaluate';

create or replace function pgps_internal.family_of(relation oid) returns setof oid
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with recursive family (relation) as (
        select family_of.relation
        union
        select i.inhrelid from family f join pg_inherits i on i.inhparent = f.relation
    )
    select f.relation from family f
$$;
comment on function pgps_internal.family_of(oid) is 'A table and all that inherit from it, partitions too';

drop function if exists pgps_internal.table_fault(oid, oid);

create or replace function pgps_internal.table_fault(relation oid) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select format('reads %s, which %s', c.oid::regclass, x.fault)
    from pgps_internal.family_of(table_fault.relation) f(relation)
    join pg_class c on c.oid = f.relation
    cross join lateral (
        -- Not a materialized view either: no statement of others than its owner locks one against a new index.
        select 'is no plain table' where c.relkind not in ('r', 'p')
        union all
        select 'has row-level security' where c.relrowsecurity
        union all
        select 'has an index, a check, statistics or partitions on an expression that ' || coalesce(
            'contains ' || pgps_internal.node_fault(t.tree, false), 'calls ' || pgps_internal.function_fault(t.tree),
            'uses ' || pgps_internal.type_fault(pgps_internal.types_in(t.tree)))
        from pgps_internal.trees_of_table(c.oid) t(tree)
    ) x(fault)
    where x.fault is not null and not exists (select from pg_roles r where r.oid = c.relowner and r.rolsuper)
    limit 1
$$;
comment on function pgps_internal.table_fault(oid) is
'What a table, or one that inherits from it, has by which its owner could run code with the rights of whoever reads it;
null when there is nothing, or the owner is a superuser';

create or replace function pgps_internal.tables_of_policy(tree text) returns setof oid
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select distinct m[1]::oid from regexp_matches(tables_of_policy.tree, ':relid (\d+)', 'g') m where m[1] <> '0'
$$;
comment on function pgps_internal.tables_of_policy(text) is 'The tables that an expression reads, from its tree';

create or replace function pgps_internal.note_plain(policies pgps_internal.policy[]) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    update pgps_internal.policy p set is_plain = n.is_plain
    from (
        select w.type_id, w.name, not exists (
            select from pg_policy o cross join lateral pgps_internal.tables_of_policy(o.polqual::text) t(relation)
            where o.polrelid = e.log and o.polname = ('user_' || w.name)::name
                and pgps_internal.table_fault(t.relation) is not null) as is_plain
        from unnest(note_plain.policies) w join pgps_internal.event_type e using (type_id)) n
    where p.type_id = n.type_id and p.name = n.name and p.is_plain <> n.is_plain
$$;
comment on function pgps_internal.note_plain(pgps_internal.policy[]) is
'Notes of policies whether all that they read are plain tables, which then have to stay so';

create or replace function pgps_internal.lock_tables_of_policy(tree text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_table regclass;
begin
    -- Against whoever is making an index or the like, and has not committed. What is none is refused afterwards. What
    -- inherits from a superuser's table may be somebody else's.
    for v_table in
        select distinct c.oid from pgps_internal.tables_of_policy(lock_tables_of_policy.tree) t(relation)
        cross join lateral pgps_internal.family_of(t.relation) f(member)
        join pg_class c on c.oid = f.member join pg_roles r on r.oid = c.relowner
        where c.relkind in ('r', 'p') and not r.rolsuper order by c.oid
    loop
        execute format('lock table only %s in share update exclusive mode', v_table);
    end loop;
end
$$;
comment on function pgps_internal.lock_tables_of_policy(text) is
'Locks the tables that an expression reads, and what inherits from them, against changes of what belongs to them';

create or replace function pgps_internal.policies_reading(relations oid[]) returns setof pgps_internal.policy
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with recursive above (relation) as (
        select r from unnest(policies_reading.relations) r
        union
        select i.inhparent from above a join pg_inherits i on i.inhrelid = a.relation
    )
    select distinct on (p.type_id, p.name) p.*
    from above a
    join pg_depend d on d.classid = 'pg_policy'::regclass and d.refclassid = 'pg_class'::regclass
        and d.refobjid = a.relation
    join pg_policy o on o.oid = d.objid
    join pgps_internal.event_type e on e.log = o.polrelid
    join pgps_internal.policy p on p.type_id = e.type_id and ('user_' || p.name)::name = o.polname
    where a.relation <> e.log
$$;
comment on function pgps_internal.policies_reading(oid[]) is
'The policies that read any of some tables, or one from which it inherits';

create or replace function pgps_internal.keep_plain() returns event_trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_policies pgps_internal.policy[];
    v_found record;
    v_index regclass;
begin
    if not exists (select from pgps_internal.policy) then
        return;
    end if;
    v_policies := array(select p from pgps_internal.policies_reading(array(
        select distinct coalesce(i.indrelid, w.ev_class, s.stxrelid, d.objid) from pg_event_trigger_ddl_commands() d
        left join pg_index i on d.classid = 'pg_class'::regclass and i.indexrelid = d.objid
        left join pg_rewrite w on d.classid = 'pg_rewrite'::regclass and w.oid = d.objid
        left join pg_statistic_ext s on d.classid = 'pg_statistic_ext'::regclass and s.oid = d.objid)) p);
    select p.name, e.name as event_type, x.fault into v_found
    from unnest(v_policies) p join pgps_internal.event_type e using (type_id)
    join pg_policy o on o.polrelid = e.log and o.polname = ('user_' || p.name)::name
    cross join lateral pgps_internal.tables_of_policy(o.polqual::text) t(relation)
    cross join lateral pgps_internal.table_fault(t.relation) x(fault)
    where p.is_plain and x.fault is not null limit 1;
    if not found then
        return;
    end if;
    -- An index that was made concurrently is committed already: an error would leave it, for REINDEX to make it valid.
    select c.oid into v_index from pg_event_trigger_ddl_commands() d join pg_class c on c.oid = d.objid
    where tg_tag = 'CREATE INDEX' and age(c.xmin) > 0;
    if found then
        execute format('drop index %s', v_index);
        raise warning 'the index is dropped again: policy "%" on event type "%" %', v_found.name, v_found.event_type,
            v_found.fault;
    else
        raise exception 'policy "%" on event type "%" %', v_found.name, v_found.event_type, v_found.fault
        using errcode = '2BP01',
            detail = 'It would be evaluated with the rights of whoever receives events of that type.',
            hint = format('First, as an administrator: select pgps.drop_policy(%L, %L). A superuser may then make it '
                'again.', quote_ident(v_found.event_type), quote_ident(v_found.name));
    end if;
end
$$;
comment on function pgps_internal.keep_plain() is
'After what may tie an expression or a rule to a table: refuses it (2BP01) for tables that a policy reads, whoever does
it, since a superuser''s session may be running somebody else''s code. An index that was made concurrently it drops';

create or replace function pgps_internal.keep_out_concurrent() returns event_trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    -- No function can make an index concurrently, so the session says who does, and the statement that it is one.
    v_caller name := case current_setting('role') when 'none' then session_user else current_setting('role') end;
    v_table regclass;
begin
    if current_query() !~* 'concurrently' or not exists (select from pgps_internal.policy)
            or (select r.rolsuper from pg_roles r where r.rolname = v_caller) then
        return;
    end if;
    -- Which table it is for is not told before.
    select c.oid into v_table
    from pgps_internal.policy p join pgps_internal.event_type e using (type_id)
    join pg_policy o on o.polrelid = e.log and o.polname = ('user_' || p.name)::name
    cross join lateral pgps_internal.tables_of_policy(o.polqual::text) t(relation)
    cross join lateral pgps_internal.family_of(t.relation) f(relation)
    join pg_class c on c.oid = f.relation
    where p.is_plain and pg_has_role(v_caller, c.relowner, 'usage') limit 1;
    if found then
        raise exception 'a policy reads table %: its owner makes no index concurrently', v_table
        using errcode = '0A000', detail = 'One that fails would stay, and could be made valid unseen.',
            hint = 'Leave CONCURRENTLY away, for any table of that owner, or let a superuser make the index.';
    end if;
end
$$;
comment on function pgps_internal.keep_out_concurrent() is
'Before an index is made: refuses CONCURRENTLY (0A000) to the owner of a table that a policy reads, unless a superuser';

do $$
begin
    if not exists (select from pg_event_trigger e where e.evtname = 'pgps_keep_out_concurrent') then
        create event trigger pgps_keep_out_concurrent on ddl_command_start when tag in ('CREATE INDEX')
        execute function pgps_internal.keep_out_concurrent();
    end if;
    if not exists (select from pg_event_trigger e where e.evtname = 'pgps_keep_plain') then
        create event trigger pgps_keep_plain on ddl_command_end
        when tag in ('ALTER TABLE', 'CREATE TABLE', 'CREATE INDEX', 'CREATE RULE', 'CREATE STATISTICS',
            'CREATE SCHEMA', 'CREATE FOREIGN TABLE', 'ALTER FOREIGN TABLE', 'ALTER MATERIALIZED VIEW')
        execute function pgps_internal.keep_plain();
    end if;
    -- Policies of an older release, or of a restored dump.
    perform pgps_internal.note_plain(array(select p from pgps_internal.policy p));
end
$$;
