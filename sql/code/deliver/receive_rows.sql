-- Receiving as typed rows: pgps_queue.<type>_receive, generated for each event type, gives the attributes as columns
-- and not as JSON, and takes several subscriptions at once: those at the same position of the same class share the
-- rows. Special cases (events put back, competing consumers, policies, registrations of clients, events kept aside) are
-- left to pgps.receive and give the same rows.
-- Locks: the turns of the subscriptions, in the order of their ids, until the transaction ends.
-- Writes: position.

do $$
begin
    if to_regtype('pgps_internal.run') is null then
        -- A run: events of consecutive ids in one delivery, and the statement that published the first of them. places:
        -- of the subscriptions in the call.
        create type pgps_internal.run as (
            batch_id bigint,
            lo bigint,
            hi bigint,
            xid xid8,
            published_at timestamptz,
            publisher name,
            origin text,
            received_batch bigint,
            received_event bigint,
            places int4multirange,
            first_event bigint,
            last_event bigint,
            broker text,
            publishers_xid xid8
        );
    elsif not exists (select from pg_attribute a where a.attrelid = 'pgps_internal.run'::regclass
        and a.attname = 'publishers_xid') then
        alter type pgps_internal.run add attribute publishers_xid xid8;
    end if;
end
$$;

create or replace function pgps_internal.next_runs(
    class_id bigint, from_batch bigint, skip int8multirange, after_batch bigint, after_event bigint, max_events integer
) returns pgps_internal.run[]
language plpgsql stable
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_bitmapscan = off
as $$
declare
    v_skip int8multirange := nullif(next_runs.skip, '{}');
    v_runs pgps_internal.run[];
begin
    with d as (
        -- Reads only as many deliveries as it needs; see next_events.
        select d.batch_id, d.event_ids, d.ids,
            coalesce(sum(case when d.batch_id > next_runs.after_batch and v_skip is null then d.events else 0 end)
                over (order by d.batch_id range between unbounded preceding and 1 preceding), 0) as before
        from pgps_internal.deliveries_after(next_runs.class_id, next_runs.from_batch, v_skip, next_runs.after_batch,
            next_runs.after_event, next_runs.max_events) d
    ),
    r as (
        select d.batch_id, u.lo, u.hi, sum(u.hi - u.lo + 1) over (order by d.batch_id, u.lo) as upto
        from d cross join lateral (
            select min(i.id) as lo, max(i.id) as hi
            from (select e.id, e.id - row_number() over (order by e.id) as island from unnest(d.event_ids) e(id)
                where (d.batch_id > next_runs.after_batch or e.id > next_runs.after_event)
                    and not e.id <@ next_runs.skip) i
            group by i.island
            union all
            select lower(m), upper(m) - 1 from unnest(d.ids * case when d.batch_id = next_runs.after_batch
                then int8multirange(int8range(next_runs.after_event, null, '()')) else '{(,)}' end - next_runs.skip) m
        ) u
        where d.before < next_runs.max_events
    ),
    cut as (
        select r.batch_id, r.lo, r.hi - greatest(r.upto - next_runs.max_events, 0)::bigint as hi from r
        where r.upto - (r.hi - r.lo + 1) < next_runs.max_events
    )
    -- Runs are split at the segments of the log: each is looked up in one segment.
    select array_agg((c.batch_id, greatest(c.lo, s.start),
        least(c.hi, s.start + pgps_internal.segment_size('control') - 1),
        null, null, null, null, null, null, null, null, null, null, null)::pgps_internal.run order by c.batch_id, c.lo,
            s.start) into v_runs
    from cut c cross join lateral generate_series(pgps_internal.log_segment_start(c.lo), c.hi,
        pgps_internal.segment_size('control')) s(start);
    return v_runs;
end
$$;
comment on function pgps_internal.next_runs(bigint, bigint, int8multirange, bigint, bigint, integer) is
'The next events of a class after a position as runs of ids, in delivery order; see pgps_internal.next_events';

create or replace function pgps_internal.have_news(subscription_ids bigint[]) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_bitmapscan = off
as $$
begin
    -- Stops at the first subscription that may have something; for competing consumers pgps.receive finds out.
    return exists (
        select from unnest(have_news.subscription_ids) u(subscription_id)
        join pgps_internal.subscription s using (subscription_id)
        join pgps_internal.member m using (subscription_id)
        cross join lateral pgps_internal.position_of(s.subscription_id) p
        where s.handler = 'any'
            or exists (select from pgps_internal.failure f where f.subscription_id = s.subscription_id)
            or exists (select from pgps_internal.delivery d
                where d.class_id = m.class_id and d.batch_id >= greatest(p.acked_batch, m.from_batch + 1)
                    and (d.batch_id > p.acked_batch or p.acked_event < any (d.event_ids)
                        or p.acked_event < upper(d.ids) - 1)));
end
$$;
comment on function pgps_internal.have_news(bigint[]) is
'False when none of these subscriptions has anything to hand out';

create or replace function pgps_internal.is_behind(subscription_id bigint) returns boolean
language plpgsql stable
as $$
declare
    v_acked bigint := (pgps_internal.position_of(is_behind.subscription_id)).acked_batch;
begin
    -- Limit 1 keeps the planner from a join: see write_unfold.sql.
    return exists (select from pgps_internal.member m
        cross join lateral (select from pgps_internal.delivery d
            where d.class_id = m.class_id and d.batch_id > greatest(v_acked, m.from_batch) limit 1) d
        where m.subscription_id = is_behind.subscription_id);
end
$$;
comment on function pgps_internal.is_behind(bigint) is
'True when a subscription has deliveries of a later batch than it has acknowledged: a first test, at a quarter of the
cost of have_news';

create or replace view pgps_internal.reading as
select s.subscription_id, m.class_id, m.from_batch, m.skip, p.acked_batch, p.acked_event, p.acked_total,
    p.received_batch, p.received_event, p.outstanding, coalesce(p.seen_batch, p.received_batch) as seen_batch,
    coalesce(p.seen_event, p.received_event) as seen_event, p.consumer,
    s.handler = 'all'
        and not exists (select from pgps_internal.failure f where f.subscription_id = s.subscription_id)
        -- pgps.receive evaluates the handler clause for registrations of clients.
        and not exists (select from pgps_internal.registration r where r.subscription_id = s.subscription_id)
        as is_plain
from pgps_internal.subscription s
join pgps_internal.current_member m using (subscription_id)
cross join lateral pgps_internal.position_of(s.subscription_id) p
where s.state = 'active';
comment on view pgps_internal.reading is
'Where active subscriptions read on, in each class that they are a member of. is_plain: nothing was put back, and no
clause of a client is to be asked';

create or replace function pgps_internal.open_reading(subscription_ids bigint[]) returns refcursor
language plpgsql
as $$
declare
    v_groups refcursor;
begin
    -- One subscription is a group by itself: setting up the grouping would take longer than finding where it is.
    if cardinality(open_reading.subscription_ids) = 1 then
        open v_groups for
        select g.*, array[g.subscription_id] as ids, array[g.acked_total] as totals,
            '{[1,2)}'::int4multirange as places
        from pgps_internal.reading g where g.subscription_id = open_reading.subscription_ids[1];
    else
        open v_groups for
        select g.class_id, g.from_batch, g.skip, g.acked_batch, g.acked_event, g.received_batch, g.received_event,
            g.outstanding, g.seen_batch, g.seen_event, g.consumer, g.is_plain,
            array_agg(g.subscription_id) as ids, array_agg(g.acked_total) as totals,
            range_agg(int4range(u.place::integer, u.place::integer, '[]')) as places
        from unnest(open_reading.subscription_ids) with ordinality u(subscription_id, place)
        join pgps_internal.reading g using (subscription_id)
        group by 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
        order by min(u.place);
    end if;
    return v_groups;
end
$$;
comment on function pgps_internal.open_reading(bigint[]) is
'Opens a cursor on where subscriptions read on: a row for all that are at the same position of the same class, with
their ids, what each has acknowledged in all, and their places in the argument, by the first of them. It runs with the
settings of its caller, which closes the cursor';

create or replace function pgps_internal.hand_out_runs(
    subscription_ids bigint[], event_type pgps_internal.event_type, max_events integer, consumer text,
    out runs pgps_internal.run[], out others integer[]
) language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_groups refcursor;
    v_group record;
    v_found pgps_internal.run[];
    v_told pgps_internal.run[];
    v_last pgps_internal.run;
    v_is_plain boolean;
    v_is_back boolean;
    v_events integer;
    v_fit integer;
begin
    runs := '{}';
    others := '{}';
    v_groups := pgps_internal.open_reading(hand_out_runs.subscription_ids);
    loop
        fetch v_groups into v_group;
        exit when not found;
        v_is_plain := v_group.is_plain and not (hand_out_runs.event_type).has_policy;
        if v_is_plain then
            v_found := pgps_internal.next_runs(v_group.class_id, v_group.from_batch, v_group.skip, v_group.acked_batch,
                v_group.acked_event, hand_out_runs.max_events);
            continue when v_found is null;
            v_fit := pgps_internal.rows_that_fit(hand_out_runs.event_type, v_found);
            if v_fit > 0 then
                -- A client has all of an answer in memory at once.
                v_found := pgps_internal.next_runs(v_group.class_id, v_group.from_batch, v_group.skip,
                    v_group.acked_batch, v_group.acked_event, v_fit);
            end if;
            execute 'select pgps_internal.statements_' || (hand_out_runs.event_type).type_id || '($1, $2, $3, $4, $5)'
            using v_found, v_group.seen_batch, v_group.seen_event, v_group.places, pgps_internal.broker_name()
                into v_told;
        end if;
        if not v_is_plain or v_told is null or v_fit = 0 then
            others := others || array(select generate_series(lower(r), upper(r) - 1) from unnest(v_group.places) r);
            continue;
        end if;
        v_last := v_found[cardinality(v_found)];
        v_is_back := (v_group.seen_batch, v_group.seen_event) > (v_last.batch_id, v_last.hi);
        v_events := (select sum(r.hi - r.lo + 1) from unnest(v_found) r);
        if (v_last.batch_id, v_last.hi, v_events) is distinct from (v_group.received_batch, v_group.received_event,
            v_group.outstanding)
                or v_group.consumer is distinct from hand_out_runs.consumer then
            insert into pgps_internal.position (subscription_id, acked_batch, acked_event, received_batch,
                received_event, acked_total, outstanding, consumer, seen_batch, seen_event)
            select u.id, v_group.acked_batch, v_group.acked_event, v_last.batch_id, v_last.hi, u.total, v_events,
                hand_out_runs.consumer, case when v_is_back then v_group.seen_batch end,
                case when v_is_back then v_group.seen_event end
            from unnest(v_group.ids, v_group.totals) u(id, total);
        end if;
        runs := runs || v_told;
    end loop;
    close v_groups;
end
$$;
comment on function pgps_internal.hand_out_runs(bigint[], pgps_internal.event_type, integer, text) is
'Hands out the next events of subscriptions to one type as pgps_internal.hand_out does, once for all that are at the
same position of the same class. others: places in the call of those that are left to pgps.receive';

create or replace function pgps_internal.enter_receive_rows() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp set standard_conforming_strings = on
set jit = off set enable_seqscan = off set max_parallel_workers_per_gather = 0
as $$
declare
    v_type pgps_internal.event_type;
    v_subscriptions pgps_internal.subscription[];
    v_wrong pgps_internal.subscription;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = new.type_id;
    if coalesce(new.max_events, 0) <= 0 then
        raise exception 'invalid max_events %', new.max_events using errcode = '22023',
            hint = 'Give a positive number.';
    end if;
    if new.consumer is not null then
        perform pgps_internal.check_consumer(new.consumer);
    end if;
    perform pgps_internal.require_read_committed();
    select array_agg(pgps_internal.find_subscription(new.caller, n.name) order by n.place) into v_subscriptions
    from unnest(new.subscriptions) with ordinality n(name, place);
    select s.* into v_wrong from unnest(v_subscriptions) s
    where s.callback is not null or s.state = 'suspended' or s.is_pattern or s.event_type <> v_type.name limit 1;
    if v_wrong.callback is not null then
        raise exception 'subscription "%" is internal: its events go to %', v_wrong.name, v_wrong.callback
        using errcode = '55000', hint = 'Subscribe without execute to receive events yourself.';
    elsif v_wrong.state = 'suspended' then
        perform pgps_internal.refuse_suspended(v_wrong);
    elsif v_wrong.name is not null then
        raise exception 'subscription "%" is to %, not to event type "%"', v_wrong.name, v_wrong.event_type, v_type.name
        using errcode = '22023', hint = 'Use the function of its own event type, or pgps.receive.';
    end if;
    perform pgps_internal.require_rights(s) from unnest(v_subscriptions) s;
    perform pgps_internal.hold_back(s, new.consumer) from unnest(v_subscriptions) s where s.state <> 'active';
    new.max_events := pgps_internal.room_for_rows(v_subscriptions, new.max_events, new.consumer);
    -- A call that finds nothing takes no turn: taking it writes.
    if new.max_events = 0 or not pgps_internal.is_behind((v_subscriptions[1]).subscription_id)
            and not pgps_internal.have_news(array(select s.subscription_id from unnest(v_subscriptions) s)) then
        new.runs := '{}';
        new.others := '{}';
        return new;
    end if;
    perform pgps_internal.hold_subscriptions(array(select s.subscription_id from unnest(v_subscriptions) s
        where s.handler = 'all'));
    perform pgps_internal.require_subscription(s) from unnest(v_subscriptions) s where s.handler = 'all';
    select t.runs, t.others into new.runs, new.others
    from pgps_internal.hand_out_runs(array(select (v_subscriptions[n.place]).subscription_id
        from generate_subscripts(v_subscriptions, 1) n(place) order by n.place),
        v_type, new.max_events, new.consumer) t;
    return new;
end
$$;
comment on function pgps_internal.enter_receive_rows() is 'Behind pgps_queue.<type>_receive, see pgps_internal.call';

do $$
begin
    if to_regclass('pgps_entry.receive_rows_calls') is null then
        create view pgps_entry.receive_rows_calls as
        select null::integer as type_id, null::text[] as subscriptions, null::integer as max_events,
            null::name as caller,
            null::pgps_internal.run[] as runs, null::integer[] as others where false;
        alter view pgps_entry.receive_rows_calls alter column caller set default current_user;
        create trigger enter instead of insert on pgps_entry.receive_rows_calls
        for each row execute function pgps_internal.enter_receive_rows();
        grant insert (type_id, subscriptions, max_events), select (runs, others) on pgps_entry.receive_rows_calls
            to public;
    end if;
    create or replace view pgps_entry.receive_rows_calls as
    select null::integer as type_id, null::text[] as subscriptions, null::integer as max_events, null::name as caller,
        null::pgps_internal.run[] as runs, null::integer[] as others, null::text as consumer where false;
    grant insert (consumer) on pgps_entry.receive_rows_calls to public;
end
$$;
comment on view pgps_entry.receive_rows_calls is 'The way in of pgps_queue.<type>_receive; see pgps_internal.call';

create or replace function pgps_internal.do_ack_each(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscriptions pgps_internal.subscription[];
    v_internal text;
    v_acked jsonb;
begin
    perform pgps_internal.require_read_committed();
    if jsonb_typeof(args -> 'subscriptions') is distinct from 'array' then
        raise exception 'no subscriptions are given' using errcode = '22023', hint = 'Give an array of names.';
    end if;
    select array_agg(pgps_internal.find_subscription(caller, n.name) order by n.place) into v_subscriptions
    from jsonb_array_elements_text(args -> 'subscriptions') with ordinality n(name, place);
    select s.name into v_internal from unnest(v_subscriptions) s where s.callback is not null limit 1;
    if v_internal is not null then
        raise exception 'subscription "%" is internal', v_internal
        using errcode = '55000', hint = 'Its events are acknowledged when its function returns.';
    end if;
    perform pgps_internal.hold_subscriptions(array(select distinct s.subscription_id from unnest(v_subscriptions) s
        where s.handler = 'all'));
    with wanted as (
        select distinct s.subscription_id, s.handler = 'all' and not exists (select from pgps_internal.failure f
            where f.subscription_id = s.subscription_id) as is_plain from unnest(v_subscriptions) s
    ),
    plain as materialized (
        select w.subscription_id, p.received_batch, p.received_event, p.acked_total, p.outstanding, p.seen_batch,
            p.seen_event
        from wanted w cross join lateral pgps_internal.position_of(w.subscription_id) p
        where w.is_plain and (p.consumer is not distinct from args ->> 'consumer'
            or (select pgps_internal.require_consumer(s, p, args ->> 'consumer')
            from pgps_internal.subscription s where s.subscription_id = w.subscription_id))
    ),
    moved as (
        insert into pgps_internal.position (subscription_id, acked_batch, acked_event, received_batch, received_event,
            acked_total, outstanding, seen_batch, seen_event)
        select p.subscription_id, p.received_batch, p.received_event, p.received_batch, p.received_event,
            p.acked_total + p.outstanding, 0, p.seen_batch, p.seen_event
        from plain p where p.outstanding > 0
    ),
    other as materialized (
        select s.subscription_id, case s.handler when 'any' then pgps_internal.ack_lease(s, null, args ->> 'consumer')
            else pgps_internal.ack_position(s, null, args ->> 'consumer') end as acked
        -- In the order of their ids: two sessions of one consumer must not wait for each other.
        from (select w.subscription_id from wanted w where not w.is_plain order by 1 offset 0) w
        join pgps_internal.subscription s using (subscription_id)
    ),
    acked as (
        select p.subscription_id, p.outstanding::bigint as acked from plain p
        union all
        select o.subscription_id, o.acked from other o
    )
    select to_jsonb(array_agg(a.acked order by n.place)) into v_acked
    from generate_subscripts(v_subscriptions, 1) n(place)
        join acked a on a.subscription_id = (v_subscriptions[n.place]).subscription_id;
    return v_acked;
end
$$;
comment on function pgps_internal.do_ack_each(name, jsonb) is 'See pgps.ack_each';

create or replace function pgps.ack_each(
    subscriptions text[], consumer text = null
) returns table (subscription text, acked bigint)
language sql
begin atomic
    select n.name, a.acked::bigint
    from jsonb_array_elements_text(pgps._call('ack_each', jsonb_build_object('subscriptions', ack_each.subscriptions,
        'consumer', ack_each.consumer))) with ordinality a(acked, place)
    join unnest(ack_each.subscriptions) with ordinality n(name, place) using (place);
end;
comment on function pgps.ack_each(text[], text) is
'Acknowledges what each of the subscriptions has received so far, as pgps.ack does for one; returns how many events of
each. consumer: as for pgps.ack. Needs to own all of them. Errors: 22023 null, 42704, 42501, 55000 internal.';

grant execute on function pgps.ack_each(text[], text) to public;
