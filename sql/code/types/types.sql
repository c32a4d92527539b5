-- Event types and their queues: create, alter, drop.
-- Locks: the event type's relations, then catalogue rows.
-- Writes: event_type, member, queue.

create or replace function pgps_internal.attributes_of(endpoint regclass)
returns table (name text, type text, not_null boolean, default_value text, collate_clause text)
language plpgsql stable
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
as $$
begin
    -- Planned once in a session, and not in each of the dozen calls that making a type takes.
    return query
    select a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid),
        coalesce((select format('collate %I.%I', n.nspname, c.collname) from pg_collation c
            join pg_namespace n on n.oid = c.collnamespace
            where c.oid = a.attcollation and c.oid <> t.typcollation), '')
    from pg_attribute a
    join pg_type t on t.oid = a.atttypid
    left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    where a.attrelid = attributes_of.endpoint and a.attnum > 0 and not a.attisdropped
        and a.attname not in ('_producer', '_producer_seq')
    order by a.attnum;
end
$$;
comment on function pgps_internal.attributes_of(regclass) is
'The attributes of an event type in order, without the producer columns';

create or replace function pgps_internal.column_list(endpoint regclass, prefix text = '') returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select string_agg(column_list.prefix || quote_ident(a.attname), ', ' order by a.attnum)
        from pg_attribute a
        where a.attrelid = column_list.endpoint and a.attnum > 0 and not a.attisdropped);
end
$$;
comment on function pgps_internal.column_list(regclass, text) is
'All columns of an endpoint, quoted, each with prefix before it';

create or replace function pgps_internal.do_prepare_type(caller name, args jsonb) returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text;
begin
    perform pgps_internal.require_admin(caller, 'create event types');
    v_name := pgps_internal.check_new_name(caller, args ->> 'name', 'event type');
    if exists (select from pgps_internal.event_type t where t.name = v_name) then
        raise exception 'event type "%" exists already', v_name
        using errcode = '42710', hint = concat_ws(' ', 'Choose another name, or change it with pgps.alter_event_type.',
            -- A neighbour may have brought it, whose role has both rights since.
            format('These may publish or receive it: %s.', pgps_internal.who_was_let_in(v_name)));
    end if;
    return v_name;
end
$$;
comment on function pgps_internal.do_prepare_type(name, jsonb) is
'First half of pgps.create_event_type: checks rights and name; returns the folded name';

create or replace function pgps_internal.do_build_type(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp set client_min_messages = warning
as $$
declare
    v_name text := pgps_internal.do_prepare_type(caller, args);
    v_endpoint regclass;
    v_type pgps_internal.event_type;
    v_kind text;
begin
    v_endpoint := format('pgps_event.%I', v_name)::regclass;
    perform pgps_internal.require_plain(caller, v_endpoint);
    perform pgps_internal.require_columns(v_endpoint, args -> 'attributes', true);
    perform pgps_internal.check_attribute_names(v_endpoint, v_name);
    execute format('alter table %s owner to %I', v_endpoint, current_user);
    -- Rights that the caller's default privileges granted to others: TRIGGER, for instance, would let them attach code.
    for v_kind in
        select distinct case a.grantee when 0 then 'public' else a.grantee::regrole::text end
        from pg_class c cross join lateral aclexplode(c.relacl) a where c.oid = v_endpoint and a.grantee <> c.relowner
    loop
        execute format('revoke update, delete, truncate, references, trigger on %s from %s', v_endpoint, v_kind);
    end loop;
    perform pgps_internal.drop_set_constraints(v_endpoint, v_name);
    insert into pgps_internal.event_type (name, endpoint, log, owner, visibility, reliability, persistent, handler)
    values (v_name, v_endpoint, v_endpoint, quote_ident(caller)::regrole, args ->> 'visibility', args ->> 'reliability',
        (args ->> 'persistent')::boolean, args ->> 'handler')
    returning * into v_type;
    foreach v_kind in array array['in', 'out', 'exception'] loop
        insert into pgps_internal.queue (type_id, kind, name, auditable)
        values (v_type.type_id, v_kind, v_name || '_' || v_kind, (args ->> 'auditable')::boolean);
    end loop;
    perform pgps_internal.build_log(v_type);
    perform pgps_internal.build_code(v_type.type_id);
    execute format('grant insert, select on %s to %I with grant option', v_endpoint, caller);
    execute format('grant insert, select on %s to pgps_admin with grant option', v_endpoint);
    perform pgps_internal.join_rooms(v_type);
end
$$;
comment on function pgps_internal.do_build_type(name, jsonb) is
'Second half of pgps.create_event_type: takes over the endpoint that the caller made, builds log, queues and generated
code';

create or replace function pgps_internal.build_log(event_type pgps_internal.event_type) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := (build_log.event_type).name;
    v_endpoint regclass := (build_log.event_type).endpoint;
    v_log text := format('pgps_internal.%I', v_name || '_log');
    v_kept text := format('pgps_internal.%I', v_name || '_kept');
    v_durable boolean := (build_log.event_type).persistent and (build_log.event_type).reliability = 'guaranteed';
    v_slot integer;
    v_type pgps_internal.event_type;
    v_relation regclass;
begin
    execute format($sql$
        create table %s (
            event_id bigint not null default nextval('pgps_internal.event_id_seq'::regclass),
            xid xid8 not null default pg_current_xact_id(),
            like %s including defaults including constraints including storage,
            pgps_origin_event bigint
        ) partition by list ((%s))$sql$, v_log, v_endpoint, pgps_internal.segment_of('event_id', 'control'));
    for v_slot in 0..3 loop
        execute format('create %s table %s partition of %s for values in (%s)',
            case when v_durable then '' else 'unlogged' end, pgps_internal.segment_name(v_name, v_slot), v_log, v_slot);
    end loop;
    execute format('create index on %s (event_id)', v_log);
    execute format($sql$
        create table %s (event_id bigint primary key, xid xid8 not null, pgps_publisher regrole not null,
            pgps_published_at timestamptz not null,
            like %s including storage, pgps_origin text, pgps_origin_event bigint)$sql$, v_kept, v_endpoint);
    execute format($sql$
        create table pgps_internal.%I (event_id bigint not null, xid xid8 not null, pgps_publisher regrole not null,
            pgps_published_at timestamptz not null, like %s including storage, pgps_origin text,
            pgps_origin_event bigint)$sql$, v_name || '_audit', v_endpoint);
    execute format('create index on pgps_internal.%I (event_id)', v_name || '_audit');
    execute format('create index on pgps_internal.%I (pgps_published_at)', v_name || '_audit');
    update pgps_internal.event_type t set log = v_log::regclass where t.type_id = (build_log.event_type).type_id
        returning * into v_type;
    -- SELECT on the endpoint is the right to read events; policies restrict it further (see policies.sql).
    for v_relation in select r from pgps_internal.guarded(v_type) r loop
        execute format('grant select on %s to public', v_relation);
        execute format('alter table %s enable row level security', v_relation);
        execute format($sql$
            create policy pgps_granted on %s as restrictive for select to public
            using ((select has_table_privilege(current_user, %L::regclass, 'select')))$sql$, v_relation, v_endpoint);
        execute format('create policy pgps_all on %s for select to public using (true)', v_relation);
    end loop;
    perform pgps_internal.build_endpoint((build_log.event_type).type_id);
end
$$;
comment on function pgps_internal.build_log(pgps_internal.event_type) is
'Creates the log of an event type (four segments by event id), the tables for events that are kept longer, and the rule
of its endpoint';

create or replace function pgps_internal.build_endpoint(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.build(pgps_internal.write_endpoint(t, pgps_internal.names_of(t)), t.type_id)
        from pgps_internal.event_type t
    where t.type_id = build_endpoint.type_id;
end
$$;
comment on function pgps_internal.build_endpoint(integer) is
'(Re-)creates the rule that makes an INSERT into the endpoint a publication: into the log, or for immediate types into
the stage';

create or replace function pgps._make_columns(name text, parsed jsonb, given text, more text = null) returns void
language plpgsql
as $$
declare
    v_list text := pg_catalog.jsonb_extract_path_text(_make_columns.parsed, 'text');
    v_wanted text := 'Give attributes as columns: symbol text not null, price numeric(12, 2) default 0 check (price >= '
        '0).';
    v_state text;
    v_message text;
    v_detail text;
    v_hint text;
begin
    execute pg_catalog.format('create table pgps_event.%I (%s)', _make_columns.name,
        pg_catalog.concat_ws(', ', nullif(v_list, ''), _make_columns.more));
exception
    when unique_violation then
        -- Somebody else, a link perhaps, has created it since the name was looked up, and committed only now.
        raise exception 'event type "%" exists already', _make_columns.name using errcode = '42710',
            hint = 'Choose another name, or change it with pgps.alter_event_type.';
    when duplicate_table then
        raise exception 'there is a relation "%" in schema pgps_event that is no event type', _make_columns.name
        using errcode = '42P07', hint = 'Choose another name, or drop it: that schema is for event types.';
    when syntax_error_or_access_rule_violation or data_exception or invalid_schema_name then
        get stacked diagnostics v_state = returned_sqlstate, v_message = message_text,
            v_detail = pg_exception_detail, v_hint = pg_exception_hint;
        -- The place is told where the list is run as it was given, without comments that were taken out of it.
        perform pgps._refuse_text(v_state, v_message, v_detail, coalesce(nullif(v_hint, ''), pgps._hint_for(
            v_state, pg_catalog.array_to_string(array(select pg_catalog.jsonb_array_elements_text(
                pg_catalog.jsonb_extract_path(_make_columns.parsed, 'names'))), ', '), v_wanted)),
            case when v_list = _make_columns.given then pg_catalog.format(E'create table pgps_event.%I (%s\n)',
                _make_columns.name, v_list) else '' end, array[v_list], array['the attribute list']);
end
$$;
comment on function pgps._make_columns(text, jsonb, text, text) is
'Makes a table of the attributes that pgps.parse_attributes found, with the caller''s rights; for pgps.create_event_type
and pgps.alter_event_type. given: the list before it was parsed; more: further columns';

create or replace function pgps.create_event_type(
    name text, attributes text, visibility text = 'deferred', reliability text = 'guaranteed',
    persistent boolean = true, auditable boolean = false, handler text = 'all'
) returns void
language plpgsql
as $$
declare
    v_name text;
    v_attributes jsonb := pgps.parse_attributes(create_event_type.attributes);
begin
    if create_event_type.attributes is null then
        raise exception 'event type "%" has no attribute list', create_event_type.name using errcode = '22023',
            hint = 'Give the attributes as in CREATE TABLE: ''symbol text not null, price numeric''.';
    elsif create_event_type.visibility is null or create_event_type.visibility not in ('deferred', 'immediate') then
        raise exception 'invalid visibility "%"', create_event_type.visibility using errcode = '22023',
            hint = 'Use deferred or immediate.';
    elsif create_event_type.reliability is null
        or create_event_type.reliability not in ('guaranteed', 'non-guaranteed') then
        raise exception 'invalid reliability "%"', create_event_type.reliability
        using errcode = '22023', hint = 'Use guaranteed or non-guaranteed.';
    elsif create_event_type.handler is null or create_event_type.handler not in ('all', 'any', 'raiser') then
        raise exception 'invalid handler "%"', create_event_type.handler using errcode = '22023',
            hint = 'Use all, any or raiser.';
    end if;
    v_name := pgps._call('prepare_type', pg_catalog.jsonb_build_object('name', create_event_type.name)) #>> '{}';
    -- Executed as the caller, so that all code in the attribute list runs with the caller's rights. The list is written
    -- as the parser understood it, and do_build_type checks that it made these columns.
    perform pgps._make_columns(v_name, v_attributes, create_event_type.attributes,
        '_producer text, _producer_seq bigint');
    perform pgps._call('build_type', pg_catalog.jsonb_build_object('name', pg_catalog.quote_ident(v_name),
        'attributes', pg_catalog.jsonb_extract_path(v_attributes, 'names'),
        'visibility', create_event_type.visibility, 'reliability', create_event_type.reliability,
        'persistent', coalesce(create_event_type.persistent, true), 'auditable',
            coalesce(create_event_type.auditable, false),
        'handler', create_event_type.handler));
end
$$;
comment on function pgps.create_event_type(text, text, text, text, boolean, boolean, text) is
'Creates an event type (paper, section 4.1) with its in, out and exception queue and its publish endpoint
pgps_event.<name>. attributes: a column list as in CREATE TABLE, without LIKE and GENERATED; keys and exclusions, which
are about more than one event, are not kept (WARNING). visibility: deferred or immediate. reliability: guaranteed or
non-guaranteed (then unlogged). persistent: queues survive a crash. auditable: queues keep their events. handler: all,
any or raiser. Needs pgps_admin. Errors: 42710 exists, 42602/42622 bad name, 42939 a name that begins with
pgps_, or an attribute named event_id, xid, pgps_… or $1, $2 …, 42601 not a column list, 0A000 LIKE or GENERATED, 22023
bad argument, 42501, and those of CREATE TABLE.';

create or replace function pgps_internal.do_type_name(caller name, args jsonb) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$ select (pgps_internal.find_type(args ->> 'name')).name $$;
comment on function pgps_internal.do_type_name(name, jsonb) is
'The catalogue''s name of an event type; 42704 when there is none';

drop function if exists pgps_internal.drop_type(pgps_internal.event_type);
create or replace function pgps_internal.drop_type(event_type pgps_internal.event_type, cascade boolean = false)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp set client_min_messages = warning
as $$
declare
    v_type pgps_internal.event_type := drop_type.event_type;
    v_left text;
begin
    perform pgps_internal.lock_to_drop(v_type.type_id), pgps_internal.drop_powerless(v_type);
    if drop_type.cascade then
        -- Anybody may have made a view over a queue, which takes no right to the queue.
        select string_agg(v::text, ', ') into v_left from pgps_internal.generated g
        cross join lateral to_regclass(g.name) v
        where g.type_id = v_type.type_id and g.kind = 'view' and v is not null;
        if v_left is not null then
            execute format('drop view %s cascade', v_left);
        end if;
    end if;
    perform pgps_internal.drop_from_rooms(v_type);
    perform pgps_internal.note_lacks_of_dropped(v_type.type_id);
    perform pgps_internal.drop_code(v_type.type_id);
    perform pgps_internal.drop_signature(g.signature_id) from pgps_internal.signature g
        where g.type_id = v_type.type_id;
    delete from pgps_internal.member m where m.type_id = v_type.type_id;
    -- Of a type that somebody has taken apart the rest is dropped.
    select string_agg(c.oid::regclass::text, ', ') into v_left from pg_class c
    where c.oid in (v_type.endpoint, v_type.log,
        to_regclass(format('pgps_internal.%I', v_type.name || '_kept')),
        to_regclass(format('pgps_internal.%I', v_type.name || '_audit')),
        to_regclass(format('pgps_stage.%I', v_type.name)),
        to_regclass(format('pgps_internal.%I', v_type.name || '_entry')));
    if v_left is not null then
        execute format('drop table %s cascade', v_left);
    end if;
    delete from pgps_internal.event_type t where t.type_id = v_type.type_id;
end
$$;
comment on function pgps_internal.drop_type(pgps_internal.event_type, boolean) is
'Drops an event type with its queues and all that rooms have for it; cascade: also views that others have made over its
queues';

create or replace function pgps_internal.require_unneeded(event_type pgps_internal.event_type) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_blocker text := pgps_internal.what_needs(require_unneeded.event_type);
begin
    if v_blocker is not null then
        raise exception 'event type "%" cannot be dropped: %', (require_unneeded.event_type).name, v_blocker
        using errcode = '2BP01',
            hint = format('Use pgps.drop_event_type(%L, cascade => true) to drop it with all that depends on it.',
                quote_ident((require_unneeded.event_type).name));
    end if;
end
$$;
comment on function pgps_internal.require_unneeded(pgps_internal.event_type) is
'Raises 2BP01 while something needs an event type';

create or replace function pgps_internal.do_drop_type(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'name');
    v_cascade boolean := coalesce((args ->> 'cascade')::boolean, false);
begin
    if not pgps_internal.may_drop(caller, v_type) then
        perform pgps_internal.require_admin(caller, 'drop event types');
    end if;
    perform pgps_internal.forget_rules();
    if not v_cascade then
        -- Once more when nobody can publish or subscribe any more: those for whom it has waited may have.
        perform pgps_internal.require_unneeded(v_type), pgps_internal.lock_to_drop(v_type.type_id);
        perform pgps_internal.require_unneeded(v_type);
    end if;
    perform pgps_internal.drop_type(v_type, v_cascade);
end
$$;
comment on function pgps_internal.do_drop_type(name, jsonb) is 'See pgps.drop_event_type';

create or replace function pgps.drop_event_type(name text, cascade boolean = false) returns void
language sql
begin atomic
    select pgps._call('drop_type',
        jsonb_build_object('name', drop_event_type.name, 'cascade', drop_event_type.cascade));
end;
comment on function pgps.drop_event_type(text, boolean) is
'Drops an event type with its queues. Refused (2BP01) while a subscription, a rule or an undelivered event needs it,
unless cascade. Locks all relations of the type, as pgps.alter_event_type does. Needs pgps_admin, or to own it if it is
a composite event. Errors: 42704, 2BP01, 42501, 55P03, 40P01.';

grant execute on function
    pgps._make_columns(text, jsonb, text, text),
    pgps.create_event_type(text, text, text, text, boolean, boolean, text),
    pgps.drop_event_type(text, boolean)
to public;
