-- Event types and their queues: create, alter, drop. Locks: the event type's relations, then catalogue rows.

create or replace function pgps_internal.attributes_of(endpoint regclass) returns table (name text, type text, not_null boolean, default_value text)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid)
    from pg_attribute a
    left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    where a.attrelid = attributes_of.endpoint and a.attnum > 0 and not a.attisdropped
        and a.attname not in ('_producer', '_producer_seq')
    order by a.attnum
$$;
comment on function pgps_internal.attributes_of(regclass) is 'The attributes of an event type in order, without the producer columns';

create or replace function pgps_internal.column_list(endpoint regclass, prefix text = '') returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select string_agg(column_list.prefix || quote_ident(a.attname), ', ' order by a.attnum)
    from pg_attribute a
    where a.attrelid = column_list.endpoint and a.attnum > 0 and not a.attisdropped
$$;
comment on function pgps_internal.column_list(regclass, text) is 'All columns of an endpoint, quoted, each behind prefix';

create or replace function pgps_internal.do_prepare_type(caller name, args jsonb) returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text;
begin
    perform pgps_internal.require_admin(caller, 'create event types');
    v_name := pgps_internal.check_name(args ->> 'name', 'event type');
    if exists (select from pgps_internal.event_type t where t.name = v_name) then
        raise exception 'event type "%" exists already', v_name
        using errcode = '42710', hint = 'Choose another name, or change it with pgps.alter_event_type.';
    end if;
    return v_name;
end
$$;
comment on function pgps_internal.do_prepare_type(name, jsonb) is 'First half of pgps.create_event_type: rights and name; returns the folded name';

create or replace function pgps_internal.check_attribute_names(definition regclass, name text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_reserved text := (select a.name from pgps_internal.attributes_of(check_attribute_names.definition) a
        where a.name ~ '^pgps_' or a.name in ('event', 'event_id', 'xid', 'published_at', 'enqueued_at', 'publisher', 'origin', 'state',
            'subscription', 'matched_at', 'failed_at', 'attempts', 'sqlstate', 'error') limit 1);
begin
    if v_reserved is not null then
        raise exception 'event type "%" has an attribute of the reserved name "%"', check_attribute_names.name, v_reserved
        using errcode = '42939', hint = 'The queues have columns of their own of that name, and names that begin with pgps_ belong to pgps: choose another.';
    end if;
end
$$;
comment on function pgps_internal.check_attribute_names(regclass, text) is 'Raises 42939 when an attribute has the name of a column of the queues';

create or replace function pgps_internal.require_plain(caller name, relation regclass) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Whoever calls the second half directly may have made of the table what they like, and it is about to be ours: a rewrite
    -- rule on it would run with our rights. Locked first, so that it stays what it is found to be.
    if require_plain.relation is not null then
        execute format('lock table only %s in access exclusive mode', require_plain.relation);
    end if;
    if not exists (
        select from pg_class c
        where c.oid = require_plain.relation and c.relkind = 'r' and c.relpersistence = 'p' and c.reloftype = 0
            and c.relowner = quote_ident(require_plain.caller)::regrole and not c.relrowsecurity
            and not exists (select from pg_inherits i where c.oid in (i.inhrelid, i.inhparent))
            and not exists (select from pg_rewrite w where w.ev_class = c.oid)
            and not exists (select from pg_policy p where p.polrelid = c.oid)
            and not exists (select from pg_trigger g where g.tgrelid = c.oid and not g.tgisinternal)
            and not exists (select from pgps_internal.event_type t where t.endpoint = c.oid)
    ) then
        raise exception 'relation "%" is not a new plain table of role "%"', require_plain.relation, require_plain.caller
        using errcode = '55000', hint = 'Use pgps.create_event_type and pgps.alter_event_type.';
    end if;
    perform pgps_internal.require_trusted_types(require_plain.relation);
    if not (select r.rolsuper from pg_roles r where r.rolname = require_plain.caller) then
        perform pgps_internal.require_harmless_expressions(require_plain.relation);
    end if;
end
$$;
comment on function pgps_internal.require_plain(name, regclass) is
'Raises 55000 or 42501 unless the relation is a plain new table of caller whose types and expressions the owner of pgps may meet';

create or replace function pgps_internal.require_trusted_types(relation regclass) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type record;
begin
    -- Whoever owns a type can give it a CHECK or a cast to JSON, and dispatch and delivery run those with the rights of pgps.
    with recursive used (type_id) as (
        select a.atttypid from pg_attribute a
        where a.attrelid = require_trusted_types.relation and a.attnum > 0 and not a.attisdropped
        union
        select n.type_id
        from used u
        join pg_type t on t.oid = u.type_id
        cross join lateral (
            select t.typelem union all select t.typbasetype
            union all select a.atttypid from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
            union all select r.rngsubtype from pg_range r where t.oid in (r.rngtypid, r.rngmultitypid)
            union all select r.rngtypid from pg_range r where t.oid = r.rngmultitypid
        ) n(type_id)
        where n.type_id <> 0
    )
    select t.oid::regtype as name, r.rolname as owner into v_type
    from used u join pg_type t on t.oid = u.type_id join pg_roles r on r.oid = t.typowner
    where not r.rolsuper and t.typrelid <> require_trusted_types.relation limit 1;
    if found then
        raise exception 'data type % belongs to role "%", who is not a superuser', v_type.name, v_type.owner
        using errcode = '42501', hint = format('As a superuser: alter type %s owner to %I', v_type.name, current_user);
    end if;
end
$$;
comment on function pgps_internal.require_trusted_types(regclass) is
'Raises 42501 when a column''s data type, or one it is made of, belongs to somebody who is not a superuser';

create or replace function pgps_internal.require_harmless_expressions(relation regclass) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_function record;
begin
    -- Immediate events, added attributes and replays evaluate defaults and checks with the rights of pgps.
    select p.oid::regprocedure as name into v_function
    from (
        select d.adbin::text from pg_attrdef d where d.adrelid = require_harmless_expressions.relation
        union all
        select c.conbin::text from pg_constraint c where c.conrelid = require_harmless_expressions.relation and c.conbin is not null
    ) e(tree)
    cross join lateral (
        select m[1]::oid from regexp_matches(e.tree, ':(?:funcid|opfuncid) (\d+)', 'g') m
        union
        select o.oprcode::oid from regexp_matches(e.tree, ':opno (\d+)', 'g') m join pg_operator o on o.oid = m[1]::oid
    ) f(function_id)
    join pg_proc p on p.oid = f.function_id
    join pg_roles r on r.oid = p.proowner
    where not r.rolsuper or p.provolatile <> 'i' and p.oid not in (
        'now()'::regprocedure, 'transaction_timestamp()'::regprocedure, 'statement_timestamp()'::regprocedure,
        'clock_timestamp()'::regprocedure, 'timeofday()'::regprocedure, 'nextval(regclass)'::regprocedure,
        'gen_random_uuid()'::regprocedure, 'random()'::regprocedure)
        and not (p.provolatile = 's' and p.pronamespace = 'pg_catalog'::regnamespace and p.prokind = 'f'
            and p.proname ~ '^(date|time|timetz|timestamp|timestamptz|interval|to_char|to_date|to_timestamp|timezone|date_trunc|date_part|extract|textin|concat|format)');
    if found then
        raise exception 'a default or check calls function %, which only a superuser may put there', v_function.name
        using errcode = '42501', hint = 'Use immutable functions that belong to a superuser, now(), clock_timestamp(), random() or '
            'gen_random_uuid(), or let a superuser create the event type.';
    end if;
end
$$;
comment on function pgps_internal.require_harmless_expressions(regclass) is
'Raises 42501 when a default or check calls a function that could do more with the rights of pgps than compute a value';

create or replace function pgps_internal.do_build_type(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.do_prepare_type(caller, args);
    v_endpoint regclass;
    v_type pgps_internal.event_type;
    v_kind text;
begin
    v_endpoint := format('pgps_event.%I', v_name)::regclass;
    perform pgps_internal.require_plain(caller, v_endpoint);
    perform pgps_internal.check_attribute_names(v_endpoint, v_name);
    execute format('alter table %s owner to %I', v_endpoint, current_user);
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
    perform pgps_internal.match_pattern_subscriptions(v_type.type_id);
end
$$;
comment on function pgps_internal.do_build_type(name, jsonb) is
'Second half of pgps.create_event_type: takes over the endpoint that the caller made, builds log, queues and generated code';

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
            like %s including defaults including constraints including storage
        ) partition by list (((event_id / 65536) %% 4))$sql$, v_log, v_endpoint);
    for v_slot in 0..3 loop
        execute format('create %s table pgps_internal.%I partition of %s for values in (%s)',
            case when v_durable then '' else 'unlogged' end, v_name || '_log_' || v_slot, v_log, v_slot);
    end loop;
    execute format('create index on %s (event_id)', v_log);
    execute format($sql$
        create table %s (event_id bigint primary key, xid xid8 not null, publisher regrole not null, published_at timestamptz not null,
            like %s including storage)$sql$, v_kept, v_endpoint);
    execute format($sql$
        create table pgps_internal.%I (event_id bigint not null, xid xid8 not null, publisher regrole not null,
            published_at timestamptz not null, like %s including storage)$sql$, v_name || '_audit', v_endpoint);
    execute format('create index on pgps_internal.%I (event_id)', v_name || '_audit');
    execute format('create index on pgps_internal.%I (published_at)', v_name || '_audit');
    update pgps_internal.event_type t set log = v_log::regclass where t.type_id = (build_log.event_type).type_id returning * into v_type;
    -- Everybody reads events through the rights on the endpoint; policies come on top (see rights.sql).
    for v_relation in select r from pgps_internal.guarded(v_type) r loop
        execute format('grant select on %s to public', v_relation);
        execute format('alter table %s enable row level security', v_relation);
        execute format($sql$
            create policy pgps_granted on %s as restrictive for select to public
            using ((select has_table_privilege(current_user, %L::regclass, 'select')))$sql$, v_relation, v_endpoint);
        execute format('create policy pgps_all on %s for select to public using (true)', v_relation);
    end loop;
    perform pgps_internal.build_endpoint((build_log.event_type).type_id);
    execute format('create trigger pgps_1_open before insert on %s for each statement execute function pgps_internal.open_statement()', v_log);
    execute format('create trigger pgps_2_publisher after insert on %s for each statement execute function pgps_internal.note_publisher()', v_log);
    execute format('create trigger pgps_3_record after insert on %s for each statement execute function pgps_internal.record_statement(%L)',
        v_log, (build_log.event_type).type_id);
    execute format('create trigger pgps_no_copy before insert on %s for each row execute function pgps_internal.refuse_copy()', v_endpoint);
end
$$;
comment on function pgps_internal.build_log(pgps_internal.event_type) is
'Creates the log of an event type (four segments by event id), where events are kept longer, and the triggers of publication';

create or replace function pgps_internal.build_endpoint(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_target regclass;
    v_columns text;
    v_deferred text := 'coalesce(current_setting(''pgps.visibility'', true), '''') = ''deferred''';
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = build_endpoint.type_id;
    v_target := v_type.log;
    v_columns := pgps_internal.column_list(v_type.endpoint);
    if v_type.visibility = 'immediate' then
        v_target := pgps_internal.build_stage(v_type);
        -- What one publication asks for counts more than what the type says.
        execute format('create or replace rule publish_deferred as on insert to %s where %s do instead insert into %s (%s) values (%s)',
            v_type.endpoint, v_deferred, v_type.log, v_columns, pgps_internal.column_list(v_type.endpoint, 'new.'));
    end if;
    execute format('create or replace rule publish as on insert to %s do instead insert into %s (%s) %s%s',
        v_type.endpoint, v_target, v_columns, format(case v_type.visibility when 'immediate' then 'select %s where not ' || v_deferred
            else 'values (%s)' end, pgps_internal.column_list(v_type.endpoint, 'new.')),
        -- PostgreSQL cannot describe the row of a relation that has lost a column.
        case when not exists (select from pg_attribute a where a.attrelid = v_type.endpoint and a.attisdropped)
            then ' returning ' || v_columns else '' end);
end
$$;
comment on function pgps_internal.build_endpoint(integer) is
'(Re-)creates the rule that makes an INSERT into the endpoint a publication: into the log, or for immediate types into the stage';

create or replace function pgps.create_event_type(
    name text, attributes text, visibility text = 'deferred', reliability text = 'guaranteed',
    persistent boolean = true, auditable boolean = false, handler text = 'all'
) returns void
language plpgsql
as $$
declare
    v_name text;
begin
    if create_event_type.attributes is null then
        raise exception 'event type "%" has no attribute list', create_event_type.name using errcode = '22023',
            hint = 'Give the attributes as in CREATE TABLE: ''symbol text not null, price numeric''.';
    elsif create_event_type.visibility is null or create_event_type.visibility not in ('deferred', 'immediate') then
        raise exception 'invalid visibility "%"', create_event_type.visibility using errcode = '22023', hint = 'Use deferred or immediate.';
    elsif create_event_type.reliability is null or create_event_type.reliability not in ('guaranteed', 'non-guaranteed') then
        raise exception 'invalid reliability "%"', create_event_type.reliability
        using errcode = '22023', hint = 'Use guaranteed or non-guaranteed.';
    elsif create_event_type.handler is null or create_event_type.handler not in ('all', 'any', 'raiser') then
        raise exception 'invalid handler "%"', create_event_type.handler using errcode = '22023', hint = 'Use all, any or raiser.';
    end if;
    v_name := pgps._call('prepare_type', jsonb_build_object('name', create_event_type.name)) #>> '{}';
    -- As the caller: what the attribute list does, it does with the caller's rights.
    execute format(E'create table pgps_event.%I (%s\n%s _producer text, _producer_seq bigint)',
        v_name, create_event_type.attributes, case when create_event_type.attributes ~ '\S' then ',' else '' end);
    perform pgps._call('build_type', jsonb_build_object('name', quote_ident(v_name),
        'visibility', create_event_type.visibility, 'reliability', create_event_type.reliability,
        'persistent', coalesce(create_event_type.persistent, true), 'auditable', coalesce(create_event_type.auditable, false),
        'handler', create_event_type.handler));
end
$$;
comment on function pgps.create_event_type(text, text, text, text, boolean, boolean, text) is
'Creates an event type (paper, section 4.1) with its in, out and exception queue and its publish endpoint pgps_event.<name>.
attributes: a column list as in CREATE TABLE. visibility: deferred or immediate. reliability: guaranteed or non-guaranteed (then unlogged).
persistent: queues survive a crash. auditable: queues keep their events. handler: all, any or raiser.
Needs pgps_admin. Errors: 42710 exists, 42602/42622 bad name, 42939 an attribute named as a column of the queues, 22023 bad argument,
42501, and those of CREATE TABLE.';

create or replace function pgps_internal.do_alter_type(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'name');
    v_drop text := args ->> 'drop';
    v_used text;
begin
    perform pgps_internal.require_admin(caller, 'alter event types');
    if v_drop is not null then
        if not exists (select from pgps_internal.attributes_of(v_type.endpoint) a where a.name = v_drop) then
            raise exception 'event type "%" has no attribute "%"', v_type.name, v_drop
            using errcode = '42703', hint = 'See the column attributes of pgps.event_types.';
        end if;
        select s.name into v_used
        from pgps_internal.subscription s
        join pgps_internal.member m using (subscription_id)
        where m.type_id = v_type.type_id and s.filter is not null
            and s.filter ~* ('(^|[^[:alnum:]_])' || regexp_replace(v_drop, '([^[:alnum:]_])', '\\\1', 'g') || '([^[:alnum:]_]|$)')
        limit 1;
        if v_used is not null then
            raise exception 'attribute "%" of event type "%" is used by the filter of subscription "%"', v_drop, v_type.name, v_used
            using errcode = '2BP01', hint = format('Drop or change the subscription first: select pgps.unsubscribe(%L)', v_used);
        end if;
    end if;
    perform pgps_internal.drop_code(v_type.type_id);
end
$$;
comment on function pgps_internal.do_alter_type(name, jsonb) is
'First half of pgps.alter_event_type: rights, what still uses the attribute; takes the generated code away';

create or replace function pgps_internal.do_apply_attribute(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'name');
    v_add text := args ->> 'add';
    v_relation text;
    v_scratch regclass;
begin
    perform pgps_internal.require_admin(caller, 'alter event types');
    execute format('drop rule publish on %s', v_type.endpoint);
    if v_type.visibility = 'immediate' then
        execute format('drop rule publish_deferred on %s', v_type.endpoint);
    end if;
    if v_add is not null then
        -- The new column was parsed with the caller's rights into a scratch table; it is copied from there.
        v_scratch := to_regclass(format('pgps_event.%I', v_type.name || '_add'));
        perform pgps_internal.require_plain(caller, v_scratch);
        perform pgps_internal.check_attribute_names(v_scratch, v_type.name);
        perform pgps_internal.insert_columns(v_scratch, v_type.endpoint);
        foreach v_relation in array array[v_type.log::text, format('pgps_internal.%I', v_type.name || '_kept'),
                format('pgps_internal.%I', v_type.name || '_audit')] loop
            perform pgps_internal.copy_column(v_scratch, v_relation::regclass, v_relation = v_type.log::text);
        end loop;
        execute format('drop table %s', v_scratch);
    end if;
    if args ->> 'drop' is not null then
        foreach v_relation in array array[v_type.endpoint::text, v_type.log::text, format('pgps_internal.%I', v_type.name || '_kept'),
                format('pgps_internal.%I', v_type.name || '_audit')] loop
            execute format('alter table %s drop column %I', v_relation, args ->> 'drop');
        end loop;
    end if;
    perform pgps_internal.build_endpoint(v_type.type_id);
    perform pgps_internal.build_code(v_type.type_id);
end
$$;
comment on function pgps_internal.do_apply_attribute(name, jsonb) is 'Second half of pgps.alter_event_type: changes endpoint, log and archive';

create or replace function pgps_internal.insert_columns(source regclass, endpoint regclass) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_column record;
    v_check record;
begin
    -- The producer's columns stay behind. Columns are renamed and retyped (the endpoint has no rows), not dropped and added
    -- again: with a dropped one there would be no INSERT … RETURNING any more.
    for v_column in select * from pgps_internal.attributes_of(insert_columns.source) loop
        execute format('alter table %s rename column _producer to %I', insert_columns.endpoint, v_column.name);
        execute format('alter table %s rename column _producer_seq to _producer', insert_columns.endpoint);
        execute format('alter table %1$s alter column %2$I type %3$s using null, alter column _producer type text using null,
            add column _producer_seq bigint %4$s %5$s', insert_columns.endpoint, v_column.name, v_column.type,
            case when v_column.default_value is not null then format(', alter column %I set default %s', v_column.name, v_column.default_value) else '' end,
            case when v_column.not_null then format(', alter column %I set not null', v_column.name) else '' end);
    end loop;
    for v_check in select pg_get_constraintdef(c.oid) as definition from pg_constraint c
        where c.conrelid = insert_columns.source and c.contype = 'c' loop
        execute format('alter table %s add %s', insert_columns.endpoint, v_check.definition);
    end loop;
end
$$;
comment on function pgps_internal.insert_columns(regclass, regclass) is 'Adds the columns of source to an endpoint, before the producer''s columns';

create or replace function pgps_internal.copy_column(source regclass, target regclass, checked boolean) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_column record;
    v_check record;
begin
    for v_column in select * from pgps_internal.attributes_of(copy_column.source) loop
        execute format('alter table %s add column %I %s %s %s', copy_column.target, v_column.name, v_column.type,
            case when v_column.default_value is not null then 'default ' || v_column.default_value else '' end,
            case when v_column.not_null and copy_column.checked then 'not null' else '' end);
    end loop;
    if copy_column.checked then
        for v_check in select pg_get_constraintdef(c.oid) as definition from pg_constraint c
            where c.conrelid = copy_column.source and c.contype = 'c' loop
            execute format('alter table %s add %s', copy_column.target, v_check.definition);
        end loop;
    end if;
end
$$;
comment on function pgps_internal.copy_column(regclass, regclass, boolean) is
'Adds the columns of source to target, with defaults, and with NOT NULL and CHECK when checked';

create or replace function pgps.alter_event_type(
    name text, add_attribute text = null, drop_attribute text = null, dedupe_retention interval = null
) returns void
language plpgsql
as $$
declare
    v_type text := pgps._call('type_name', jsonb_build_object('name', alter_event_type.name)) #>> '{}';
begin
    if alter_event_type.dedupe_retention is not null then
        perform pgps._call('set_dedupe', jsonb_build_object('name', quote_ident(v_type), 'retention', alter_event_type.dedupe_retention));
    end if;
    if alter_event_type.add_attribute is null and alter_event_type.drop_attribute is null then
        if alter_event_type.dedupe_retention is not null then
            return;
        end if;
        raise exception 'nothing to alter in event type "%"', v_type using errcode = '22023',
            hint = 'Give add_attribute => ''name type …'' drop_attribute => ''name'' or dedupe_retention => ''7 days''.';
    end if;
    perform pgps._call('alter_type', jsonb_build_object('name', quote_ident(v_type), 'drop', alter_event_type.drop_attribute));
    if alter_event_type.add_attribute is not null then
        execute format(E'create table pgps_event.%I (%s\n)', v_type || '_add', alter_event_type.add_attribute);
    end if;
    perform pgps._call('apply_attribute', jsonb_build_object('name', quote_ident(v_type),
        'add', alter_event_type.add_attribute, 'drop', alter_event_type.drop_attribute));
end
$$;
comment on function pgps.alter_event_type(text, text, text, interval) is
'Adds or drops an attribute; events that wait in the queues survive it (an added attribute has its default, or null, in them).
add_attribute: a column definition as in CREATE TABLE. drop_attribute: a name; refused (2BP01) while a filter uses it; from then on
an INSERT into the event type cannot have RETURNING.
Locks the event type until the transaction ends. Needs pgps_admin. Errors: 42704, 42703, 42701, 23502, 2BP01, 42501.';

create or replace function pgps_internal.do_set_dedupe(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.require_admin(caller, 'alter event types');
    if (args ->> 'retention')::interval <= '0' then
        raise exception 'invalid dedupe_retention %', args ->> 'retention' using errcode = '22023', hint = 'Give a positive interval.';
    end if;
    update pgps_internal.event_type t set dedupe_retention = (args ->> 'retention')::interval
    where t.type_id = (pgps_internal.find_type(args ->> 'name')).type_id;
end
$$;
comment on function pgps_internal.do_set_dedupe(name, jsonb) is 'See pgps.alter_event_type';

create or replace function pgps_internal.do_type_name(caller name, args jsonb) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$ select (pgps_internal.find_type(args ->> 'name')).name $$;
comment on function pgps_internal.do_type_name(name, jsonb) is 'The catalogue''s name of an event type; 42704 when there is none';

create or replace function pgps_internal.do_drop_type(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'name');
    v_cascade boolean := coalesce((args ->> 'cascade')::boolean, false);
    v_blocker text;
begin
    perform pgps_internal.require_admin(caller, 'drop event types');
    if not v_cascade then
        select format('subscription "%s" wants its events', s.name) into v_blocker
        from pgps_internal.member m join pgps_internal.subscription s using (subscription_id)
        where m.type_id = v_type.type_id and not s.is_pattern limit 1;
        if v_blocker is null then
            select format('rule "%s" publishes it', r.name) into v_blocker from pgps_internal.rule r where r.type_id = v_type.type_id limit 1;
        end if;
        if v_blocker is null and pgps_internal.has_undelivered(v_type.type_id) then
            v_blocker := 'events of it are not delivered yet';
        end if;
        if v_blocker is not null then
            raise exception 'event type "%" cannot be dropped: %', v_type.name, v_blocker using errcode = '2BP01',
                hint = format('Use pgps.drop_event_type(%L, cascade => true) to drop it with all that depends on it.', v_type.name);
        end if;
    end if;
    perform pgps_internal.drop_rule(r.rule_id) from pgps_internal.rule r where r.type_id = v_type.type_id;
    perform pgps_internal.drop_subscription(s.subscription_id)
    from (select distinct m.subscription_id from pgps_internal.member m where m.type_id = v_type.type_id) m
    join pgps_internal.subscription s using (subscription_id)
    where not s.is_pattern;
    perform pgps_internal.drop_code(v_type.type_id);
    perform pgps_internal.drop_signature(g.signature_id) from pgps_internal.signature g where g.type_id = v_type.type_id;
    delete from pgps_internal.member m where m.type_id = v_type.type_id;
    execute format('drop table %s, %s, pgps_internal.%I, pgps_internal.%I cascade', v_type.endpoint, v_type.log,
        v_type.name || '_kept', v_type.name || '_audit');
    if to_regclass(format('pgps_internal.%I', v_type.name || '_stage')) is not null then
        execute format('drop table pgps_internal.%I', v_type.name || '_stage');
    end if;
    delete from pgps_internal.event_type t where t.type_id = v_type.type_id;
end
$$;
comment on function pgps_internal.do_drop_type(name, jsonb) is 'See pgps.drop_event_type';

create or replace function pgps.drop_event_type(name text, cascade boolean = false) returns void
language sql
begin atomic
    select pgps._call('drop_type', jsonb_build_object('name', drop_event_type.name, 'cascade', drop_event_type.cascade));
end;
comment on function pgps.drop_event_type(text, boolean) is
'Drops an event type with its queues. Refused (2BP01) while a subscription, a rule or an undelivered event needs it, unless cascade.
Locks all of the type. Needs pgps_admin. Errors: 42704, 2BP01, 42501.';

create or replace function pgps_internal.do_alter_queue(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgps_internal.queue;
    v_type pgps_internal.event_type;
    v_persistent boolean := (args ->> 'persistent')::boolean;
    v_slot integer;
begin
    perform pgps_internal.require_admin(caller, 'alter queues');
    select q.* into v_queue from pgps_internal.queue q where q.name = pgps_internal.fold(args ->> 'queue');
    if not found then
        raise exception 'queue "%" does not exist', args ->> 'queue'
        using errcode = '42704', hint = 'Queues are named <event type>_in, _out and _exception; see pgps.queues.';
    end if;
    if (args ->> 'retention')::interval < '0' then
        raise exception 'invalid retention "%"', args ->> 'retention' using errcode = '22023', hint = 'Give a positive interval, or null for ever.';
    end if;
    update pgps_internal.queue q
    set auditable = coalesce((args ->> 'auditable')::boolean, q.auditable),
        retention = coalesce((args ->> 'retention')::interval, q.retention)
    where q.type_id = v_queue.type_id and q.kind = v_queue.kind;
    select t.* into v_type from pgps_internal.event_type t where t.type_id = v_queue.type_id;
    if v_persistent is not null and v_persistent <> v_type.persistent then
        if v_persistent and v_type.reliability <> 'guaranteed' then
            raise exception 'event type "%" is non-guaranteed: its queues are never persistent', v_type.name
            using errcode = '55000', hint = 'Create a guaranteed event type.';
        end if;
        for v_slot in 0..3 loop
            execute format('alter table pgps_internal.%I set %s', v_type.name || '_log_' || v_slot,
                case when v_persistent then 'logged' else 'unlogged' end);
        end loop;
        update pgps_internal.event_type t set persistent = v_persistent where t.type_id = v_type.type_id;
    end if;
end
$$;
comment on function pgps_internal.do_alter_queue(name, jsonb) is 'See pgps.alter_queue';

create or replace function pgps.alter_queue(
    queue text, auditable boolean = null, persistent boolean = null, retention interval = null
) returns void
language sql
begin atomic
    select pgps._call('alter_queue', jsonb_build_object('queue', alter_queue.queue, 'auditable', alter_queue.auditable,
        'persistent', alter_queue.persistent, 'retention', alter_queue.retention));
end;
comment on function pgps.alter_queue(text, boolean, boolean, interval) is
'Changes a queue (paper, section 4.4); null leaves a property as it is. auditable: keeps its events for retention (never set: for ever).
persistent: survives a crash; it holds for the type''s three queues at once, and rewrites them.
Needs pgps_admin. Errors: 42704, 22023, 55000, 42501.';

revoke all on all functions in schema pgps_internal from public;
grant execute on function
    pgps.create_event_type(text, text, text, text, boolean, boolean, text), pgps.alter_event_type(text, text, text, interval),
    pgps.drop_event_type(text, boolean), pgps.alter_queue(text, boolean, boolean, interval)
to public;
