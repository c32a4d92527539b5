-- Who wants what of which origin: the subscriptions here and the neighbours, by filter.
-- Locks: none.
-- Writes: nothing.

create or replace view pgps_internal.still_wanted as
-- What a neighbour that leaves has wanted is sent up to the batch at which its filters end. Until they are gone they
-- are asked for on the way here as before: what comes meanwhile would otherwise be sent as all of the origin up to
-- there, and some of it never asked for.
select w.* from pgps_internal.wanted w join pgps_internal.neighbour n using (neighbour_id)
where w.gone_batch is null or n.is_draining;
comment on view pgps_internal.still_wanted is
'Filters of neighbours that have to be in force here: not withdrawn, or only because the link is being dropped and what
was published before is still to be sent';

create or replace function pgps_internal.interests()
returns table (neighbour_id integer, origin_id integer, key text, type_id integer)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    -- A function, because it is planned once in a session, and a view in each statement that uses it: that took a
    -- quarter of the processor time of a link's new session before its first event. Callers need most of the rows
    -- anyway.
    return query
    with carried as materialized (select c.* from pgps_internal.carried c),
    -- What is in force here, or a child has had without a break and keeps, goes on being asked for where the parent
    -- does not offer the type. The path may just not have been told yet that the type is published; or the origin does
    -- not publish it, and said of all filters of its neighbours that they are in force. If such a filter were dropped,
    -- events would be missing between those before and those after; if it were not answered, the child would get
    -- nothing of the origin at all.
    -- Asked once for each parent and type, since it reads the catalogue.
    unoffered as materialized (
        select x.origin_id, x.key, l.type_id, o.parent
        from (select a.origin_id, a.key from pgps_internal.activation a
            union select t.origin_id, k from pgps_internal.attached t, unnest(t.keep) k) x
        join pgps_internal.link_filter l using (key)
        join pgps_internal.origin o using (origin_id)
        where o.parent is not null and not exists (select from carried c
            where c.neighbour_id = o.parent and c.origin_id = x.origin_id and c.type_id = l.type_id)
    ),
    lacking as materialized (
        select u.* from unoffered u
        -- "offset 0", since the planner would ask before it removes duplicates.
        join (select distinct u.parent, u.type_id from unoffered u offset 0) d using (parent, type_id)
        where pgps_internal.may_carry(d.parent, d.type_id)
    )
    select null::integer, f.origin_id, p.key, p.type_id
    from pgps_internal.pushed p
    join carried f using (type_id)
    join pgps_internal.origin o on o.origin_id = f.origin_id and o.parent = f.neighbour_id
    union
    select w.neighbour_id, a.origin_id, w.key, l.type_id
    from pgps_internal.still_wanted w
    join pgps_internal.link_filter l using (key)
    join pgps_internal.attached a using (neighbour_id)
    join carried f on f.origin_id = a.origin_id and f.type_id = l.type_id
        and pgps_internal.goes_as_far(w.reach - 1, f.links)
    join pgps_internal.origin o on o.origin_id = f.origin_id and o.parent = f.neighbour_id
    where o.parent <> w.neighbour_id
    union
    select null, l.origin_id, l.key, l.type_id from lacking l join pgps_internal.pushed p using (key)
    union
    select w.neighbour_id, l.origin_id, l.key, l.type_id
    from lacking l
    join pgps_internal.still_wanted w using (key)
    join pgps_internal.attached a on a.neighbour_id = w.neighbour_id and a.origin_id = l.origin_id
    where l.parent <> w.neighbour_id and pgps_internal.goes_as_far(w.reach - 1, pgps_internal.links_to(l.origin_id));
end
$$;
comment on function pgps_internal.interests() is 'The rows of the view pgps_internal.interest';

create or replace view pgps_internal.interest as
-- neighbour_id null = this broker itself. A neighbour's interest covers the origins that it has attached here. The
-- parent for an origin has none in that origin, since it does not get its events from here; nor has one whose filter
-- ends on the way to it.
select i.neighbour_id, i.origin_id, i.key, i.type_id from pgps_internal.interests() i;
comment on view pgps_internal.interest is 'Who wants which filter of which origin, as far as a parent is known for it';

create or replace function pgps_internal.all_interests() returns pgps_internal.interest[]
language sql stable
set search_path = pg_catalog, pg_temp
as $$ select coalesce(array_agg(i), '{}') from pgps_internal.interest i $$;
comment on function pgps_internal.all_interests() is
'The rows of the view pgps_internal.interest, for functions that need them several times';
