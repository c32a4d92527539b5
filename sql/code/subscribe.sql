-- Subscriptions: check the filter with the subscriber's rights, find or make its class, join it from now, from the beginning
-- or from an event. Locks: catalogue rows; with a start other than now the dispatcher's lock, until the transaction ends.

create or replace function pgps_internal.do_types_for(caller name, args jsonb) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_given text := args ->> 'event_type';
    v_pattern boolean := v_given ~ '\*$';
    v_prefix text;
    v_type pgps_internal.event_type;
begin
    if v_pattern then
        v_prefix := case when v_given = '*' then '' else pgps_internal.fold(rtrim(left(v_given, -1), '"')) end;
        if v_given ~ '^"' then
            v_prefix := ltrim(rtrim(v_given, '"*'), '"');
        end if;
        return jsonb_build_object('pattern', true, 'event_type', v_prefix || '*', 'types', (
            select coalesce(jsonb_agg(t.name order by t.name), '[]') from pgps_internal.event_type t
            where starts_with(t.name, v_prefix) and has_table_privilege(caller, t.endpoint, 'select')));
    end if;
    v_type := pgps_internal.find_type(v_given);
    if not has_table_privilege(caller, v_type.endpoint, 'select') then
        raise exception 'role "%" may not subscribe to event type "%"', caller, v_type.name
        using errcode = '42501', hint = format('Ask for: grant select on %s to %I', v_type.endpoint, caller);
    elsif not exists (select from pgps_internal.advertisement a where a.type_id = v_type.type_id) then
        raise exception 'event type "%" is not advertised by anybody', v_type.name
        using errcode = '55000', hint = format('A publisher must first: select pgps.advertise(%L)', quote_ident(v_type.name));
    end if;
    return jsonb_build_object('pattern', false, 'event_type', v_type.name, 'types', jsonb_build_array(v_type.name));
end
$$;
comment on function pgps_internal.do_types_for(name, jsonb) is
'The event types a subscription is about: one, or all of a prefix that the caller may see. Errors: 42704, 42501, 55000 not advertised.';

create or replace function pgps.check_filter(event_type text, filter text) returns text[]
language plpgsql
set standard_conforming_strings = on
as $$
declare
    v_endpoint text := format('pgps_event.%I', check_filter.event_type);
    v_parsed jsonb;
    v_types text[];
begin
    v_parsed := pgps.parse_filter(check_filter.filter, check_filter.event_type, array(
        select a.attname::text from pg_catalog.pg_attribute a
        where a.attrelid = v_endpoint::regclass and a.attnum > 0 and not a.attisdropped));
    -- PostgreSQL checks names, types and rights, and says where an error is; nothing is executed.
    execute format(E'explain select 1 from %s where (%s\n)', v_endpoint, check_filter.filter);
    if jsonb_array_length(v_parsed -> 'parameters') = 0 then
        return '{}';
    end if;
    begin
        execute format(E'prepare pgps_probe as select 1 from %s where (%s\n)', v_endpoint, v_parsed ->> 'shape');
    exception when others then
        return null;
    end;
    select array(select t::text from unnest(p.parameter_types) t) into v_types from pg_catalog.pg_prepared_statements p where p.name = 'pgps_probe';
    deallocate pgps_probe;
    return v_types;
end
$$;
comment on function pgps.check_filter(text, text) is
'Checks a filter on an event type with the caller''s rights, as pgps.subscribe does: raises PostgreSQL''s own error with its position.
Returns the types of its constants; null when they cannot be told from their context. Errors: 42601 not one expression, 42703,
42804 not boolean, 42883, 42P01, 42501.';

create or replace function pgps.check_callback(event_type text, execute text) returns jsonb
language plpgsql
as $$
declare
    v_name text[] := parse_ident(regexp_replace(check_callback.execute, '\s*\(.*$', '', 's'));
    v_single regprocedure;
    v_batch regprocedure;
    v_type text := format('pgps_event.%I', check_callback.event_type);
    v_text text := (select string_agg(quote_ident(n), '.') from unnest(v_name) n);
begin
    v_single := to_regprocedure(format('%s(%s)', v_text, v_type));
    v_batch := to_regprocedure(format('%s(%s[])', v_text, v_type));
    if v_single is null and v_batch is null then
        raise exception 'function %(%) does not exist', v_text, v_type using errcode = '42883',
            hint = format('The callback takes one event, %s(%s), or a batch, %s(%s[]).', v_text, v_type, v_text, v_type);
    elsif not has_function_privilege(coalesce(v_single, v_batch)::oid, 'execute') then
        raise exception 'permission denied for function %', coalesce(v_single, v_batch)
        using errcode = '42501', hint = format('Ask for: grant execute on function %s to %I', coalesce(v_single, v_batch), current_user);
    elsif (select p.prokind from pg_catalog.pg_proc p where p.oid = coalesce(v_single, v_batch)::oid) <> 'f' then
        raise exception '% is not a function', coalesce(v_single, v_batch) using errcode = '42809', hint = 'Give a function.';
    end if;
    return (select jsonb_build_object('function', format('%I.%I', n.nspname, p.proname), 'batch', v_single is null)
        from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace where p.oid = coalesce(v_single, v_batch)::oid);
end
$$;
comment on function pgps.check_callback(text, text) is
'Finds the callback of an internal subscription with the caller''s rights and search_path: f(pgps_event.<type>) or f(pgps_event.<type>[]).
Errors: 42883 no such function, 42501, 42809 not a function.';

create or replace function pgps.subscribe(
    name text, event_type text, filter text = null, scope text = 'local', execute text = null, priority integer = 0,
    start text = 'now', max_attempts integer = 5, handler text = null
) returns void
language plpgsql
as $$
declare
    v_types jsonb := pgps._call('types_for', jsonb_build_object('event_type', subscribe.event_type));
    v_type text;
    v_constants text[];
    v_callback jsonb;
begin
    if subscribe.scope is null or subscribe.scope not in ('local', 'global') then
        raise exception 'invalid scope "%"', subscribe.scope using errcode = '22023', hint = 'Use local or global.';
    elsif subscribe.max_attempts is null or subscribe.max_attempts < 1 then
        raise exception 'invalid max_attempts %', subscribe.max_attempts using errcode = '22023', hint = 'Give 1 or more.';
    elsif subscribe.handler not in ('all', 'any') then
        raise exception 'invalid handler "%"', subscribe.handler using errcode = '22023', hint = 'Use all or any.';
    end if;
    for v_type in select jsonb_array_elements_text(v_types -> 'types') loop
        if subscribe.filter is not null then
            v_constants := pgps.check_filter(v_type, subscribe.filter);
        end if;
        if subscribe.execute is not null then
            v_callback := pgps.check_callback(v_type, subscribe.execute);
        end if;
    end loop;
    perform pgps._call('subscribe', jsonb_build_object('name', subscribe.name, 'types', v_types, 'filter', subscribe.filter,
        'constant_types', v_constants, 'scope', subscribe.scope, 'callback', v_callback, 'execute', subscribe.execute,
        'priority', coalesce(subscribe.priority, 0), 'start', coalesce(subscribe.start, 'now'), 'max_attempts', subscribe.max_attempts,
        'handler', subscribe.handler, 'schemas', to_jsonb(current_schemas(false))));
end
$$;
comment on function pgps.subscribe(text, text, text, text, text, integer, text, integer, text) is
'Subscribes the current role to an event type (paper, section 4.3), or to every type of a prefix it may see, now and later (''security*'').
filter: any SQL predicate over the event and tables, run with the subscriber''s rights; null = every event; a null result is no match.
scope: local, or global over links. execute: the callback of an internal subscription, null = external (pgps.receive). priority: higher
first. start: now (what commits from now on), earliest, or an event id. max_attempts: tries before the exception queue.
handler: all, any = competing consumers, null = as the type says. Needs SELECT on the type.
Errors: 42704, 42710 exists, 42501, 55000 not advertised, 22023, and PostgreSQL''s own for filter and callback.';

-- ---------------------------------------------------------------------------------------------------------------------
-- Signature and class of a filter
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.clean_types(types jsonb) returns text[]
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- As the catalogue writes them: what a caller writes could go on behind a name, in a comment.
    select array(select to_regtype(t.name)::text from jsonb_array_elements_text(clean_types.types) with ordinality t(name, place) order by t.place)
    where jsonb_typeof(clean_types.types) = 'array'
$$;
comment on function pgps_internal.clean_types(jsonb) is 'A JSON array of type names as a caller gave it, each as the catalogue writes it; null unless an array';

create or replace function pgps_internal.constant_values(parameters jsonb, types text[]) returns text[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_values text[] := '{}';
    v_value text;
    v_same boolean;
    v_numeric boolean;
begin
    if constant_values.types is null or cardinality(constant_values.types) <> jsonb_array_length(constant_values.parameters) then
        return null;
    end if;
    for i in 1..cardinality(constant_values.types) loop
        -- Only built-in base types: turning text into others may run somebody's code. "character" and "bit" say one when they
        -- stand alone, and an array of arrays is taken apart to its elements.
        if not exists (select from pg_type t where t.oid = to_regtype(constant_values.types[i])
                and t.typnamespace = 'pg_catalog'::regnamespace and t.typtype = 'b' and t.typcategory <> 'A'
                and t.typname not in ('bpchar', 'bit')) then
            return null;
        end if;
        v_numeric := constant_values.types[i] in ('integer', 'bigint', 'numeric', 'double precision');
        v_value := constant_values.parameters -> (i - 1) ->> 'value';
        begin
            if constant_values.parameters -> (i - 1) ->> 'kind' <> 'string' then
                if not v_numeric then
                    return null;
                end if;
                execute format('select (%L::%s)::numeric = %L::numeric, (%L::%s)::text', v_value, constant_values.types[i], v_value, v_value,
                    constant_values.types[i]) into v_same, v_value;
                if not v_same then
                    return null;
                end if;
            else
                execute format('select (%L::%s)::text', v_value, constant_values.types[i]) into v_value;
            end if;
        exception when data_exception then
            return null;
        end;
        v_values := v_values || v_value;
    end loop;
    return v_values;
end
$$;
comment on function pgps_internal.constant_values(jsonb, text[]) is
'Constants of a filter as text of their types; null when one has another meaning there, so that the filter keeps them in its text';

create or replace function pgps_internal.is_safe(parsed jsonb, event_type pgps_internal.event_type, search_path text) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_attributes text[] := array(select jsonb_array_elements_text(is_safe.parsed -> 'attributes'));
    v_operators text[] := array(select jsonb_array_elements_text(is_safe.parsed -> 'operators'));
    v_functions text[] := array(select jsonb_array_elements_text(is_safe.parsed -> 'functions'));
    v_schemas oid[];
begin
    if not (is_safe.parsed ->> 'safe')::boolean then
        return false;
    end if;
    v_schemas := array(select n.oid from pg_namespace n
        where n.nspname <> 'pg_catalog' and quote_ident(n.nspname) = any (regexp_split_to_array(is_safe.search_path, '\s*,\s*')));
    return not exists (
            select from pg_attribute a join pg_type t on t.oid = a.atttypid
            where a.attrelid = (is_safe.event_type).endpoint and a.attname = any (v_attributes)
                and (t.typnamespace <> 'pg_catalog'::regnamespace or t.typtype <> 'b' or t.typname = 'bpchar'))
        and not exists (
            select from pg_operator o
            where o.oprname = any (v_operators) and o.oprnamespace = any (v_schemas)
                and not exists (select from pg_type x where x.oid in (o.oprleft, o.oprright) and x.typnamespace <> 'pg_catalog'::regnamespace))
        and not exists (select from pg_proc p where p.proname = any (v_functions) and p.pronamespace = any (v_schemas));
end
$$;
comment on function pgps_internal.is_safe(jsonb, pgps_internal.event_type, text) is
'True when a filter means the same, and can do nothing but read the event, if the broker''s owner runs it with search_path pg_catalog:
only built-in types, and no operator or function of that name in the subscriber''s schemas';

create or replace function pgps_internal.find_class(
    event_type pgps_internal.event_type, owner regrole, filter text, constant_types text[], environment jsonb, private boolean
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_parsed jsonb;
    v_constants text[];
    v_signature bigint;
    v_class bigint;
    v_tier text;
    v_types text[];
    v_environment jsonb := find_class.environment;
begin
    if find_class.filter is not null then
        v_parsed := pgps.parse_filter(find_class.filter, (find_class.event_type).name,
            array(select a.name from pgps_internal.attributes_of((find_class.event_type).endpoint) a));
        -- Beside a smallint or a real a literal is an integer or double precision; a parameter is not.
        v_types := array(select case when p.value ->> 'kind' = 'string' then t when t = 'smallint' then 'integer' when t = 'real' then 'double precision'
                else t end from unnest(find_class.constant_types) with ordinality c(t, n)
            left join jsonb_array_elements(v_parsed -> 'parameters') with ordinality p(value, n) using (n) order by n);
        v_constants := pgps_internal.constant_values(v_parsed -> 'parameters', case when find_class.constant_types is not null then v_types end);
        v_tier := case when v_constants is not null and pgps_internal.is_safe(v_parsed, find_class.event_type,
            find_class.environment ->> 'search_path') then 'safe' else 'owner' end;
        if v_tier = 'safe' then
            v_environment := v_environment || '{"search_path": "pg_catalog, pg_temp"}';
        end if;
        -- Hundreds of constants, as of a long IN (…), do not fit a row of constants.
        if v_constants is null or cardinality(v_constants) > 500 or (select count(*) from regexp_matches(v_parsed ->> 'shape', '\$\d+', 'g')) <> cardinality(v_constants) then
            v_parsed := v_parsed || jsonb_build_object('shape', v_parsed ->> 'text', 'keys', '[]'::jsonb);
            v_constants := '{}';
            v_tier := 'owner';
        end if;
        v_signature := pgps_internal.find_signature(find_class.event_type, find_class.owner, v_parsed, v_tier,
            case when cardinality(v_constants) = 0 then '{}' else v_types end, v_environment);
    end if;
    if not find_class.private then
        if v_signature is null then
            select c.class_id into v_class from pgps_internal.class c
            where c.type_id = (find_class.event_type).type_id and c.signature_id is null and c.owner = find_class.owner
                and not c.is_private and c.is_active limit 1;
        else
            select c.class_id into v_class from pgps_internal.class c
            where c.signature_id = v_signature and hash_array_extended(c.constants, 0) = hash_array_extended(v_constants, 0)
                and c.constants = v_constants and not c.is_private and c.is_active limit 1;
        end if;
    end if;
    if v_class is null then
        insert into pgps_internal.class (type_id, owner, signature_id, constants, is_private)
        values ((find_class.event_type).type_id, find_class.owner, v_signature, coalesce(v_constants, '{}'), find_class.private)
        returning class_id into v_class;
        perform pgps_internal.note_member(v_class);
        perform pgps_internal.build_visible((find_class.event_type).type_id, find_class.owner);
    end if;
    return v_class;
end
$$;
comment on function pgps_internal.find_class(pgps_internal.event_type, regrole, text, text[], jsonb, boolean) is
'The class of a filter for an owner, made if there is none; private: always a new one';

create or replace function pgps_internal.find_signature(
    event_type pgps_internal.event_type, owner regrole, parsed jsonb, tier text, parameter_types text[], environment jsonb
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_signature bigint;
begin
    select g.signature_id into v_signature from pgps_internal.signature g
    where g.type_id = (find_signature.event_type).type_id and g.owner = find_signature.owner and md5(g.shape) = md5(find_signature.parsed ->> 'shape')
        and g.parameter_types = find_signature.parameter_types and g.environment = find_signature.environment;
    if v_signature is null then
        insert into pgps_internal.signature (type_id, owner, shape, tier, parameter_types, key_columns, environment)
        values ((find_signature.event_type).type_id, find_signature.owner, find_signature.parsed ->> 'shape', find_signature.tier,
            find_signature.parameter_types, (
                -- Equality conditions first, then one range.
                select array(
                    (select (k ->> 'parameter')::integer from jsonb_array_elements(find_signature.parsed -> 'keys') k where k ->> 'operator' = '=' order by 1)
                    union all
                    (select (k ->> 'parameter')::integer from jsonb_array_elements(find_signature.parsed -> 'keys') k where k ->> 'operator' <> '=' order by 1 limit 1))),
            find_signature.environment)
        returning signature_id into v_signature;
        perform pgps_internal.build_signature(v_signature);
    end if;
    return v_signature;
end
$$;
comment on function pgps_internal.find_signature(pgps_internal.event_type, regrole, jsonb, text, text[], jsonb) is
'The signature of a shape for an owner and its settings, made with its matching function if there is none';

create or replace function pgps_internal.note_member(class_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_class pgps_internal.class;
    v_signature pgps_internal.signature;
    v_threshold integer;
begin
    select c.* into v_class from pgps_internal.class c where c.class_id = note_member.class_id;
    select g.* into v_signature from pgps_internal.signature g where g.signature_id = v_class.signature_id;
    if v_signature.has_table then
        perform pgps_internal.store_constants(v_class, v_signature);
    elsif v_signature.tier = 'safe' and cardinality(v_signature.parameter_types) > 0 then
        v_threshold := pgps_internal.setting('table_threshold')::integer;
        if (select count(*) from (select from pgps_internal.class c where c.signature_id = v_signature.signature_id limit v_threshold) x) >= v_threshold then
            perform pgps_internal.promote(v_signature.signature_id);
        end if;
    end if;
end
$$;
comment on function pgps_internal.note_member(bigint) is 'Puts a new class where its signature keeps constants';

-- ---------------------------------------------------------------------------------------------------------------------
-- Joining
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.do_subscribe(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.check_name(args ->> 'name', 'subscription');
    v_subscription pgps_internal.subscription;
    v_types jsonb := pgps_internal.do_types_for(caller, jsonb_build_object('event_type', args -> 'types' ->> 'event_type')
        || case when (args -> 'types' ->> 'pattern')::boolean then '{}' else jsonb_build_object('event_type', quote_ident(args -> 'types' ->> 'event_type')) end);
    v_type pgps_internal.event_type;
begin
    if exists (select from pgps_internal.subscription s where s.name = v_name) then
        raise exception 'subscription "%" exists already', v_name
        using errcode = '42710', hint = format('Choose another name, or first: select pgps.unsubscribe(%L)', quote_ident(v_name));
    end if;
    insert into pgps_internal.subscription (name, owner, event_type, is_pattern, filter, environment, parameter_types, scope, callback, priority,
        max_attempts, handler)
    values (v_name, quote_ident(caller)::regrole, args -> 'types' ->> 'event_type', (args -> 'types' ->> 'pattern')::boolean, args ->> 'filter',
        jsonb_build_object('search_path', pgps_internal.clean_path(args -> 'schemas'), 'timezone', current_setting('timezone'),
            'datestyle', current_setting('datestyle'), 'intervalstyle', current_setting('intervalstyle')),
        pgps_internal.clean_types(args -> 'constant_types'),
        args ->> 'scope', coalesce(args -> 'callback' ->> 'function', args ->> 'execute'), (args ->> 'priority')::integer,
        (args ->> 'max_attempts')::integer,
        coalesce(args ->> 'handler', (select case t.handler when 'any' then 'any' else 'all' end from pgps_internal.event_type t
            where t.name = args -> 'types' ->> 'event_type'), 'all'))
    returning * into v_subscription;
    for v_type in select t.* from pgps_internal.event_type t where t.name in (select jsonb_array_elements_text(v_types -> 'types')) loop
        perform pgps_internal.join_type(v_subscription, v_type, args ->> 'start');
    end loop;
    return to_jsonb(v_subscription.subscription_id);
end
$$;
comment on function pgps_internal.do_subscribe(name, jsonb) is 'See pgps.subscribe';

create or replace function pgps_internal.join_type(subscription pgps_internal.subscription, event_type pgps_internal.event_type, start text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_replay boolean := join_type.start <> 'now';
    v_from bigint := 0;
    v_class bigint;
    v_last pgps_internal.batch;
    v_skip int8multirange := '{}';
    v_xids xid8[];
    v_ranges int8multirange;
begin
    -- Signatures and classes are shared by the subscriptions of a role.
    perform pg_advisory_xact_lock(1885826166, (join_type.subscription).owner::oid::integer);
    if v_replay and join_type.start <> 'earliest' then
        if join_type.start !~ '^\s*\d{1,18}\s*$' then
            raise exception 'invalid start "%"', join_type.start using errcode = '22023', hint = 'Use now, earliest, or an event id.';
        end if;
        v_from := join_type.start::bigint;
    end if;
    if v_replay then
        perform pgps_internal.require_read_committed();
        -- No batch may be cut between looking at the past and joining.
        lock table only pgps_internal.batch in share row exclusive mode;
    end if;
    v_last := pgps_internal.last_batch();
    v_class := pgps_internal.find_class(join_type.event_type, (join_type.subscription).owner, (join_type.subscription).filter,
        (join_type.subscription).parameter_types, (join_type.subscription).environment, v_replay);
    if v_replay then
        if v_from > 0 then
            v_skip := int8multirange(int8range(null, v_from));
        end if;
    else
        -- What has been committed but is not in a batch yet was published before.
        select array_agg(distinct w.xid), range_agg(int8range(w.lo, w.hi, '[]')) into v_xids, v_ranges
        from pgps_internal.waiting(v_last, pg_current_snapshot()) w where w.type_id = (join_type.event_type).type_id;
        if v_xids is not null then
            execute format('select c.ids from pgps_internal.cut_%s($1, $2) c', (join_type.event_type).type_id) using v_xids, v_ranges into v_skip;
        end if;
    end if;
    insert into pgps_internal.member (subscription_id, class_id, type_id, from_batch, skip, takes_batch)
    values ((join_type.subscription).subscription_id, v_class, (join_type.event_type).type_id,
        case when v_replay then -1 else coalesce(v_last.batch_id, 0) end, v_skip, (join_type.subscription).handler = 'any' and (join_type.subscription).callback is null);
    if v_replay then
        perform pgps_internal.replay(v_class, join_type.event_type, v_from, -1);
    end if;
    if (join_type.subscription).callback is not null then
        perform pgps_internal.build_callback((join_type.subscription).subscription_id, (join_type.event_type).type_id);
    end if;
end
$$;
comment on function pgps_internal.join_type(pgps_internal.subscription, pgps_internal.event_type, text) is
'Makes a subscription a member of the class of its filter on one event type, from now, earliest or an event id on';

create or replace function pgps_internal.replay(
    class_id bigint, event_type pgps_internal.event_type, from_event bigint, after_batch bigint
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_class pgps_internal.class;
    v_signature pgps_internal.signature;
    v_batch record;
    v_ids int8multirange;
begin
    if replay.after_batch < 0 then
        perform pgps_internal.restore_audited(replay.event_type, replay.from_event);
    end if;
    select c.* into v_class from pgps_internal.class c where c.class_id = replay.class_id;
    select g.* into v_signature from pgps_internal.signature g where g.signature_id = v_class.signature_id;
    for v_batch in
        select b.batch_id, b.ids * int8multirange(int8range(replay.from_event, null)) as ids from pgps_internal.batch_type b
        where b.type_id = (replay.event_type).type_id and upper(b.ids) > replay.from_event and not isempty(b.ids) and b.batch_id > replay.after_batch
        order by b.batch_id
    loop
        v_ids := pgps_internal.visible(replay.event_type, v_class.owner, v_batch.ids);
        if isempty(v_ids) then
            continue;
        elsif v_signature.signature_id is not null then
            perform pgps_internal.match_signature(v_batch.batch_id, v_signature, v_ids, v_class.class_id);
        else
            -- Only what is still there: a delivery of nothing would stand in the way for ever.
            execute format('insert into pgps_internal.delivery (batch_id, class_id, type_id, events, event_ids)
                select $1, $2, $3, count(*), array_agg(l.event_id) from %s l
                where l.event_id between lower($4) and upper($4) - 1 and l.event_id <@ $4 having count(*) > 0', (replay.event_type).log)
            using v_batch.batch_id, v_class.class_id, v_class.type_id, v_ids;
        end if;
    end loop;
    insert into pgps_internal.share (subscription_id, batch_id, event_id, type_id)
    select m.subscription_id, d.batch_id, e.event_id, d.type_id
    from pgps_internal.member m
    join pgps_internal.delivery d using (class_id)
    cross join lateral pgps_internal.event_ids(d) e(event_id)
    where m.class_id = replay.class_id and m.takes_batch and not e.event_id <@ m.skip
    on conflict do nothing;
end
$$;
comment on function pgps_internal.replay(bigint, pgps_internal.event_type, bigint, bigint) is
'Matches what is still there, from an event id and after a batch, for a class that was not there or suspended (after_batch -1: archived
events as well)';

create or replace function pgps_internal.match_pattern_subscriptions(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_subscription pgps_internal.subscription;
    v_error text;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = match_pattern_subscriptions.type_id;
    for v_subscription in
        select s.* from pgps_internal.subscription s
        where s.is_pattern and starts_with(v_type.name, left(s.event_type, -1))
            and not exists (select from pgps_internal.member m where m.subscription_id = s.subscription_id and m.type_id = v_type.type_id)
            and exists (select from pg_roles r where r.oid = s.owner)
    loop
        begin
            perform pgps_internal.join_type(v_subscription, v_type, 'now');
            -- Over no events: does the filter mean anything here?
            perform pgps_internal.match_signature(0, g, '{}', m.class_id)
            from pgps_internal.member m join pgps_internal.class c using (class_id) join pgps_internal.signature g using (signature_id)
            where m.subscription_id = v_subscription.subscription_id and m.type_id = v_type.type_id;
        exception when others then
            get stacked diagnostics v_error = message_text;
            perform pgps_internal.clear_blame();
            update pgps_internal.subscription s set last_error = format('event type "%s": %s', v_type.name, v_error)
            where s.subscription_id = v_subscription.subscription_id;
        end;
    end loop;
end
$$;
comment on function pgps_internal.match_pattern_subscriptions(integer) is 'Joins the subscriptions to a prefix to a new event type';

-- ---------------------------------------------------------------------------------------------------------------------
-- Changing
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.drop_unused_class(class_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_class pgps_internal.class;
    v_function regprocedure;
begin
    if exists (select from pgps_internal.member m where m.class_id = drop_unused_class.class_id) then
        return;
    end if;
    perform pgps_internal.set_class_active(drop_unused_class.class_id, false);
    delete from pgps_internal.class c where c.class_id = drop_unused_class.class_id returning * into v_class;
    if v_class.signature_id is not null and not exists (select from pgps_internal.class c where c.signature_id = v_class.signature_id) then
        perform pgps_internal.drop_signature(v_class.signature_id);
    end if;
    -- What a role owns would keep it from being dropped.
    if not exists (select from pgps_internal.class c where c.type_id = v_class.type_id and c.owner = v_class.owner) then
        v_function := pgps_internal.visible_function(v_class.type_id, v_class.owner)::oid;
        if v_function is not null then
            execute format('drop function %s', v_function);
        end if;
    end if;
end
$$;
comment on function pgps_internal.drop_unused_class(bigint) is 'Drops a class that no subscription is in, and the code that only it needed';

create or replace function pgps_internal.drop_subscription(subscription_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_function regprocedure;
    v_classes bigint[];
    v_class bigint;
begin
    perform pg_advisory_xact_lock(1885826166, s.owner::oid::integer) from pgps_internal.subscription s
    where s.subscription_id = drop_subscription.subscription_id;
    for v_function in select p.oid from pg_proc p where p.pronamespace = 'pgps_internal'::regnamespace
        and p.proname ~ format('^callback_%s_\d+$', drop_subscription.subscription_id) loop
        execute format('drop function %s', v_function);
    end loop;
    with gone as (delete from pgps_internal.member m where m.subscription_id = drop_subscription.subscription_id returning m.class_id)
    select array_agg(g.class_id) into v_classes from gone g;
    delete from pgps_internal.subscription s where s.subscription_id = drop_subscription.subscription_id;
    foreach v_class in array coalesce(v_classes, '{}') loop
        perform pgps_internal.drop_unused_class(v_class);
    end loop;
end
$$;
comment on function pgps_internal.drop_subscription(bigint) is 'Drops a subscription, and its classes when nobody else is in them';

create or replace function pgps_internal.do_unsubscribe(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription;
begin
    select s.* into v_subscription from pgps_internal.subscription s
    where s.name = pgps_internal.fold(args ->> 'name') and pg_has_role(caller, 'pgps_admin', 'usage');
    if not found then
        v_subscription := pgps_internal.find_subscription(caller, args ->> 'name');
    end if;
    perform pgps_internal.drop_subscription(v_subscription.subscription_id);
end
$$;
comment on function pgps_internal.do_unsubscribe(name, jsonb) is 'See pgps.unsubscribe';

create or replace function pgps.unsubscribe(name text) returns void
language sql
begin atomic
    select pgps._call('unsubscribe', jsonb_build_object('name', unsubscribe.name));
end;
comment on function pgps.unsubscribe(text) is
'Ends a subscription; what it has not received is not kept for it. Needs to own it, or pgps_admin. Errors: 42704, 42501.';

create or replace function pgps_internal.do_set_state(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription;
begin
    select s.* into v_subscription from pgps_internal.subscription s
    where s.name = pgps_internal.fold(args ->> 'name') and pg_has_role(caller, 'pgps_admin', 'usage');
    if not found then
        v_subscription := pgps_internal.find_subscription(caller, args ->> 'name');
    end if;
    update pgps_internal.subscription s set state = args ->> 'state', last_error = case when args ->> 'state' = 'active' then null else s.last_error end
    where s.subscription_id = v_subscription.subscription_id;
    if args ->> 'state' = 'active' then
        perform pgps_internal.resume_class(c, t)
        from pgps_internal.member m join pgps_internal.class c using (class_id) join pgps_internal.event_type t on t.type_id = c.type_id
        where m.subscription_id = v_subscription.subscription_id and not c.is_active;
        perform pg_notify(case when v_subscription.callback is null then 'pgps_' || v_subscription.subscription_id else 'pgps_internal' end, '');
    end if;
end
$$;
comment on function pgps_internal.do_set_state(name, jsonb) is 'See pgps.pause and pgps.resume';

create or replace function pgps_internal.resume_class(class pgps_internal.class, event_type pgps_internal.event_type) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.require_read_committed();
    lock table only pgps_internal.batch in share row exclusive mode;
    perform pgps_internal.set_class_active((resume_class.class).class_id, true);
    perform pgps_internal.replay((resume_class.class).class_id, resume_class.event_type, 0, coalesce((resume_class.class).suspended_batch,
        (pgps_internal.last_batch()).batch_id, 0));
end
$$;
comment on function pgps_internal.resume_class(pgps_internal.class, pgps_internal.event_type) is
'Takes a suspended class into matching again and matches what came meanwhile; raises when its filter still does';

create or replace function pgps.pause(name text) returns void
language sql
begin atomic
    select pgps._call('set_state', jsonb_build_object('name', pause.name, 'state', 'paused'));
end;
comment on function pgps.pause(text) is
'Stops delivery to a subscription; its events are matched and wait. Needs to own it, or pgps_admin. Errors: 42704, 42501.';

create or replace function pgps.resume(name text) returns void
language sql
begin atomic
    select pgps._call('set_state', jsonb_build_object('name', resume.name, 'state', 'active'));
end;
comment on function pgps.resume(text) is
'Goes on with a paused or suspended subscription, from where it stood; what came meanwhile is matched now if its filter had been
suspended (then this holds the dispatcher until the transaction ends, and raises what the filter raises if it is not mended).
Needs to own it, or pgps_admin. Errors: 42704, 42501.';

create or replace function pgps_internal.do_seek(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription := pgps_internal.find_subscription(caller, args ->> 'name');
    v_types integer[];
    v_classes bigint[];
    v_position pgps_internal.position;
begin
    perform pgps_internal.require_read_committed();
    perform pg_advisory_xact_lock(1885826165, v_subscription.subscription_id::integer);
    -- Also read so that reclaim leaves the positions alone until this is committed.
    v_position := pgps_internal.position_of(v_subscription.subscription_id);
    with gone as (delete from pgps_internal.member m where m.subscription_id = v_subscription.subscription_id returning m.class_id, m.type_id)
    select array_agg(distinct g.type_id), array_agg(g.class_id) into v_types, v_classes from gone g;
    delete from pgps_internal.share s where s.subscription_id = v_subscription.subscription_id;
    delete from pgps_internal.failure f where f.subscription_id = v_subscription.subscription_id and f.state <> 'failed';
    perform pgps_internal.move(v_subscription.subscription_id, -1, 0, -1, 0, v_position.acked_total);
    perform pgps_internal.join_type(v_subscription, t, args ->> 'start') from pgps_internal.event_type t where t.type_id = any (v_types);
    perform pgps_internal.drop_unused_class(c) from unnest(v_classes) c;
    perform pg_notify(case when v_subscription.callback is null then 'pgps_' || v_subscription.subscription_id else 'pgps_internal' end, '');
end
$$;
comment on function pgps_internal.do_seek(name, jsonb) is 'See pgps.seek';

create or replace function pgps.seek(name text, start text) returns void
language sql
begin atomic
    select pgps._call('seek', jsonb_build_object('name', seek.name, 'start', seek.start));
end;
comment on function pgps.seek(text, text) is
'Moves a subscription: now (skips what waits), earliest, or an event id; what the broker still has from there on comes again.
Needs to own it. Holds the dispatcher until the transaction ends. Errors: 42704, 42501, 22023.';

revoke all on all functions in schema pgps_internal from public;
grant execute on function
    pgps.check_filter(text, text), pgps.check_callback(text, text),
    pgps.subscribe(text, text, text, text, text, integer, text, integer, text),
    pgps.unsubscribe(text), pgps.pause(text), pgps.resume(text), pgps.seek(text, text)
to public;
