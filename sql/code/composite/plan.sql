-- Where composite events are detected: the nodes of their event graphs, and what comes over links for them.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.places_of_leaves(composite pgps_internal.composite)
returns table (leaf integer, broker text, neighbour text)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select l.leaf, p.broker, null::text
    from pgps_internal.composite_leaf l cross join pgps_internal.progress p
    left join pgps_internal.source s on s.name = l.source
    where l.composite_id = (places_of_leaves.composite).composite_id
        and ((places_of_leaves.composite).scope = 'local' or (s.name is null or s.broker = p.broker)
            and exists (select from pgps_internal.advertisement a where a.type_id = l.type_id))
    union
    select l.leaf, o.name, n.name
    from pgps_internal.composite_leaf l join pgps_internal.event_type t using (type_id)
    join pgps_internal.offer f on t.name = any (f.types)
    join pgps_internal.origin o on o.origin_id = f.origin_id and o.parent = f.neighbour_id
    join pgps_internal.neighbour n using (neighbour_id)
    left join pgps_internal.source s on s.name = l.source
    where l.composite_id = (places_of_leaves.composite).composite_id and (places_of_leaves.composite).scope = 'global'
        and (s.name is null or s.broker = o.name)
$$;
comment on function pgps_internal.places_of_leaves(pgps_internal.composite) is
'Which brokers advertise the events of each leaf, and by which neighbour they come; a leaf without a row has none';

create or replace function pgps_internal.do_plan_composite(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_composite pgps_internal.composite := pgps_internal.find_composite(caller, args ->> 'name');
begin
    return (
        with place as materialized (select * from pgps_internal.places_of_leaves(v_composite)),
        node as (
            select n ->> 'name' as name, n ->> 'text' as text, n ->> 'op' as op, n -> 'leaves' as leaves,
                n -> 'parts' as parts, o
            from jsonb_array_elements(v_composite.parsed -> 'nodes') with ordinality x(n, o)
        )
        select jsonb_agg(jsonb_build_array(n.name, n.text, w.broker, w.neighbour, b.behind, n.parts,
                (select count(*) from pgps_internal.open_now q where q.state_id = v_composite.state_id
                    and q.node = n.name))
            order by n.o, w.neighbour nulls first, w.broker)
        from node n
        cross join lateral (
            select case when count(distinct coalesce(p.neighbour, '')) = 1 then max(p.neighbour) end as behind
            from place p where n.leaves @> to_jsonb(p.leaf)) b
        left join lateral (
            select distinct p.broker, p.neighbour from place p where n.op = 'leaf' and n.leaves @> to_jsonb(p.leaf)
            union all
            select p.broker, null from pgps_internal.progress p where n.op <> 'leaf') w on true);
end
$$;
comment on function pgps_internal.do_plan_composite(name, jsonb) is 'See pgps.plan_composite_event';

drop function if exists pgps.plan_composite_event(text);
create or replace function pgps.plan_composite_event(name text)
returns table (node text, expression text, broker text, forwards text, behind text, parts text[], open bigint)
language sql
begin atomic
    select l ->> 0, l ->> 1, l ->> 2, l ->> 3, l ->> 4, array(select jsonb_array_elements_text(l -> 5)),
        (l ->> 6)::bigint
    from jsonb_array_elements(pgps._call('plan_composite', jsonb_build_object('name', plan_composite_event.name)))
        with ordinality x(l, o) order by o;
end;
comment on function pgps.plan_composite_event(text) is
'The event graph of a composite event, the whole expression first, and where each of its nodes is detected now: here,
and a leaf where its events are advertised, since its predicate travels (one row for each such broker; broker null:
nobody advertises them). forwards: the neighbour by which the events of a leaf come, null = they are of this broker.
behind: the neighbour behind which all leaves of this sub-expression lie, null = here, or behind several. node is the
same for the same sub-expression of any composite event; parts: the nodes that it is made of, in their order; open: how
much is open in it. Needs to own it, or pgps_admin. Errors: 42704, 42501.';

grant execute on function pgps.plan_composite_event(text) to public;
