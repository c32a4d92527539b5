-- Pages of out queues, for pgps.find_queued: in reverse order of delivery, from the newest batch on (decision 62).
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.deliveries_of_out(
    event_type pgps_internal.event_type, from_batch bigint, upto_batch bigint, upto_event bigint, most integer
) returns table (batch bigint, class_id bigint, event_ids bigint[], ids int8multirange, upto_event bigint, top bigint)
language sql stable rows 1000
set search_path = pg_catalog, pg_temp
as $$
    with seen as materialized (
        -- The ids of a delivery are in no order, and finding the highest takes longer than all the rest. So each is
        -- compared with a few limits first, and the highest is found for those alone that may be on the page.
        select d.batch_id, d.class_id, d.event_ids, d.ids, u.event_id as upto_event,
            case when d.ids is not null then least(upper(d.ids) - 1, u.event_id)
                when u.last - deliveries_of_out.most / 4 <= any (d.event_ids) then u.last - deliveries_of_out.most / 4
                when u.last - 4 * deliveries_of_out.most <= any (d.event_ids)
                    then u.last - 4 * deliveries_of_out.most
                when u.last - 64 * deliveries_of_out.most <= any (d.event_ids)
                    then u.last - 64 * deliveries_of_out.most end as least_top
        from pgps_internal.delivery d
        cross join lateral (
            select u.event_id, least(upper(b.ids) - 1, u.event_id) as last
            from (select case when d.batch_id = deliveries_of_out.upto_batch then deliveries_of_out.upto_event
                else 9223372036854775807 end as event_id) u
            left join pgps_internal.batch_type b on b.type_id = (deliveries_of_out.event_type).type_id
                and b.batch_id = d.batch_id
            offset 0
        ) u
        where d.class_id in (select m.class_id from pgps_internal.member m
                where m.type_id = (deliveries_of_out.event_type).type_id and not m.takes_batch)
            and d.batch_id between deliveries_of_out.from_batch and deliveries_of_out.upto_batch
    ),
    -- Deliveries that begin before the last of these are left out.
    cut as materialized (
        select s.batch_id, s.least_top as top from seen s
        where s.least_top is not null and deliveries_of_out.most is not null
        order by s.batch_id desc, s.least_top desc offset deliveries_of_out.most limit 1
    )
    select c.batch_id, c.class_id, c.event_ids, c.ids, c.upto_event, t.top
    from (
        select s.*, x.top as cut, x.top is null or s.batch_id > x.batch_id as is_above
        from seen s left join cut x on true
        where x.top is null or s.batch_id > x.batch_id
            or s.batch_id = x.batch_id and (s.least_top >= x.top or x.top <= any (s.event_ids)) offset 0
    ) c
    cross join lateral (select case when c.ids is null
        then (select max(e) from unnest(c.event_ids) e where e <= c.upto_event)
        else greatest((select max(e) from unnest(c.event_ids) e where e <= c.upto_event),
            least(upper(c.ids) - 1, c.upto_event)) end as top offset 0) t
    where c.is_above or t.top >= c.cut
$$;
comment on function pgps_internal.deliveries_of_out(pgps_internal.event_type, bigint, bigint, bigint, integer) is
'The deliveries of some batches to members, with their highest event (top) before the end of the page before; most: only
so many, those with the highest events, and those of the same event; null = all';

create or replace function pgps_internal.open_of_out(
    event_type pgps_internal.event_type, from_batch bigint, upto_batch bigint, upto_event bigint, deliveries integer
) returns table (
    batch bigint, class_id bigint, event_ids bigint[], ids int8multirange, upto_event bigint, top bigint,
    subscription_id bigint, subscription text, skip int8multirange, after_event bigint
)
language sql stable rows 1000
set search_path = pg_catalog, pg_temp
as $$
    select o.*, m.subscription_id, s.name as subscription, m.skip,
        case when o.batch = p.acked_batch then p.acked_event else -1 end as after_event
    from pgps_internal.deliveries_of_out(open_of_out.event_type, open_of_out.from_batch,
        open_of_out.upto_batch, open_of_out.upto_event,
        open_of_out.deliveries) o
    join pgps_internal.member m on m.class_id = o.class_id and o.batch > m.from_batch and not m.takes_batch
    join pgps_internal.subscription s using (subscription_id)
    cross join lateral (
        select coalesce(max(p.acked_batch), -1) as acked_batch, coalesce(max(p.acked_event), 0) as acked_event
        from (select p.* from pgps_internal.position p where p.subscription_id = m.subscription_id
            order by p.position_id desc limit 1) p
    ) p
    where o.batch >= p.acked_batch
$$;
comment on function pgps_internal.open_of_out(pgps_internal.event_type, bigint, bigint, bigint, integer) is
'Deliveries as pgps_internal.deliveries_of_out has them, for each member that has not acknowledged them: what it skips,
and the event after which it waits';

create or replace function pgps_internal.shares_of_out(
    event_type pgps_internal.event_type, from_batch bigint, upto_batch bigint, before_event bigint, most integer
) returns table (batch bigint, event_id bigint, subscription_id bigint)
language sql stable rows 100
set search_path = pg_catalog, pg_temp
as $$
    select h.batch_id, h.event_id, m.subscription_id
    from pgps_internal.member m
    cross join lateral (select h.batch_id, h.event_id from pgps_internal.share h
        where h.subscription_id = m.subscription_id and h.batch_id between shares_of_out.from_batch
            and shares_of_out.upto_batch
            and (h.batch_id < shares_of_out.upto_batch or shares_of_out.before_event is null
                or h.event_id <= shares_of_out.before_event)
        order by h.batch_id desc, h.event_id desc limit shares_of_out.most + 1) h
    where m.type_id = (shares_of_out.event_type).type_id and m.takes_batch
$$;
comment on function pgps_internal.shares_of_out(pgps_internal.event_type, bigint, bigint, bigint, integer) is
'What competing consumers share in some batches: the highest events of each subscription, up to the event before which
the page lies';

create or replace function pgps_internal.window_of_out(
    event_type pgps_internal.event_type, from_batch bigint, upto_batch bigint, before_event bigint,
    before_subscription text, most integer, deliveries integer
) returns table (batch bigint, event_id bigint, subscription_id bigint, subscription text)
language sql stable rows 100
set search_path = pg_catalog, pg_temp
as $$
    with open as materialized (
        select o.* from pgps_internal.open_of_out(window_of_out.event_type, window_of_out.from_batch,
            window_of_out.upto_batch, coalesce(window_of_out.before_event, 9223372036854775807), deliveries) o
    ),
    -- Where not all deliveries are looked at, what lies before the last of them may be incomplete.
    reached as materialized (
        select o.batch, o.top from open o where window_of_out.deliveries is not null order by o.batch, o.top limit 1
    ),
    -- So many deliveries have their highest event at or after the cut that no event before it is on the page. Those
    -- whose highest event is none of the page do not count.
    cut as materialized (
        select o.batch, o.top from open o
        where o.top > o.after_event and not o.top <@ o.skip and (o.ids is null or o.top <@ o.ids)
            and (window_of_out.before_event is null or o.batch < window_of_out.upto_batch
                or (o.top, o.subscription) < (window_of_out.before_event, window_of_out.before_subscription))
            and not exists (select from pgps_internal.failure f where f.event_id = o.top
                and f.subscription_id = o.subscription_id and f.state in ('failed', 'settled') offset 0)
        order by o.batch desc, o.top desc offset window_of_out.most limit 1
    ),
    found as (
        select o.batch, i.event_id, o.subscription_id, o.subscription
        from open o left join cut c on true
        cross join lateral (select case when o.batch = c.batch then greatest(o.after_event, c.top - 1)
            else o.after_event end as event_id offset 0) a
        cross join lateral (
            select i.event_id from (
                select e.event_id from (select e as event_id from unnest(o.event_ids) e
                    where e > a.event_id and e <= o.upto_event order by e desc offset 0) e
                union all
                -- Of a series in a list of columns no more is made than is read: of a million numbers, a page.
                select generate_series(least(upper(r) - 1, o.upto_event), greatest(lower(r), a.event_id + 1), -1)
                from (select r from unnest(o.ids) r
                    where upper(r) > a.event_id and lower(r) <= o.upto_event order by lower(r) desc offset 0) r
            ) i
            -- Looked up for one event after the other, not for all failures: there may be a million.
            where not i.event_id <@ o.skip and not exists (select from pgps_internal.failure f
                where f.event_id = i.event_id and f.subscription_id = o.subscription_id
                    and f.state in ('failed', 'settled') offset 0)
            limit window_of_out.most + 1
        ) i
        where c.batch is null or o.batch >= c.batch
        union all
        select h.*, s.name from pgps_internal.shares_of_out(window_of_out.event_type, window_of_out.from_batch,
            window_of_out.upto_batch, window_of_out.before_event, window_of_out.most) h
        join pgps_internal.subscription s using (subscription_id)
    )
    select f.batch, f.event_id, f.subscription_id, f.subscription
    from found f left join reached r on true
    where (window_of_out.before_event is null or f.batch < window_of_out.upto_batch
            or (f.event_id, f.subscription) < (window_of_out.before_event, window_of_out.before_subscription))
        and (r.batch is null or (f.batch, f.event_id) > (r.batch, r.top))
    order by f.batch desc, f.event_id desc, f.subscription desc limit window_of_out.most
$$;
comment on function pgps_internal.window_of_out(
    pgps_internal.event_type, bigint, bigint, bigint, text, integer, integer
) is
'The newest of what waits for subscriptions in some batches, below an event and subscription of the last of them;
deliveries: how many are looked at, null = all; when fewer rows are returned than asked for, there may be more';

create or replace function pgps_internal.page_of_out(
    event_type pgps_internal.event_type, before_batch bigint, before_event bigint, before_subscription text,
    most integer
) returns table (batch bigint, event_id bigint, subscription_id bigint, subscription text)
language plpgsql stable rows 100
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_id integer := (page_of_out.event_type).type_id;
    v_upto bigint := (select b.batch_id from pgps_internal.batch_type b where b.type_id = v_id
        and b.batch_id <= coalesce(page_of_out.before_batch, 9223372036854775807) order by b.batch_id desc limit 1);
    v_least bigint := (select b.batch_id from pgps_internal.batch_type b where b.type_id = v_id
        order by b.batch_id limit 1);
    v_from bigint;
    v_span bigint := 1;
    v_left integer := page_of_out.most;
    v_is_many boolean := (select count(*) > 500 from (select from pgps_internal.member m where m.type_id = v_id
        limit 501) m);
    v_event bigint;
    v_few integer;
    v_found jsonb;
begin
    -- Windows of batches grow while they have too little, so the number of questions grows with the logarithm of what
    -- lies between. A few deliveries are looked at first, and all of the window only if these do not fill the page.
    while v_upto >= v_least and v_left > 0 loop
        v_from := greatest(v_least, v_upto - v_span + 1);
        v_event := case when v_upto = page_of_out.before_batch then page_of_out.before_event end;
        foreach v_few in array case when v_is_many then array[4 * v_left + 100, null] else array[null::integer] end loop
            select to_jsonb(array_agg(w order by w.place)) into v_found
            from pgps_internal.window_of_out(page_of_out.event_type, v_from, v_upto, v_event,
                page_of_out.before_subscription, v_left, v_few)
                with ordinality w(batch, event_id, subscription_id, subscription, place);
            exit when jsonb_array_length(v_found) >= v_left;
        end loop;
        return query select w.batch, w.event_id, w.subscription_id, w.subscription
        from jsonb_to_recordset(v_found) w(batch bigint, event_id bigint, subscription_id bigint, subscription text);
        v_left := v_left - coalesce(jsonb_array_length(v_found), 0);
        v_upto := v_from - 1;
        v_span := v_span * 8;
    end loop;
end
$$;
comment on function pgps_internal.page_of_out(pgps_internal.event_type, bigint, bigint, text, integer) is
'The newest of what waits for subscriptions: the newest batch first, and in it the highest events';

