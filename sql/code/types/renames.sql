-- Rules and filters are stored as text, which refers to objects by name. This file decides what happens when a table, a
-- column, a schema, a function or a type is renamed (decision 29). The table of a rule and its columns are bound by
-- number, and the trigger functions are generated again; partitions that come later get the rule's triggers. Of
-- everything else, the names that a text uses are recorded: whoever renames one is warned, or refused if the rule is in
-- their own hands. An event trigger looks at each ALTER; it reads only catalogues and tables of pgps, and runs no user
-- code.
-- Locks: those of CREATE TRIGGER on a partition.
-- Writes: signature, subscription, used_name.

create or replace function pgps_internal.follow_partitions(objects oid[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_trigger record;
begin
    perform pgps_internal.build_rule_triggers(r) from pgps_internal.rule r join pg_class c on c.oid = r.table_name
    where c.relkind = 'p' and pgps_internal.function_of_rule(r) is not null;
    -- A partition that was detached does not belong to the table any more.
    for v_trigger in
        select t.tgname, t.tgrelid::regclass as relation
        from pgps_internal.rule r
        cross join unnest(r.operations) o
        join pg_trigger t on t.tgfoid = to_regprocedure(format('pgps_internal.rule_%s_%s()', r.rule_id, lower(o)))
        where t.tgrelid <> r.table_name
            and not exists (select from pg_partition_tree(r.table_name) p where p.relid = t.tgrelid)
    loop
        execute format('drop trigger %I on %s', v_trigger.tgname, v_trigger.relation);
    end loop;
    perform pgps_internal.warn_of_foreign_parts(r) from pgps_internal.rule r
    where exists (
        select from pgps_internal.family_of(r.table_name) f(member) where f.member = any (follow_partitions.objects));
end
$$;
comment on function pgps_internal.follow_partitions(oid[]) is
'Gives new partitions the triggers of their table''s rules, drops those of partitions that were detached, and
warns of foreign ones. objects: what was made or altered';

create or replace function pgps_internal.follow_columns(tables oid[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_rule pgps_internal.rule;
    v_gone text;
begin
    for v_rule in
        select r.* from pgps_internal.rule r
        where r.columns <> '{}' and r.table_name in (
            -- The altered tables and those that inherit their columns. No others: whoever alters one table must not
            -- wait for somebody who is altering another.
            with recursive altered (relation) as (
                select t from unnest(follow_columns.tables) t
                union
                select i.inhrelid from altered a join pg_inherits i on i.inhparent = a.relation
            )
            select a.relation from altered a)
    loop
        continue when pgps_internal.function_of_rule(v_rule) is null;
        select c.value ->> 1 into v_gone from jsonb_each(v_rule.columns) c
        where c.key = any (pgps_internal.words_of_rule(v_rule)) and v_rule.table_oid = v_rule.table_name::oid
            and not exists (select from pg_attribute a
            where a.attrelid = v_rule.table_name and a.attnum = (c.value ->> 0)::smallint and not a.attisdropped);
        if v_gone is not null then
            raise exception 'column "%" of table % is used by rule "%"', v_gone, v_rule.table_name, v_rule.name
                using errcode = '2BP01',
                hint = format('First: select pgps.drop_rule(%L); then make the rule without it.',
                    quote_ident(v_rule.name));
        end if;
        perform pgps_internal.note_columns(v_rule.rule_id),
            pgps_internal.build_rule(v_rule.rule_id,
                pgps_internal.environment_of(pgps_internal.function_of_rule(v_rule)));
    end loop;
end
$$;
comment on function pgps_internal.follow_columns(oid[]) is
'Generates the rules on these tables again, whose columns may have changed; 2BP01 when a column that a rule uses is
gone';

create or replace function pgps_internal.renamed_path(path text, was text, now text) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select array_to_string(array_replace(pgps_internal.path_items(renamed_path.path), quote_ident(renamed_path.was),
        quote_ident(renamed_path.now)), ', ')
$$;
comment on function pgps_internal.renamed_path(text, text, text) is 'A search_path with a schema under its new name';

create or replace function pgps_internal.follow_schemas(schemas oid[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_used record;
    v_function record;
begin
    -- The settings of generated functions name schemas, too. Only functions with this schema on their path are altered,
    -- so that nobody else has to wait.
    for v_used in
        select u.rule_id, u.signature_id, u.name, n.nspname::text as now
        from pgps_internal.used_name u join pg_namespace n on n.oid = u.object_id
        where u.object_id = any (follow_schemas.schemas) and u.sub_id = -1 and n.nspname <> u.name
            and u.noted_in = pgps_internal.here()
    loop
        for v_function in
            select p.oid::regprocedure as function,
                pgps_internal.renamed_path(substr(c.setting, 13), v_used.name, v_used.now) as path
            from pg_proc p cross join unnest(p.proconfig) c(setting)
            where p.pronamespace = 'pgps_internal'::regnamespace and c.setting like 'search_path=%' and case
                when v_used.rule_id is not null
                then p.proname ~ format('^rule_%s_[a-z]+$', v_used.rule_id) else p.proname = 'match_'
                    || v_used.signature_id end
        loop
            execute format('alter function %s set search_path = %s', v_function.function, v_function.path);
        end loop;
        update pgps_internal.subscription s set environment = s.environment || jsonb_build_object('search_path',
            pgps_internal.renamed_path(s.environment ->> 'search_path', v_used.name, v_used.now))
        where s.subscription_id
            in (select m.subscription_id from pgps_internal.class c join pgps_internal.member m using (class_id)
            where c.signature_id = v_used.signature_id);
        update pgps_internal.signature g set environment = g.environment || jsonb_build_object('search_path',
            pgps_internal.renamed_path(g.environment ->> 'search_path', v_used.name, v_used.now))
        where g.signature_id = v_used.signature_id
            -- There may be the same signature for an earlier schema of the new name. Then this one keeps its old path,
            -- and new subscriptions find the other.
            and not exists (select from pgps_internal.signature o where o.type_id = g.type_id and o.owner = g.owner
                and md5(o.shape) = md5(g.shape)
                and o.parameter_types = g.parameter_types and o.in_lane = g.in_lane and o.environment = g.environment
                    || jsonb_build_object(
                    'search_path',
                        pgps_internal.renamed_path(g.environment ->> 'search_path', v_used.name, v_used.now)));
    end loop;
    update pgps_internal.used_name u set name = n.nspname from pg_namespace n
    where n.oid = u.object_id and u.object_id = any (follow_schemas.schemas) and u.sub_id = -1
        and u.noted_in = pgps_internal.here();
end
$$;
comment on function pgps_internal.follow_schemas(oid[]) is
'Has unqualified names in rules and filters looked up in a schema under its new name';

create or replace function pgps_internal.names_that_changed(objects oid[])
returns table (rule_id integer, signature_id bigint, was text, now text, owner oid)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select u.rule_id, u.signature_id, case when u.sub_id > 0 then format('column %I of %s', u.name, c.relname)
            when u.class_id = 'pg_namespace'::regclass then format('schema %I', u.name)
            when u.class_id = 'pg_proc'::regclass then format('function %I', u.name)
            when u.class_id = 'pg_type'::regclass then format('type %I', u.name) else format('table %I', u.name) end,
        case when x.name = u.name
            then format('%I.%I', (select s.nspname from pg_namespace s where s.oid = x.schema), x.name)
            else quote_ident(x.name) end,
        coalesce(c.relowner, p.proowner, t.typowner, n.nspowner)
    from pgps_internal.used_name u
    left join pg_class c on u.class_id = 'pg_class'::regclass and c.oid = u.object_id
    left join pg_attribute a on u.class_id = 'pg_class'::regclass and u.sub_id > 0 and a.attrelid = u.object_id
        and a.attnum = u.sub_id
    left join pg_proc p on u.class_id = 'pg_proc'::regclass and p.oid = u.object_id
    left join pg_type t on u.class_id = 'pg_type'::regclass and t.oid = u.object_id
    left join pg_namespace n on u.class_id = 'pg_namespace'::regclass and n.oid = u.object_id
    cross join lateral (select coalesce(case when u.sub_id > 0 then case when not a.attisdropped then a.attname end
        else c.relname end,
            p.proname, t.typname, n.nspname)::text as name,
        coalesce(case when u.sub_id = 0 then c.relnamespace end, p.pronamespace, t.typnamespace, 0) as schema) x
    where u.object_id = any (names_that_changed.objects) and u.sub_id >= 0 and u.noted_in = pgps_internal.here()
        and x.name is not null
        and (x.name <> u.name or u.sub_id = 0 and x.schema <> u.schema)
$$;
comment on function pgps_internal.names_that_changed(oid[]) is
'The names of objects, used by rules and filters, that have changed: what they were, what they are now, and the
object''s owner';

create or replace function pgps_internal.tell_of_renames(caller name, objects oid[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_found record;
begin
    if not exists (select from pgps_internal.used_name u where u.object_id = any (tell_of_renames.objects)) then
        return;
    end if;
    for v_found in
        -- Refused when the rule belongs to the object's owner, to the caller, or to a role whose rights the caller has;
        -- not because a superuser has the rights of all. A rule of others must not block a rename.
        select r.name, n.was, n.now, n.owner = r.owner::oid or u.oid = r.owner::oid
            or not u.rolsuper and pg_has_role(u.oid, r.owner::oid, 'usage') as is_his
        from pgps_internal.names_that_changed(tell_of_renames.objects) n join pgps_internal.rule r using (rule_id)
        join pg_roles u on u.rolname = tell_of_renames.caller order by is_his desc, r.name
    loop
        if v_found.is_his then
            raise exception 'rule "%" names %, which this renames to %', v_found.name, v_found.was, v_found.now
                using errcode = '2BP01',
                hint = format('First: select pgps.drop_rule(%L); then make the rule with the new name.',
                    quote_ident(v_found.name));
        end if;
        raise warning 'rule "%" names %, which is % now: statements that fire it fail', v_found.name, v_found.was,
            v_found.now
        using hint = format('Its owner, or an administrator, types: select pgps.drop_rule(%L); and makes it with the '
            'new name.',
            quote_ident(v_found.name));
    end loop;
    for v_found in
        select distinct s.name, n.was, n.now
        from pgps_internal.names_that_changed(tell_of_renames.objects) n
        join pgps_internal.class c using (signature_id) join pgps_internal.member m using (class_id)
        join pgps_internal.subscription s using (subscription_id)
        order by s.name limit 20
    loop
        raise warning 'the filter of subscription "%" names %, which is % now', v_found.name, v_found.was, v_found.now
        using hint = format('Its owner types: select pgps.alter_subscription(%L, filter => ''…''); until then it '
            'fails and is suspended, and nothing '
            'is lost.', quote_ident(v_found.name));
    end loop;
    perform pgps_internal.note_names_of_rule(n.rule_id) from (
        select distinct n.rule_id from pgps_internal.names_that_changed(tell_of_renames.objects) n
            where n.rule_id is not null) n;
    perform pgps_internal.note_names_of_signature(n.signature_id) from (
        select distinct n.signature_id from pgps_internal.names_that_changed(tell_of_renames.objects) n
            where n.signature_id is not null) n;
end
$$;
comment on function pgps_internal.tell_of_renames(name, oid[]) is
'Warns of the rules and filters that name something whose name has changed. Errors: 2BP01 for a rule that caller could
make again';

create or replace function pgps_internal.after_ddl() returns event_trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_objects oid[];
    v_caller name := case current_setting('role') when 'none' then session_user else current_setting('role') end;
begin
    if not exists (select from pgps_internal.rule) and not exists (select from pgps_internal.used_name)
        and not exists (select from pgps_internal.callback_function) then
        return;
    end if;
    v_objects := array(select d.objid from pg_event_trigger_ddl_commands() d
        where d.schema_name is null or d.schema_name !~ '^(pg_|pgps$|pgps_)');
    if tg_tag in ('ALTER TABLE', 'CREATE TABLE', 'CREATE FOREIGN TABLE', 'ALTER FOREIGN TABLE') and exists (
            select from pg_class c where c.oid = any (v_objects)
                and (c.relispartition or c.relkind in ('p', 'f') or c.relhassubclass)) then
        perform pgps_internal.follow_partitions(v_objects);
    end if;
    if tg_tag in ('CREATE TABLE', 'CREATE FOREIGN TABLE') or cardinality(v_objects) = 0 then
        return;
    elsif tg_tag = 'ALTER TABLE' then
        perform pgps_internal.follow_columns(v_objects);
    elsif tg_tag = 'ALTER SCHEMA' then
        perform pgps_internal.follow_schemas(v_objects),
            pgps_internal.follow_columns(array(select c.oid from pgps_internal.rule r
            join pg_class c on c.oid = r.table_name where c.relnamespace = any (v_objects)));
    end if;
    if tg_tag in ('ALTER FUNCTION', 'ALTER PROCEDURE', 'ALTER ROUTINE', 'ALTER SCHEMA') then
        perform pgps_internal.follow_callbacks(v_objects);
    end if;
    perform pgps_internal.tell_of_renames(v_caller, v_objects);
end
$$;
comment on function pgps_internal.after_ddl() is
'After each ALTER, and each new table: follows changes of names that rules and filters use. Runs no user code, and does
nothing where there are no rules, callbacks or filters that read tables';

do $$
begin
    if not exists (
        select from pg_event_trigger e
        where e.evtname = 'pgps_after_ddl' and 'CREATE FOREIGN TABLE' = any (e.evttags)) then
        drop event trigger if exists pgps_after_ddl;
        create event trigger pgps_after_ddl on ddl_command_end
        when tag in ('ALTER TABLE', 'CREATE TABLE', 'ALTER SCHEMA', 'ALTER VIEW', 'ALTER MATERIALIZED VIEW',
            'ALTER FOREIGN TABLE', 'CREATE FOREIGN TABLE',
            'ALTER FUNCTION', 'ALTER PROCEDURE', 'ALTER ROUTINE', 'ALTER AGGREGATE', 'ALTER TYPE', 'ALTER DOMAIN')
        execute function pgps_internal.after_ddl();
    end if;
    -- Rules and filters of an older release, or of a restored dump.
    perform pgps_internal.note_columns(r.rule_id),
        pgps_internal.build_rule(r.rule_id, pgps_internal.environment_of(pgps_internal.function_of_rule(r)))
    from pgps_internal.rule r where pgps_internal.function_of_rule(r) is not null
        and exists (select from pg_class c where c.oid = r.table_name);
    perform pgps_internal.note_names_of_rule(r.rule_id)
    from pgps_internal.rule r where pgps_internal.function_of_rule(r) is not null;
    perform pgps_internal.note_names_of_signature(g.signature_id) from pgps_internal.signature g where g.tier <> 'safe';
end
$$;

drop function if exists pgps_internal.follow_partitions();
