-- The audit under narrower filters: a sender counts, in its log, what the filters of a neighbour select of an origin's
-- events, and the neighbour compares this with what came. What was matched, packed and sent has no part in the count,
-- so that events which one of these left out are named, at each hop. See decision 26.
-- Locks: those of audit.sql.
-- Writes: audit_recount, audit_recounted, shipment.

create or replace function pgps_internal.recount_modulus(events bigint) returns bigint
language sql immutable
as $$
    select case when recount_modulus.events <= 1000 then 1 when recount_modulus.events <= 16000 then 16
        when recount_modulus.events <= 256000 then 256 else 4096 end
$$;
comment on function pgps_internal.recount_modulus(bigint) is
'Of how many batches of an origin one is recounted, if they have so many events';

create or replace function pgps_internal.filters_in_force(neighbour pgps_internal.neighbour)
returns table (type_id integer, filters text, is_narrow boolean)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- A class that is taken away and comes back has another first batch; a grant or revoke changes xmin. The wider
    -- classes that are not narrow are in the digest, too: what was selected before they came is not what came since.
    select m.type_id, md5(concat_ws(' ', r.xmin::text, t.has_policy, pgps_internal.audits(t),
        string_agg(concat_ws('/', m.class_id, m.from_batch, c.is_active, c.signature_id), ' '
            order by m.class_id, m.from_batch))),
        bool_and(c.is_active and c.signature_id is not null) and pgps_internal.audits(t) and not t.has_policy
            and has_table_privilege((filters_in_force.neighbour).role::oid, t.endpoint, 'select')
    from pgps_internal.member m join pgps_internal.class c using (class_id)
        join pgps_internal.event_type t on t.type_id = m.type_id join pg_class r on r.oid = t.endpoint
    where m.subscription_id = (filters_in_force.neighbour).subscription_id
    group by m.type_id, t.*, t.has_policy, t.endpoint, r.xmin::text
$$;
comment on function pgps_internal.filters_in_force(pgps_internal.neighbour) is
'The event types that a neighbour wants, with a digest of its filters and rights. is_narrow: it wants some events only,
and may see all';

create or replace function pgps_internal.settled_place(
    neighbour pgps_internal.neighbour, origin pgps_internal.origin, attachment integer, after bigint, packed bigint
) returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select case when (settled_place.origin).is_self then settled_place.packed
        when a.first_open is null then pgps_internal.reached((settled_place.origin).origin_id)
        when a.first_open <= a.last_done then null else a.first_open - 1 end
    from pgps_internal.open_arrivals((settled_place.origin).origin_id, coalesce(settled_place.after, pgps_internal.sent(
        (settled_place.neighbour).neighbour_id, (settled_place.origin).origin_id, settled_place.attachment)),
        settled_place.packed) a
$$;
comment on function pgps_internal.settled_place(pgps_internal.neighbour, pgps_internal.origin, integer, bigint, bigint)
is
'Up to which batch of an origin all items are in batches up to packed, and no item behind is; null if items that came
later were dispatched before. after: an earlier such place; null: none is known';

create or replace function pgps_internal.recount_windows(neighbour pgps_internal.neighbour, packed bigint)
returns table (origin_id integer, type_id integer, attachment integer, filters text, after bigint, after_packed bigint,
    upto bigint)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with live as materialized (
        select a.origin_id, a.attachment, o as origin
        from pgps_internal.attached a join pgps_internal.origin o using (origin_id)
        where a.neighbour_id = (recount_windows.neighbour).neighbour_id and a.is_live
            and not (o.is_self and o.to_batch is not null)
    ),
    wanted as materialized (select w.* from pgps_internal.filters_in_force(recount_windows.neighbour) w),
    known as materialized (
        -- Counted from here on, if it was with the same filters, and there are not too many batches.
        select l.*, w.type_id, w.filters, k.upto as after, k.packed as after_packed
        from live l cross join wanted w left join pgps_internal.audit_recount k
            on k.neighbour_id = (recount_windows.neighbour).neighbour_id and k.origin_id = l.origin_id
            and k.type_id = w.type_id and k.attachment = l.attachment and k.filters = w.filters
            and k.packed > recount_windows.packed - 10000
        -- Of the others it is only noted once that they are so.
        where w.is_narrow or k.filters is null and exists (select from pgps_internal.audit_recount x
            where x.neighbour_id = (recount_windows.neighbour).neighbour_id and x.origin_id = l.origin_id
            and x.type_id = w.type_id and x.filters <> w.filters)
    ),
    place as materialized (
        select l.origin_id, pgps_internal.settled_place(recount_windows.neighbour, l.origin, l.attachment,
            (select min(k.after) from known k where k.origin_id = l.origin_id), recount_windows.packed) as upto
        from live l
        where exists (select from known k where k.origin_id = l.origin_id
            and k.after_packed is distinct from recount_windows.packed)
    )
    select k.origin_id, k.type_id, k.attachment, k.filters, k.after, k.after_packed, p.upto
    from known k join place p using (origin_id)
    where p.upto is not null and k.after_packed is distinct from recount_windows.packed
$$;
comment on function pgps_internal.recount_windows(pgps_internal.neighbour, bigint) is
'The batches of each origin whose events of a type are to be recounted for a neighbour: those behind after up to upto,
which are in the batches of this broker behind after_packed up to packed. after: null = from upto on, next time';

create or replace function pgps_internal.items_between(
    type_ids integer[], after bigint, upto bigint
) returns table (origin_id integer, upto bigint, type_id integer, ids int8multirange)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with part as materialized (
        select b.batch_id, b.type_id, b.ids from pgps_internal.batch_type b
        where b.batch_id > items_between.after and b.batch_id <= items_between.upto
            and b.type_id = any (items_between.type_ids) and not isempty(b.ids)
    ),
    came as materialized (
        select p.batch_id, p.type_id, a.origin_id, a.upto, p.ids * a.ids as ids
        from part p join pgps_internal.arrival a on a.hi >= lower(p.ids) and a.lo < upper(p.ids) and a.ids && p.ids
    ),
    own as (
        select o.origin_id, p.batch_id as upto, p.type_id, pgps_internal.published_here(p.ids) as ids
        from part p join pgps_internal.origin o on o.is_self and p.batch_id > o.from_batch
            and p.batch_id <= coalesce(o.to_batch, p.batch_id)
    )
    select x.origin_id, x.upto, x.type_id, range_agg(r)
    from (select c.origin_id, c.upto, c.type_id, c.ids from came c
        union all select o.origin_id, o.upto, o.type_id, o.ids from own o) x, unnest(x.ids) r
    group by x.origin_id, x.upto, x.type_id
$$;
comment on function pgps_internal.items_between(integer[], bigint, bigint) is
'The events of some types in batches of this broker behind after up to upto, by origin and batch of the origin';

create or replace function pgps_internal.selected_ids(
    neighbour pgps_internal.neighbour, type_id integer, ids int8multirange
) returns int8multirange
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_visible int8multirange;
    v_selected int8multirange;
    v_state text;
    v_context text;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = selected_ids.type_id;
    v_visible := pgps_internal.visible(v_type, (selected_ids.neighbour).role, selected_ids.ids);
    if v_visible <> selected_ids.ids then
        -- Some are gone; each broker looks for what it has taken, or published, itself.
        return null;
    end if;
    begin
        perform pgps_internal.match_signature(0, g, v_visible, null) from pgps_internal.signature g
        where g.signature_id in (select c.signature_id from pgps_internal.member m join pgps_internal.class c
            using (class_id) where m.subscription_id = (selected_ids.neighbour).subscription_id
            and m.type_id = selected_ids.type_id);
        select coalesce(range_agg(r), '{}') into v_selected
        from pgps_internal.delivery d join pgps_internal.member m using (class_id)
        cross join lateral (select unnest(d.ids) union all select int8range(e, e, '[]') from unnest(d.event_ids) e) u(r)
        where d.batch_id = 0 and m.subscription_id = (selected_ids.neighbour).subscription_id
            and m.type_id = selected_ids.type_id;
        -- Taken back, so that no row is left of what was only a question.
        raise sqlstate 'PS000';
    exception
        when sqlstate 'PS000' then
            return v_selected;
        when others or assert_failure or query_canceled then
            get stacked diagnostics v_state = returned_sqlstate, v_context = pg_exception_context;
            if pgps_internal.is_cancelled(v_state, v_context) then
                raise;
            end if;
            -- A filter raised on one of them: events on which it does are sent though it does not select them.
            return null;
    end;
end
$$;
comment on function pgps_internal.selected_ids(pgps_internal.neighbour, integer, int8multirange) is
'Those of some events that the filters of a neighbour select in the log; null if that cannot be said';

create or replace function pgps_internal.tell_recounts(neighbour pgps_internal.neighbour, packed bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id integer := (tell_recounts.neighbour).neighbour_id;
begin
    if not (tell_recounts.neighbour).is_recounted or not pgps_internal.setting('audit')::boolean
            or exists (select from pgps_internal.audit_recount t where t.neighbour_id = v_id
                and t.told_at > pgps_internal.clock() - pgps_internal.setting('link_report_interval')::interval) then
        return;
    end if;
    with news as materialized (
        select w.* from pgps_internal.recount_windows(tell_recounts.neighbour, tell_recounts.packed) w
    ),
    counted as (
        insert into pgps_internal.audit_recount as t (neighbour_id, origin_id, type_id, attachment, filters, upto,
            packed, told_at)
        select v_id, w.origin_id, w.type_id, w.attachment, w.filters, w.upto, tell_recounts.packed,
            pgps_internal.clock() from news w
        on conflict on constraint audit_recount_pkey do update
        set attachment = excluded.attachment, filters = excluded.filters, upto = excluded.upto,
            packed = excluded.packed, told_at = excluded.told_at
    ),
    item as materialized (
        select i.*, w.after, w.upto as stated, pgps_internal.recount_modulus(sum(pgps_internal.count_ids(i.ids))
            over (partition by i.origin_id, i.type_id)::bigint) as modulus
        from (select array_agg(distinct w.type_id) as types, min(w.after_packed) as after from news w
            where w.after is not null) x
        cross join lateral pgps_internal.items_between(x.types, x.after, tell_recounts.packed) i
        join news w on w.origin_id = i.origin_id and w.type_id = i.type_id and i.upto > w.after and i.upto <= w.upto
    ),
    chosen as materialized (
        select i.* from item i where pgps_internal.is_one_in(i.modulus, i.upto)
    ),
    selected as materialized (
        select x.type_id, pgps_internal.selected_ids(tell_recounts.neighbour, x.type_id, x.ids) as ids
        from (select c.type_id, range_agg(r) as ids from chosen c, unnest(c.ids) r group by c.type_id) x
    ),
    stated as (
        select c.origin_id, t.name, c.after, c.stated, c.modulus, sum(n.events) as events,
            sum(n.events * pgps_internal.place_hash(c.upto)) as places
        from chosen c join selected s using (type_id) join pgps_internal.event_type t using (type_id)
        cross join lateral (select pgps_internal.count_ids(c.ids * s.ids) as events) n
        where s.ids is not null group by c.origin_id, t.name, c.after, c.stated, c.modulus
    )
    insert into pgps_internal.shipment (neighbour_id, lseq, kind, body)
    select v_id, pgps_internal.last_sent(v_id) + row_number() over (order by s.origin_id), 'audit',
        jsonb_build_object('broker', o.broker_id, 'epoch', o.epoch, 'attachment', a.attachment,
            'recounts', jsonb_object_agg(s.name, jsonb_build_object('after', s.after, 'upto', s.stated, 'modulus',
            s.modulus, 'events', s.events, 'places', mod(s.places, 1152921504606846976))))
    from stated s join pgps_internal.origin o using (origin_id)
        join pgps_internal.attached a on a.neighbour_id = v_id and a.origin_id = s.origin_id
    group by s.origin_id, o.broker_id, o.epoch, a.attachment;
end
$$;
comment on function pgps_internal.tell_recounts(pgps_internal.neighbour, bigint) is
'Tells a neighbour how many events of each origin its filters select in the log, behind these events; at most every
link_report_interval';

create or replace function pgps_internal.compare_recounts(origin_id integer, body jsonb)
returns table (type_id integer, after bigint, upto bigint, there bigint, here bigint, ids int8multirange,
    is_compared boolean, is_equal boolean)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select s.type_id, s.after, s.upto, s.events, n.events, n.ids,
        r.arrival_id is not null and not n.is_unknown
            -- Of what is fetched again for children a part was counted when it came first, maybe for other filters.
            and not exists (select from pgps_internal.origin o where o.origin_id = compare_recounts.origin_id
                and o.rewind_start is not null)
            -- All that is counted came behind the row of the ledger that is noted. If one that is as old as that is
            -- still there, none of them has gone with its segment.
            and exists (select from pgps_internal.arrival a where a.origin_id = compare_recounts.origin_id
                and a.arrival_id <= r.arrival_id)
            and not exists (select from pgps_internal.gap g where g.origin_id = compare_recounts.origin_id
                and g.after_batch < s.upto and g.upto > s.after),
        n.events = s.events and mod(n.places, 1152921504606846976) = s.places
    from (select t.type_id, (e.value ->> 'after')::bigint as after, (e.value ->> 'upto')::bigint as upto,
            (e.value ->> 'modulus')::bigint as modulus, (e.value ->> 'events')::bigint as events,
            (e.value ->> 'places')::numeric as places
        from jsonb_each(compare_recounts.body -> 'recounts') e join pgps_internal.event_type t on t.name = e.key
        where pgps_internal.audits(t) and (e.value ->> 'modulus')::bigint > 0) s
    left join pgps_internal.audit_recounted r on r.origin_id = compare_recounts.origin_id and r.type_id = s.type_id
    cross join lateral (
        select coalesce(sum(y.events), 0)::bigint as events,
            coalesce(sum(y.events * pgps_internal.place_hash(a.upto)), 0) as places,
            coalesce(range_agg(a.ids) filter (where y.type_id is not null), '{}') as ids,
            coalesce(bool_or(a.tallies is null and a.ids is not null and a.attachment <> -1), false) as is_unknown
        from pgps_internal.arrival a left join unnest(a.tallies) y on y.type_id = s.type_id
        where a.origin_id = compare_recounts.origin_id and a.arrival_id > r.arrival_id
            and a.upto > s.after and a.upto <= s.upto and pgps_internal.is_one_in(s.modulus, a.upto)) n
$$;
comment on function pgps_internal.compare_recounts(integer, jsonb) is
'What a parent has counted of an origin (there), what came (here; ids, also of other types), and whether the two can be
compared, by event type';

create or replace function pgps_internal.forget_recounted(origin_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- No row of the ledger is as old as that: the next count is not compared, and the comparison begins behind it.
    update pgps_internal.audit_recounted r set arrival_id = -1 where r.origin_id = forget_recounted.origin_id;
end
$$;
comment on function pgps_internal.forget_recounted(integer) is
'Called when a rewind ends: the next count of its origin covers batches of which this broker had a part before';

create or replace function pgps_internal.forget_recounts(neighbour_id integer, type_ids integer[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgps_internal.audit_recount k
    where k.neighbour_id = forget_recounts.neighbour_id and k.type_id = any (forget_recounts.type_ids);
end
$$;
comment on function pgps_internal.forget_recounts(integer, integer[]) is
'Called when filters of a neighbour are dropped: what was sent while they were in force is not to be counted under those
that are left, even if these are the same as when was counted last';

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
        insert into pgps_internal.audit_recounted as r (origin_id, type_id, arrival_id, there, here, compared)
        select v_origin, c.type_id, coalesce(
            -- What came in one batch with the count, behind it.
            (select min(a.arrival_id) - 1 from pgps_internal.arrival a
                where a.origin_id = v_origin and a.upto > c.upto and a.arrival_id > coalesce((select o.arrival_id
                    from pgps_internal.audit_recounted o where o.origin_id = v_origin and o.type_id = c.type_id), 0)),
            pg_sequence_last_value('pgps_internal.arrival_id_seq'), 0),
            case when c.is_compared then c.there else 0 end, case when c.is_compared then c.here else 0 end,
            c.is_compared::integer
        from compared c
        on conflict on constraint audit_recounted_pkey do update
        set arrival_id = excluded.arrival_id, there = r.there + excluded.there, here = r.here + excluded.here,
            compared = r.compared + excluded.compared
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
