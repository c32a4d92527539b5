-- pgps.find_queued: a page of a queue, the newest first, by key. The views of the queues are sets: to find the newest of
-- twenty million events, PostgreSQL would unfold and sort them all. A page is found from the newest batch downwards,
-- with no more work than the page and the batches that it passes.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.ids_below(
    log regclass, ranges int8multirange, xids xid8[], before_event bigint, most integer
) returns setof bigint
language plpgsql stable rows 100
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The ranges are read from the highest downwards, and a nested loop keeps their order, so it stops when the page is
    -- full.
    return query execute format('select l.event_id
        from (select r from unnest($1) r where lower(r) < $3 order by lower(r) desc) w
        cross join lateral (select l.event_id from %s l
            where l.event_id >= lower(w.r) and l.event_id < least(upper(w.r), $3) %s
            order by l.event_id desc limit $4) l
        limit $4', ids_below.log, case when ids_below.xids is not null then 'and l.xid = any ($2)' else '' end)
    using ids_below.ranges, ids_below.xids, coalesce(ids_below.before_event, 9223372036854775807), ids_below.most;
end
$$;
comment on function pgps_internal.ids_below(regclass, int8multirange, xid8[], bigint, integer) is
'The highest events of a log within ranges and below one event, at most so many; xids: only those of these transactions,
null = of all';

create or replace function pgps_internal.is_pending(batch pgps_internal.batch_type) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select from pgps_internal.member m
        cross join lateral (
            select coalesce(max(p.acked_batch), -1) as acked_batch, coalesce(max(p.acked_event), 0) as acked_event
            from (select p.* from pgps_internal.position p where p.subscription_id = m.subscription_id
                order by p.position_id desc limit 1) p
        ) p
        where m.type_id = (is_pending.batch).type_id and not m.takes_batch
            and (is_pending.batch).batch_id > m.from_batch and (is_pending.batch).batch_id >= p.acked_batch
            and ((is_pending.batch).batch_id > p.acked_batch or upper((is_pending.batch).ids) - 1 > p.acked_event)
            -- offset 0: asked for one member after the other, so that the first one that waits is the answer.
            and exists (select from pgps_internal.delivery d where d.class_id = m.class_id
                and d.batch_id = (is_pending.batch).batch_id offset 0)
    ) or exists (
        select from pgps_internal.share s join pgps_internal.member m using (subscription_id, type_id)
        where m.type_id = (is_pending.batch).type_id and m.takes_batch and s.batch_id = (is_pending.batch).batch_id
    ) or exists (
        select from pgps_internal.lane_next n
        where n.type_id = (is_pending.batch).type_id and n.batch_id <= (is_pending.batch).batch_id
    )
$$;
comment on function pgps_internal.is_pending(pgps_internal.batch_type) is
'Whether some lane has not matched a batch, or some subscription has not acknowledged it completely; as
pgps_internal.pending has it, for one batch';

create or replace function pgps_internal.least_pending(type_id integer) returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select least(9223372036854775807,
        (select min(coalesce(p.acked_batch, -1)) from pgps_internal.member m
            left join lateral (select p.acked_batch from pgps_internal.position p
                where p.subscription_id = m.subscription_id order by p.position_id desc limit 1) p on true
            where m.type_id = least_pending.type_id and not m.takes_batch),
        (select min(s.batch_id) from pgps_internal.member m join pgps_internal.share s using (subscription_id)
            where m.type_id = least_pending.type_id and m.takes_batch),
        (select min(n.batch_id) from pgps_internal.lane_next n where n.type_id = least_pending.type_id))
$$;
comment on function pgps_internal.least_pending(integer) is
'A batch before which no event of a type waits for a subscription or lane';

create or replace function pgps_internal.page_of_in(
    event_type pgps_internal.event_type, before_batch bigint, before_event bigint, most integer
) returns table (batch bigint, event_id bigint)
language plpgsql stable rows 100
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_type pgps_internal.event_type := page_of_in.event_type;
    v_batch pgps_internal.batch_type;
    v_left integer := page_of_in.most;
    v_upto bigint := page_of_in.before_event;
    v_least bigint;
    v_found integer;
    v_audited boolean := (select q.auditable from pgps_internal.queue q
        where q.type_id = v_type.type_id and q.kind = 'in');
begin
    if page_of_in.before_batch is null then
        return query
        select null::bigint, l.event_id
        from (select array_agg(distinct w.xid) as xids, range_agg(int8range(w.lo, w.hi, '[]')) as ranges
            from pgps_internal.undispatched w where w.type_id = v_type.type_id) w
        cross join lateral pgps_internal.ids_below(v_type.log, w.ranges, w.xids, v_upto, v_left) l(event_id);
        get diagnostics v_found = row_count;
        v_left := v_left - v_found;
        v_upto := null;
    end if;
    for v_batch in
        select b.* from pgps_internal.batch_type b
        where b.type_id = v_type.type_id
            and b.batch_id <= coalesce(page_of_in.before_batch, 9223372036854775807)
        order by b.batch_id desc
    loop
        exit when v_left <= 0 or v_batch.batch_id < v_least;
        if v_audited or pgps_internal.is_pending(v_batch) then
            return query select v_batch.batch_id, l.event_id
            from pgps_internal.ids_below(v_type.log, v_batch.ids, null,
                case when v_batch.batch_id = page_of_in.before_batch then v_upto end, v_left) l(event_id);
            get diagnostics v_found = row_count;
            v_left := v_left - v_found;
        else
            -- Looked up when it is needed first: mostly the newest batches wait.
            v_least := coalesce(v_least, pgps_internal.least_pending(v_type.type_id));
        end if;
    end loop;
    if v_audited and v_left > 0 then
        return query execute format('select 0::bigint, a.event_id from %s a
            where a.event_id < $1 and not exists (select from %s l where l.event_id = a.event_id)
            order by a.event_id desc limit $2', format('pgps_internal.%I', v_type.name || '_audit'), v_type.log)
        using coalesce(case when page_of_in.before_batch = 0 then v_upto end, 9223372036854775807), v_left;
    end if;
end
$$;
comment on function pgps_internal.page_of_in(pgps_internal.event_type, bigint, bigint, integer) is
'The newest events of an in queue: first those of no batch (batch null), then those of the batches, the newest batch
first, then those of the archive (batch 0)';

create or replace function pgps_internal.deliveries_of_out(
    event_type pgps_internal.event_type, from_batch bigint, upto_batch bigint, upto_event bigint, most integer
) returns table (batch bigint, class_id bigint, event_ids bigint[], ids int8multirange, upto_event bigint, top bigint)
language sql stable rows 1000
set search_path = pg_catalog, pg_temp
as $$
    with chosen as materialized (
        select d.batch_id, d.class_id, d.event_ids, d.ids, u.event_id as upto_event, case when d.ids is null
            then (select max(e) from unnest(d.event_ids) e where e <= u.event_id)
            else greatest((select max(e) from unnest(d.event_ids) e where e <= u.event_id),
                least(upper(d.ids) - 1, u.event_id)) end as top
        from pgps_internal.delivery d
        cross join lateral (select case when d.batch_id = deliveries_of_out.upto_batch
            then deliveries_of_out.upto_event else 9223372036854775807 end as event_id offset 0) u
        where d.class_id in (select m.class_id from pgps_internal.member m
                where m.type_id = (deliveries_of_out.event_type).type_id and not m.takes_batch)
            and d.batch_id between deliveries_of_out.from_batch and deliveries_of_out.upto_batch
    ),
    -- Deliveries that begin before the last of these are left out.
    cut as (
        select c.batch_id, c.top from chosen c where c.top is not null and deliveries_of_out.most is not null
        order by c.batch_id desc, c.top desc offset deliveries_of_out.most limit 1
    )
    select c.* from chosen c left join cut x on true where x.top is null or (c.batch_id, c.top) >= (x.batch_id, x.top)
$$;
comment on function pgps_internal.deliveries_of_out(pgps_internal.event_type, bigint, bigint, bigint, integer) is
'The deliveries of some batches to members, with their highest event (top) before the end of the page before; most: only
so many, those with the highest events, and those of the same event; null = all';

create or replace function pgps_internal.window_of_out(
    event_type pgps_internal.event_type, from_batch bigint, upto_batch bigint, before_event bigint,
    before_subscription text, most integer, deliveries integer
) returns table (batch bigint, event_id bigint, subscription_id bigint, subscription text)
language sql stable rows 100
set search_path = pg_catalog, pg_temp
as $$
    with open as materialized (
        select o.*, m.subscription_id, s.name as subscription, m.skip, case when o.batch = p.acked_batch then p.acked_event else -1 end
            as after_event
        from pgps_internal.deliveries_of_out(window_of_out.event_type, window_of_out.from_batch,
            window_of_out.upto_batch, coalesce(window_of_out.before_event, 9223372036854775807),
            window_of_out.deliveries) o
        join pgps_internal.member m on m.class_id = o.class_id and o.batch > m.from_batch and not m.takes_batch
        join pgps_internal.subscription s using (subscription_id)
        cross join lateral (
            select coalesce(max(p.acked_batch), -1) as acked_batch, coalesce(max(p.acked_event), 0) as acked_event
            from (select p.* from pgps_internal.position p where p.subscription_id = m.subscription_id
                order by p.position_id desc limit 1) p
        ) p
        where o.batch >= p.acked_batch
    ),
    -- Where not all deliveries are looked at, what lies before the last of them may be incomplete.
    reached as materialized (
        select o.batch, o.top from open o where window_of_out.deliveries is not null
        order by o.batch, o.top limit 1
    ),
    -- The highest event of each delivery: so many of them have one at or after the cut, so no event before it is on the
    -- page. A delivery whose highest event is none of the page is not counted.
    cut as materialized (
        select o.batch, o.top
        from open o
        where o.top > o.after_event and not o.top <@ o.skip and (o.ids is null or o.top <@ o.ids)
            and (window_of_out.before_event is null or o.batch < window_of_out.upto_batch
                or (o.top, o.subscription) < (window_of_out.before_event, window_of_out.before_subscription))
            and not exists (select from pgps_internal.failure f where f.event_id = o.top
                and f.subscription_id = o.subscription_id and f.state in ('failed', 'settled') offset 0)
        order by o.batch desc, o.top desc offset window_of_out.most limit 1
    ),
    found as (
        select o.batch, i.event_id, o.subscription_id
        from open o left join cut c on true
        cross join lateral (select case when o.batch = c.batch then greatest(o.after_event, c.top - 1)
            else o.after_event end as event_id offset 0) a
        cross join lateral (
            select i.event_id
            from (
                select e.event_id from (select e as event_id from unnest(o.event_ids) e
                    where e > a.event_id and e <= o.upto_event order by e desc offset 0) e
                union all
                -- Of a series in a list of columns no more is made than is read: of a million numbers, a page.
                select generate_series(least(upper(r) - 1, o.upto_event), greatest(lower(r), a.event_id + 1), -1)
                from (select r from unnest(o.ids) r
                    where upper(r) > a.event_id and lower(r) <= o.upto_event order by lower(r) desc offset 0) r
            ) i
            where not i.event_id <@ o.skip
                -- Looked up for one event after the other, not for all failures: there may be a million.
                and not exists (select from pgps_internal.failure f where f.event_id = i.event_id
                    and f.subscription_id = o.subscription_id and f.state in ('failed', 'settled') offset 0)
            limit window_of_out.most + 1
        ) i
        where c.batch is null or o.batch >= c.batch
        union all
        select h.batch_id, h.event_id, m.subscription_id
        from pgps_internal.member m
        cross join lateral (select h.batch_id, h.event_id from pgps_internal.share h
            where h.subscription_id = m.subscription_id and h.batch_id between window_of_out.from_batch
                and window_of_out.upto_batch
                and (h.batch_id < window_of_out.upto_batch or window_of_out.before_event is null
                    or h.event_id <= window_of_out.before_event)
            order by h.batch_id desc, h.event_id desc limit window_of_out.most + 1) h
        where m.type_id = (window_of_out.event_type).type_id and m.takes_batch
    )
    select f.batch, f.event_id, f.subscription_id, s.name
    from found f join pgps_internal.subscription s using (subscription_id) left join reached r on true
    where (window_of_out.before_event is null or f.batch < window_of_out.upto_batch
            or (f.event_id, s.name) < (window_of_out.before_event, window_of_out.before_subscription))
        and (r.batch is null or (f.batch, f.event_id) > (r.batch, r.top))
    order by f.batch desc, f.event_id desc, s.name desc limit window_of_out.most
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
            select jsonb_agg(to_jsonb(w) order by w.place) into v_found
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

create or replace function pgps_internal.page_of_exceptions(
    event_type pgps_internal.event_type, caller name, before_event bigint, before_subscription text, most integer
) returns table (
    event_id bigint, subscription text, failed_at timestamptz, attempts integer, state text, sqlstate text, error text
)
language plpgsql stable rows 100
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query execute format($sql$
        select x.* from (
            (select f.event_id, s.name as subscription, f.failed_at, f.attempts, f.state, f.sqlstate,
                case when pg_has_role($2, s.owner::oid, 'usage') or pg_has_role($2, 'pgps_admin', 'usage')
                    then f.error end
            from pgps_internal.failure f join pgps_internal.subscription s using (subscription_id)
            where f.type_id = $1 and (f.state = 'failed' or f.step <> 'nack' and f.state <> 'settled') %1$s
            order by f.event_id desc, s.name desc limit $5)
            union all
            (select f.event_id, f.subscription, f.failed_at, f.attempts, f.state, f.sqlstate,
                case when pg_has_role($2, 'pgps_admin', 'usage') or exists (select from pgps_internal.subscription o
                    where o.name = f.subscription and o.created_at <= f.failed_at
                        and pg_has_role($2, o.owner::oid, 'usage')) then f.error end
            from pgps_internal.discarded f where f.type_id = $1 %2$s
            order by f.event_id desc, f.subscription desc limit $5)
        ) x order by x.event_id desc, x.subscription desc limit $5
        $sql$, case when page_of_exceptions.before_event is not null
            then 'and f.event_id <= $3 and (f.event_id, s.name) < ($3, $4)' else '' end,
        case when page_of_exceptions.before_event is not null
            then 'and f.event_id <= $3 and (f.event_id, f.subscription) < ($3, $4)' else '' end)
    using (page_of_exceptions.event_type).type_id, page_of_exceptions.caller, page_of_exceptions.before_event,
        coalesce(page_of_exceptions.before_subscription, ''), page_of_exceptions.most;
end
$$;
comment on function pgps_internal.page_of_exceptions(pgps_internal.event_type, name, bigint, text, integer) is
'The highest events of an exception queue, below one event and subscription, with what the caller may see of the errors';

create or replace function pgps_internal.page_of_queue(
    queue pgps_internal.queue, caller name, args jsonb, most integer, out page jsonb, out ids bigint[]
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_batch bigint := (args ->> 'before_batch')::bigint;
    v_event bigint := (args ->> 'before_event')::bigint;
    v_subscription text := args ->> 'before_subscription';
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = (page_of_queue.queue).type_id;
    case (page_of_queue.queue).kind
        when 'in' then
            select jsonb_agg(to_jsonb(x) order by x.place), array_agg(distinct x.event_id) into page, ids
            from (select p.* from pgps_internal.page_of_in(v_type, v_batch, v_event, most)
                with ordinality p(batch, event_id, place)) x;
        when 'out' then
            select jsonb_agg(to_jsonb(x) order by x.place), array_agg(distinct x.event_id) into page, ids
            from (
                select p.batch, p.event_id, p.subscription, b.created_at as at,
                    coalesce(f.attempts, h.attempts, r.is_received::integer) as attempts,
                    case when f.state is not null then f.state when h.leased_until > pgps_internal.clock() then 'leased'
                        when r.is_received then 'received' else 'waiting' end as state, p.place
                from pgps_internal.page_of_out(v_type, v_batch, v_event, v_subscription, most)
                    with ordinality p(batch, event_id, subscription_id, subscription, place)
                left join pgps_internal.batch b on b.batch_id = p.batch
                left join pgps_internal.failure f on f.subscription_id = p.subscription_id and f.event_id = p.event_id
                left join pgps_internal.share h on h.subscription_id = p.subscription_id and h.batch_id = p.batch
                    and h.event_id = p.event_id
                cross join lateral (select (p.batch, p.event_id) <= (n.received_batch, n.received_event) as is_received
                    from pgps_internal.position_of(p.subscription_id) n) r
            ) x;
        else
            select jsonb_agg(to_jsonb(x) order by x.place), array_agg(distinct x.event_id) into page, ids
            from (select p.*, p.failed_at as at from pgps_internal.page_of_exceptions(v_type, page_of_queue.caller,
                v_event, v_subscription, most) with ordinality
                p(event_id, subscription, failed_at, attempts, state, sqlstate, error, place)) x;
    end case;
end
$$;
comment on function pgps_internal.page_of_queue(pgps_internal.queue, name, jsonb, integer) is
'A page of a queue as pgps.find_queued has it, and its events, not regarding policies';

create or replace function pgps_internal.do_find_queued(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_rows integer := coalesce((args ->> 'max_rows')::integer, 100);
    v_place jsonb := args;
    v_queue pgps_internal.queue;
    v_type pgps_internal.event_type;
    v_page record;
    v_each integer;
    v_visible bigint[];
    v_all jsonb := '[]';
begin
    if v_rows not between 1 and 1000 then
        raise exception 'max_rows % is not between 1 and 1000', v_rows using errcode = '22023',
            hint = 'Ask for the next page with before_batch, before_event and before_subscription of the last row.';
    end if;
    select q.* into v_queue from pgps_internal.queue q where q.name = pgps_internal.fold(args ->> 'queue');
    if not found then
        raise exception 'queue "%" does not exist', args ->> 'queue'
        using errcode = '42704', hint = 'Queues are named <event type>_in, _out and _exception; see pgps.queues.';
    end if;
    select t.* into v_type from pgps_internal.event_type t where t.type_id = v_queue.type_id;
    if not has_table_privilege(caller, v_type.endpoint, 'select') then
        raise exception 'permission denied for queue "%"', v_queue.name using errcode = '42501',
            hint = format('Type: grant select on %s to %I', v_type.endpoint, caller);
    end if;
    -- Where policies hide events, a thousand are read at a time until a page is full; a caller who sees nothing of a
    -- hundred thousand is told that there is nothing.
    v_each := case when v_type.has_policy then 1000 else v_rows end;
    for v_round in 1..100 loop
        select * into v_page from pgps_internal.page_of_queue(v_queue, caller, v_place, v_each);
        exit when v_page.page is null;
        v_visible := pgps_internal.visible_ids(v_type, caller::regrole, v_page.ids);
        v_all := v_all || coalesce((select jsonb_agg(r order by place)
            from jsonb_array_elements(v_page.page) with ordinality u(r, place)
            where (r ->> 'event_id')::bigint = any (v_visible)), '[]');
        exit when jsonb_array_length(v_page.page) < v_each or jsonb_array_length(v_all) >= v_rows;
        v_place := v_place || jsonb_build_object('before_batch', v_page.page -> -1 -> 'batch',
            'before_event', v_page.page -> -1 -> 'event_id',
            'before_subscription', v_page.page -> -1 -> 'subscription');
    end loop;
    return v_all;
end
$$;
comment on function pgps_internal.do_find_queued(name, jsonb) is 'See pgps.find_queued';

create or replace function pgps.find_queued(
    queue text, before_batch bigint = null, before_event bigint = null, before_subscription text = null,
    max_rows integer = 100
)
returns table (
    batch bigint, event_id bigint, subscription text, at timestamptz, attempts integer, state text, sqlstate text,
    error text
)
language sql rows 100
begin atomic
    select x.batch, x.event_id, x.subscription, x.at, x.attempts, x.state, x.sqlstate, x.error
    from jsonb_array_elements(pgps._call('find_queued', jsonb_build_object('queue', $1, 'before_batch', $2,
            'before_event', $3, 'before_subscription', $4, 'max_rows', $5))) with ordinality u(r, place)
    cross join lateral jsonb_to_record(u.r) x(batch bigint, event_id bigint, subscription text, at timestamptz,
        attempts integer, state text, sqlstate text, error text)
    order by u.place limit $5;
end;
comment on function pgps.find_queued(text, bigint, bigint, text, integer) is
'A page of a queue, the newest first, at most max_rows (1 to 1000); as quick with twenty million events as with ten,
where the view of the queue would sort them all. The attributes of the events are in pgps_queue.<type>_log, by event_id.
An in queue has events that no batch has (batch null), then those of the newest batch, and at last those of the archive
(batch 0); an out queue what still waits, in reverse order of delivery (at: matched_at), without what was delivered and
is kept for an audit; an exception queue has no batches (at: failed_at). before_batch, before_event and
before_subscription: those of the last row of the page before; null = from the newest on. Needs SELECT on the event type;
row-level policies apply. Errors: 42704, 42501, 22023 max_rows.';

grant execute on function pgps.find_queued(text, bigint, bigint, text, integer) to public;
