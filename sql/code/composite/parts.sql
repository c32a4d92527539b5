-- Parts of composite events that a neighbour detects (decision 48): the largest sub-expressions whose events all come
-- by it. It publishes what it detects as events of a type of their own, and only these cross the link.
-- Locks: the row of the composite event; the turn of routes, when a neighbour answers; those of creating an event type.
-- Writes: composite_leaf, composite_part, neighbour.

create or replace function pgps_internal.is_elsewhere(composite_id bigint, leaf integer) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select exists (select from pgps_internal.composite_part p where p.composite_id = is_elsewhere.composite_id
        and is_elsewhere.leaf = any (p.leaves) and p.reason is null)
$$;
comment on function pgps_internal.is_elsewhere(bigint, integer) is
'True for a leaf of a composite event in whose events a neighbour detects';

create or replace function pgps_internal.places_of_leaves(composite pgps_internal.composite)
returns table (leaf integer, broker text, neighbour text, neighbour_id integer)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with l as (
        select x.o::integer - 1 as leaf, t.type_id, s.name as source, s.broker
        from jsonb_array_elements((places_of_leaves.composite).parsed -> 'leaves') with ordinality x(l, o)
        join pgps_internal.event_type t on t.name = x.l ->> 'type'
        left join lateral pgps_internal.source_of(x.l ->> 'source', (places_of_leaves.composite).sources) s on true
    )
    select l.leaf, p.broker, null::text, null::integer
    from l cross join pgps_internal.progress p
    where (places_of_leaves.composite).scope = 'local' or (l.source is null or l.broker = p.broker)
        and exists (select from pgps_internal.advertisement a join pg_roles r on r.oid = a.role::oid
            where a.type_id = l.type_id)
    union
    select l.leaf, o.name, n.name, n.neighbour_id
    from l join pgps_internal.carried f using (type_id)
    join pgps_internal.origin o on o.origin_id = f.origin_id and o.parent = f.neighbour_id
    join pgps_internal.neighbour n on n.neighbour_id = f.neighbour_id
    where (places_of_leaves.composite).scope = 'global' and (l.source is null or l.broker = o.name)
$$;
comment on function pgps_internal.places_of_leaves(pgps_internal.composite) is
'Which brokers advertise the events of each leaf, and by which neighbour they come; a leaf without a row has none';

create or replace function pgps_internal.why_here(composite pgps_internal.composite) returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select to_jsonb(array_agg(case
        when x.l ->> 'moment' <> '' then 'events over links count as both moments of an operation'
        when s.client is not null then 'a client is known to its own broker alone'
        when pgps_internal.is_interval(t.endpoint) then 'it is made of composite events'
        when t.has_policy
            then 'a policy here says what its owner may see'
        when x.l ->> 'predicate' <> '' and not pgps_internal.is_safe(pgps.parse_filter(x.l ->> 'predicate', t.name,
            pgps_internal.attribute_names(t)), t, (why_here.composite).environment ->> 'search_path')
            then 'a predicate reads more than the event' end order by x.o))
    from jsonb_array_elements((why_here.composite).parsed -> 'leaves') with ordinality x(l, o)
    join pgps_internal.event_type t on t.name = x.l ->> 'type'
    left join lateral pgps_internal.source_of(x.l ->> 'source', (why_here.composite).sources) s on true
$$;
comment on function pgps_internal.why_here(pgps_internal.composite) is
'For each leaf of a composite event why no neighbour can detect in it, an array; null: one can';

create or replace function pgps_internal.find_parts(composite pgps_internal.composite, without uuid) returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select pgps.describe_composite(((find_parts.composite).given || jsonb_build_object(
        'start', (find_parts.composite).start, 'barred', pgps_internal.why_here(find_parts.composite),
        'places', (
            select to_jsonb(array_agg((
                select coalesce(to_jsonb(array_agg(distinct coalesce(p.neighbour_id::text, ''))), '[]')
                from pgps_internal.places_of_leaves(find_parts.composite) p where p.leaf = l) order by l))
            from generate_series(0, jsonb_array_length((find_parts.composite).parsed -> 'leaves') - 1) l),
        'refusing', (
            select coalesce(jsonb_object_agg(n.neighbour_id::text, case
                when n.broker_id = find_parts.without then 'it is asked for by that neighbour'
                when n.is_draining then 'the link to it is being dropped'
                when n.direction = 'out' then 'nothing comes by the link to it'
                when not n.detects then 'it runs a release that cannot' end), '{}')
            from pgps_internal.neighbour n
            where n.broker_id = find_parts.without or n.is_draining or n.direction = 'out' or not n.detects))
        )::text)
    where (find_parts.composite).scope = 'global'
$$;
comment on function pgps_internal.find_parts(pgps_internal.composite, uuid) is
'Which sub-expressions of a composite event neighbours are to detect (parts), and why others that lie behind one are
detected here (reasons); null for a local one. without: a broker that is asked for nothing';

create or replace function pgps_internal.make_parts(composite pgps_internal.composite, without uuid) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_part jsonb;
    v_place bigint;
    v_neighbour pgps_internal.neighbour;
    v_leaf integer;
    v_name text;
    v_type pgps_internal.event_type;
begin
    for v_part, v_place in
        select p, o - 1
        from jsonb_array_elements(pgps_internal.find_parts(make_parts.composite, make_parts.without) -> 'parts')
            with ordinality x(p, o)
    loop
        select n.* into v_neighbour from pgps_internal.neighbour n
        where n.neighbour_id = (v_part ->> 'place')::integer;
        v_leaf := jsonb_array_length((make_parts.composite).parsed -> 'leaves') + v_place;
        v_name := 'pgps_part_' || substr(md5(gen_random_uuid()::text), 1, 20);
        v_type := pgps_internal.adopt_type(v_neighbour, jsonb_build_object('name', v_name, 'attributes',
            '[{"name": "starts_at", "type": "timestamp with time zone"},
                {"name": "ends_at", "type": "timestamp with time zone"},
                {"name": "detected_at", "type": "timestamp with time zone"},
                {"name": "constituents", "type": "jsonb"}]'::jsonb,
            'reliability', (select t.reliability from pgps_internal.event_type t
                where t.type_id = (make_parts.composite).type_id)));
        insert into pgps_internal.composite_part (name, composite_id, leaf, broker_id, broker, nodes, leaves, given)
        values (v_name, (make_parts.composite).composite_id, v_leaf, v_neighbour.broker_id, v_neighbour.name,
            array(select jsonb_array_elements_text(v_part -> 'nodes')),
            array(select jsonb_array_elements_text(v_part -> 'leaves')::integer), v_part -> 'given');
        insert into pgps_internal.composite_leaf (composite_id, leaf, type_id)
        values ((make_parts.composite).composite_id, v_leaf, v_type.type_id);
        perform pgps_internal.subscribe_leaf(make_parts.composite, v_leaf, v_type, null, null);
        perform pg_notify('pgps_link', '');
    end loop;
end
$$;
comment on function pgps_internal.make_parts(pgps_internal.composite, uuid) is
'Leaves to neighbours what they can detect of a new composite event; see find_parts';

create or replace function pgps_internal.parts_for(neighbour pgps_internal.neighbour)
returns table (kind text, key text, value jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    select 'part', p.name, jsonb_build_object('name', p.name, 'given', p.given, 'nodes', p.nodes, 'resets', p.resets,
        'reliability', t.reliability, 'environment', c.environment - 'search_path',
        'collation', pgps_internal.do_link_identity(current_user, '{}') ->> 'collation',
        'sources', (select coalesce(jsonb_object_agg(l.source, s.broker), '{}')
            from pgps_internal.composite_leaf l cross join lateral pgps_internal.source_of(l.source, c.sources) s
            where l.composite_id = p.composite_id and l.leaf = any (p.leaves) and l.source is not null))
    from pgps_internal.composite_part p join pgps_internal.composite c using (composite_id)
    join pgps_internal.event_type t on t.type_id = c.type_id
    where p.broker_id = (parts_for.neighbour).broker_id and p.reason is null
    union all
    select 'parted', h.name, jsonb_strip_nulls(jsonb_build_object('name', h.name,
        'reason', coalesce(h.reason, case when h.composite_id is null then 'it was dropped there'
            when not c.enabled then coalesce('it is suspended there: ' || c.last_error, 'it was stopped there') end)))
    from pgps_internal.hosted_part h left join pgps_internal.composite c on c.composite_id = h.composite_id
    where h.neighbour_id = (parts_for.neighbour).neighbour_id;
end
$$;
comment on function pgps_internal.parts_for(pgps_internal.neighbour) is
'What a neighbour should know of parts: those that it is to detect, and whether this broker detects what it has asked
for';

create or replace function pgps_internal.take_part_back(part pgps_internal.composite_part, reason text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_composite pgps_internal.composite;
    v_leaf record;
begin
    perform pgps_internal.hold_composite((take_part_back.part).composite_id);
    update pgps_internal.composite_part p set reason = take_part_back.reason
    where p.name = (take_part_back.part).name and p.reason is null;
    if not found then
        return;
    end if;
    select c.* into v_composite from pgps_internal.composite c
    where c.composite_id = (take_part_back.part).composite_id;
    -- What has come of the part until now stays what it is; from now on its events come here.
    for v_leaf in
        select l.leaf, t as event_type, nullif(x.l ->> 'predicate', '') as predicate
        from pgps_internal.composite_leaf l join pgps_internal.event_type t using (type_id)
        join jsonb_array_elements(v_composite.parsed -> 'leaves') with ordinality x(l, o) on x.o = l.leaf + 1
        where l.composite_id = v_composite.composite_id and l.subscription_id is null
            and l.leaf = any ((take_part_back.part).leaves) order by l.leaf
    loop
        perform pgps_internal.subscribe_leaf(v_composite, v_leaf.leaf, v_leaf.event_type, v_leaf.predicate,
            case when v_leaf.predicate is not null then to_jsonb(pgps_internal.constant_types(
                (v_leaf.event_type).name, v_leaf.predicate, v_composite.environment)) end);
    end loop;
    perform pg_notify('pgps_link', '');
end
$$;
comment on function pgps_internal.take_part_back(pgps_internal.composite_part, text) is
'Detects a part of a composite event here from now on, because a neighbour does not';

create or replace function pgps_internal.take_parts_back_of(event_type pgps_internal.event_type) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    select pgps_internal.take_part_back(p, 'a policy here says what its owner may see')
    from pgps_internal.composite_part p
    where p.reason is null and (take_parts_back_of.event_type).has_policy and exists (
        select from pgps_internal.composite_leaf l where l.composite_id = p.composite_id
            and l.leaf = any (p.leaves) and l.type_id = (take_parts_back_of.event_type).type_id)
    order by p.name
$$;
comment on function pgps_internal.take_parts_back_of(pgps_internal.event_type) is
'Detects here from now on what neighbours detected in the events of a type that has a policy now: they do not know it';

create or replace function pgps_internal.change_parts(composite pgps_internal.composite) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_part pgps_internal.composite_part;
    v_last integer := jsonb_array_length((change_parts.composite).parsed -> 'leaves') - 1;
    v_new jsonb;
begin
    for v_part in
        select p.* from pgps_internal.composite_part p
        where p.composite_id = (change_parts.composite).composite_id and p.reason is null order by p.name
    loop
        -- Planned as it was: its events come by the one neighbour that detects, and the others stay here.
        v_new := pgps.describe_composite(((change_parts.composite).given || jsonb_build_object(
            'start', 'now', 'refusing', '{}'::jsonb,
            'barred', (select to_jsonb(array_agg(null::text)) from generate_series(0, v_last)),
            'places', (select to_jsonb(array_agg(jsonb_build_array(
                case when l = any (v_part.leaves) then '0' else '' end) order by l))
                from generate_series(0, v_last) l)))::text) #> '{parts,0}';
        if v_new is null or v_new -> 'leaves' <> to_jsonb(v_part.leaves) then
            raise exception 'the filter is about what broker "%" detects', v_part.broker using errcode = '55000',
                hint = 'Drop the composite event and create it with that filter.';
        end if;
        update pgps_internal.composite_part p
        set given = v_new -> 'given', nodes = array(select jsonb_array_elements_text(v_new -> 'nodes'))
        where p.name = v_part.name;
    end loop;
    perform pg_notify('pgps_link', '');
end
$$;
comment on function pgps_internal.change_parts(pgps_internal.composite) is
'Asks neighbours for the parts of a composite event as they are in its altered definition. Errors: 55000 when a part
would be another one';

create or replace function pgps_internal.reset_parts(composite_id bigint, key jsonb) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    update pgps_internal.composite_part p
    set resets = case when reset_parts.key is null then '[]' else p.resets end || jsonb_build_array(jsonb_build_array(
        pgps_internal.last_reset(jsonb_build_object('resets', p.resets)) + 1, reset_parts.key))
    where p.composite_id = reset_parts.composite_id and p.reason is null
$$;
comment on function pgps_internal.reset_parts(bigint, jsonb) is
'Has neighbours forget what is open in the parts of a composite event that they detect; key: of one key, null = of all';

create or replace function pgps_internal.hear_parted(neighbour pgps_internal.neighbour, body jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if hear_parted.body ->> 'reason' is null then
        update pgps_internal.composite_part p set answered = true
        where p.name = hear_parted.body ->> 'name' and p.broker_id = (hear_parted.neighbour).broker_id;
    else
        perform pgps_internal.take_part_back(p, format('broker "%s": %s', (hear_parted.neighbour).name,
            hear_parted.body ->> 'reason'))
        from pgps_internal.composite_part p
        where p.name = hear_parted.body ->> 'name' and p.broker_id = (hear_parted.neighbour).broker_id;
    end if;
end
$$;
comment on function pgps_internal.hear_parted(pgps_internal.neighbour, jsonb) is
'Handles a neighbour''s answer to what it was asked to detect: it does, or why it does not';

create or replace function pgps_internal.part_with_neighbour(neighbour pgps_internal.neighbour) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.take_part_back(p, format('the link to broker "%s" was dropped', p.broker))
    from pgps_internal.composite_part p where p.broker_id = (part_with_neighbour.neighbour).broker_id;
    perform pgps_internal.drop_hosted(h) from pgps_internal.hosted_part h
    where h.broker_id = (part_with_neighbour.neighbour).broker_id;
end
$$;
comment on function pgps_internal.part_with_neighbour(pgps_internal.neighbour) is
'When a link is gone for good: nothing is detected for each other any more';

create or replace function pgps_internal.note_detects(neighbour_id integer, peer jsonb) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    update pgps_internal.neighbour n set detects = coalesce((note_detects.peer ->> 'detects')::boolean, false)
    where n.neighbour_id = note_detects.neighbour_id
        and n.detects is distinct from coalesce((note_detects.peer ->> 'detects')::boolean, false)
$$;
comment on function pgps_internal.note_detects(integer, jsonb) is
'Notes whether the broker at the other end can be asked to detect: not in a release before parts';

create or replace function pgps_internal.part_types(composite_id bigint) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return (select coalesce(to_jsonb(array_agg(distinct t.name)), '[]')
        from pgps_internal.composite_part p join pgps_internal.composite_leaf l
            on l.composite_id = p.composite_id and l.leaf = any (p.leaves)
        join pgps_internal.event_type t using (type_id)
        where p.composite_id = part_types.composite_id);
end
$$;
comment on function pgps_internal.part_types(bigint) is
'The event types of the leaves of a composite event that a neighbour detects in, as an array';

create or replace function pgps_internal.parts_of(composite pgps_internal.composite) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    -- Who owns it sees of the parts what it may see of the events in them.
    return (select coalesce(jsonb_object_agg(p.leaf, p.nodes), '{}')
        from pgps_internal.composite_part p
        where p.composite_id = (parts_of.composite).composite_id and not exists (
            select from pgps_internal.composite_leaf l join pgps_internal.event_type t using (type_id)
            where l.composite_id = p.composite_id and l.leaf = any (p.leaves) and (t.has_policy
                or not has_table_privilege((parts_of.composite).owner::oid, t.endpoint, 'select'))));
end
$$;
comment on function pgps_internal.parts_of(pgps_internal.composite) is
'The sub-expressions that neighbours detect, by the number of the leaf that stands for them; without those of whose
events the owner may not see all';
