-- Row-level policies: which events of a type a role may ever receive. As with a table's row-level security: without a
-- policy every holder of SELECT sees all events; as soon as there is one, each role sees what a policy for it (or for a
-- role it is a member of) lets through.
-- Writes: event_type, policy.

drop function if exists pgps_internal.adopt_draft(name, pgps_internal.event_type, oid, regclass);

create or replace function pgps_internal.adopt_draft(caller name, event_type pgps_internal.event_type, draft regclass)
returns name
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tree text;
    v_fault text;
begin
    -- Locked first, so that it cannot change after it was checked.
    if adopt_draft.draft is not null then
        execute format('lock table only %s in access exclusive mode', adopt_draft.draft);
    end if;
    select p.polqual::text into v_tree
    from pg_class c join pg_policy p on p.polrelid = c.oid
    where c.oid = adopt_draft.draft and c.relkind = 'r' and c.relowner = quote_ident(adopt_draft.caller)::regrole
        and not exists (select from pg_rewrite w where w.ev_class = c.oid)
        and not exists (select from pg_inherits i where c.oid in (i.inhrelid, i.inhparent))
        and not exists (select from pg_trigger g where g.tgrelid = c.oid and not g.tgisinternal)
        and not exists (select from pg_policy o where o.polrelid = c.oid and o.oid <> p.oid)
        and not exists (select from pgps_internal.event_type t where t.endpoint = c.oid)
        and (select array_agg((a.attname, a.atttypid, a.atttypmod, a.attcollation)::text order by a.attnum)
            from pg_attribute a
                where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped)
            = (select array_agg((a.attname, a.atttypid, a.atttypmod, a.attcollation)::text order by a.attnum)
                from pg_attribute a
                where a.attrelid = (adopt_draft.event_type).endpoint and a.attnum > 0 and not a.attisdropped);
    if v_tree is null then
        raise exception 'relation "%" is no draft of a policy of role "%"', coalesce(adopt_draft.draft::text, ''),
            adopt_draft.caller
        using errcode = '55000', hint = 'Use pgps.create_policy.';
    end if;
    perform pgps_internal.lock_tables_of_policy(v_tree);
    v_fault := pgps_internal.policy_fault(adopt_draft.caller, v_tree);
    if v_fault is not null then
        raise exception 'the policy %: only a superuser may put that there', v_fault using errcode = '42501',
            hint = 'Use attributes, constants of built-in types, built-in functions that only compute and plain tables '
                'that you may read; to read one that is not plain, let a superuser create the policy.';
    end if;
    execute format('alter table %s owner to %I', adopt_draft.draft, current_user);
    execute format('alter table %s set schema pgps_load', adopt_draft.draft);
    return (select c.relname from pg_class c where c.oid = adopt_draft.draft);
end
$$;
comment on function pgps_internal.adopt_draft(name, pgps_internal.event_type, regclass) is
'Takes over the table that pgps.create_policy made with its policy, if its caller may write that policy; returns the
table''s name in pgps_load. Errors: 55000 no such draft, 42501';

create or replace function pgps_internal.write_policy(
    caller name, draft regclass, relation regclass, name text, role regrole
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_draft text;
    v_expression text;
    v_tree text;
    v_fault text;
begin
    select p.polqual::text, pg_get_expr(p.polqual, p.polrelid) into v_draft, v_expression
    from pg_policy p where p.polrelid = write_policy.draft;
    execute format('create policy %I on %s for select to %s using (%s)', write_policy.name, write_policy.relation,
        write_policy.role, v_expression);
    -- The names of tables were written out and read again, and the owner of their schema may have exchanged it between.
    select p.polqual::text into v_tree
    from pg_policy p where p.polrelid = write_policy.relation and p.polname = write_policy.name::name;
    if array(select t from pgps_internal.tables_of_policy(v_tree) t order by t)
            <> array(select t from pgps_internal.tables_of_policy(v_draft) t order by t) then
        v_fault := 'would read another table';
    else
        v_fault := pgps_internal.policy_fault(write_policy.caller, v_tree);
    end if;
    if v_fault is not null then
        raise exception 'the policy % now: what it names was exchanged while it was made', v_fault
        using errcode = '40001', hint = 'Make it again when nobody renames what it reads.';
    end if;
end
$$;
comment on function pgps_internal.write_policy(name, regclass, regclass, text, regrole) is
'Writes the policy of a checked draft for one of the tables that hold events, and checks what came of it. Errors: 40001
the names in it mean something else by now';

create or replace function pgps_internal.do_create_policy(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'event_type');
    v_name text := pgps_internal.check_name(args ->> 'name', 'policy');
    v_role oid;
    v_relation record;
    v_draft name;
begin
    perform pgps_internal.require_admin(caller, 'create policies');
    v_role := pgps_internal.find_role(args ->> 'role');
    if exists (select from pgps_internal.policy p where p.type_id = v_type.type_id and p.name = v_name) then
        raise exception 'policy "%" on event type "%" exists already', v_name, v_type.name
        using errcode = '42710',
            hint = format('First: select pgps.drop_policy(%L, %L)', quote_ident(v_type.name), quote_ident(v_name));
    end if;
    v_draft := pgps_internal.adopt_draft(caller, v_type,
        to_regclass(format('pgps_event.%I', coalesce(args ->> 'draft', ''))));
    perform pgps_internal.lock_types(array[v_type.type_id]);
    insert into pgps_internal.policy (type_id, name, role, using_expression)
    values (v_type.type_id, v_name, v_role::regrole, args ->> 'using_expression');
    -- The archive and the events kept aside get the same policies as the log.
    for v_relation in select r, c.relname from pgps_internal.guarded(v_type) r join pg_class c on c.oid = r loop
        -- The caller's text is not used: it would be parsed with the rights of pgps. The checked expression is deparsed
        -- instead, with all names written out. A sub-select in it calls the draft by the draft's name, so the draft is
        -- renamed to each table's name first.
        execute format('alter table pgps_load.%I rename to %I', v_draft, v_relation.relname);
        v_draft := v_relation.relname;
        perform pgps_internal.write_policy(caller, format('pgps_load.%I', v_draft)::regclass, v_relation.r,
            'user_' || v_name, v_role::regrole);
    end loop;
    execute format('drop table pgps_load.%I', v_draft);
    perform pgps_internal.note_plain(array(select p from pgps_internal.policy p
            where p.type_id = v_type.type_id and p.name = v_name)),
        pgps_internal.refresh_policies(v_type.type_id);
end
$$;
comment on function pgps_internal.do_create_policy(name, jsonb) is 'See pgps.create_policy';

create or replace function pgps_internal.guarded(event_type pgps_internal.event_type) returns setof regclass
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select r::regclass
    from unnest(array[(guarded.event_type).log::text, format('pgps_internal.%I', (guarded.event_type).name || '_kept'),
        format('pgps_internal.%I', (guarded.event_type).name || '_audit')]) r
$$;
comment on function pgps_internal.guarded(pgps_internal.event_type) is
'The relations that hold events of a type and are under its rights and policies: the log, the events kept aside, the
archive';

create or replace function pgps_internal.refresh_policies(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_any boolean := exists (select from pgps_internal.policy p where p.type_id = refresh_policies.type_id);
    v_relation regclass;
begin
    update pgps_internal.event_type t set has_policy = v_any where t.type_id = refresh_policies.type_id returning *
        into v_type;
    for v_relation in select r from pgps_internal.guarded(v_type) r loop
        execute format('alter policy pgps_all on %s to %s', v_relation, case when v_any then 'pgps_admin'
            else 'public' end);
    end loop;
    perform pgps_internal.policies_change(v_type);
end
$$;
comment on function pgps_internal.refresh_policies(integer) is
'Opens a type''s events to every holder of SELECT while the type has no policy, otherwise to pgps_admin only';

create or replace function pgps_internal.do_may_write_policy(caller name, args jsonb) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'event_type');
begin
    perform pgps_internal.require_admin(caller, 'create policies');
    if not has_table_privilege(caller, v_type.endpoint, 'select') then
        raise exception 'role "%" may not see event type "%"', caller, v_type.name
        using errcode = '42501', hint = format('Ask for: grant select on %s to %I', v_type.endpoint, caller);
    end if;
end
$$;
comment on function pgps_internal.do_may_write_policy(name, jsonb) is
'Raises 42501 when caller may not write policies of an event type';

drop function if exists pgps.create_policy(text, text, name, text, text);
create or replace function pgps.create_policy(event_type text, name text, role name, using_expression text)
returns void
language plpgsql
set standard_conforming_strings = on
as $$
declare
    v_type text := pgps._call('type_name', pg_catalog.jsonb_build_object('name', create_policy.event_type)) #>> '{}';
    -- Longer than any event type's name may be, so that it cannot be one.
    v_draft text := pg_catalog.concat('pgps_policy_that_is_being_written_in_session_', pg_catalog.pg_backend_pid());
    v_query text;
    v_state text;
    v_message text;
    v_detail text;
    v_hint text;
begin
    if create_policy.using_expression is null then
        raise exception 'the expression of policy "%" is null', create_policy.name
        using errcode = '22023', hint = 'Give a condition over the attributes; true lets the role have every event.';
    end if;
    perform pgps.parse_filter(create_policy.using_expression, v_type, '{}');
    perform pgps._call('may_write_policy', pg_catalog.jsonb_build_object('event_type', pg_catalog.quote_ident(v_type)));
    -- Parsed with the caller's rights: parsing an expression runs the input functions of its constants' types.
    execute pg_catalog.format('create table pgps_event.%I (like pgps_event.%I)', v_draft, v_type);
    v_query := pg_catalog.format(E'create policy draft on pgps_event.%I for select using (%s\n)', v_draft,
        create_policy.using_expression);
    begin
        execute v_query;
    exception when syntax_error_or_access_rule_violation or data_exception or invalid_schema_name then
        get stacked diagnostics v_state = returned_sqlstate, v_message = message_text, v_detail = pg_exception_detail,
            v_hint = pg_exception_hint;
        perform pgps._refuse_text(v_state, v_message, v_detail, coalesce(nullif(v_hint, ''), pgps._hint_for(v_state,
            pgps._attribute_names(pg_catalog.format('pgps_event.%I', v_type)::regclass), 'A policy is one condition.')),
            v_query, array[create_policy.using_expression], array['the expression']);
    end;
    perform pgps._call('create_policy',
        pg_catalog.jsonb_build_object('event_type', pg_catalog.quote_ident(v_type), 'name', create_policy.name,
        'role', create_policy.role, 'using_expression', create_policy.using_expression, 'draft', v_draft));
end
$$;
comment on function pgps.create_policy(text, text, name, text) is
'Lets a role receive, and see in the queues, only events for which using_expression is true; several policies of a role
add up. From the first policy on a type, a role without one receives nothing of it. The expression runs with the
receiving role''s rights: a caller who is not a superuser may only use attributes, constants of built-in types,
immutable and listed stable built-in functions (those that only compute), and sub-selects of plain tables that the
caller may read (materialized views only of superusers), which stay plain as long as the policy is there: without
row-level security, and without indexes, checks, statistics and partitions on expressions that call functions of users.
Needs pgps_admin and SELECT on the type.
Errors: 42704, 42710, 42601, 42501, 40001 what it reads was renamed meanwhile, and those of the expression.';

create or replace function pgps_internal.do_drop_policy(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'event_type');
    v_name text := pgps_internal.fold(args ->> 'name');
    v_relation regclass;
begin
    perform pgps_internal.require_admin(caller, 'drop policies');
    perform pgps_internal.lock_types(array[v_type.type_id]);
    delete from pgps_internal.policy p where p.type_id = v_type.type_id and p.name = v_name;
    if not found then
        raise exception 'policy "%" on event type "%" does not exist', v_name, v_type.name
        using errcode = '42704', hint = format('select * from pgps.policies where event_type = %L', v_type.name);
    end if;
    for v_relation in
        -- DROP OWNED removes a role from policies, and drops those left without a role: some may be gone already.
        select p.polrelid from pgps_internal.guarded(v_type) r join pg_policy p on p.polrelid = r
            and p.polname = ('user_' || v_name)::name
    loop
        execute format('drop policy %I on %s', 'user_' || v_name, v_relation);
    end loop;
    perform pgps_internal.refresh_policies(v_type.type_id);
end
$$;
comment on function pgps_internal.do_drop_policy(name, jsonb) is 'See pgps.drop_policy';

create or replace function pgps.drop_policy(event_type text, name text) returns void
language sql
begin atomic
    select pgps._call('drop_policy',
        jsonb_build_object('event_type', drop_policy.event_type, 'name', drop_policy.name));
end;
comment on function pgps.drop_policy(text, text) is
'Drops a row-level policy of an event type. Needs pgps_admin. Errors: 42704, 42501.';

grant execute on function pgps.create_policy(text, text, name, text), pgps.drop_policy(text, text) to public;
