-- Composite events: create and drop (change and reset: alter.sql). A composite event is an event type that only the
-- detector publishes, and a hidden subscription for each of its leaves.
-- Locks: those of creating and dropping an event type; the turn of the creator's definitions; catalogue rows.
-- Writes: advertisement, composite, composite_leaf, composite_share, event_type, queue, setting, subscription,
-- time_attribute.

insert into pgps_internal.setting (name, value, kind, description) values
    ('composite_events_per_role', '1000', 'integer', 'How many composite events a role may have'),
    ('idle_source', '1 minute', 'interval',
        'Composite events of the time basis event do not wait for a source that has been silent for longer'),
    ('tick_interval', '10 milliseconds', 'interval',
        'Shortest time between two ticks of a composite event that ticks by the clock alone (every, P)')
on conflict (name) do nothing;

create or replace function pgps.create_composite_event(
    name text, expression text, context text = 'recent', partition_by text = null, within interval = null,
    filter text = null, attributes text = null, scope text = 'local', time_basis text = 'arrival',
    lateness interval = '0', start text = 'now', max_open integer = null, reliability text = 'guaranteed',
    persistent boolean = true, auditable boolean = false, handler text = 'all'
) returns void
language plpgsql
as $$
declare
    v_args jsonb := pg_catalog.jsonb_build_object('name', create_composite_event.name,
        'expression', create_composite_event.expression, 'context', coalesce(create_composite_event.context, 'recent'),
        'partition_by', create_composite_event.partition_by, 'within', create_composite_event.within,
        'filter', create_composite_event.filter, 'attributes', create_composite_event.attributes,
        'scope', coalesce(create_composite_event.scope, 'local'),
        'time_basis', coalesce(create_composite_event.time_basis, 'arrival'),
        'lateness', coalesce(create_composite_event.lateness, '0'),
        'start', coalesce(create_composite_event.start, 'now'), 'max_open', create_composite_event.max_open,
        'reliability', coalesce(create_composite_event.reliability, 'guaranteed'),
        'persistent', coalesce(create_composite_event.persistent, true),
        'auditable', coalesce(create_composite_event.auditable, false),
        'handler', coalesce(create_composite_event.handler, 'all'),
        'zone', pg_catalog.current_setting('timezone'));
    v_constants jsonb;
begin
    v_constants := pgps.check_composite(pgps._call('describe', v_args));
    perform pgps._call('create_composite', v_args || pg_catalog.jsonb_build_object('constant_types', v_constants,
        'schemas', pg_catalog.to_jsonb(pg_catalog.current_schemas(false))));
end
$$;
comment on function pgps.create_composite_event(text, text, text, text, interval, text, text, text, text, interval,
    text, integer, text, boolean, boolean, text) is
'Creates a composite event: an event type whose events the detector publishes when a pattern of other events has come
about (Snoop). expression: the pattern, for example ''deposit d ; withdrawal w''. context: unrestricted, recent,
chronicle, continuous or cumulative. partition_by: an attribute that each leaf has, or one for each leaf; each key is
detected for itself. within: how long an occurrence may take. filter: SQL over the aliases of the leaves. attributes:
''symbol text = a.symbol, …''; besides it has starts_at, ends_at, detected_at and constituents. scope: global asks for
events of other brokers over links, local takes those that are known here. time_basis: arrival, or event = the types''
time attribute, with lateness. start: now or earliest. max_open: open occurrences for each key, null = 10,000. The rest:
as pgps.create_event_type. Needs SELECT on each leaf; it is advertised in the caller''s name, and nobody else publishes
it. Errors: 42601 syntax, 42703, 42704, 42710, 42804 partition keys of several types, 22023 what makes no sense or would
be kept for ever, 54000 a limit, 42501, 55000 a leaf is not advertised, and PostgreSQL''s own for predicates, filter and
attributes.';

create or replace function pgps_internal.check_composite_args(caller name, args jsonb) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_most integer := pgps_internal.setting('composite_events_per_role')::integer;
begin
    if args ->> 'scope' not in ('local', 'global') then
        raise exception 'invalid scope "%"', args ->> 'scope' using errcode = '22023', hint = 'Use local or global.';
    elsif args ->> 'start' not in ('now', 'earliest') then
        raise exception 'invalid start "%"', args ->> 'start' using errcode = '22023', hint = 'Use now or earliest.';
    elsif args ->> 'reliability' not in ('guaranteed', 'non-guaranteed') then
        raise exception 'invalid reliability "%"', args ->> 'reliability' using errcode = '22023',
            hint = 'Use guaranteed or non-guaranteed.';
    elsif args ->> 'handler' not in ('all', 'any') then
        raise exception 'invalid handler "%"', args ->> 'handler' using errcode = '22023', hint = 'Use all or any.';
    elsif (select count(*) from pgps_internal.composite c where c.owner = quote_ident(caller)::regrole) >= v_most then
        raise exception 'role "%" has % composite events, which is as many as it may have', caller, v_most
        using errcode = '54000', hint = 'Drop one, or have an administrator raise it: '
            'select pgps.configure(''composite_events_per_role'', …)';
    end if;
end
$$;
comment on function pgps_internal.check_composite_args(name, jsonb) is
'Raises 22023 or 54000 for what cannot be said of a composite event, or when caller has too many';

create or replace function pgps_internal.make_composite(
    caller name, name text, args jsonb, parsed jsonb, environment jsonb
) returns pgps_internal.composite
language plpgsql
set search_path = pg_catalog, pg_temp set client_min_messages = warning
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.build_composite_type(make_composite.caller, make_composite.name,
        make_composite.args, make_composite.parsed);
    v_composite pgps_internal.composite;
begin
    insert into pgps_internal.composite (type_id, owner, expression, context, partition_by, within, filter, attributes,
        scope, time_basis, lateness, start, max_open, environment, given, parsed, sources, began_at, after_batch,
        created_at)
    values (v_type.type_id, quote_ident(make_composite.caller)::regrole, make_composite.parsed ->> 'expression',
        lower(args ->> 'context'), args ->> 'partition_by', (args ->> 'within')::interval, args ->> 'filter',
        args ->> 'attributes', args ->> 'scope', lower(args ->> 'time_basis'), (args ->> 'lateness')::interval,
        args ->> 'start', (args ->> 'max_open')::integer, make_composite.environment, pgps_internal.given_of(args),
        make_composite.parsed, args -> 'sources', pgps_internal.clock(),
        case args ->> 'start' when 'now' then coalesce((pgps_internal.last_batch()).batch_id, 0) else 0 end,
        pgps_internal.clock())
    returning * into v_composite;
    insert into pgps_internal.composite_share (composite_id, share, shares) values (v_composite.composite_id, 0, 1);
    -- Nobody has INSERT; from now on the rule refuses those who need no privilege, too.
    perform pgps_internal.build_endpoint(v_type.type_id);
    perform pgps_internal.build(p, v_type.type_id) from pgps_internal.pieces_of_composite(v_composite) p;
    perform pgps_internal.make_parts(v_composite, (args ->> 'without')::uuid);
    perform pgps_internal.make_leaves(v_composite, args -> 'constant_types');
    perform pg_notify('pgps_composite', '');
    return v_composite;
end
$$;
comment on function pgps_internal.make_composite(name, text, jsonb, jsonb, jsonb) is
'Makes a composite event of arguments that have been checked: its type, its functions, its leaves';

create or replace function pgps_internal.hold_leaves(parsed jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.hold_log(t) from (select t.* from pgps_internal.event_type t
        where t.name in (select l ->> 'type' from jsonb_array_elements(hold_leaves.parsed -> 'leaves') l)
        order by t.type_id) t;
end
$$;
comment on function pgps_internal.hold_leaves(jsonb) is
'Has whoever drops an event type that a definition is made of, or takes an attribute away from it, wait until the
transaction ends, and then see what is made of it. Errors: 42704, 42P01 one was dropped just now';

create or replace function pgps_internal.do_create_composite(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp set client_min_messages = warning
as $$
declare
    v_name text := pgps_internal.check_new_name(caller, args ->> 'name', 'event type');
    v_parsed jsonb := pgps_internal.describe(caller, args);
begin
    perform pgps_internal.require_read_committed();
    -- With the turn of the role, so that each sees how many it has.
    perform pgps_internal.hold_owner(quote_ident(caller)::regrole::oid);
    perform pgps_internal.check_composite_args(caller, args);
    if exists (select from pgps_internal.event_type t where t.name = v_name) then
        raise exception 'event type "%" exists already', v_name using errcode = '42710',
            hint = format('Choose another name, or first: select pgps.drop_event_type(%L)', quote_ident(v_name));
    end if;
    perform pgps_internal.hold_leaves(v_parsed);
    -- Described once more: while this waited, an attribute may have been taken away.
    v_parsed := pgps_internal.describe(caller, args);
    perform pgps_internal.make_composite(caller, v_name, args, v_parsed,
        pgps_internal.current_environment(args -> 'schemas', args::text)
            || jsonb_build_object('timezone', args ->> 'zone'));
end
$$;
comment on function pgps_internal.do_create_composite(name, jsonb) is 'See pgps.create_composite_event';

create or replace function pgps_internal.build_composite_type(caller name, name text, args jsonb, parsed jsonb)
returns pgps_internal.event_type
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_endpoint regclass;
    v_type pgps_internal.event_type;
    v_kind text;
    v_bad text;
begin
    -- A type is given as text: to_regtype takes nothing but the name of one, with its modifiers.
    select a ->> 'type' into v_bad from jsonb_array_elements(build_composite_type.parsed -> 'attributes') a
    where to_regtype(a ->> 'type') is null limit 1;
    if found then
        raise exception 'type "%" does not exist', v_bad using errcode = '42704',
            hint = 'Write it with its schema, for example public.money_amount.';
    end if;
    execute format('create table pgps_event.%I (%s starts_at timestamptz, ends_at timestamptz, '
        'detected_at timestamptz, constituents jsonb, _producer text, _producer_seq bigint)',
        build_composite_type.name,
        (select string_agg(format('%I %s,', a ->> 'name', a ->> 'type'), ' ' order by o)
            from jsonb_array_elements(build_composite_type.parsed -> 'attributes') with ordinality x(a, o)));
    v_endpoint := format('pgps_event.%I', build_composite_type.name)::regclass;
    perform pgps_internal.require_trusted_types(build_composite_type.caller, v_endpoint);
    perform pgps_internal.check_attribute_names(v_endpoint, build_composite_type.name);
    insert into pgps_internal.event_type (name, endpoint, log, owner, visibility, reliability, persistent, handler)
    values (build_composite_type.name, v_endpoint, v_endpoint, quote_ident(build_composite_type.caller)::regrole,
        'deferred', args ->> 'reliability', (args ->> 'persistent')::boolean, args ->> 'handler')
    returning * into v_type;
    foreach v_kind in array array['in', 'out', 'exception'] loop
        insert into pgps_internal.queue (type_id, kind, name, auditable)
        values (v_type.type_id, v_kind, v_type.name || '_' || v_kind, (args ->> 'auditable')::boolean);
    end loop;
    insert into pgps_internal.time_attribute (type_id, name) values (v_type.type_id, 'ends_at');
    perform pgps_internal.build_log(v_type);
    -- Where an event begins and ends as points: its times alone do not tell what is first among equal times.
    execute format('alter table pgps_internal.%I add column pgps_start_at numeric, add column pgps_end_at numeric',
        build_composite_type.name || '_log');
    select t.* into v_type from pgps_internal.event_type t where t.type_id = v_type.type_id;
    perform pgps_internal.build_code(v_type.type_id);
    execute format('grant select on %s to %I with grant option', v_endpoint, build_composite_type.caller);
    execute format('grant select on %s to pgps_admin with grant option', v_endpoint);
    insert into pgps_internal.advertisement (type_id, role)
    values (v_type.type_id, quote_ident(build_composite_type.caller)::regrole);
    perform pgps_internal.join_rooms(v_type);
    return v_type;
end
$$;
comment on function pgps_internal.build_composite_type(name, text, jsonb, jsonb) is
'Makes the event type that the detector publishes, advertised in the creator''s name, with an endpoint that takes
nothing';

create or replace function pgps._refuse_publication(event_type text) returns void
language plpgsql
as $$
begin
    raise exception 'composite event "%" is published by the detector alone', _refuse_publication.event_type
    using errcode = '42501', hint = 'Publish the events that it is made of; see pgps.composite_events.';
end
$$;
comment on function pgps._refuse_publication(text) is
'Raises 42501: what an INSERT into a composite event becomes, also for those who need no privilege';

create or replace function pgps_internal.subscribe_leaf(
    composite pgps_internal.composite, leaf integer, event_type pgps_internal.event_type, predicate text,
    constant_types jsonb
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription;
begin
    insert into pgps_internal.subscription (name, owner, event_type, is_pattern, filter, environment,
        parameter_types, kind, scope, priority, max_attempts, handler)
    values (format('composite*%s*%s', (subscribe_leaf.composite).composite_id, subscribe_leaf.leaf),
        -- Nobody has rights on what a neighbour detects: the owner of the composite event sees of it what it may see
        -- of the events in it, see parts_of. Where somebody names the type of a part himself, it is a leaf like others.
        case when exists (select from pgps_internal.composite_part p
                where p.composite_id = (subscribe_leaf.composite).composite_id and p.leaf = subscribe_leaf.leaf
                    and p.name = (subscribe_leaf.event_type).name)
            then quote_ident(current_user)::regrole else (subscribe_leaf.composite).owner end,
        (subscribe_leaf.event_type).name, false, subscribe_leaf.predicate,
        (subscribe_leaf.composite).environment, pgps_internal.clean_types(subscribe_leaf.constant_types), 'composite',
        (subscribe_leaf.composite).scope, 0, 1, 'all')
    returning * into v_subscription;
    update pgps_internal.composite_leaf l set subscription_id = v_subscription.subscription_id
    where l.composite_id = (subscribe_leaf.composite).composite_id and l.leaf = subscribe_leaf.leaf;
    perform pgps_internal.join_type(v_subscription, subscribe_leaf.event_type, (subscribe_leaf.composite).start);
    perform pgps_internal.add_feature((subscribe_leaf.event_type).type_id, 'composite');
end
$$;
comment on function pgps_internal.subscribe_leaf(pgps_internal.composite, integer, pgps_internal.event_type, text,
    jsonb) is
'Makes the hidden subscription of a leaf of a composite event; constant_types: those of the predicate';

create or replace function pgps_internal.make_leaves(composite pgps_internal.composite, constant_types jsonb)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_leaf record;
    v_type pgps_internal.event_type;
begin
    for v_leaf in
        select l ->> 'type' as type, nullif(l ->> 'predicate', '') as predicate, nullif(l ->> 'source', '') as source,
            nullif(l ->> 'moment', '') as moment, o::integer - 1 as leaf
        from jsonb_array_elements((make_leaves.composite).parsed -> 'leaves') with ordinality x(l, o) order by o
    loop
        select t.* into v_type from pgps_internal.event_type t where t.name = v_leaf.type;
        -- Whoever drops the type or the source waits, and then sees the leaf.
        perform pgps_internal.hold_log(v_type), pgps_internal.hold_source(make_leaves.composite, v_leaf.source);
        -- No rule publishes a composite event; its moments are its bounds.
        if exists (select from pgps_internal.composite c where c.type_id = v_type.type_id) then
            v_leaf.moment := null;
        end if;
        insert into pgps_internal.composite_leaf (composite_id, leaf, type_id, source, moment)
        values ((make_leaves.composite).composite_id, v_leaf.leaf, v_type.type_id, v_leaf.source, v_leaf.moment);
        if v_leaf.moment is not null then
            perform pgps_internal.tell_moments(v_type.type_id);
        end if;
        if not pgps_internal.is_elsewhere((make_leaves.composite).composite_id, v_leaf.leaf) then
            perform pgps_internal.subscribe_leaf(make_leaves.composite, v_leaf.leaf, v_type, v_leaf.predicate,
                make_leaves.constant_types -> v_leaf.leaf);
        end if;
    end loop;
end
$$;
comment on function pgps_internal.make_leaves(pgps_internal.composite, jsonb) is
'Subscribes a composite event to its leaves; constant_types: for each leaf those of its predicate';



create or replace function pgps_internal.composite_of(event_type pgps_internal.event_type) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select format('composite event "%s" is made of it', t.name)
    from pgps_internal.composite_leaf l join pgps_internal.composite c using (composite_id)
    join pgps_internal.event_type t on t.type_id = c.type_id
    where l.type_id = (composite_of.event_type).type_id order by t.name limit 1
$$;
comment on function pgps_internal.composite_of(pgps_internal.event_type) is
'A composite event that is made of an event type, as a reason not to drop it; null when there is none';

create or replace function pgps_internal.drop_composites_of(event_type pgps_internal.event_type) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_composite pgps_internal.composite;
    v_type pgps_internal.event_type;
    v_parts text[];
begin
    -- What is made of it goes with it, and what is made of that.
    for v_type in
        select distinct t.* from pgps_internal.composite_leaf l join pgps_internal.composite c using (composite_id)
        join pgps_internal.event_type t on t.type_id = c.type_id
        where l.type_id = (drop_composites_of.event_type).type_id
    loop
        if exists (select from pgps_internal.event_type t where t.type_id = v_type.type_id) then
            perform pgps_internal.drop_type(v_type);
        end if;
    end loop;
    select c.* into v_composite from pgps_internal.composite c
    where c.type_id = (drop_composites_of.event_type).type_id;
    if found then
        perform pgps_internal.hold_composite(v_composite.composite_id);
        perform pgps_internal.drop_subscription(s.subscription_id) from pgps_internal.subscription s
        where s.kind = 'composite' and s.name ^@ format('composite*%s*', v_composite.composite_id);
        v_parts := array(select p.name from pgps_internal.composite_part p
            where p.composite_id = v_composite.composite_id);
        perform pgps_internal.drop_piece('function', 'pgps_internal.' || p.proname) from pg_proc p
        where p.pronamespace = 'pgps_internal'::regnamespace
            and p.proname ~ format('^composite_(test_%1$s_\d+|leaf_%1$s_\d+|ma[kd]e_%1$s)$', v_composite.composite_id);
        delete from pgps_internal.composite c where c.composite_id = v_composite.composite_id;
        perform pgps_internal.drop_type(t) from pgps_internal.event_type t
        where t.name = any (v_parts) and t.type_id <> (drop_composites_of.event_type).type_id;
        if cardinality(v_parts) > 0 then
            perform pg_notify('pgps_link', '');
        end if;
    end if;
end
$$;
comment on function pgps_internal.drop_composites_of(pgps_internal.event_type) is
'Drops the composite event that a type is, and those that are made of it';

create or replace function pgps_internal.may_drop(caller name, event_type pgps_internal.event_type) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select exists (select from pgps_internal.composite c join pg_roles r on r.oid = c.owner::oid
        where c.type_id = (may_drop.event_type).type_id and pg_has_role(may_drop.caller, r.oid, 'usage'))
$$;
comment on function pgps_internal.may_drop(name, pgps_internal.event_type) is
'True for a composite event of caller''s: who may create it may drop it';

grant execute on function
    pgps.create_composite_event(text, text, text, text, interval, text, text, text, text, interval, text,
        integer, text, boolean, boolean, text),
    pgps._refuse_publication(text) to public;
