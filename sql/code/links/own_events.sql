-- Which events of a batch were published here: a batch also contains events that came from other brokers.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.published_here(ids int8multirange) returns int8multirange
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return published_here.ids - coalesce((select range_agg(r) from pgps_internal.arrival a, unnest(a.ids) r
        where a.hi >= lower(published_here.ids) and a.lo < upper(published_here.ids) and a.ids && published_here.ids),
        '{}');
end
$$;
comment on function pgps_internal.published_here(int8multirange) is
'Those of some events that were published here, and did not come from another broker';

create or replace function pgps_internal.published_between(after bigint, upto bigint, types integer[])
returns table (batch_id bigint, type_id integer, ids int8multirange)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with part as materialized (
        select b.batch_id, b.type_id, b.ids from pgps_internal.batch_type b
        where b.batch_id > published_between.after and b.batch_id <= published_between.upto
            and (published_between.types is null or b.type_id = any (published_between.types)) and not isempty(b.ids)
    ),
    -- Looking for what came from others costs the same for a batch and for many.
    here as materialized (
        select p.batch_id / 64 as portion, pgps_internal.published_here(range_agg(r)) as ids
        from part p cross join unnest(p.ids) r group by 1
    )
    select p.batch_id, p.type_id, p.ids * h.ids from part p join here h on h.portion = p.batch_id / 64
$$;
comment on function pgps_internal.published_between(bigint, bigint, integer[]) is
'The events of some types (null: of all) in batches of this broker behind after up to upto that were published here';

create or replace function pgps_internal.own_events(after bigint, upto bigint)
returns table (type_id integer, first_batch bigint, events bigint, places numeric, sampled bigint, ids int8multirange)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with own as materialized (
        select b.batch_id, b.type_id, b.ids from pgps_internal.published_between(own_events.after, own_events.upto,
            null) b
    ),
    counted as materialized (
        select o.*, n.events, pgps_internal.is_sampled(o.batch_id, n.events) as is_sampled
        from own o cross join lateral (select sum(upper(r) - lower(r))::bigint as events from unnest(o.ids) r) n
            where not isempty(o.ids)
    )
    select c.type_id, min(c.batch_id), sum(c.events)::bigint, sum(c.events * pgps_internal.place_hash(c.batch_id)),
        coalesce(sum(c.events) filter (where c.is_sampled), 0)::bigint,
        coalesce((select range_agg(r) from counted x, unnest(x.ids) r where x.type_id = c.type_id and x.is_sampled),
            '{}')
    from counted c group by c.type_id
$$;
comment on function pgps_internal.own_events(bigint, bigint) is
'The events of some batches that were published here, by event type: how many, the sum of place_hash over them, and how
many and which of them are in batches whose contents are compared';
