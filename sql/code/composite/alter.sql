-- Composite events: change and reset.
-- Locks: the turn of the creator's definitions; the row of the composite event.
-- Writes: composite, composite_key, composite_step.

create or replace function pgps_internal.find_composite(caller name, name text) returns pgps_internal.composite
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.fold(find_composite.name);
    v_composite pgps_internal.composite;
begin
    select c.* into v_composite from pgps_internal.composite c join pgps_internal.event_type t using (type_id)
    where t.name = v_name;
    if not found then
        raise exception 'composite event "%" does not exist', v_name using errcode = '42704',
            hint = 'See pgps.composite_events, or create it with pgps.create_composite_event(name, expression).';
    elsif not pg_has_role(find_composite.caller, 'pgps_admin', 'usage')
        and not coalesce((select pg_has_role(find_composite.caller, r.oid, 'usage') from pg_roles r
            where r.oid = v_composite.owner::oid), false) then
        raise exception 'composite event "%" belongs to role %', v_name, v_composite.owner using errcode = '42501',
            hint = format('Become a member of role %s, or create one of your own.', v_composite.owner);
    end if;
    return v_composite;
end
$$;
comment on function pgps_internal.find_composite(name, text) is
'The composite event of that name, which caller must own or administer. Errors: 42704, 42501.';

create or replace function pgps.alter_composite_event(
    name text, enabled boolean = null, max_open integer = null, lateness interval = null, filter text = null
) returns void
language plpgsql
as $$
declare
    v_args jsonb := pg_catalog.jsonb_build_object('name', alter_composite_event.name,
        'enabled', alter_composite_event.enabled, 'max_open', alter_composite_event.max_open,
        'lateness', alter_composite_event.lateness, 'filter', alter_composite_event.filter,
        'schemas', pg_catalog.current_schemas(false));
begin
    if alter_composite_event.filter is not null then
        perform pgps.check_composite(pgps._call('altered', v_args));
    end if;
    perform pgps._call('alter_composite', v_args);
end
$$;
comment on function pgps.alter_composite_event(text, boolean, integer, interval, text) is
'Changes a composite event; what is null stays. enabled: false stops its detection, true goes on where it was, also
after it was suspended, or the predicate of a leaf was. filter: '''' takes it away. What is open stays open. Needs to
own it; pgps_admin may change the rest of anybody''s, and take the filter away. A new filter is planned and runs in the
settings of the session that gave it (search_path, time zone, date style). Errors: 42704, 42501, 22023, and those of
pgps.create_composite_event for lateness and filter.';

create or replace function pgps_internal.require_own_filter(
    caller name, composite pgps_internal.composite, args jsonb
) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A filter runs with the owner's rights, so only a role that has them may set one.
    if args ->> 'filter' <> '' and not coalesce((select pg_has_role(require_own_filter.caller, r.oid, 'usage')
        from pg_roles r where r.oid = (require_own_filter.composite).owner::oid), false) then
        raise exception 'the filter of composite event "%" runs with the rights of role %', args ->> 'name',
            (require_own_filter.composite).owner
        using errcode = '42501', hint = format('Become a member of role %s, or create one of your own.',
            (require_own_filter.composite).owner);
    end if;
end
$$;
comment on function pgps_internal.require_own_filter(name, pgps_internal.composite, jsonb) is
'Raises 42501 where a role gives a composite event a filter without the rights of its owner, with which it runs';

create or replace function pgps_internal.altered_args(composite pgps_internal.composite, args jsonb) returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select jsonb_strip_nulls(jsonb_build_object('name', t.name, 'expression', c.given ->> 'expression',
        'context', c.context, 'partition_by', c.partition_by, 'within', c.within,
        'filter', nullif(coalesce(args ->> 'filter', c.filter), ''), 'attributes', c.attributes,
        'time_basis', c.time_basis, 'lateness', coalesce(args ->> 'lateness', c.lateness::text),
        'max_open', coalesce((args ->> 'max_open')::integer, c.max_open), 'zone', c.given ->> 'zone'))
    from (select (altered_args.composite).*) c join pgps_internal.event_type t using (type_id)
$$;
comment on function pgps_internal.altered_args(pgps_internal.composite, jsonb) is
'The arguments of a composite event with what pgps.alter_composite_event changes';

create or replace function pgps_internal.do_altered(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_composite pgps_internal.composite := pgps_internal.find_composite(caller, args ->> 'name');
begin
    perform pgps_internal.require_own_filter(caller, v_composite, args);
    return pgps_internal.describe(pg_get_userbyid(v_composite.owner::oid),
        pgps_internal.altered_args(v_composite, args));
end
$$;
comment on function pgps_internal.do_altered(name, jsonb) is
'What a composite event would be; see pgps.alter_composite_event';

create or replace function pgps_internal.redefine(composite pgps_internal.composite, args jsonb)
returns pgps_internal.composite
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_composite pgps_internal.composite := redefine.composite;
begin
    perform pgps_internal.hold_leaves((redefine.composite).parsed);
    v_composite.given := pgps_internal.given_of(redefine.args);
    v_composite.state_id := nextval('pgps_internal.composite_state_seq');
    v_composite.parsed := pgps_internal.describe(pg_get_userbyid((v_composite.owner)::oid), redefine.args);
    perform pgps_internal.take_state_over(redefine.composite, v_composite);
    update pgps_internal.composite c set max_open = (redefine.args ->> 'max_open')::integer,
        lateness = (redefine.args ->> 'lateness')::interval, filter = redefine.args ->> 'filter',
        filter_environment = coalesce(redefine.args -> 'filter_environment', c.filter_environment),
        given = v_composite.given, parsed = v_composite.parsed, state_id = v_composite.state_id
    where c.composite_id = v_composite.composite_id returning * into v_composite;
    perform pgps_internal.drop_piece('function', 'pgps_internal.' || p.proname) from pg_proc p
    where p.pronamespace = 'pgps_internal'::regnamespace
        and p.proname ~ format('^composite_test_%s_\d+$', v_composite.composite_id);
    perform pgps_internal.build(p, v_composite.type_id) from pgps_internal.pieces_of_composite(v_composite) p;
    return v_composite;
end
$$;
comment on function pgps_internal.redefine(pgps_internal.composite, jsonb) is
'Gives a composite event another filter, limit or lateness; what is open stays open';

create or replace function pgps_internal.build_composites_of(event_type pgps_internal.event_type) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    -- Conditions and attributes make rows of the event type of JSON. A session's plan of that knows the columns that
    -- the type had, and only a new function around it puts it out of date.
    select pgps_internal.build(p, c.type_id)
    from pgps_internal.composite c, pgps_internal.pieces_of_composite(c) p
    where exists (select from pgps_internal.composite_leaf l
        where l.composite_id = c.composite_id and l.type_id = (build_composites_of.event_type).type_id)
    order by c.composite_id
$$;
comment on function pgps_internal.build_composites_of(pgps_internal.event_type) is
'Builds the code of the composite events that are made of a type whose attributes have changed';

create or replace function pgps_internal.do_alter_composite(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_composite pgps_internal.composite := pgps_internal.find_composite(caller, args ->> 'name');
    v_args jsonb;
begin
    if args ->> 'enabled' is null and args ->> 'max_open' is null and args ->> 'lateness' is null
        and args ->> 'filter' is null then
        raise exception 'nothing to alter in composite event "%"', args ->> 'name' using errcode = '22023',
            hint = 'Give enabled, max_open, lateness or filter.';
    end if;
    perform pgps_internal.require_read_committed(), pgps_internal.hold_composite(v_composite.composite_id);
    v_composite := pgps_internal.find_composite(caller, args ->> 'name');
    perform pgps_internal.require_own_filter(caller, v_composite, args);
    v_args := pgps_internal.altered_args(v_composite, args) || case when args ->> 'filter' is null then '{}'
        else jsonb_build_object('filter_environment',
            pgps_internal.current_environment(args -> 'schemas', args ->> 'filter')) end;
    update pgps_internal.composite c set enabled = coalesce((args ->> 'enabled')::boolean, c.enabled),
        last_error = case when args ->> 'enabled' is null then c.last_error end
    where c.composite_id = v_composite.composite_id;
    if (args ->> 'enabled')::boolean then
        -- Leaves whose predicate failed too often, too: what came meanwhile is asked for where they are asked.
        perform pgps_internal.make_active(s, false)
        from pgps_internal.composite_leaf l join pgps_internal.subscription s using (subscription_id)
        where l.composite_id = v_composite.composite_id and (s.state = 'suspended' or s.last_error is not null)
        order by l.leaf;
    end if;
    if args ->> 'max_open' is not null or args ->> 'lateness' is not null or args ->> 'filter' is not null then
        perform pgps_internal.change_parts(pgps_internal.redefine(v_composite, v_args));
    end if;
    perform pg_notify('pgps_composite', '');
end
$$;
comment on function pgps_internal.do_alter_composite(name, jsonb) is 'See pgps.alter_composite_event';

create or replace function pgps.reset_composite_event(name text, partition_key jsonb = null) returns bigint
language sql
begin atomic
    select (pgps._call('reset_composite', jsonb_build_object('name', reset_composite_event.name, 'partition_key',
        reset_composite_event.partition_key)) #>> '{}')::bigint;
end;
comment on function pgps.reset_composite_event(text, jsonb) is
'Forgets what is open of a composite event, as if its history began now; returns how many occurrences that were.
partition_key: of one key, as in pgps.open_occurrences (a single value need not be an array); null = of all. Needs to
own it, or pgps_admin. Waits for a detection that runs. Errors: 42704, 42501, 25001.';

create or replace function pgps_internal.forget_open(composite pgps_internal.composite, key jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_composite pgps_internal.composite := forget_open.composite;
    v_key jsonb := case when jsonb_typeof(forget_open.key) = 'array' then forget_open.key
        else jsonb_build_array(forget_open.key) end;
    v_keys text[];
    v_open bigint;
    -- What no key divides has one clock.
    v_ticks boolean := v_composite.is_ticking and v_composite.partition_by is null
        and (forget_open.key is null or v_key = '[]');
begin
    select array_agg(distinct k.key) into v_keys from pgps_internal.key_now k
    where k.state_id = v_composite.state_id
        and (forget_open.key is null or k.key not like '#%' and k.key::jsonb = v_key);
    select count(*) into v_open from pgps_internal.open_now o
    where o.state_id = v_composite.state_id and o.key = any (v_keys);
    insert into pgps_internal.composite_key (state_id, key, born, version, serial, clock, live)
    select v_composite.state_id, k, 0, 0, 0, 0, '{}' from unnest(v_keys) k where not v_ticks;
    -- It goes on where the last step has ended: ticks of that time are still to come.
    insert into pgps_internal.composite_key (state_id, key, born, version, serial, clock, ticked, due, live)
    select v_composite.state_id, '[]', nextval('pgps_internal.composite_row_seq'), 1, 0, 0, h.due - 1, h.due, '{}'
    from (
        select coalesce(((h.step).ordering ->> 'frontier')::bigint,
            pgps_internal.microseconds(v_composite.began_at)) as due
        from pgps_internal.share_now h where v_ticks and h.composite_id = v_composite.composite_id) h;
    -- A step of each share, so that no session goes on with what it has in memory.
    insert into pgps_internal.composite_step (composite_id, share, state_id, batch_id, ordering, heard, idle_at, open,
        keys, detected, late, given_up, stepped_at)
    select h.composite_id, h.share, v_composite.state_id, h.reached, coalesce((h.step).ordering, 'null'),
        (h.step).heard, (h.step).idle_at, coalesce((h.step).open, 0) - case h.share when 0 then v_open else 0 end,
        coalesce((h.step).keys, 0) + case h.share when 0 then v_ticks::integer - coalesce(cardinality(v_keys), 0)
            else 0 end,
        coalesce((h.step).detected, 0), coalesce((h.step).late, 0), coalesce((h.step).given_up, 0),
        pgps_internal.clock()
    from pgps_internal.share_now h where h.composite_id = v_composite.composite_id;
    return v_open;
end
$$;
comment on function pgps_internal.forget_open(pgps_internal.composite, jsonb) is
'Forgets what is open of a composite event, of one key or, for null, of all; returns how much it was';

create or replace function pgps_internal.do_reset_composite(caller name, args jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_composite pgps_internal.composite := pgps_internal.find_composite(caller, args ->> 'name');
    v_key jsonb := nullif(args -> 'partition_key', 'null');
begin
    perform pgps_internal.require_read_committed(), pgps_internal.hold_composite(v_composite.composite_id);
    v_composite := pgps_internal.find_composite(caller, args ->> 'name');
    perform pgps_internal.reset_parts(v_composite.composite_id, v_key);
    return pgps_internal.forget_open(v_composite, v_key);
end
$$;
comment on function pgps_internal.do_reset_composite(name, jsonb) is 'See pgps.reset_composite_event';

create or replace function pgps_internal.require_unused_by_composites(
    event_type pgps_internal.event_type, attribute text
) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type text := (require_unused_by_composites.event_type).name;
    -- As a word of SQL, quoted or not; a word of a literal refuses, too, which is on the safe side.
    v_word text := format('(^|[^[:alnum:]_])%s([^[:alnum:]_]|$)',
        regexp_replace(require_unused_by_composites.attribute, '([^[:alnum:]_])', '\\\1', 'g'));
    v_composite text;
begin
    select t.name into v_composite
    from pgps_internal.composite c join pgps_internal.event_type t using (type_id)
    where exists (select from jsonb_array_elements(c.parsed -> 'leaves') l
            where l ->> 'type' = v_type and (l -> 'columns' ? require_unused_by_composites.attribute
                or l ->> 'predicate' ~* v_word))
        or exists (select from jsonb_array_elements((c.parsed -> 'conditions') || (c.parsed -> 'attributes')) p
            where p ->> 'text' ~* v_word and exists (select from jsonb_array_elements(c.parsed -> 'aliases') a
                where a ->> 'type' = v_type and p -> 'names' ? (a ->> 'name')))
    order by t.name limit 1;
    if found then
        raise exception 'attribute "%" of event type "%" is used by composite event "%"',
            require_unused_by_composites.attribute, v_type, v_composite
        using errcode = '2BP01', hint = format('First: select pgps.drop_event_type(%L)', quote_ident(v_composite));
    end if;
end
$$;
comment on function pgps_internal.require_unused_by_composites(pgps_internal.event_type, text) is
'Raises 2BP01 while a composite event uses an attribute of a type: as partition key, in a predicate, in its filter or in
its attributes';

grant execute on function pgps.alter_composite_event(text, boolean, integer, interval, text),
    pgps.reset_composite_event(text, jsonb) to public;
