-- Row-level policies: which events of a type a role may ever receive. As with a table's row-level security: without a policy every
-- holder of SELECT sees all, with one each role sees what a policy for it (or a role it is in) lets through.

create or replace function pgps_internal.do_create_policy(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'event_type');
    v_name text := pgps_internal.check_name(args ->> 'name', 'policy');
    v_role oid := (select r.oid from pg_roles r where r.rolname = args ->> 'role');
    v_statements text[];
    v_statement text;
    v_path text;
begin
    perform pgps_internal.require_admin(caller, 'create policies');
    if v_role is null then
        raise exception 'role "%" does not exist', args ->> 'role' using errcode = '42704', hint = 'See \du, or pg_roles.';
    elsif exists (select from pgps_internal.policy p where p.type_id = v_type.type_id and p.name = v_name) then
        raise exception 'policy "%" on event type "%" exists already', v_name, v_type.name
        using errcode = '42710', hint = format('First: select pgps.drop_policy(%L, %L)', v_type.name, v_name);
    end if;
    perform pgps.parse_filter(args ->> 'using_expression', v_type.name, array(select a.name from pgps_internal.attributes_of(v_type.endpoint) a));
    insert into pgps_internal.policy (type_id, name, role, using_expression)
    values (v_type.type_id, v_name, v_role::regrole, args ->> 'using_expression');
    -- The archive and the events kept aside have the same policies as the log; one relation's never run for another role's reader.
    v_statements := array(
        select format('create policy %I on %s for select to %s using (%s%s)', 'user_' || v_name, r, v_role::regrole, args ->> 'using_expression', E'\n')
        from pgps_internal.guarded(v_type) r);
    v_path := pgps_internal.clean_path(args -> 'schemas');
    perform set_config('search_path', v_path, true);
    -- Under the caller's search_path nothing is run here whose name or operator it could give another meaning.
    foreach v_statement in array v_statements loop
        execute v_statement;
    end loop;
    perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    perform pgps_internal.refresh_policies(v_type.type_id);
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
'What holds events of a type and is under its rights and policies: the log, the events kept aside, the archive';

create or replace function pgps_internal.refresh_policies(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_any boolean := exists (select from pgps_internal.policy p where p.type_id = refresh_policies.type_id);
    v_relation regclass;
begin
    update pgps_internal.event_type t set has_policy = v_any where t.type_id = refresh_policies.type_id returning * into v_type;
    for v_relation in select r from pgps_internal.guarded(v_type) r loop
        execute format('alter policy pgps_all on %s to %s', v_relation, case when v_any then 'pgps_admin' else 'public' end);
    end loop;
end
$$;
comment on function pgps_internal.refresh_policies(integer) is 'Opens a type''s events to every holder of SELECT while it has no policy, else to pgps_admin only';

create or replace function pgps.create_policy(
    event_type text, name text, role name, using_expression text,
    search_path text = pg_catalog.array_to_string(pg_catalog.current_schemas(false), ', ')
) returns void
language plpgsql
set standard_conforming_strings = on
as $$
declare
    v_type text := pgps._call('type_name', pg_catalog.jsonb_build_object('name', create_policy.event_type)) #>> '{}';
begin
    if create_policy.using_expression is null then
        raise exception 'the expression of policy "%" is null', create_policy.name
        using errcode = '22023', hint = 'Give a condition over the attributes; true lets the role have every event.';
    end if;
    perform pgps.parse_filter(create_policy.using_expression, v_type, '{}');
    execute pg_catalog.format(E'explain select 1 from pgps_event.%I where (%s\n)', v_type, create_policy.using_expression);
    perform pgps._call('create_policy', pg_catalog.jsonb_build_object('event_type', pg_catalog.quote_ident(v_type), 'name', create_policy.name,
        'role', create_policy.role, 'using_expression', create_policy.using_expression,
        'schemas', pg_catalog.to_jsonb(pg_catalog.current_schemas(false))));
end
$$;
comment on function pgps.create_policy(text, text, name, text, text) is
'Lets a role receive, and see in the queues, only events for which using_expression is true; several policies of a role add up. From the
first policy on a type, a role without one receives nothing of it. The expression runs with the receiving role''s rights.
Needs pgps_admin. Errors: 42704, 42710, 42601, 42501.';

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
    delete from pgps_internal.policy p where p.type_id = v_type.type_id and p.name = v_name;
    if not found then
        raise exception 'policy "%" on event type "%" does not exist', v_name, v_type.name
        using errcode = '42704', hint = format('select * from pgps.policies where event_type = %L', v_type.name);
    end if;
    for v_relation in select r from pgps_internal.guarded(v_type) r loop
        execute format('drop policy %I on %s', 'user_' || v_name, v_relation);
    end loop;
    perform pgps_internal.refresh_policies(v_type.type_id);
end
$$;
comment on function pgps_internal.do_drop_policy(name, jsonb) is 'See pgps.drop_policy';

create or replace function pgps.drop_policy(event_type text, name text) returns void
language sql
begin atomic
    select pgps._call('drop_policy', jsonb_build_object('event_type', drop_policy.event_type, 'name', drop_policy.name));
end;
comment on function pgps.drop_policy(text, text) is 'Drops a row-level policy of an event type. Needs pgps_admin. Errors: 42704, 42501.';

revoke all on all functions in schema pgps_internal from public;
grant execute on function pgps.create_policy(text, text, name, text, text), pgps.drop_policy(text, text) to public;
