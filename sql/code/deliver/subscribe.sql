-- Subscriptions: find or make the filter's class, and join it (joining.sql); what is checked first is in
-- check_filter.sql.
-- Locks: until the transaction ends, the turn of the role's definitions, for which its other sessions wait that make or
-- change some, catalogue rows, and the logs of the event types, access share; with a start other than now the owner's
-- lane, and a lock against reclaim.
-- Writes: subscription.

drop function if exists pgps.subscribe(text, text, text, text, text, integer, text, integer, text);
create or replace function pgps.subscribe(
    name text, event_type text, filter text = null, scope text = 'local', execute text = null, priority integer = 0,
    start text = 'now', max_attempts integer = 5, handler text = null, coupling text = 'detached'
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
    elsif subscribe.coupling is null or subscribe.coupling not in ('detached', 'deferred', 'immediate') then
        raise exception 'invalid coupling "%"', subscribe.coupling using errcode = '22023',
            hint = 'Use detached, deferred or immediate.';
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
        'handler', subscribe.handler, 'coupling', subscribe.coupling, 'schemas',
            pg_catalog.to_jsonb(pg_catalog.current_schemas(false))));
end
$$;
comment on function pgps.subscribe(text, text, text, text, text, integer, text, integer, text, text) is
'Subscribes the current role to an event type (paper, section 4.3), or to every type of a prefix it may see, now and
later (''security*''; the types of pgps itself, pgps_…, only with a prefix that begins with pgps_). filter: any SQL
predicate over the event and tables, run with the subscriber''s rights; null = every event; a null result is no match.
scope: global asks for the events of other brokers over links; local gets what
is known here: what is published here, and what a global one has brought in. execute: the callback of an internal
subscription: f, which takes an event, f(pgps_event.<type>) or f(record), or a batch, f(pgps_event.<type>[]); or
f(price, symbol), SQL over the attributes; null = external (pgps.receive). priority: higher first. start: now (what
commits from now on), earliest, or an event id: that event and what comes after it in delivery order. max_attempts:
tries before the exception queue. handler: all, any = competing consumers, null = as the type says. coupling: detached =
the callback runs in a transaction of its own; immediate and deferred = in the publisher''s, at the end of the statement
or before the commit, over the events of that transaction alone (of a composite event: those it is made of), where an
event of immediate visibility has a transaction of its own; what it raises aborts the publisher. Needs SELECT on the
type; for immediate and deferred the event types'' owner, or pgps_admin, and a lock on their logs for which publishers
wait. Locks, until the transaction ends: other sessions of the same role wait that subscribe, register for events, seek,
change or end a subscription, or make a composite event, since a role''s subscriptions share what is generated for their
filters; and who alters or drops one of the event types waits, or sets a policy; not who publishes or receives, nor
another role. Errors: 42704, 42710 exists, 42939 a name that begins with pgps_, 42501, 55000 not
advertised, 22023, 0A000 coupled to a composite event of composite events, and PostgreSQL''s own for filter and
callback.';

create or replace function pgps_internal.given_callback(args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
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
        -- The caller may pass anything here: this checks that it is a name and one pair of parentheses, and that no
        -- comment in the name hides what is put behind it.
        perform pgps.parse_callback(concat(v_callback ->> 'function', '(' || (v_callback ->> 'arguments') || E'\n)'));
        if pgps.parse_callback(concat(v_callback ->> 'function', '(pgps_e)')) ->> 'arguments'
            is distinct from 'pgps_e' then
            raise exception 'callback "%" is not the name of a function', v_callback ->> 'function'
            using errcode = '42601', hint = 'Give the name as pgps.check_callback returns it.';
        end if;
    end if;
    return v_callback;
end
$$;
comment on function pgps_internal.given_callback(jsonb) is
'The callback in the arguments of pgps.subscribe, taken apart; null: none. Errors: 42601 not the name of a function.';

create or replace function pgps_internal.refuse_dropped(event_type text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'event type "%" does not exist any more', refuse_dropped.event_type
    using errcode = '42704', hint = 'It was dropped just now; see pgps.event_types.';
end
$$;
comment on function pgps_internal.refuse_dropped(text) is
'Raises 42704 for an event type that was there, and is gone since a lock was waited for';

create or replace function pgps_internal.do_subscribe(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.check_new_name(caller, args ->> 'name', 'subscription');
    v_subscription pgps_internal.subscription;
    v_types jsonb := pgps_internal.do_types_for(caller, jsonb_build_object('event_type',
        pgps._quoted_pattern(args -> 'types' ->> 'event_type', (args -> 'types' ->> 'pattern')::boolean)));
    v_type pgps_internal.event_type;
    v_callback jsonb := pgps_internal.given_callback(args);
begin
    insert into pgps_internal.subscription (name, owner, event_type, is_pattern, filter, environment, parameter_types,
        kind, scope,
        callback, arguments, takes, priority, max_attempts, handler)
    values (v_name, quote_ident(caller)::regrole, args -> 'types' ->> 'event_type',
        (args -> 'types' ->> 'pattern')::boolean, args ->> 'filter',
        pgps_internal.current_environment(args -> 'schemas', concat(args ->> 'filter', ' ', args ->> 'execute')),
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
    if args ->> 'coupling' <> 'detached' and v_subscription.is_pattern then
        raise exception 'a rule with the coupling % is about one event type', args ->> 'coupling'
        using errcode = '22023', hint = 'Subscribe to each event type, or use the coupling detached.';
    end if;
    for v_type in select t.* from pgps_internal.event_type t
        where t.name in (select jsonb_array_elements_text(v_types -> 'types')) loop
        if args ->> 'coupling' <> 'detached' then
            perform pgps_internal.couple(caller, args, v_subscription, v_type);
        else
            perform pgps_internal.join_type(v_subscription, v_type, args ->> 'start');
        end if;
    end loop;
    if not found and not v_subscription.is_pattern then
        perform pgps_internal.refuse_dropped(v_subscription.event_type);
    elsif v_subscription.is_pattern then
        -- Whoever makes a type of it has no lane to make then, nor to wait for.
        perform pgps_internal.open_lane(v_subscription.owner) where v_subscription.filter is not null;
        perform pgps_internal.note_unmet('pgps_internal.event_type');
        perform pgps_internal.join_unseen_types(v_subscription, args ->> 'start');
        -- See pgps_internal.is_unmet.
        perform pgps_internal.wake_dispatcher();
    end if;
    if v_subscription.callback is not null then perform pgps_internal.note_callback(v_subscription); end if;
    return to_jsonb(v_subscription.subscription_id);
end
$$;
comment on function pgps_internal.do_subscribe(name, jsonb) is 'See pgps.subscribe';

drop function if exists pgps_internal.waiting_ids(pgps_internal.event_type);

grant execute on function
    pgps.subscribe(text, text, text, text, text, integer, text, integer, text, text)
to public;
