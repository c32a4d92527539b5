-- The audit under narrower filters at the receiver: compares what a parent has counted in its log with what came. See
-- audit_recount.sql.
-- Locks: those of audit_compare.sql.
-- Writes: audit_recounted.

create or replace function pgps_internal.arrivals_behind(origin_id integer, place bigint)
returns setof pgps_internal.arrival
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- Read from the newest back to the last one that is not behind it: horizons of an origin never go back.
    select a.* from pgps_internal.arrival a
    where a.origin_id = arrivals_behind.origin_id and a.upto > arrivals_behind.place
        and a.arrival_id > coalesce((select b.arrival_id from pgps_internal.arrival b
            where b.origin_id = arrivals_behind.origin_id and b.horizon <= arrivals_behind.place
            order by b.arrival_id desc limit 1), 0)
$$;
comment on function pgps_internal.arrivals_behind(integer, bigint) is
'What the ledger of arrivals has of the batches of an origin behind one of them (place)';

create or replace function pgps_internal.compare_recounts(origin_id integer, body jsonb)
returns table (type_id integer, after bigint, upto bigint, there bigint, here bigint, ids int8multirange,
    is_compared boolean, is_equal boolean)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- Compared is what came by this attachment alone: by another path other filters were in force, and what came by it
    -- does not come again; of what is fetched again for children a part came before. Nor what comes behind the count,
    -- in the same batch: at a place before it lies what the parent fetches for another child.
    select s.type_id, s.after, s.upto, s.events, n.events, n.ids,
        not n.is_mixed and not n.is_unknown
            -- A row of the ledger that is as old as that is still there, so none of those counted has gone with its
            -- segment.
            and exists (select from pgps_internal.arrival a where a.origin_id = compare_recounts.origin_id
                and a.horizon <= s.after)
            and not exists (select from pgps_internal.gap g where g.origin_id = compare_recounts.origin_id
                and g.after_batch < s.upto and g.upto > s.after),
        n.events = s.events and mod(n.places, 1152921504606846976) = s.places
    from (select t.type_id, (e.value ->> 'after')::bigint as after, (e.value ->> 'upto')::bigint as upto,
            (e.value ->> 'modulus')::bigint as modulus, (e.value ->> 'events')::bigint as events,
            (e.value ->> 'places')::numeric as places
        from jsonb_each(compare_recounts.body -> 'recounts') e join pgps_internal.event_type t on t.name = e.key
        where pgps_internal.audits(t) and (e.value ->> 'modulus')::bigint > 0) s
    cross join lateral (
        select coalesce(sum(y.events) filter (where i.is_counted), 0)::bigint as events,
            coalesce(sum(y.events * pgps_internal.place_hash(a.upto)) filter (where i.is_counted), 0) as places,
            coalesce(range_agg(a.ids) filter (where i.is_counted and y.type_id is not null), '{}') as ids,
            coalesce(bool_or(a.tallies is null and a.ids is not null and a.attachment <> -1)
                filter (where i.is_counted), false) as is_unknown,
            coalesce(bool_or(a.attachment not in (-1, (compare_recounts.body ->> 'attachment')::integer)), false)
                as is_mixed
        from pgps_internal.arrivals_behind(compare_recounts.origin_id, s.after) a
        left join unnest(a.tallies) y on y.type_id = s.type_id
        cross join lateral (select a.upto <= s.upto and pgps_internal.is_one_in(s.modulus, a.upto)
            and (a.attachment = -1 or a.lseq < (compare_recounts.body ->> 'lseq')::bigint) as is_counted) i) n
$$;
comment on function pgps_internal.compare_recounts(integer, jsonb) is
'What a parent has counted of an origin (there), what came before (here; ids, also of other types), and whether the two
can be compared, by event type. body: with the number of the message (lseq)';

create or replace function pgps_internal.hear_recounts(neighbour pgps_internal.neighbour, body jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_origin integer := (pgps_internal.answered_origin(hear_recounts.neighbour, hear_recounts.body)).origin_id;
    v_different bigint;
begin
    if v_origin is null or not pgps_internal.setting('audit')::boolean then
        return;
    end if;
    with compared as materialized (
        select c.* from pgps_internal.compare_recounts(v_origin, hear_recounts.body) c
    ),
    noted as (
        insert into pgps_internal.audit_recounted as r (origin_id, type_id, there, here, compared)
        select v_origin, c.type_id, c.there, c.here, 1 from compared c where c.is_compared
        on conflict on constraint audit_recounted_pkey do update
        set there = r.there + excluded.there, here = r.here + excluded.here, compared = r.compared + excluded.compared
    ),
    kept as materialized (
        select c.*, pgps_internal.contents(t, c.ids) as found from compared c
            join pgps_internal.event_type t using (type_id) where c.is_compared and c.here > 0
    ),
    lacking as materialized (
        select k.*, (k.found).events as present from kept k where (k.found).events < k.here
    ),
    differing as (
        select 'log' as kind, case when c.there <> c.here then 'count' else 'places' end as what, c.type_id, c.after,
            c.upto, c.there, c.here
        from compared c where c.is_compared and not c.is_equal
        union all
        -- Not those that constraints here refused.
        select 'here', 'count', l.type_id, l.after, l.upto, l.here, l.present
        from lacking l
        where not pgps_internal.is_truncated(l.type_id, l.ids)
            and not exists (select from pgps_internal.rejected r where r.origin_id = v_origin
                and r.type_id = l.type_id and r.origin_batch > l.after and r.origin_batch <= l.upto)
    )
    select count(pgps_internal.note_difference(d.kind, d.what, (hear_recounts.neighbour).name, v_origin, d.type_id,
        d.after, d.upto, d.there, d.here)) into v_different from differing d;
end
$$;
comment on function pgps_internal.hear_recounts(pgps_internal.neighbour, jsonb) is
'Handles what a parent has counted of an origin in its log under the filters of this broker: compares it with what
came';

create or replace function pgps_internal.hear_counts(neighbour pgps_internal.neighbour, body jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if hear_counts.body ? 'recounts' then
        perform pgps_internal.hear_recounts(hear_counts.neighbour, hear_counts.body);
    else
        perform pgps_internal.hear_audit(hear_counts.neighbour, hear_counts.body);
    end if;
end
$$;
comment on function pgps_internal.hear_counts(pgps_internal.neighbour, jsonb) is
'Handles what a parent states of an origin for the audit: its totals, or what filters select';
