-- Where composite events are detected: the nodes of their event graphs, and what comes over links for them.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.reasons_for_here(composite pgps_internal.composite) returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- What a neighbour has answered is said first; then what stands against asking it now.
    select coalesce(pgps_internal.find_parts(reasons_for_here.composite, (
            select h.broker_id from pgps_internal.hosted_part h
            where h.composite_id = (reasons_for_here.composite).composite_id)) -> 'reasons', '{}')
        || coalesce((select jsonb_object_agg(n, p.reason)
            from pgps_internal.composite_part p cross join unnest(p.nodes) n
            where p.composite_id = (reasons_for_here.composite).composite_id and p.reason is not null), '{}')
$$;
comment on function pgps_internal.reasons_for_here(pgps_internal.composite) is
'By node, why a sub-expression whose events all come by one neighbour is detected here';

create or replace function pgps_internal.nodes_elsewhere(composite pgps_internal.composite)
returns table (node text, broker text, forwards text)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with recursive below as (
        select n as name, p.broker, p.broker as forwards
        from pgps_internal.composite_part p cross join unnest(p.nodes) n
        where p.composite_id = (nodes_elsewhere.composite).composite_id and p.reason is null
        union
        select c, b.broker, null
        from below b
        join jsonb_array_elements((nodes_elsewhere.composite).parsed -> 'nodes') n on n ->> 'name' = b.name
        cross join jsonb_array_elements_text(n -> 'parts') c
    )
    select b.name, b.broker, max(b.forwards) from below b group by b.name, b.broker
$$;
comment on function pgps_internal.nodes_elsewhere(pgps_internal.composite) is
'The nodes of a composite event that a neighbour detects; forwards: it tells what it detects of this one';

create or replace function pgps_internal.do_plan_composite(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_composite pgps_internal.composite := pgps_internal.find_composite(caller, args ->> 'name');
begin
    return (
        with place as materialized (select * from pgps_internal.places_of_leaves(v_composite)),
        reason as materialized (select pgps_internal.reasons_for_here(v_composite) as of_node),
        away as materialized (select * from pgps_internal.nodes_elsewhere(v_composite)),
        node as (
            select n ->> 'name' as name, n ->> 'text' as text, n ->> 'op' as op, n -> 'leaves' as leaves,
                n -> 'parts' as parts, o
            from jsonb_array_elements(v_composite.parsed -> 'nodes') with ordinality x(n, o)
        )
        select to_jsonb(array_agg(jsonb_build_array(n.name, n.text, w.broker, w.neighbour, b.behind, n.parts,
                (select count(*) from pgps_internal.open_now q where q.state_id = v_composite.state_id
                    and q.node = n.name),
                case when n.op <> 'leaf' and b.behind is not null and a.node is null
                    then coalesce(r.of_node ->> n.name, 'its events came from elsewhere when it was created') end)
            order by n.o, w.neighbour nulls first, w.broker))
        from node n
        cross join reason r
        left join away a on a.node = n.name
        cross join lateral (
            select case when count(distinct coalesce(p.neighbour, '')) = 1 then max(p.neighbour) end as behind
            from place p where n.leaves @> to_jsonb(p.leaf)) b
        left join lateral (
            select distinct p.broker, case when a.node is null then p.neighbour else a.forwards end as neighbour
            from place p where n.op = 'leaf' and n.leaves @> to_jsonb(p.leaf)
            union all
            select coalesce(a.broker, p.broker), a.forwards from pgps_internal.progress p
            where n.op <> 'leaf') w on true);
end
$$;
comment on function pgps_internal.do_plan_composite(name, jsonb) is 'See pgps.plan_composite_event';

drop function if exists pgps.plan_composite_event(text);
create or replace function pgps.plan_composite_event(name text)
returns table (
    node text, expression text, broker text, forwards text, behind text, parts text[], open bigint, reason text
)
language sql
begin atomic
    select l ->> 0, l ->> 1, l ->> 2, l ->> 3, l ->> 4, array(select jsonb_array_elements_text(l -> 5)),
        (l ->> 6)::bigint, l ->> 7
    from jsonb_array_elements(pgps._call('plan_composite', jsonb_build_object('name', plan_composite_event.name)))
        with ordinality x(l, o) order by o;
end;
comment on function pgps.plan_composite_event(text) is
'The event graph of a composite event, the whole expression first, and where each of its nodes is detected now: here or
at a neighbour, and a leaf where its events are advertised, since its predicate travels (one row for each such broker;
broker null: nobody advertises them). forwards: the neighbour by which what happens in the node comes here; null: it
does not, or is of this broker. behind: the neighbour behind which all leaves of this sub-expression lie, null = here,
or behind several; reason: why it is detected here all the same. node is the same for the same sub-expression of any
composite event; parts: the nodes that it is made of, in their order; open: how much is open in it here. Needs to own
it, or pgps_admin. Errors: 42704, 42501.';

grant execute on function pgps.plan_composite_event(text) to public;
