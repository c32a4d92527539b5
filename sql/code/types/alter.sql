-- Changing event types while events wait: attributes are added and dropped.
-- Locks: the event type's relations, access exclusive (type_locks.sql).
-- Writes: event_type, time_attribute; by name: the log of a type, what is kept aside of it.

create or replace function pgps_internal.require_unused(event_type pgps_internal.event_type, attribute text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := require_unused.event_type;
    v_name text := require_unused.attribute;
    v_used text;
begin
    if not exists (select from pgps_internal.attributes_of(v_type.endpoint) a where a.name = v_name) then
        raise exception 'event type "%" has no attribute "%"', v_type.name, v_name
        using errcode = '42703', hint = 'See the column attributes of pgps.event_types.';
    end if;
    perform pgps_internal.require_unused_by_composites(v_type, v_name),
        pgps_internal.require_unfilled_by_rules(v_type, v_name);
    select s.name into v_used
    from pgps_internal.subscription s
    left join pgps_internal.coupled_rule r using (subscription_id)
    where (r.type_id = v_type.type_id or exists (select from pgps_internal.member m
            where m.subscription_id = s.subscription_id and m.type_id = v_type.type_id))
        -- Only a rule in the publisher's transaction would fail for its arguments in the statement that publishes.
        and concat(s.filter, case when r.type_id = v_type.type_id then ' ' || s.arguments end)
            ~* ('(^|[^[:alnum:]_])' || regexp_replace(v_name, '([^[:alnum:]_])', '\\\1', 'g') || '([^[:alnum:]_]|$)')
    limit 1;
    if v_used is not null then
        raise exception 'attribute "%" of event type "%" is used by the filter of subscription "%"', v_name,
            v_type.name, v_used
        using errcode = '2BP01',
            hint = format('Drop or change the subscription first: select pgps.unsubscribe(%L)', quote_ident(v_used));
    end if;
end
$$;
comment on function pgps_internal.require_unused(pgps_internal.event_type, text) is
'Raises 42703 unless an event type has an attribute, and 2BP01 while a filter, a rule or a composite event uses it';

create or replace function pgps_internal.do_alter_type(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp set client_min_messages = warning
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'name');
    v_drop text := case when args ->> 'drop' is not null then pgps_internal.fold(args ->> 'drop') end;
begin
    perform pgps_internal.require_admin(caller, 'alter event types');
    if exists (select from pgps_internal.composite c where c.type_id = v_type.type_id) then
        raise exception 'the attributes of composite event "%" are those of its definition', v_type.name
        using errcode = '42809', hint = format('Drop it, and create it with other attributes: select '
            'pgps.drop_event_type(%L), then pgps.create_composite_event(…, attributes => …)', quote_ident(v_type.name));
    end if;
    perform pgps_internal.require_unused(v_type, v_drop) where v_drop is not null;
    perform pgps_internal.lock_types(array[v_type.type_id]);
    -- Once more when nobody can subscribe any more: those for whom it has waited may have.
    perform pgps_internal.require_unused(v_type, v_drop) where v_drop is not null;
    perform pgps_internal.drop_powerless(v_type), pgps_internal.drop_code(v_type.type_id);
end
$$;
comment on function pgps_internal.do_alter_type(name, jsonb) is
'First half of pgps.alter_event_type: checks the caller''s rights and that no filter, no rule and no composite event
uses the attribute, and drops the generated code';

create or replace function pgps_internal.do_apply_attribute(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp set client_min_messages = warning
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'name');
    v_add text := args ->> 'add';
    v_drop text := case when args ->> 'drop' is not null then pgps_internal.fold(args ->> 'drop') end;
    v_relation text;
    v_scratch regclass;
    v_columns jsonb;
begin
    perform pgps_internal.require_admin(caller, 'alter event types');
    if v_type.visibility = 'immediate' then
        execute format('drop rule publish_immediately on %1$s; drop rule publish_deferred on %1$s', v_type.endpoint);
    else
        execute format('drop rule publish on %s', v_type.endpoint);
    end if;
    if v_add is not null then
        -- The new column was parsed with the caller's rights into a scratch table; it is copied from there.
        v_scratch := to_regclass(format('pgps_event.%I', pgps._scratch_name(v_type.name)));
        perform pgps_internal.require_plain(caller, v_scratch);
        perform pgps_internal.require_columns(v_scratch, args -> 'attributes', false);
        perform pgps_internal.check_attribute_names(v_scratch, v_type.name);
        perform pgps_internal.require_new_attributes(v_scratch, v_type);
        perform pgps_internal.insert_columns(v_scratch, v_type.endpoint);
        v_columns := (select to_jsonb(array_agg(c)) from pgps_internal.added_columns(v_scratch) c);
        foreach v_relation in array array[v_type.log::text, format('pgps_internal.%I', v_type.name || '_kept'),
                format('pgps_internal.%I', v_type.name || '_audit')] loop
            perform pgps_internal.copy_column(v_scratch, v_relation::regclass, v_columns,
                v_relation = v_type.log::text);
        end loop;
        execute format('drop table %s', v_scratch);
    end if;
    if v_drop is not null then
        -- The rule of an immediate type's entry table depends on the log's columns; build_endpoint creates both again.
        execute format('drop table if exists pgps_internal.%I', v_type.name || '_entry');
        foreach v_relation in array array[v_type.endpoint::text, v_type.log::text,
            format('pgps_internal.%I', v_type.name || '_kept'),
                format('pgps_internal.%I', v_type.name || '_audit')] loop
            execute format('alter table %s drop column %I', v_relation, v_drop);
        end loop;
    end if;
    perform pgps_internal.build_endpoint(v_type.type_id);
    perform pgps_internal.build_code(v_type.type_id);
    perform pgps_internal.attributes_change(v_type);
    perform pgps_internal.require_parsed(v_type.type_id);
    -- It may have set the type aside meanwhile.
    perform pgps_internal.wake_dispatcher();
end
$$;
comment on function pgps_internal.do_apply_attribute(name, jsonb) is
'Second half of pgps.alter_event_type: changes endpoint, log and archive';

create or replace function pgps_internal.insert_columns(source regclass, endpoint regclass) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_column record;
    v_check record;
begin
    -- The producer's columns stay last. Columns are renamed and retyped (the endpoint has no rows), not dropped and
    -- added again: with a dropped column, INSERT … RETURNING would no longer be possible.
    for v_column in select * from pgps_internal.attributes_of(insert_columns.source) loop
        execute format('alter table %s rename column _producer to %I', insert_columns.endpoint, v_column.name);
        execute format('alter table %s rename column _producer_seq to _producer', insert_columns.endpoint);
        execute format('alter table %1$s alter column %2$I type %3$s %6$s using null, alter column _producer type '
            'text using null,
            add column _producer_seq bigint %4$s %5$s', insert_columns.endpoint, v_column.name, v_column.type,
            case when v_column.default_value is not null
                then format(', alter column %I set default %s', v_column.name, v_column.default_value) else '' end,
            case when v_column.not_null then format(', alter column %I set not null', v_column.name) else '' end,
                v_column.collate_clause);
    end loop;
    for v_check in select pg_get_constraintdef(c.oid) as definition from pg_constraint c
        where c.conrelid = insert_columns.source and c.contype = 'c' loop
        execute format('alter table %s add %s', insert_columns.endpoint, v_check.definition);
    end loop;
end
$$;
comment on function pgps_internal.insert_columns(regclass, regclass) is
'Adds the columns of source to an endpoint, before the producer''s columns';

drop function if exists pgps_internal.would_rewrite(regclass, text, text, text);
drop function if exists pgps_internal.add_column(regclass, text, text, text, boolean);

create or replace function pgps_internal.would_rewrite(source regclass, definition text) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_file oid := pg_relation_filenode(would_rewrite.source);
    v_found boolean;
begin
    execute format('alter table %s add column pgps_probe %s', would_rewrite.source, would_rewrite.definition);
    v_found := pg_relation_filenode(would_rewrite.source) <> v_file;
    execute format('alter table %s drop column pgps_probe', would_rewrite.source);
    return v_found;
end
$$;
comment on function pgps_internal.would_rewrite(regclass, text) is
'Whether a table is written anew when a column is added; tried with source, which has no rows. definition: its type,
collation and default';

create or replace function pgps_internal.added_columns(source regclass)
returns table (name text, type text, default_clause text, not_null boolean, has_own_values boolean)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    -- For a column of a domain with constraints a table is written anew in any case.
    return query
    select c.name, c.type, c.default_clause, c.not_null,
        pgps_internal.would_rewrite(added_columns.source, concat_ws(' ', c.type, c.default_clause))
            and not pgps_internal.would_rewrite(added_columns.source, c.type || ' default null')
    from (select a.name, concat_ws(' ', a.type, a.collate_clause) as type, 'default ' || a.default_value
                as default_clause, a.not_null
            from pgps_internal.attributes_of(added_columns.source) a offset 0) c;
end
$$;
comment on function pgps_internal.added_columns(regclass) is
'The columns of a table without rows, to be added to others: type with collation; default_clause: null = that of the
type; has_own_values: the default is computed for each row';

create or replace function pgps_internal.add_column(
    target regclass, name text, type text, default_clause text, has_own_values boolean
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if not add_column.has_own_values then
        execute format('alter table %s add column %I %s %s', add_column.target, add_column.name, add_column.type,
            add_column.default_clause);
        return;
    end if;
    -- A table that is written anew looks empty in a snapshot from before, which a transaction may keep. Rows that are
    -- updated it still sees, as they were.
    execute format('alter table %s add column %I %s default null', add_column.target, add_column.name,
        add_column.type);
    execute format('alter table %s alter column %I %s', add_column.target, add_column.name,
        coalesce('set ' || add_column.default_clause, 'drop default'));
    execute format('update %s set %2$I = default', add_column.target, add_column.name);
end
$$;
comment on function pgps_internal.add_column(regclass, text, text, text, boolean) is
'Adds a column to a log or an archive; see added_columns';

create or replace function pgps_internal.copy_column(source regclass, target regclass, columns jsonb, checked boolean)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_column record;
    v_check record;
    v_state text;
    v_message text;
begin
    for v_column in select c.* from jsonb_to_recordset(copy_column.columns)
        c(name text, type text, default_clause text, not_null boolean, has_own_values boolean)
    loop
        perform pgps_internal.add_column(copy_column.target, v_column.name, v_column.type, v_column.default_clause,
            v_column.has_own_values);
        if v_column.not_null and copy_column.checked then
            execute format('alter table %s alter column %I set not null', copy_column.target, v_column.name);
        end if;
    end loop;
    if copy_column.checked then
        for v_check in select pg_get_constraintdef(c.oid) as definition from pg_constraint c
            where c.conrelid = copy_column.source and c.contype = 'c' loop
            execute format('alter table %s add %s', copy_column.target, v_check.definition);
        end loop;
    end if;
exception when not_null_violation or check_violation then
    get stacked diagnostics v_state = returned_sqlstate, v_message = message_text;
    raise exception using errcode = v_state, message = v_message,
        hint = 'Events wait that do not have it: give it a default that they can have, as in ''n integer not null '
            'default 0''.';
end
$$;
comment on function pgps_internal.copy_column(regclass, regclass, jsonb, boolean) is
'Adds the columns of source to target, with defaults, and with NOT NULL and CHECK when checked. columns: what
pgps_internal.added_columns says of source';

drop function if exists pgps.alter_event_type(text, text, text, interval);

create or replace function pgps._scratch_name(event_type text) returns text
language sql immutable
begin atomic
    select 'pgps_add_' || md5(_scratch_name.event_type);
end;
comment on function pgps._scratch_name(text) is
'The table in pgps_event that an added attribute is parsed into; no event type can have its name, which is too long';

create or replace function pgps.alter_event_type(
    name text, add_attribute text = null, drop_attribute text = null, dedupe_retention interval = null,
    time_attribute text = null
) returns void
language plpgsql
as $$
declare
    v_type text := pgps._call('type_name', pg_catalog.jsonb_build_object('name', alter_event_type.name)) #>> '{}';
    v_added jsonb := pgps.parse_attributes(alter_event_type.add_attribute);
    v_list text := pg_catalog.jsonb_extract_path_text(v_added, 'text');
begin
    if v_list = '' then
        raise exception 'add_attribute for event type "%" is empty', v_type using errcode = '22023',
            hint = 'Give add_attribute => ''name type …''.';
    end if;
    if alter_event_type.dedupe_retention is not null then
        perform pgps._call('set_dedupe',
            pg_catalog.jsonb_build_object('name', pg_catalog.quote_ident(v_type), 'retention',
            alter_event_type.dedupe_retention));
    end if;
    if alter_event_type.add_attribute is null and alter_event_type.drop_attribute is null then
        if alter_event_type.time_attribute is not null then
            perform pgps._call('set_time_attribute', pg_catalog.jsonb_build_object(
                'name', pg_catalog.quote_ident(v_type), 'attribute', alter_event_type.time_attribute));
            return;
        elsif alter_event_type.dedupe_retention is not null then
            return;
        end if;
        raise exception 'nothing to alter in event type "%"', v_type using errcode = '22023',
            hint = 'Give add_attribute => ''name type …'' drop_attribute => ''name'' dedupe_retention => ''7 '
                'days'' or time_attribute => ''at''.';
    end if;
    perform pgps._call('alter_type',
        pg_catalog.jsonb_build_object('name', pg_catalog.quote_ident(v_type), 'drop', alter_event_type.drop_attribute));
    if alter_event_type.add_attribute is not null then
        perform pgps._make_columns(pgps._scratch_name(v_type), v_added, alter_event_type.add_attribute);
    end if;
    perform pgps._call('apply_attribute', pg_catalog.jsonb_build_object('name', pg_catalog.quote_ident(v_type),
        'attributes', pg_catalog.jsonb_extract_path(v_added, 'names'),
        'add', alter_event_type.add_attribute, 'drop', alter_event_type.drop_attribute));
    if alter_event_type.time_attribute is not null then
        perform pgps._call('set_time_attribute', pg_catalog.jsonb_build_object(
            'name', pg_catalog.quote_ident(v_type), 'attribute', alter_event_type.time_attribute));
    end if;
end
$$;
comment on function pgps.alter_event_type(text, text, text, interval, text) is
'Adds or drops an attribute; events that wait in the queues are kept (in them an added attribute has its default, or
null; where the default is another for each event, whoever receives while it is added may still get null).
add_attribute: a column definition as in CREATE TABLE. drop_attribute: a name, folded unless in double quotes; refused
(2BP01) while a filter uses it or a rule fills it; from then on an INSERT into the event type cannot have RETURNING.
dedupe_retention: after how long the numbers of a producer that publishes no more are forgotten. time_attribute: the
timestamptz by which composite events of the time basis event take the events in order; from then on it must not be
null (23514); '''' = none. Locks the event type until the transaction ends; while other transactions use it that are
open, it is tried again and again for as long as lock_timeout says, and publishers wait for a tenth of a second at
most. Needs pgps_admin. Errors: 42704, 42703, 42701, 42804, 42939, 23502, 2BP01, 42601, 0A000, 22023, 42501, 55P03,
40P01, 42809 attributes of a composite event.';

create or replace function pgps_internal.do_set_time_attribute(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'name');
    v_attribute text;
    v_kind text;
begin
    perform pgps_internal.require_admin(caller, 'alter event types');
    if args ->> 'attribute' = '' then
        perform pgps_internal.require_no_event_time(v_type);
    else
        v_attribute := pgps_internal.fold(args ->> 'attribute');
        select a.type into v_kind from pgps_internal.attributes_of(v_type.endpoint) a where a.name = v_attribute;
        if not found then
            raise exception 'event type "%" has no attribute "%"', v_type.name, v_attribute using errcode = '42703',
                hint = 'See the column attributes of pgps.event_types.';
        elsif v_kind not like 'timestamp%with time zone' then
            raise exception 'attribute "%" of event type "%" is of type %', v_attribute, v_type.name, v_kind
            using errcode = '42804', hint = 'The time attribute is a timestamptz.';
        end if;
    end if;
    perform pgps_internal.lock_types(array[v_type.type_id], only_log => true);
    perform pgps_internal.require_no_event_time(v_type) where args ->> 'attribute' = '';
    execute format('alter table %s drop constraint if exists pgps_time', v_type.log);
    delete from pgps_internal.time_attribute a where a.type_id = v_type.type_id;
    if v_attribute is not null then
        insert into pgps_internal.time_attribute (type_id, name) values (v_type.type_id, v_attribute);
        -- Events that wait without one are not refused any more; composite events find them late.
        execute format('alter table %s add constraint pgps_time check (%I is not null) not valid', v_type.log,
            v_attribute);
    end if;
end
$$;
comment on function pgps_internal.do_set_time_attribute(name, jsonb) is 'See pgps.alter_event_type';

create or replace function pgps_internal.do_set_dedupe(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.require_admin(caller, 'alter event types');
    perform pgps_internal.check_age((args ->> 'retention')::interval, 'dedupe_retention');
    if (args ->> 'retention')::interval <= '0' then
        raise exception 'invalid dedupe_retention %', args ->> 'retention' using errcode = '22023',
            hint = 'Give a positive interval; ''1000 years'' is for ever.';
    end if;
    update pgps_internal.event_type t set dedupe_retention = (args ->> 'retention')::interval
    where t.type_id = (pgps_internal.find_type(args ->> 'name')).type_id;
end
$$;
comment on function pgps_internal.do_set_dedupe(name, jsonb) is 'See pgps.alter_event_type';

grant execute on function pgps._scratch_name(text), pgps.alter_event_type(text, text, text, interval, text) to public;
