-- pgps.find_queued: a page of a queue, the newest first, by key. The views of the queues are sets: to find the newest
-- of twenty million events, PostgreSQL would unfold and sort them all. A page is found from the newest batch downwards,
-- with no more work than the page and the batches that it passes.
-- Locks: none.
-- Writes: nothing.

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
'The highest events of an exception queue, below one event and subscription, with what the caller may see of errors';

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
            select to_jsonb(array_agg(x order by x.place)), array_agg(distinct x.event_id) into page, ids
            from (select p.* from pgps_internal.page_of_in(v_type, v_batch, v_event, most)
                with ordinality p(batch, event_id, place)) x;
        when 'out' then
            select to_jsonb(array_agg(x order by x.place)), array_agg(distinct x.event_id) into page, ids
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
            select to_jsonb(array_agg(x order by x.place)), array_agg(distinct x.event_id) into page, ids
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
        raise exception 'queue "%" does not exist', pgps_internal.fold(args ->> 'queue')
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
        v_visible := pgps_internal.visible_ids(v_type, quote_ident(caller)::regrole, v_page.ids);
        v_all := v_all || coalesce((select to_jsonb(array_agg(r order by place))
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
    order by u.place limit greatest($5, 0);
end;
comment on function pgps.find_queued(text, bigint, bigint, text, integer) is
'A page of a queue, the newest first, at most max_rows (1 to 1000); as quick with twenty million events as with ten,
where the view of the queue would sort them all. The attributes of the events are in pgps_queue.<type>_log, by event_id.
An in queue has events that no batch has (batch null), then those of the newest batch, and at last those of the archive
(batch 0); an out queue what still waits, in reverse order of delivery (at: matched_at), without what was delivered and
is kept for an audit; an exception queue has no batches (at: failed_at). before_batch, before_event and
before_subscription: those of the last row of the page before; null = from the newest on. Needs SELECT on the event
type; row-level policies apply. Errors: 42704, 42501, 22023 max_rows.';

grant execute on function pgps.find_queued(text, bigint, bigint, text, integer) to public;
