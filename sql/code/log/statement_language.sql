-- The statement language of the paper, table 1. Each statement is parsed by pgps.parse_statement and run through the
-- public functions with the caller's rights.
-- Writes: by name: the endpoint.

create or replace function pgps._publish_statement(parsed jsonb) returns text
language plpgsql
set standard_conforming_strings = on
as $$
declare
    v_type text := pgps._call('type_name',
        pg_catalog.jsonb_build_object('name',
        pg_catalog.quote_ident(_publish_statement.parsed ->> 'event_type'))) #>> '{}';
    v_endpoint text := pg_catalog.format('pgps_event.%I', v_type);
    v_columns text;
    v_visibility text := (select t.visibility from pgps.event_types t where t.name = v_type);
    v_payload jsonb;
begin
    if pg_catalog.jsonb_typeof(_publish_statement.parsed -> 'columns') = 'array' then
        v_columns := (select pg_catalog.string_agg(pg_catalog.quote_ident(c), ', ')
            from pg_catalog.jsonb_array_elements_text(_publish_statement.parsed -> 'columns') c);
    else
        v_columns := (select pg_catalog.string_agg(c, ', ') from pg_catalog.jsonb_array_elements_text(
            pgps._call('columns', pg_catalog.jsonb_build_object('event_type', pg_catalog.quote_ident(v_type),
            'count', _publish_statement.parsed -> 'count', 'giver', 'PUBLISH'))) c);
    end if;
    if coalesce(_publish_statement.parsed ->> 'visibility', v_visibility, 'deferred') = 'immediate' then
        -- As JSON, from which pgps.publish makes values of the attributes' types, in a transaction of its own.
        execute pg_catalog.format(E'with pgps_row (%s) as (values (%s\n)) select pg_catalog.to_jsonb(pgps_row) from '
            'pgps_row', v_columns, _publish_statement.parsed ->> 'values') into v_payload;
        perform pgps.publish(pg_catalog.quote_ident(v_type), v_payload, 'immediate',
            _publish_statement.parsed ->> 'reliability');
    else
        perform pg_catalog.set_config('pgps.reliability', coalesce(_publish_statement.parsed ->> 'reliability', ''),
            true),
            pg_catalog.set_config('pgps.visibility', 'deferred', true);
        execute pg_catalog.format(E'insert into %s (%s) values (%s\n)', v_endpoint, v_columns,
            _publish_statement.parsed ->> 'values');
        perform pg_catalog.set_config('pgps.reliability', '', true), pg_catalog.set_config('pgps.visibility', '', true);
    end if;
    return 'PUBLISH 1';
end
$$;
comment on function pgps._publish_statement(jsonb) is 'PUBLISH of the statement language; see pgps.execute';

create or replace function pgps._subscription_statement(parsed jsonb) returns text
language plpgsql
as $$
declare
    v_type text := _subscription_statement.parsed ->> 'event_type';
begin
    perform pgps.subscribe(name => pg_catalog.quote_ident(_subscription_statement.parsed ->> 'name'),
        event_type => pgps._quoted_pattern(v_type, pg_catalog.right(v_type, 1) = '*'),
        filter => _subscription_statement.parsed ->> 'filter', scope => _subscription_statement.parsed ->> 'scope',
        execute => (_subscription_statement.parsed ->> 'execute') || '('
            || coalesce(_subscription_statement.parsed ->> 'args', '') || E'\n)',
        priority => coalesce((_subscription_statement.parsed ->> 'priority')::integer, 0),
        coupling => coalesce(_subscription_statement.parsed ->> 'coupling', 'detached'));
    return 'CREATE SUBSCRIPTION';
end
$$;
comment on function pgps._subscription_statement(jsonb) is
'CREATE SUBSCRIPTION of the statement language; see pgps.execute';

create or replace function pgps._composite_statement(parsed jsonb) returns text
language plpgsql
as $$
begin
    perform pgps.create_composite_event(pg_catalog.quote_ident(_composite_statement.parsed ->> 'name'),
        _composite_statement.parsed ->> 'expression', _composite_statement.parsed ->> 'context',
        _composite_statement.parsed ->> 'partition_by', (_composite_statement.parsed ->> 'within')::interval,
        _composite_statement.parsed ->> 'filter', _composite_statement.parsed ->> 'attributes',
        _composite_statement.parsed ->> 'scope');
    return 'CREATE COMPOSITE EVENT';
end
$$;
comment on function pgps._composite_statement(jsonb) is
'CREATE COMPOSITE EVENT of the statement language; see pgps.execute';

create or replace function pgps._rule_statement(parsed jsonb) returns text
language plpgsql
as $$
begin
    perform pgps._subscription_statement(_rule_statement.parsed);
    return 'CREATE RULE';
end
$$;
comment on function pgps._rule_statement(jsonb) is
'CREATE RULE … ON an event of the statement language, which is an internal subscription; see pgps.execute';

create or replace function pgps._require_revoked(event_type text, privilege text, roles jsonb) returns void
language plpgsql stable
as $$
declare
    v_role text;
    v_grantor name;
begin
    -- PostgreSQL takes back only what the same role has granted, and says nothing of the rest.
    select case x.grantee when 0 then 'public' else pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(x.grantee)) end,
        pg_catalog.pg_get_userbyid(x.grantor) into v_role, v_grantor
    from pg_catalog.pg_class c
    cross join lateral pg_catalog.aclexplode(c.relacl) x
    join pg_catalog.jsonb_array_elements_text(_require_revoked.roles) r on case r when 'public' then x.grantee = 0
        else pg_catalog.pg_get_userbyid(x.grantee) = case when r = 'session_user' then session_user
            when r in ('current_user', 'current_role') then current_user else r::name end end
    where c.oid = pg_catalog.format('pgps_event.%I', _require_revoked.event_type)::regclass
        and x.privilege_type = _require_revoked.privilege and x.grantee <> c.relowner limit 1;
    if v_role is not null then
        raise exception 'role % still has % on event type "%", from role %', v_role,
            pg_catalog.lower(_require_revoked.privilege), _require_revoked.event_type, v_grantor
        using errcode = '42501', hint = pg_catalog.format('Only who has granted it takes it back: set role %I; '
            'revoke %s on pgps_event.%I from %s', v_grantor, pg_catalog.lower(_require_revoked.privilege),
            _require_revoked.event_type, v_role);
    end if;
end
$$;
comment on function pgps._require_revoked(text, text, jsonb) is
'Raises 42501 when a role still has a privilege that was to be taken back, since somebody else has granted it';

create or replace function pgps._grant_statement(parsed jsonb) returns text
language plpgsql
as $$
declare
    v_grants boolean := _grant_statement.parsed ->> 'verb' = 'grant';
    v_type text := pgps._call('type_name',
        pg_catalog.jsonb_build_object('name',
        pg_catalog.quote_ident(_grant_statement.parsed ->> 'event_type'))) #>> '{}';
    v_privilege text := case _grant_statement.parsed ->> 'privilege' when 'publish' then 'INSERT' else 'SELECT' end;
    v_unknown text;
begin
    select r into v_unknown from pg_catalog.jsonb_array_elements_text(_grant_statement.parsed -> 'roles') r
    where r not in ('public', 'current_user', 'session_user', 'current_role')
        and not exists (select from pg_catalog.pg_roles o where o.rolname = r) limit 1;
    if v_unknown is not null then
        raise exception 'role "%" does not exist', v_unknown using errcode = '42704', hint = 'See \du, or pg_roles.';
    end if;
    execute pg_catalog.format('%s %s on pgps_event.%I %s %s', case when v_grants then 'grant' else 'revoke' end,
        v_privilege, v_type,
        case when v_grants then 'to' else 'from' end,
        (select pg_catalog.string_agg(case when r in ('public', 'current_user', 'session_user', 'current_role') then r
            else pg_catalog.quote_ident(r) end, ', ')
            from pg_catalog.jsonb_array_elements_text(_grant_statement.parsed -> 'roles') r));
    if not v_grants then
        perform pgps._require_revoked(v_type, v_privilege, _grant_statement.parsed -> 'roles');
    end if;
    return pg_catalog.upper(_grant_statement.parsed ->> 'verb');
end
$$;
comment on function pgps._grant_statement(jsonb) is 'GRANT and REVOKE of the statement language; see pgps.execute';

create or replace function pgps._service_statement(parsed jsonb) returns text
language plpgsql
as $$
declare
    v_parts jsonb := _service_statement.parsed -> 'service';
    v_privilege text := _service_statement.parsed ->> 'privilege';
    v_role text;
begin
    for v_role in select case when r in ('current_user', 'current_role') then current_user
        when r = 'session_user' then session_user else r::name end
        from pg_catalog.jsonb_array_elements_text(_service_statement.parsed -> 'roles') r
    loop
        if _service_statement.parsed ->> 'verb' = 'grant_service' then
            perform pgps.grant_service(v_parts ->> 0, v_parts ->> 1, v_parts ->> 2, v_privilege, v_role::name);
        else
            perform pgps.revoke_service(v_parts ->> 0, v_parts ->> 1, v_parts ->> 2, v_privilege, v_role::name);
        end if;
    end loop;
    return case _service_statement.parsed ->> 'verb' when 'grant_service' then 'GRANT' else 'REVOKE' end;
end
$$;
comment on function pgps._service_statement(jsonb) is
'GRANT and REVOKE on a service, of the statement language; see pgps.execute';

create or replace function pgps.execute(statement text) returns text
language plpgsql
set standard_conforming_strings = on
as $$
declare
    v_parsed jsonb := pgps.parse_statement(execute.statement);
    v_name text := pg_catalog.quote_ident(v_parsed ->> 'name');
begin
    case coalesce(v_parsed ->> 'verb', '')
        when 'create_event_type' then perform pgps.create_event_type(v_name, v_parsed ->> 'attributes');
        when 'drop_event_type' then perform pgps.drop_event_type(v_name, (v_parsed ->> 'cascade')::boolean);
        when 'alter_queue' then perform pgps.alter_queue(pg_catalog.quote_ident(v_parsed ->> 'queue'),
            (v_parsed ->> 'auditable')::boolean);
        when 'advertise' then perform pgps.advertise(v_name);
        when 'unadvertise' then perform pgps.unadvertise(v_name);
        when 'publish' then return pgps._publish_statement(v_parsed);
        when 'create_rule' then
            if pg_catalog.to_regclass(v_parsed ->> 'table') is null then
                raise exception 'table "%" does not exist', v_parsed ->> 'table' using errcode = '42P01',
                    hint = 'Give a table with its schema, as in public.orders, or set search_path.';
            end if;
            perform pgps.create_rule(v_name, (v_parsed ->> 'table')::regclass,
                (select pg_catalog.string_agg(o, ' or ')
                    from pg_catalog.jsonb_array_elements_text(v_parsed -> 'operations') o),
                    pg_catalog.quote_ident(v_parsed ->> 'event_type'),
                array(select pg_catalog.jsonb_array_elements_text(v_parsed -> 'values')), v_parsed ->> 'condition');
        when 'create_composite_event' then return pgps._composite_statement(v_parsed);
        when 'create_event_rule' then return pgps._rule_statement(v_parsed);
        when 'drop_rule' then
            -- A rule on an event is a subscription.
            if exists (select from pgps.subscriptions s where s.name = v_parsed ->> 'name' and s.kind = 'internal')
                and not exists (select from pgps.rules r where r.name = v_parsed ->> 'name') then
                perform pgps.unsubscribe(v_name);
            else
                perform pgps.drop_rule(v_name);
            end if;
        when 'create_subscription' then return pgps._subscription_statement(v_parsed);
        when 'drop_subscription' then perform pgps.unsubscribe(v_name);
        when 'create_link' then
            perform pgps.create_link(v_name,
                (select pg_catalog.string_agg(pg_catalog.format('%s=''%s''', p.key,
                pg_catalog.replace(pg_catalog.replace(p.value, '\', '\\'), '''', '\''')), ' ')
                from pg_catalog.jsonb_each_text(pg_catalog.jsonb_build_object('host', v_parsed -> 'address', 'port',
                    v_parsed -> 'port', 'dbname', pg_catalog.current_database(), 'user', v_parsed -> 'user',
                    'password', v_parsed -> 'password')) p where p.value is not null));
        when 'grant', 'revoke' then return pgps._grant_statement(v_parsed);
        when 'grant_service', 'revoke_service' then return pgps._service_statement(v_parsed);
        else
            raise exception 'not a statement of the publish/subscribe language: "%"',
                pg_catalog.left(execute.statement, 60)
            using errcode = '42601',
                hint = 'CREATE EVENT TYPE, DROP EVENT TYPE, ALTER QUEUE, ADVERTISE, UNADVERTISE, PUBLISH, CREATE RULE, '
                'CREATE COMPOSITE EVENT, CREATE SUBSCRIPTION, CREATE LINK, GRANT or REVOKE; anything else is ordinary '
                    'SQL and is run without pgps.execute.';
    end case;
    return pg_catalog.upper(pg_catalog.replace(v_parsed ->> 'verb', '_', ' '));
end
$$;
comment on function pgps.execute(text) is
'Runs a statement of the publish/subscribe language (paper, table 1) with the caller''s rights and returns its command
tag: CREATE EVENT TYPE t AS (…), DROP EVENT TYPE t [CASCADE], ALTER QUEUE q SET [NON-AUDITABLE | AUDITABLE], ADVERTISE
t, UNADVERTISE t, PUBLISH [IMMEDIATE | DEFERRED] [NON-GUARANTEED | GUARANTEED] t (v1, …), CREATE RULE r AS ON {INSERT |
UPDATE | DELETE} TO table [WHERE filter] PUBLISH t (v1, …), CREATE [LOCAL | GLOBAL] SUBSCRIPTION s ON t [WHERE filter]
[EXECUTE f(args)] [WITH priority], CREATE [GLOBAL] COMPOSITE EVENT t ON expression [CONTEXT c] [PARTITION BY …] [WITHIN
''interval''] [WHERE filter] [AS (attribute type = expression, …)], CREATE RULE r ON t [WHERE filter] EXECUTE f(args)
[COUPLING c] [WITH priority], CREATE LINK l TO address port USING user password, GRANT | REVOKE {PUBLISH | SUBSCRIBE} ON
EVENT TYPE t {TO | FROM} role, GRANT | REVOKE {SEND | SERVE} ON SERVICE class/server/service {TO | FROM} role. A
link leads to a database of the same name as this one; for another name, or without a password here: pgps.create_link.
Errors: 42601 with the place, and those of the functions behind the statements.';

grant execute on function pgps._publish_statement(jsonb), pgps._subscription_statement(jsonb),
    pgps._composite_statement(jsonb), pgps._rule_statement(jsonb),
    pgps._grant_statement(jsonb), pgps._require_revoked(text, text, jsonb), pgps._service_statement(jsonb),
    pgps.execute(text) to public;
