-- Paths to the origins: which of those that are offered may be taken, which one is, since when its neighbour has been
-- asked for what this broker lacks, and what is offered to whom.
-- Locks: the turn of routes, one change of them at a time, until the transaction ends.
-- Writes: activation, offer, origin.

create or replace function pgps_internal.weigh_paths() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Never a path that does not carry a type of which a filter is in force, while somebody promises it: its silence
    -- would look complete. If nobody promises it, because the origin does not publish it now, only a path that would
    -- bring all types will do. There is one horizon for all of them: of a type that is promised again, what came
    -- meanwhile would be behind it. So what cannot come another way is late rather than lost (decision 20).
    -- A neighbour knows best what it publishes itself: others are not believed to carry types that it neither promises
    -- nor withholds, and what it has never promised or withheld does not keep it from being the parent (decision 125).
    with word as materialized (select w.* from pgps_internal.own_words() w),
    -- Nothing more is taken of an origin of which the broker itself knows nothing, whoever offers it.
    denied as (
        update pgps_internal.origin o set parent = null, attachment = o.attachment + 1, is_settled = false
        from word w where w.origin_id = o.origin_id and w.is_denied and o.parent <> w.neighbour_id
    ),
    up as materialized (select n.neighbour_id, pgps_internal.is_up(n.neighbour_id) as is_up
        from pgps_internal.neighbour n),
    carried as materialized (
        select c.* from pgps_internal.carried c join pgps_internal.event_type t using (type_id)
        where not exists (select from word w where w.origin_id = c.origin_id and w.neighbour_id <> c.neighbour_id
            and w.is_up and w.withheld is not null and t.name <> all (w.types)
            and pgps_internal.veiled(w.broker_id, t.name) <> all (w.withheld))
    ),
    in_force as materialized (
        select distinct a.origin_id, f.type_id from pgps_internal.activation a
            join pgps_internal.link_filter f using (key) join pgps_internal.event_type t using (type_id)
        where (exists (select from pgps_internal.pushed p where p.key = a.key)
                or exists (select from pgps_internal.still_wanted w where w.key = a.key))
            and not exists (select from word w where w.origin_id = a.origin_id and w.withheld is not null
                and pgps_internal.veiled(w.broker_id, t.name) <> all (w.said))
    ),
    weighed as (
        select o.neighbour_id, o.origin_id, (
                select count(*) from carried c where c.neighbour_id = o.neighbour_id
                    and c.origin_id = o.origin_id) as types_carried,
            n.direction <> 'out' and not n.is_blocked and u.is_up
            and not exists (select from word w
                where w.origin_id = o.origin_id and w.is_denied and w.neighbour_id <> o.neighbour_id)
            -- Nobody attaches anew by a link that is being dropped.
            and not (n.is_draining and (pgps_internal.was_told(n.neighbour_id, 'drain')
                or not exists (select from pgps_internal.told t where t.neighbour_id = n.neighbour_id
                    and t.kind = 'attach' and t.key = o.origin_id::text)))
            and (g.parent is not distinct from n.neighbour_id
                or not exists (select from in_force i where i.origin_id = o.origin_id
                and not exists (select from carried c
                    where c.neighbour_id = o.neighbour_id and c.origin_id = o.origin_id and c.type_id = i.type_id)
                and (exists (select from carried c where c.origin_id = o.origin_id and c.type_id = i.type_id)
                    -- An origin that has lost its parent for good takes what there is.
                    or g.parent is not null
                        and not (o.is_open and pgps_internal.may_carry(o.neighbour_id, i.type_id))))) as is_usable
        from pgps_internal.offer o join pgps_internal.neighbour n using (neighbour_id) join up u using (neighbour_id)
            join pgps_internal.origin g using (origin_id)
    )
    update pgps_internal.offer o set is_usable = w.is_usable, types_carried = w.types_carried
    from weighed w where w.neighbour_id = o.neighbour_id and w.origin_id = o.origin_id
        and (o.is_usable, o.types_carried) is distinct from (w.is_usable, w.types_carried);
end
$$;
comment on function pgps_internal.weigh_paths() is
'Rule 1 of the horizon: notes for each path that is offered how many types it carries, and whether it may be taken';

create or replace function pgps_internal.choose_parents() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.weigh_paths();
    -- The best neighbour that can be reached: by the number of types it carries, not draining, cost, length of the
    -- path, uuid. If none can be reached, the old parent stays and is waited for. A link that is being dropped, at
    -- whichever broker, comes after others that carry as many types: two brokers that drop theirs to the same one, and
    -- are linked, would otherwise choose each other, and both links would wait for good for an answer that neither can
    -- give. A parent that costs as little as the best stays.
    with best as (
        select distinct on (f.origin_id) f.origin_id, f.neighbour_id
        from pgps_internal.offer f join pgps_internal.neighbour n using (neighbour_id)
            join pgps_internal.origin g using (origin_id)
        where f.is_usable
        order by f.origin_id, f.types_carried desc, f.is_draining or n.is_draining, f.cost,
            f.neighbour_id = g.parent desc nulls last, cardinality(f.path), n.broker_id
    )
    update pgps_internal.origin o set parent = b.neighbour_id, attachment = o.attachment + 1, is_settled = false,
        parent_since = pgps_internal.horizon(o.origin_id)
    from best b where b.origin_id = o.origin_id and o.parent is distinct from b.neighbour_id;
    if found then
        update pgps_internal.activation a set is_confirmed = false
        from pgps_internal.origin o where o.origin_id = a.origin_id and not exists (select from pgps_internal.told t
            where t.neighbour_id = o.parent and t.kind = 'attach' and t.key = o.origin_id::text
                and (t.value ->> 'attachment')::integer = o.attachment);
    end if;
end
$$;
comment on function pgps_internal.choose_parents() is 'Rule 1 of the horizon: chooses the parent for each origin';

create or replace function pgps_internal.ads_for(neighbour pgps_internal.neighbour)
returns table (origin_id integer, path uuid[], cost integer, types text[], is_draining boolean, is_open boolean)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    -- A path that is not in use is offered to the parent, which may turn to it, only if this broker would take it
    -- itself. Otherwise the two might choose each other, and wait for each other for good. So who follows the offers
    -- from child to parent comes to paths that are better, and never back.
    return query
    with known as (
        select o.origin_id, null::integer as neighbour_id, array[o.broker_id] as path, 0 as cost, true as is_parent,
            array(select t.name from pgps_internal.event_type t
                where exists (select from pgps_internal.advertisement a join pg_roles r on r.oid = a.role::oid
                    where a.type_id = t.type_id)) as types,
            0 as types_carried, false as is_draining, true as is_open
        from pgps_internal.origin o where o.is_self
        union all
        select f.origin_id, f.neighbour_id, (select b.broker_id from pgps_internal.broker b) || f.path, f.cost,
            f.neighbour_id = o.parent, f.types, f.types_carried, f.is_draining or n.is_draining, f.is_open
        from pgps_internal.offer f join pgps_internal.origin o using (origin_id) join pgps_internal.neighbour n
            using (neighbour_id)
        where f.neighbour_id <> (ads_for.neighbour).neighbour_id and not (ads_for.neighbour).broker_id = any (f.path)
            and (f.neighbour_id = o.parent or f.is_usable)
    ),
    best as materialized (
        select distinct on (k.origin_id) k.* from known k
        order by k.origin_id, k.is_parent desc nulls last, k.types_carried desc, k.is_draining, k.cost,
            cardinality(k.path), k.path
    ),
    -- What comes by each of these ways and may go on; open: so would each type of which nothing is published yet.
    ways as materialized (
        select w.neighbour_id, t.types, t.is_all and pgps_internal.setting('link_create_types')::boolean
            and not exists (select from pgps_internal.foreign_type x where x.difference is not null
                and x.neighbour_id in (w.neighbour_id, (ads_for.neighbour).neighbour_id)) as is_open
        from (select distinct b.neighbour_id from best b) w
        left join pgps_internal.neighbour n using (neighbour_id)
        cross join lateral (
            select coalesce(array_agg(y.name) filter (where y.goes_on), '{}') as types,
                coalesce(bool_and(y.goes_on), true) as is_all
            from (select t.name, has_table_privilege((ads_for.neighbour).role::oid, t.endpoint, 'select')
                    and (n.role is null or has_table_privilege(n.role::oid, t.endpoint, 'insert')
                        and not exists (select from pgps_internal.foreign_type x
                            where x.neighbour_id = n.neighbour_id and x.name = t.name and x.difference is not null))
                    as goes_on
                from pgps_internal.event_type t) y
        ) t
    )
    select b.origin_id, b.path, b.cost,
        array(select p.name from unnest(b.types) p(name) join unnest(w.types) g(name) using (name)
            -- Types of rooms have this prefix; asked for each type, it would be felt in every refresh.
            where not case when starts_with(p.name, 'pgps_')
                then pgps_internal.is_kept_from(p.name, ads_for.neighbour) else false end order by p.name),
        b.is_draining, b.is_open and w.is_open
    from best b join ways w on w.neighbour_id is not distinct from b.neighbour_id;
end
$$;
comment on function pgps_internal.ads_for(pgps_internal.neighbour) is
'What this broker offers to a neighbour: each origin by the path its events come on, or the best one that does not lead
through the neighbour and that this broker may take; of the types that come here, those that its role may receive';

create or replace function pgps_internal.note_asked() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A parent that is asked once more before it has answered has been asked since the first time.
    if old.asked_at is null or old.answered is not distinct from old.attachment
        or old.parent is distinct from new.parent then
        new.asked_at := pgps_internal.clock();
    end if;
    return new;
end
$$;
comment on function pgps_internal.note_asked() is
'Trigger before an origin gets another attachment: notes since when its parent has not answered';

do $$
begin
    if not exists (select from pg_catalog.pg_trigger where tgname = 'pgps_asked'
        and tgrelid = 'pgps_internal.origin'::regclass) then
        create trigger pgps_asked before update on pgps_internal.origin for each row
        when (old.attachment <> new.attachment) execute function pgps_internal.note_asked();
    end if;
end
$$;
