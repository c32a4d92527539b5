-- Subscriptions: check the filter with the subscriber's rights, find or make its class, join it from now, from the
-- beginning or from an event.
-- Locks: catalogue rows; with a start other than now the owner's lane, and a lock against reclaim, until the
-- transaction ends.
-- Writes: delivery, member, share, subscription.

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
    elsif not exists (select from pgps_internal.advertisement a where a.type_id = v_type.type_id)
            and not exists (select from pgps_internal.offer f where v_type.name = any (f.types)) then
        raise exception 'event type "%" is not advertised by anybody', v_type.name
        using errcode = '55000',
            hint = format('A publisher must first: select pgps.advertise(%L)', quote_ident(v_type.name));
    end if;
    return jsonb_build_object('pattern', false, 'event_type', v_type.name, 'types', jsonb_build_array(v_type.name));
end
$$;
comment on function pgps_internal.do_types_for(name, jsonb) is
'The event types a subscription is about: one, or all of a prefix that the caller may see. Errors: 42704, 42501, 55000
not advertised.';

create or replace function pgps.check_filter(event_type text, filter text) returns text[]
language plpgsql
set standard_conforming_strings = on
as $$
declare
    v_endpoint text := pg_catalog.concat('pgps_event.', pg_catalog.quote_ident(coalesce(check_filter.event_type, '')));
    v_parsed jsonb;
    v_types text[];
begin
    if pg_catalog.to_regclass(v_endpoint) is null then
        raise exception 'event type "%" does not exist', check_filter.event_type
        using errcode = '42704', hint = 'Give its name as in pgps.event_types, as it stands there.';
    elsif not pg_catalog.has_table_privilege(v_endpoint, 'select') then
        raise exception 'role "%" may not subscribe to event type "%"', current_user, check_filter.event_type
        using errcode = '42501',
            hint = pg_catalog.format('Ask for: grant select on %s to %I', v_endpoint, current_user);
    end if;
    v_parsed := pgps.parse_filter(check_filter.filter, check_filter.event_type, array(
        select a.attname::text from pg_catalog.pg_attribute a
        where a.attrelid = v_endpoint::regclass and a.attnum > 0 and not a.attisdropped
            and a.attname not in ('_producer', '_producer_seq') order by a.attnum));
    -- PostgreSQL checks names, types and rights, and says where an error is; nothing is executed.
    execute pg_catalog.format(E'explain select 1 from %s where (%s\n)', v_endpoint, check_filter.filter);
    if pg_catalog.jsonb_array_length(v_parsed -> 'parameters') = 0 then
        return '{}';
    end if;
    begin
        execute pg_catalog.format(E'prepare pgps_probe as select 1 from %s where (%s\n)', v_endpoint,
            v_parsed ->> 'shape');
    exception when others then
        return null;
    end;
    select array(select t::text from pg_catalog.unnest(p.parameter_types) t) into v_types
        from pg_catalog.pg_prepared_statements p where p.name = 'pgps_probe';
    deallocate pgps_probe;
    return v_types;
end
$$;
comment on function pgps.check_filter(text, text) is
'Checks a filter on an event type with the caller''s rights, as pgps.subscribe does: raises PostgreSQL''s own error with
its position. Returns the types of its constants; null when they cannot be told from their context. Errors: 42601 not
one expression, 42703, 42804 not boolean, 42883, 42P01, 42501.';

create or replace function pgps.check_callback(event_type text, execute text) returns jsonb
language plpgsql
set standard_conforming_strings = on
as $$
declare
    v_parsed jsonb := pgps.parse_callback(check_callback.execute);
    v_name text := v_parsed ->> 'function';
    v_type text := pg_catalog.concat('pgps_event.', pg_catalog.quote_ident(coalesce(check_callback.event_type, '')));
    v_takes text := case when v_parsed -> 'types' = '["record"]' then 'record'
        when v_parsed -> 'types' = pg_catalog.jsonb_build_array('pgps_event', check_callback.event_type) then 'event'
        when v_parsed -> 'types' = pg_catalog.jsonb_build_array('pgps_event', check_callback.event_type, '[]')
            then 'batch'
        when v_parsed -> 'types' ->> 0 = 'pgps_event' then 'another event type' end;
    v_function regprocedure;
begin
    if check_callback.execute is null then
        raise exception 'the callback is null' using errcode = '22023',
            hint = 'Give the name of a function, and of what it takes: ''f(attribute, …)''.';
    elsif check_callback.event_type is null or pg_catalog.to_regclass(v_type) is null then
        raise exception 'event type "%" does not exist', check_callback.event_type
        using errcode = '42704', hint = 'Give its name as in pgps.event_types, as it stands there.';
    end if;
    if v_parsed ->> 'arguments' is not null and (v_takes is null or v_takes = 'record' and exists (
            select from pg_catalog.pg_attribute a where a.attrelid = v_type::regclass and a.attname = 'record'))
            and (v_parsed ->> 'arguments' <> '' or pg_catalog.to_regprocedure(v_name || '()') is not null) then
        return pgps.check_call(check_callback.event_type, v_parsed);
    end if;
    select f.oid, case when v_takes is not null then f.takes end into v_function, v_takes
    from (values (1, 'event', pg_catalog.to_regprocedure(pg_catalog.format('%s(%s)', v_name, v_type))),
        (2, 'batch', pg_catalog.to_regprocedure(pg_catalog.format('%s(%s[])', v_name, v_type))),
        (3, 'record', pg_catalog.to_regprocedure(v_name || '(record)'))) f(place, takes, oid)
    where f.oid is not null and f.takes = coalesce(v_takes, f.takes) order by f.place limit 1;
    if v_function is null then
        raise exception 'function %(%) does not exist', v_name,
            coalesce(case when v_parsed ->> 'types' is not null then v_parsed ->> 'arguments' end, v_type)
            using errcode = '42883',
            hint = pg_catalog.format('The callback takes one event, %1$s(%2$s) or %1$s(record), a batch, '
                '%1$s(%2$s[]), or what you give it: ''%1$s(attribute, …)''.',
                v_name, v_type);
    elsif not pg_catalog.has_function_privilege(v_function::oid, 'execute') then
        raise exception 'permission denied for function %', v_function
        using errcode = '42501',
            hint = pg_catalog.format('Ask for: grant execute on function %s to %I', v_function, current_user);
    elsif (select p.prokind from pg_catalog.pg_proc p where p.oid = v_function::oid) <> 'f' then
        raise exception '% is not a function', v_function using errcode = '42809', hint = 'Give a function.';
    end if;
    return (select pg_catalog.jsonb_build_object('function', pg_catalog.format('%I.%I', n.nspname, p.proname), 'takes',
        v_takes)
        from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace
            where p.oid = v_function::oid);
end
$$;
comment on function pgps.check_callback(text, text) is
'Finds the callback of an internal subscription with the caller''s rights and search_path: f, f(pgps_event.<type>),
f(pgps_event.<type>[]) or f(record), which gets the event or the batch; or f(price, symbol): SQL over the attributes,
evaluated with the subscriber''s rights. f() calls f without arguments if there is such a function. Errors: 42883 no
such function, 42703 no such attribute, 42501, 42601 not a call, 42809 not a function.';

create or replace function pgps.check_call(event_type text, parsed jsonb) returns jsonb
language plpgsql
set standard_conforming_strings = on
as $$
declare
    v_endpoint text := pg_catalog.concat('pgps_event.', pg_catalog.quote_ident(coalesce(check_call.event_type, '')));
    v_plan jsonb;
    v_message text;
    v_schemas name[];
begin
    if check_call.parsed ->> 'function' is null or check_call.parsed ->> 'arguments' is null then
        raise exception 'the call is not one that was taken apart: %', coalesce(check_call.parsed::text, 'null')
        using errcode = '22023', hint = 'Give what pgps.parse_callback(''f(attribute, …)'') returns.';
    elsif check_call.event_type is null or pg_catalog.to_regclass(v_endpoint) is null then
        raise exception 'event type "%" does not exist', check_call.event_type
        using errcode = '42704', hint = 'Give its name as in pgps.event_types, as it stands there.';
    elsif not pg_catalog.has_table_privilege(v_endpoint, 'select') then
        raise exception 'role "%" may not subscribe to event type "%"', current_user, check_call.event_type
        using errcode = '42501',
            hint = pg_catalog.format('Ask for: grant select on %s to %I', v_endpoint, current_user);
    end if;
    begin
        -- PostgreSQL checks names, types and rights; nothing is executed.
        execute pg_catalog.format(E'explain (format json) select %s(%s\n) from %s', check_call.parsed ->> 'function',
            check_call.parsed ->> 'arguments',
            v_endpoint) into v_plan;
    exception when undefined_function or undefined_column or ambiguous_function then
        get stacked diagnostics v_message = message_text;
        raise exception '%', v_message using errcode = sqlstate,
            hint = pg_catalog.format('Give %s SQL over the attributes of the event: %s.',
            check_call.parsed ->> 'function', (select pg_catalog.string_agg(pg_catalog.format('%I %s', a.attname,
                pg_catalog.format_type(a.atttypid, a.atttypmod)), ', ' order by a.attnum) from pg_catalog.pg_attribute a
            where a.attrelid = v_endpoint::regclass and a.attnum > 0 and not a.attisdropped
                and a.attname not in ('_producer', '_producer_seq')));
    end;
    if v_plan -> 0 -> 'Plan' ->> 'Node Type' in ('Aggregate', 'WindowAgg') then
        raise exception '% is not a function', check_call.parsed ->> 'function' using errcode = '42809',
            hint = 'Give a function, not an aggregate.';
    end if;
    -- Stored with the schema in which it is found now, unless functions of that name in several schemas could be meant.
    select pg_catalog.array_agg(distinct n.nspname) into v_schemas from pg_catalog.pg_proc p
        join pg_catalog.pg_namespace n on n.oid = p.pronamespace
    where p.proname = check_call.parsed ->> 'name' and pg_catalog.pg_function_is_visible(p.oid);
    return pg_catalog.jsonb_build_object('arguments', check_call.parsed ->> 'arguments', 'function',
        case when check_call.parsed ->> 'schema' is null and pg_catalog.cardinality(v_schemas) = 1
            then pg_catalog.format('%I.%I', v_schemas[1], check_call.parsed ->> 'name')
                else check_call.parsed ->> 'function' end);
end
$$;
comment on function pgps.check_call(text, jsonb) is
'The part of pgps.check_callback that is about f(arguments). parsed: what pgps.parse_callback returns. Errors: as
there.';

create or replace function pgps.subscribe(
    name text, event_type text, filter text = null, scope text = 'local', execute text = null, priority integer = 0,
    start text = 'now', max_attempts integer = 5, handler text = null
) returns void
language plpgsql
as $$
declare
    v_types jsonb := pgps._call('types_for', pg_catalog.jsonb_build_object('event_type', subscribe.event_type));
    v_type text;
    v_constants text[];
    v_callback jsonb;
begin
    if subscribe.scope is null or subscribe.scope not in ('local', 'global') then
        raise exception 'invalid scope "%"', subscribe.scope using errcode = '22023', hint = 'Use local or global.';
    elsif subscribe.max_attempts is null or subscribe.max_attempts < 1 then
        raise exception 'invalid max_attempts %', subscribe.max_attempts using errcode = '22023',
            hint = 'Give 1 or more.';
    elsif subscribe.handler not in ('all', 'any') then
        raise exception 'invalid handler "%"', subscribe.handler using errcode = '22023', hint = 'Use all or any.';
    end if;
    for v_type in select pg_catalog.jsonb_array_elements_text(v_types -> 'types') loop
        if subscribe.filter is not null then
            v_constants := pgps.check_filter(v_type, subscribe.filter);
        end if;
        if subscribe.execute is not null then
            v_callback := pgps.check_callback(v_type, subscribe.execute);
        end if;
    end loop;
    perform pgps._call('subscribe',
        pg_catalog.jsonb_build_object('name', subscribe.name, 'types', v_types, 'filter', subscribe.filter,
        'constant_types', v_constants, 'scope', subscribe.scope, 'callback', v_callback, 'execute', subscribe.execute,
        'priority', coalesce(subscribe.priority, 0), 'start', coalesce(subscribe.start, 'now'), 'max_attempts',
            subscribe.max_attempts,
        'handler', subscribe.handler, 'schemas', pg_catalog.to_jsonb(pg_catalog.current_schemas(false))));
end
$$;
comment on function pgps.subscribe(text, text, text, text, text, integer, text, integer, text) is
'Subscribes the current role to an event type (paper, section 4.3), or to every type of a prefix it may see, now and
later (''security*''). filter: any SQL predicate over the event and tables, run with the subscriber''s rights; null =
every event; a null result is no match. scope: local, or global over links. execute: the callback of an internal
subscription: f, which takes an event, f(pgps_event.<type>) or f(record), or a batch, f(pgps_event.<type>[]); or
f(price, symbol), SQL over the attributes; null = external (pgps.receive). priority: higher first. start: now (what
commits from now on), earliest, or an event id: that event and what comes after it in delivery order. max_attempts:
tries before the exception queue. handler: all, any = competing consumers, null = as the type says. Needs SELECT on the
type. Errors: 42704, 42710 exists, 42501, 55000 not advertised, 22023, and PostgreSQL''s own for filter and callback.';

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
    v_types jsonb := pgps_internal.do_types_for(caller,
        jsonb_build_object('event_type', args -> 'types' ->> 'event_type')
        || case when (args -> 'types' ->> 'pattern')::boolean then '{}'
            else jsonb_build_object('event_type', quote_ident(args -> 'types' ->> 'event_type')) end);
    v_type pgps_internal.event_type;
    v_callback jsonb := nullif(args -> 'callback', 'null');
begin
    if v_callback is null and args ->> 'execute' is not null then
        -- A prefix without event types yet: the callback has not been checked against one.
        v_callback := pgps.parse_callback(args ->> 'execute');
        v_callback := v_callback || case when v_callback -> 'types' = '["record"]'
            then '{"arguments": null, "takes": "record"}'
            when v_callback ->> 'arguments' = '' then '{"arguments": null}' else '{}' end::jsonb;
    end if;
    if v_callback ->> 'function' is not null then
        -- The caller may pass anything here: this checks that it is a name and one pair of parentheses.
        perform pgps.parse_callback(concat(v_callback ->> 'function', '(' || (v_callback ->> 'arguments') || E'\n)'));
    end if;
    insert into pgps_internal.subscription (name, owner, event_type, is_pattern, filter, environment, parameter_types,
        kind, scope,
        callback, arguments, takes, priority, max_attempts, handler)
    values (v_name, quote_ident(caller)::regrole, args -> 'types' ->> 'event_type',
        (args -> 'types' ->> 'pattern')::boolean, args ->> 'filter',
        jsonb_build_object('search_path', pgps_internal.clean_path(args -> 'schemas'), 'timezone',
            current_setting('timezone'),
            'datestyle', current_setting('datestyle'), 'intervalstyle', current_setting('intervalstyle')),
        pgps_internal.clean_types(args -> 'constant_types'),
        case when v_callback ->> 'function' is null then 'external' else 'internal' end, args ->> 'scope',
        v_callback ->> 'function', v_callback ->> 'arguments',
        case when v_callback ->> 'takes' = any ('{event,batch,record}') then v_callback ->> 'takes' end,
        (args ->> 'priority')::integer, (args ->> 'max_attempts')::integer,
        coalesce(args ->> 'handler',
            (select case t.handler when 'any' then 'any' else 'all' end from pgps_internal.event_type t
            where t.name = args -> 'types' ->> 'event_type'), 'all'))
    on conflict do nothing
    returning * into v_subscription;
    if not found then
        raise exception 'subscription "%" exists already', v_name
        using errcode = '42710',
            hint = format('Choose another name, or first: select pgps.unsubscribe(%L)', quote_ident(v_name));
    end if;
    for v_type in select t.* from pgps_internal.event_type t
        where t.name in (select jsonb_array_elements_text(v_types -> 'types')) loop
        perform pgps_internal.join_type(v_subscription, v_type, args ->> 'start');
    end loop;
    if v_subscription.is_pattern then
        perform pgps_internal.join_unseen_types(v_subscription);
    end if;
    return to_jsonb(v_subscription.subscription_id);
end
$$;
comment on function pgps_internal.do_subscribe(name, jsonb) is 'See pgps.subscribe';

drop function if exists pgps_internal.waiting_ids(pgps_internal.event_type);
create or replace function pgps_internal.waiting_ids(event_type pgps_internal.event_type, last pgps_internal.batch)
returns int8multirange
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_xids xid8[];
    v_ranges int8multirange;
    v_ids int8multirange;
begin
    select array_agg(distinct w.xid), range_agg(int8range(w.lo, w.hi, '[]')) into v_xids, v_ranges
    from pgps_internal.waiting(waiting_ids.last, pg_current_snapshot()) w
        where w.type_id = (waiting_ids.event_type).type_id;
    if v_xids is not null then
        execute format('select c.ids from pgps_internal.cut_%s($1, $2) c', (waiting_ids.event_type).type_id)
            using v_xids, v_ranges into v_ids;
    end if;
    return coalesce(v_ids, '{}');
end
$$;
comment on function pgps_internal.waiting_ids(pgps_internal.event_type, pgps_internal.batch) is
'The ids of events of a type that have been committed and are in no batch up to last';

create or replace function pgps_internal.join_unseen_types(subscription pgps_internal.subscription) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_state text;
    v_error text;
    v_context text;
begin
    -- A later GRANT cannot be noticed. So a subscription to a prefix joins all types of it, also those that its owner
    -- may not see yet: rights are checked when an event is matched, and when it is handed out.
    for v_type in
        select t.* from pgps_internal.event_type t
        where starts_with(t.name, left((join_unseen_types.subscription).event_type, -1))
            and not exists (select from pgps_internal.member m
            where m.subscription_id = (join_unseen_types.subscription).subscription_id and m.type_id = t.type_id)
    loop
        begin
            perform pgps_internal.join_type(join_unseen_types.subscription, v_type, 'now');
        exception when others or assert_failure or query_canceled then
            -- The filter does not fit the type. No error: the owner may not even know the type, and gets nothing of it.
            get stacked diagnostics v_state = returned_sqlstate, v_error = message_text,
            v_context = pg_exception_context;
            if pgps_internal.is_cancelled(v_state, v_context) then
                raise;
            end if;
        end;
    end loop;
end
$$;
comment on function pgps_internal.join_unseen_types(pgps_internal.subscription) is
'Joins a new subscription to a prefix to the event types of it that its owner may not see yet';

create or replace function pgps_internal.join_type(
    subscription pgps_internal.subscription, event_type pgps_internal.event_type, start text
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_from bigint := 0;
    v_class bigint;
begin
    -- Signatures and classes are shared by the subscriptions of a role, and are changed under its lock.
    perform pgps_internal.hold_owner((join_type.subscription).owner::oid);
    if (join_type.subscription).is_pattern then
        perform pgps_internal.open_lane((join_type.subscription).owner);
    end if;
    if join_type.start = 'now' then
        -- An assignment, not PERFORM: PL/pgSQL evaluates it without setting up an executor.
        v_class := pgps_internal.join_now(join_type.subscription, join_type.event_type);
        return;
    elsif join_type.start <> 'earliest' then
        if join_type.start !~ '^\s*\d{1,18}\s*$' then
            raise exception 'invalid start "%"', join_type.start using errcode = '22023',
                hint = 'Use now, earliest, or an event id.';
        end if;
        v_from := join_type.start::bigint;
    end if;
    perform pgps_internal.join_past(join_type.subscription, join_type.event_type, v_from);
end
$$;
comment on function pgps_internal.join_type(pgps_internal.subscription, pgps_internal.event_type, text) is
'Makes a subscription a member of the class of its filter on one event type, from now, earliest or an event id on';

create or replace function pgps_internal.start_batch(
    event_type pgps_internal.event_type, event_id bigint, last pgps_internal.batch
) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_next bigint := coalesce((start_batch.last).batch_id, 0) + 1;
    v_batch bigint;
    v_known int8multirange;
    v_is_archived boolean;
begin
    select max(b.batch_id) into v_batch from pgps_internal.batch_type b where start_batch.event_id <@ b.ids;
    if v_batch is not null then
        return v_batch;
    elsif exists (select from pgps_internal.waiting(start_batch.last, pg_current_snapshot()) w
        where start_batch.event_id between w.lo and w.hi) then
        return v_next;
    end if;
    select coalesce(range_agg(r), '{}') into v_known
    from pgps_internal.batch_type b, unnest(b.ids) r where b.type_id = (start_batch.event_type).type_id;
    execute format('select exists (select from pgps_internal.%I a where a.event_id >= $1 and not a.event_id <@ $2)',
        (start_batch.event_type).name || '_audit') using start_batch.event_id, v_known into v_is_archived;
    if v_is_archived then
        return 0;
    end if;
    -- The event is in no batch: it is reclaimed, was rolled back, or is still to be committed. The start is the first
    -- batch with a higher id.
    return coalesce((select min(b.batch_id) from pgps_internal.batch_type b where upper(b.ids) > start_batch.event_id),
        v_next);
end
$$;
comment on function pgps_internal.start_batch(pgps_internal.event_type, bigint, pgps_internal.batch) is
'The batch with which a subscription to a type begins when it is to begin with an event (of any type): that event''s
own, 0 = among the archived ones, or the next';

create or replace function pgps_internal.join_now(
    subscription pgps_internal.subscription, event_type pgps_internal.event_type
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_class bigint;
    v_last pgps_internal.batch := pgps_internal.last_batch();
    v_is_shared boolean := (join_now.subscription).handler = 'any' and (join_now.subscription).callback is null;
begin
    v_class := pgps_internal.find_class(join_now.event_type, (join_now.subscription).owner,
        (join_now.subscription).filter,
        (join_now.subscription).parameter_types, (join_now.subscription).environment, false,
        case when (join_now.subscription).is_pattern and (join_now.subscription).filter is not null then true end);
    -- Events that are committed but not in a batch yet were published before: they are skipped.
    insert into pgps_internal.member (subscription_id, class_id, type_id, from_batch, skip, takes_batch)
    values ((join_now.subscription).subscription_id, v_class, (join_now.event_type).type_id,
        coalesce(v_last.batch_id, 0),
        pgps_internal.waiting_ids(join_now.event_type, v_last), v_is_shared);
    if v_is_shared then
        perform pgps_internal.add_feature((join_now.event_type).type_id, 'share');
    end if;
    if (join_now.subscription).callback is not null then
        perform pgps_internal.build_callback((join_now.subscription).subscription_id, (join_now.event_type).type_id);
    end if;
    return v_class;
end
$$;
comment on function pgps_internal.join_now(pgps_internal.subscription, pgps_internal.event_type) is
'Makes a subscription a member of the class of its filter on one event type, from now on; the filter is not run';

create or replace function pgps_internal.join_past(
    subscription pgps_internal.subscription, event_type pgps_internal.event_type, from_event bigint
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_last pgps_internal.batch;
    v_class bigint;
    v_signature pgps_internal.signature;
    v_skip int8multirange := '{}';
    v_batch bigint := 0;
    v_upto bigint;
begin
    perform pgps_internal.require_read_committed();
    -- The dispatcher goes on meanwhile; the locks only keep reclaim from truncating what is read here, until the
    -- commit.
    execute format('lock table %s, pgps_internal.batch, pgps_internal.batch_type, pgps_internal.control in access '
        'share mode',
        (join_past.event_type).log);
    v_last := pgps_internal.last_batch();
    v_class := pgps_internal.find_class(join_past.event_type, (join_past.subscription).owner,
        (join_past.subscription).filter,
        (join_past.subscription).parameter_types, (join_past.subscription).environment, true,
        case when (join_past.subscription).is_pattern and (join_past.subscription).filter is not null then true end);
    select g.* into v_signature from pgps_internal.class c join pgps_internal.signature g using (signature_id)
        where c.class_id = v_class;
    -- All classes of a subscription are filled up to the same batch: otherwise its position would pass events that
    -- another class has still to catch up with.
    select min(c.suspended_batch) into v_upto from pgps_internal.member m join pgps_internal.class c using (class_id)
    where m.subscription_id = (join_past.subscription).subscription_id and c.is_pending;
    v_upto := coalesce(v_upto, pgps_internal.matched_upto((join_past.subscription).owner, v_signature, v_last));
    -- The start is a place in delivery order, batch first: an event of a lower id may have been committed, and
    -- delivered, later.
    if join_past.from_event > 0 then
        v_batch := pgps_internal.start_batch(join_past.event_type, join_past.from_event, v_last);
        v_skip := coalesce((select range_agg(r) from pgps_internal.batch_type b,
            unnest(b.ids * int8multirange(int8range(null, join_past.from_event))) r
            where b.batch_id = v_batch and b.type_id = (join_past.event_type).type_id), '{}');
    end if;
    perform pgps_internal.restore_audited(join_past.event_type, v_batch, join_past.from_event);
    insert into pgps_internal.member (subscription_id, class_id, type_id, from_batch, skip, takes_batch)
    values ((join_past.subscription).subscription_id, v_class, (join_past.event_type).type_id, v_batch - 1, v_skip,
        (join_past.subscription).handler = 'any' and (join_past.subscription).callback is null);
    perform pgps_internal.add_feature((join_past.event_type).type_id, 'share')
    where (join_past.subscription).handler = 'any' and (join_past.subscription).callback is null;
    perform pgps_internal.replay(v_class, join_past.event_type, join_past.from_event, v_batch - 1, v_upto);
    if v_signature.in_lane is not true then
        perform pgps_internal.make_pending(v_class, v_upto);
    end if;
    if (join_past.subscription).callback is not null then
        perform pgps_internal.build_callback((join_past.subscription).subscription_id, (join_past.event_type).type_id);
    end if;
end
$$;
comment on function pgps_internal.join_past(pgps_internal.subscription, pgps_internal.event_type, bigint) is
'Makes a subscription a member of a class of its own, with what is still there from an event id on (0: everything)';

create or replace function pgps_internal.matched_upto(
    owner regrole, signature pgps_internal.signature, last pgps_internal.batch
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_lane pgps_internal.lane;
begin
    if (matched_upto.signature).in_lane is not true then
        -- The next dispatch catches up from here.
        return coalesce((matched_upto.last).batch_id, 0);
    end if;
    -- Holds the lane until the transaction ends, which delays only its owner.
    select l.* into v_lane from pgps_internal.lane l where l.owner = matched_upto.owner for update;
    return greatest(pgps_internal.lane_position(v_lane.lane_id), (matched_upto.signature).from_batch);
end
$$;
comment on function pgps_internal.matched_upto(regrole, pgps_internal.signature, pgps_internal.batch) is
'The batch up to which a class that is filled now has to be filled: the last one or, in a lane, the one that the lane
has reached; the lane is held there until the transaction ends';

create or replace function pgps_internal.replay(
    class_id bigint, event_type pgps_internal.event_type, from_event bigint, after_batch bigint, upto bigint
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
    select c.* into v_class from pgps_internal.class c where c.class_id = replay.class_id;
    select g.* into v_signature from pgps_internal.signature g where g.signature_id = v_class.signature_id;
    for v_batch in
        select b.batch_id, case when b.batch_id = replay.after_batch + 1
            then b.ids * int8multirange(int8range(replay.from_event, null))
            else b.ids end as ids
        from pgps_internal.batch_type b
        where b.type_id = (replay.event_type).type_id and b.batch_id > replay.after_batch and b.batch_id <= replay.upto
            and not isempty(b.ids)
        order by b.batch_id
    loop
        v_ids := pgps_internal.visible(replay.event_type, v_class.owner, v_batch.ids);
        if isempty(v_ids) then
            continue;
        elsif v_signature.signature_id is not null then
            perform pgps_internal.match_signature(v_batch.batch_id, v_signature, v_ids,
                int8range(v_class.class_id, v_class.class_id, '[]'));
        else
            -- Only events that are still in the log: a delivery without events would hold up its subscriptions and
            -- reclaim for ever. As ranges, like those of dispatch.
            execute format('insert into pgps_internal.delivery (batch_id, class_id, type_id, events, ids)
                select $1, $2, $3, sum(i.upto - i.since + 1), range_agg(int8range(i.since, i.upto, ''[]'')) from (
                    select min(e.event_id) as since, max(e.event_id) as upto from (
                        select l.event_id, l.event_id - row_number() over (order by l.event_id) as island from %s l
                        where l.event_id between lower($4) and upper($4) - 1 and l.event_id <@ $4) e
                    group by e.island) i
                having count(*) > 0', (replay.event_type).log)
            using v_batch.batch_id, v_class.class_id, v_class.type_id, v_ids;
        end if;
    end loop;
    insert into pgps_internal.share (subscription_id, batch_id, event_id, type_id)
    select m.subscription_id, d.batch_id, e.event_id, d.type_id
    from pgps_internal.member m
    join pgps_internal.delivery d using (class_id)
    cross join lateral pgps_internal.event_ids(d) e(event_id)
    where m.class_id = replay.class_id and m.takes_batch and not e.event_id <@ m.skip
        and d.batch_id > greatest(replay.after_batch, m.from_batch) and d.batch_id <= replay.upto
    on conflict do nothing;
end
$$;
comment on function pgps_internal.replay(bigint, pgps_internal.event_type, bigint, bigint, bigint) is
'Matches, for a class that is new or was suspended, what is still there after a batch and up to another; of the first of
these batches only from an event id on';

create or replace function pgps_internal.match_pattern_subscriptions(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_subscription pgps_internal.subscription;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = match_pattern_subscriptions.type_id;
    for v_subscription in
        select s.* from pgps_internal.subscription s
        where s.is_pattern and starts_with(v_type.name, left(s.event_type, -1))
            and not exists (select from pgps_internal.member m where m.subscription_id = s.subscription_id
                and m.type_id = v_type.type_id)
            and exists (select from pg_roles r where r.oid = s.owner)
    loop
        -- A filter is planned and asked only in its owner's lane. A subscription that an open transaction is dropping
        -- is skipped and not waited for. The owner's definitions need no lock, since nobody else knows the type yet.
        perform from pgps_internal.subscription s
            where s.subscription_id = v_subscription.subscription_id for key share skip locked;
        if found and v_subscription.filter is null then
            perform pgps_internal.join_now(v_subscription, v_type);
        else
            perform pgps_internal.expect_type(v_subscription, v_type);
        end if;
    end loop;
end
$$;
comment on function pgps_internal.match_pattern_subscriptions(integer) is
'Joins the subscriptions to a prefix to a new event type';

revoke all on all functions in schema pgps_internal from public;
grant execute on function
    pgps.check_filter(text, text),
    pgps.check_callback(text, text),
    pgps.check_call(text, jsonb),
    pgps.subscribe(text, text, text, text, text, integer, text, integer, text)
to public;
