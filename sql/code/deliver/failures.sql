-- Failures: one row for each (subscription, event) whose delivery failed. retrying: comes again when due; leased:
-- handed out again, not settled; failed: given up after max_attempts, until it is retried or discarded
-- (exceptions.sql); settled: over, but the position has not passed the event.
-- Locks: the rows; share update exclusive, NOWAIT, on what is kept aside of a type, of which one transaction at a time
-- copies events there. The others leave that to reclaim.
-- Writes: failure, share, subscription; by name: events kept aside.

create or replace function pgps_internal.move_past_failures(subscription_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_at pgps_internal.position;
    v_next pgps_internal.received[];
    v_batch bigint;
    v_event bigint;
begin
    -- While it reads on no further, it is not known which of them is the next.
    if not pgps_internal.try_subscription(move_past_failures.subscription_id)
            or pgps_internal.is_unmet(move_past_failures.subscription_id) then
        return;
    end if;
    v_at := pgps_internal.position_of(move_past_failures.subscription_id);
    -- The first event that never failed.
    v_next := pgps_internal.next_received(move_past_failures.subscription_id, v_at, 1, true);
    with waiting as materialized (
        select d.batch_id, d.type_id, d.ids, d.event_ids, m.skip
        from pgps_internal.member m join pgps_internal.delivery d on d.class_id = m.class_id
            and d.batch_id >= greatest(v_at.acked_batch, m.from_batch + 1)
            and d.batch_id <= coalesce(v_next[1].batch_id, 9223372036854775807)
        where m.subscription_id = move_past_failures.subscription_id and not m.takes_batch
    )
    select w.batch_id, f.event_id into v_batch, v_event
    from pgps_internal.failure f join waiting w on w.ids @> f.event_id or f.event_id = any (w.event_ids)
    where f.subscription_id = move_past_failures.subscription_id and f.state in ('settled', 'failed')
        -- Older ones are passed already, and there may be many among the exceptions.
        and f.event_id >= (select min(lower(b.ids)) from pgps_internal.batch_type b
            where (b.batch_id, b.type_id) in (select w.batch_id, w.type_id from waiting w))
        and (w.batch_id, f.event_id) > (v_at.acked_batch, v_at.acked_event)
        and (v_next is null or (w.batch_id, f.event_id) < (v_next[1].batch_id, v_next[1].event_id))
        and not f.event_id <@ w.skip
    order by w.batch_id desc, f.event_id desc limit 1;
    if found then
        if (v_at.received_batch, v_at.received_event) < (v_batch, v_event) then
            v_at.received_batch := v_batch;
            v_at.received_event := v_event;
        end if;
        perform pgps_internal.move(v_at.subscription_id, v_batch, v_event, v_at.received_batch, v_at.received_event,
            v_at.acked_total, case when (v_at.received_batch, v_at.received_event) = (v_batch, v_event) then 0
            else v_at.outstanding end, v_at.consumer, v_at.seen_batch, v_at.seen_event);
    end if;
end
$$;
comment on function pgps_internal.move_past_failures(bigint) is
'Moves the position of a subscription past events that are settled, or among the exceptions, up to the first one that
never failed: otherwise they would be held, and counted as waiting, until something behind them is acknowledged. Not
when another transaction has its turn, nor where a callback is being called, whose caller moves it';

create or replace function pgps_internal.note_failures(
    subscription pgps_internal.subscription, failed pgps_internal.received[], step text, sqlstate text, error text,
    retry_in interval
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (note_failures.subscription).subscription_id;
    v_first interval := pgps_internal.setting('retry_delay')::interval;
    v_most interval := pgps_internal.setting('retry_delay_max')::interval;
    v_volatile bigint[] := '{}';
    v_type_id integer;
begin
    -- A type that has been dropped meanwhile took its events along.
    for v_type_id in select t.type_id from pgps_internal.event_type t
        where t.type_id in (select f.type_id from unnest(note_failures.failed) f) order by t.type_id for key share
    loop
        v_volatile := v_volatile || pgps_internal.keep_events(v_type_id,
            array(select f.event_id from unnest(note_failures.failed) f where f.type_id = v_type_id));
    end loop;
    with noted as (
        insert into pgps_internal.failure as f (subscription_id, type_id, event_id, step, state, attempts, sqlstate,
            error, due_at)
        select v_id, n.type_id, n.event_id, note_failures.step,
            case when n.attempt >= (note_failures.subscription).max_attempts or n.event_id = any (v_volatile)
                then 'failed' else 'retrying' end,
            n.attempt, note_failures.sqlstate, note_failures.error,
            pgps_internal.clock() + coalesce(note_failures.retry_in,
                least(v_most, v_first * power(2, least(n.attempt, 20) - 1)))
        from unnest(note_failures.failed) n join pgps_internal.event_type t using (type_id)
        on conflict on constraint failure_pkey do update
        set step = excluded.step, state = excluded.state, attempts = excluded.attempts, sqlstate = excluded.sqlstate,
            error = coalesce(excluded.error, f.error), failed_at = pgps_internal.clock(), due_at = excluded.due_at
        returning f.event_id, f.state
    )
    delete from pgps_internal.share s using noted n
    where (note_failures.subscription).handler = 'any' and s.subscription_id = v_id and s.event_id = n.event_id
        and n.state = 'failed';
    update pgps_internal.subscription s
    set last_error = coalesce(note_failures.error, s.last_error),
        -- A callback that does not exist any more fails for every event: the subscription is suspended and keeps its
        -- events.
        state = case when note_failures.step = 'callback' and (note_failures.sqlstate = '42883'
            and not pgps_internal.callback_exists(note_failures.subscription, note_failures.failed[1].type_id))
                then 'suspended' else s.state end
    -- Whoever is changing it in an open transaction is not waited for: the next failure tells the same.
    where s.subscription_id = (select x.subscription_id from pgps_internal.subscription x
        where x.subscription_id = v_id
            and (x.last_error is distinct from note_failures.error or note_failures.step = 'callback')
        for no key update skip locked);
    if note_failures.step = 'nack' and exists (select from pgps_internal.failure f where f.subscription_id = v_id
            and f.event_id in (select n.event_id from unnest(note_failures.failed) n) and f.state = 'failed') then
        perform pgps_internal.move_past_failures(v_id);
    end if;
end
$$;
comment on function pgps_internal.note_failures(pgps_internal.subscription, pgps_internal.received[], text, text, text,
    interval) is
'Files events whose step has failed, with how often it was tried; retry_in: null = the setting retry_delay, doubling.
Non-guaranteed events are not tried again. A subscription whose callback does not exist any more is suspended.';

create or replace function pgps_internal.callback_exists(subscription pgps_internal.subscription, type_id integer)
returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text[] := parse_ident((callback_exists.subscription).callback);
begin
    if (callback_exists.subscription).arguments is null then
        return pgps_internal.callback_argument((callback_exists.subscription).callback,
            (select t.endpoint from pgps_internal.event_type t where t.type_id = callback_exists.type_id)) is not null;
    end if;
    -- With arguments PostgreSQL chooses among the functions of a name when it is called: one has to exist.
    return exists (select from pg_proc p where p.proname = v_name[cardinality(v_name)]
        and (cardinality(v_name) = 1
            or p.pronamespace = (select n.oid from pg_namespace n where n.nspname = v_name[1])));
end
$$;
comment on function pgps_internal.callback_exists(pgps_internal.subscription, integer) is
'True while the callback of a subscription is there';

create or replace function pgps_internal.keep_events(type_id integer, event_ids bigint[]) returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_volatile bigint[];
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = keep_events.type_id;
    if not found then
        -- It was dropped meanwhile, with its events.
        return '{}';
    end if;
    execute format('with found as materialized (
            select l.*, c.publisher as pgps_publisher, c.published_at as pgps_published_at, c.volatile as pgps_volatile,
                (select o.name from pgps_internal.origin o where o.origin_id = c.origin_id) as pgps_origin
            from %4$s l
            cross join lateral (%5$s) c
            where l.event_id = any ($1)
        ),
        kept as (
            -- Whoever puts the same event back is not waited for, until his transaction ends.
            insert into pgps_internal.%1$I (event_id, xid, pgps_publisher, pgps_published_at, pgps_origin, '
                'pgps_origin_event, %2$s)
            select f.event_id, f.xid, f.pgps_publisher, f.pgps_published_at, f.pgps_origin, f.pgps_origin_event, %3$s '
                'from found f where $3
            on conflict do nothing
        )
        select array_agg(f.event_id) from found f where f.pgps_volatile', v_type.name || '_kept',
            pgps_internal.column_list(v_type.endpoint),
        pgps_internal.column_list(v_type.endpoint, 'f.'), v_type.log,
        pgps_internal.statement_of('c.publisher, c.published_at, c.origin_id, c.volatile', '$2'))
    using keep_events.event_ids, keep_events.type_id, pgps_internal.try_lock(
        to_regclass(format('pgps_internal.%I', v_type.name || '_kept')), 'share update exclusive') into v_volatile;
    return case when v_type.reliability = 'non-guaranteed' then keep_events.event_ids
        else coalesce(v_volatile, '{}') end;
end
$$;
comment on function pgps_internal.keep_events(integer, bigint[]) is
'Copies events of one type aside, so that a failure does not keep a segment of the log from being reclaimed, unless an
open transaction of somebody else is doing so: then are_kept does it. Returns those published as non-guaranteed, which
are not tried again';

create or replace function pgps_internal.are_kept(event_type pgps_internal.event_type, segment regclass) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_kept text := format('pgps_internal.%I', (are_kept.event_type).name || '_kept');
    v_ids bigint[];
begin
    execute format('select array(
            select n.event_id from (
                select f.event_id from pgps_internal.failure f where f.type_id = $1 and f.state <> ''settled''
                union
                select d.event_id from pgps_internal.discarded d where d.type_id = $1
                union
                select s.event_id from pgps_internal.member m
                join pgps_internal.share s on s.subscription_id = m.subscription_id and s.type_id = $1
                where m.type_id = $1 and m.takes_batch) n
            where exists (select from %s l where l.event_id = n.event_id)
                and not exists (select from %s k where k.event_id = n.event_id))', are_kept.segment, v_kept)
    using (are_kept.event_type).type_id into v_ids;
    if v_ids = '{}' then
        return true;
    elsif not pgps_internal.try_lock(v_kept::regclass, 'share update exclusive') then
        return false;
    end if;
    perform pgps_internal.keep_events((are_kept.event_type).type_id, v_ids);
    return true;
end
$$;
comment on function pgps_internal.are_kept(pgps_internal.event_type, regclass) is
'For reclaim, which has locked a segment of a log, so that all who have put events of it back have ended: copies those
aside that were not. False when somebody else is doing so';
