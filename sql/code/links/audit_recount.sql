-- The audit under narrower filters: a sender counts, in its log, what the filters of a neighbour select of an origin's
-- events, and the neighbour compares this with what came. What was matched, packed and sent has no part in the count,
-- so that events which one of these left out are named, at each hop. See decision 26.
-- Locks: those of audit.sql.
-- Writes: audit_recount, shipment.

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
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    -- A class that is taken away and comes back has another first batch; a grant or revoke changes xmin. The wider
    -- classes that are not narrow are in the digest, too: what was selected before they came is not what came since.
    return query
    select m.type_id, md5(concat_ws(' ', r.xmin::text, t.has_policy, pgps_internal.audits(t),
        string_agg(concat_ws('/', m.class_id, m.from_batch, c.is_active, c.signature_id), ' '
            order by m.class_id, m.from_batch))),
        bool_and(c.is_active and c.signature_id is not null) and pgps_internal.audits(t) and not t.has_policy
            and has_table_privilege((filters_in_force.neighbour).role::oid, t.endpoint, 'select')
    from pgps_internal.member m join pgps_internal.class c using (class_id)
        join pgps_internal.event_type t on t.type_id = m.type_id join pg_class r on r.oid = t.endpoint
    where m.subscription_id = (filters_in_force.neighbour).subscription_id
    group by m.type_id, t.*, t.has_policy, t.endpoint, r.xmin::text;
end
$$;
comment on function pgps_internal.filters_in_force(pgps_internal.neighbour) is
'The event types that a neighbour wants, with a digest of its filters and rights. is_narrow: it wants some events only,
and may see all';

create or replace function pgps_internal.settled_place(origin pgps_internal.origin, after bigint, packed bigint)
returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- Never by pgps_internal.reached, which may see more than this statement: what comes while it runs has no part in
    -- this count, and would be in no later one.
    select case when (settled_place.origin).is_self then settled_place.packed
        when a.first_open is null then pgps_internal.horizon_seen((settled_place.origin).origin_id)
        when a.first_open <= a.last_done then null else a.first_open - 1 end
    from pgps_internal.open_arrivals((settled_place.origin).origin_id, settled_place.after, settled_place.packed) a
$$;
comment on function pgps_internal.settled_place(pgps_internal.origin, bigint, bigint) is
'Up to which batch of an origin all items behind an earlier such place (after) are in batches up to packed, and no item
behind is; null if items that came later were dispatched before';

create or replace function pgps_internal.recount_windows(neighbour pgps_internal.neighbour, packed bigint)
returns table (origin_id integer, type_id integer, attachment integer, filters text, after bigint, after_packed bigint,
    upto bigint)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    with live as materialized (
        -- Not while this broker fetches events of the origin again: their places are among those of events that the
        -- neighbour was sent, or was told do not match, before.
        select a.origin_id, a.attachment, a.horizon, o as origin
        from pgps_internal.attached a join pgps_internal.origin o using (origin_id)
        where a.neighbour_id = (recount_windows.neighbour).neighbour_id and a.is_live and o.rewind_start is null
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
        select l.origin_id,
            -- It begins behind all that is here, and all that the neighbour had when it turned to this broker: a child
            -- may be ahead, and takes nothing of what comes here up to there.
            case when (l.origin).is_self then recount_windows.packed
                else greatest(pgps_internal.horizon_seen(l.origin_id), l.horizon) end as first,
            case when x.after is not null
                then pgps_internal.settled_place(l.origin, x.after, recount_windows.packed) end as upto
        from live l join (select k.origin_id, min(k.after) as after from known k
            where k.after_packed is distinct from recount_windows.packed group by k.origin_id) x using (origin_id)
    )
    select k.origin_id, k.type_id, k.attachment, k.filters, k.after, k.after_packed, w.upto
    from known k join place p using (origin_id)
    cross join lateral (select case when k.after is null then p.first else p.upto end as upto) w
    where k.after_packed is distinct from recount_windows.packed and w.upto >= coalesce(k.after, w.upto);
end
$$;
comment on function pgps_internal.recount_windows(pgps_internal.neighbour, bigint) is
'The batches of each origin whose events of a type are to be recounted for a neighbour: those behind after up to upto,
which are in the batches of this broker behind after_packed up to packed. after: null = from upto on, next time';

create or replace function pgps_internal.items_between(
    type_ids integer[], after bigint, upto bigint
) returns table (origin_id integer, upto bigint, type_id integer, ids int8multirange, is_late boolean)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- Planned at each call, since its ledgers grow, and only called when there is something to count.
    with part as materialized (
        select b.batch_id, b.type_id, b.ids from pgps_internal.batch_type b
        where b.batch_id > items_between.after and b.batch_id <= items_between.upto
            and b.type_id = any (items_between.type_ids) and not isempty(b.ids)
    ),
    came as materialized (
        select p.batch_id, p.type_id, a.origin_id, a.upto, p.ids * a.ids as ids, a.attachment = -1 as is_late
        from part p join pgps_internal.arrival a on a.hi >= lower(p.ids) and a.lo < upper(p.ids) and a.ids && p.ids
    ),
    own as (
        select o.origin_id, p.batch_id as upto, p.type_id, p.ids, false as is_late
        from pgps_internal.published_between(items_between.after, items_between.upto, items_between.type_ids) p
        join pgps_internal.origin o on o.is_self and p.batch_id > o.from_batch
            and p.batch_id <= coalesce(o.to_batch, p.batch_id)
    )
    select x.origin_id, x.upto, x.type_id, range_agg(r), bool_or(x.is_late)
    from (select c.origin_id, c.upto, c.type_id, c.ids, c.is_late from came c
        union all select o.origin_id, o.upto, o.type_id, o.ids, o.is_late from own o) x, unnest(x.ids) r
    group by x.origin_id, x.upto, x.type_id
$$;
comment on function pgps_internal.items_between(integer[], bigint, bigint) is
'The events of some types in batches of this broker behind after up to upto, by origin and batch of the origin. is_late:
one of them was refused here when its batch came; who had gone past that is not sent it';

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
            where w.after is not null having count(*) > 0) x
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
        where s.ids is not null group by c.origin_id, t.name, c.after, c.stated, c.modulus having not bool_or(c.is_late)
    )
    insert into pgps_internal.shipment (neighbour_id, lseq, kind, body)
    select v_id, (select pgps_internal.last_sent(v_id)) + row_number() over (order by s.origin_id), 'audit',
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

create or replace function pgps_internal.recount_anew(origin_id integer, neighbour_id integer = null) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgps_internal.audit_recount k
    where k.origin_id = recount_anew.origin_id
        and k.neighbour_id = coalesce(recount_anew.neighbour_id, k.neighbour_id);
end
$$;
comment on function pgps_internal.recount_anew(integer, integer) is
'Called when events of an origin have come, or were left out, at places that a neighbour was told of before: what it is
sent is counted from behind them on. neighbour_id: null = all';

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
