-- Streams: a subscription read by many sessions at once, between positions that the reader keeps. A position is (batch,
-- event), as in positions.sql: the events between two positions are the same at each reading, until they are
-- acknowledged. A reader that catches up reads each delivery once: its steps, what it reads in one and what it
-- acknowledges have an end in the ledger of deliveries, however much waits behind it.
-- Locks: the turn of the subscription when its position moves, until the transaction ends.
-- Writes: stream.

create or replace view pgps.publications with (security_barrier) as
select t.name as event_type, c.xid, c.lo as first_event, c.hi as last_event, c.published_at,
    pg_get_userbyid(c.publisher) as publisher,
    coalesce((select o.name from pgps_internal.origin o where o.origin_id = c.origin_id),
        (select p.broker from pgps_internal.progress p)) as origin
from pgps_internal.control c join pgps_internal.event_type t using (type_id)
where has_table_privilege(current_user, t.endpoint, 'select') and not t.has_policy;
comment on view pgps.publications is
'Publishing statements whose events the broker holds, with what these have in common: the events with this xid from
first_event to last_event. For readers of many events, who look it up once for each statement. Event types with policies
are left out: a reader may not see all of their events';

create or replace function pgps_internal.find_stream(caller name, name text) returns pgps_internal.subscription
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription := pgps_internal.find_subscription(find_stream.caller, find_stream.name);
begin
    if v_subscription.callback is not null then
        raise exception 'subscription "%" is internal: its events go to %', v_subscription.name, v_subscription.callback
        using errcode = '55000', hint = 'Subscribe without execute to read events as a stream.';
    elsif v_subscription.handler = 'any' then
        raise exception 'subscription "%" is shared: it hands out leases and has no order', v_subscription.name
        using errcode = '55000', hint = 'Subscribe with handler => ''all'' to read events as a stream.';
    elsif v_subscription.state = 'suspended' then
        perform pgps_internal.refuse_suspended(v_subscription);
    end if;
    perform pgps_internal.require_rights(v_subscription);
    return v_subscription;
end
$$;
comment on function pgps_internal.find_stream(name, text) is
'The subscription of that name, when it can be read as a stream. Errors: 42704, 42501, 55000';

create or replace function pgps_internal.do_open_stream(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription := pgps_internal.find_stream(caller, args ->> 'subscription');
    v_position pgps_internal.position := pgps_internal.position_of(v_subscription.subscription_id);
    v_other pgps_internal.stream;
begin
    insert into pgps_internal.stream as s (subscription_id, holder)
        values (v_subscription.subscription_id, pgps_internal.holder())
    on conflict (subscription_id) do update set holder = excluded.holder, opened_at = pgps_internal.clock()
    where not exists (select from pg_stat_get_activity(null) a
        where format('%s@%s', a.pid, extract(epoch from a.backend_start)) = s.holder and a.pid <> pg_backend_pid());
    if not found then
        select s.* into v_other from pgps_internal.stream s where s.subscription_id = v_subscription.subscription_id;
        raise exception 'subscription "%" is read as a stream already, by server process % since %',
            v_subscription.name,
            split_part(v_other.holder, '@', 1), v_other.opened_at
        using errcode = '55006', hint = 'Stop the other query, or subscribe once for each query.';
    end if;
    return jsonb_build_object('broker', pgps_internal.incarnation(), 'subscription_id', v_subscription.subscription_id,
        'event_type', case when v_subscription.is_pattern then null else v_subscription.event_type end,
        'batch', v_position.acked_batch, 'event', v_position.acked_event,
        'last_batch', coalesce((pgps_internal.last_batch()).batch_id, 0));
end
$$;
comment on function pgps_internal.do_open_stream(name, jsonb) is 'See pgps.open_stream';

create or replace function pgps.open_stream(subscription text) returns jsonb
language sql
begin atomic
    select pgps._call('open_stream', jsonb_build_object('subscription', open_stream.subscription));
end;
comment on function pgps.open_stream(text) is
'Makes this session the one that reads a subscription as a stream, while it is connected; returns broker (which database
this is), subscription_id, event_type (null for a pattern), batch and event (the position up to which it has been
acknowledged) and last_batch. Needs to own the subscription. Errors: 42704, 42501, 55006 another session reads it, 55000
internal, shared or suspended.';

drop function if exists pgps_internal.stream_parts(bigint, bigint, bigint, bigint);
create or replace function pgps_internal.stream_parts(
    subscription_id bigint, after_batch bigint, after_event bigint, upto_batch bigint, most bigint
)
returns table (batch_id bigint, type_id integer, delivery pgps_internal.delivery, ids int8multirange, events bigint,
    last_event bigint)
language plpgsql stable rows 100
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    -- The delivery itself: of one class a batch may have several (isolate.sql).
    select d.batch_id, d.type_id, d, w.ids,
        case when w.ids is null then d.events
            else (select coalesce(sum(upper(r) - lower(r)), 0)::bigint from unnest(w.ids) r) end,
        case when w.ids is null then greatest((select max(i) from unnest(d.event_ids) i), upper(d.ids) - 1)
            else upper(w.ids) - 1 end
    from pgps_internal.current_member m
    cross join lateral pgps_internal.deliveries_between(m.class_id, m.from_batch, m.skip, stream_parts.after_batch,
        stream_parts.after_event, stream_parts.upto_batch, stream_parts.most) d
    -- Null: the whole delivery. This is the common case, and need not be unfolded.
    cross join lateral (select case when d.batch_id > stream_parts.after_batch and isempty(m.skip) then null
        else coalesce(d.ids, (select range_agg(int8range(i, i, '[]')) from unnest(d.event_ids) i)) - m.skip
            - case when d.batch_id = stream_parts.after_batch
                then int8multirange(int8range(null, stream_parts.after_event, '(]')) else '{}' end
        end as ids) w
    where m.subscription_id = stream_parts.subscription_id and (w.ids is null or not isempty(w.ids))
    order by d.batch_id;
end
$$;
comment on function pgps_internal.stream_parts(bigint, bigint, bigint, bigint, bigint) is
'What is delivered to a subscription after a position up to the end of a batch: of each class as many deliveries as most
says, completed to whole batches; ids: null = all of the delivery';

create or replace function pgps_internal.require_position(
    subscription pgps_internal.subscription, batch bigint, event bigint
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_position pgps_internal.position := pgps_internal.position_of((require_position.subscription).subscription_id);
begin
    if require_position.batch is null or require_position.event is null then
        raise exception 'the position of a reader of subscription "%" is null', (require_position.subscription).name
        using errcode = '22023', hint = 'Give batch and event as pgps.open_stream or pgps.end_of_stream returned them.';
    end if;
    if (v_position.acked_batch, v_position.acked_event) > (require_position.batch, require_position.event) then
        raise exception 'subscription "%" has been acknowledged up to batch %, event %: beyond batch %, event %, '
            'where this reader stands',
            (require_position.subscription).name, v_position.acked_batch, v_position.acked_event,
                require_position.batch, require_position.event
        using errcode = '55000',
            hint = 'Another consumer reads it too, or this reader goes on from an old checkpoint. Subscribe once for '
            'each reader.';
    elsif require_position.batch > coalesce((pgps_internal.last_batch()).batch_id, 0) then
        raise exception 'there is no batch % yet: this reader goes on from a checkpoint of another broker, or of a '
            'later state of this one', require_position.batch
        using errcode = '55000', hint = 'Begin with a new checkpoint: it goes on from where the subscription stands.';
    end if;
end
$$;
comment on function pgps_internal.require_position(pgps_internal.subscription, bigint, bigint) is
'Raises 55000 when a reader cannot go on from a position: events after it have been acknowledged, or its batch does not
exist yet; 22023 when it is null';

create or replace function pgps_internal.do_end_of_stream(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription := pgps_internal.find_stream(caller, args ->> 'subscription');
    v_id bigint := v_subscription.subscription_id;
    v_after_batch bigint := (args ->> 'batch')::bigint;
    v_after_event bigint := (args ->> 'event')::bigint;
    v_max bigint := coalesce((args ->> 'max_events')::bigint, 9223372036854775806);
    -- A step is read, and its ids are held in memory, as a whole.
    c_most_deliveries constant bigint := 100000;
    c_most_bytes constant bigint := 16 * 1024 * 1024;
    v_batch bigint := v_after_batch;
    v_event bigint := v_after_event;
    v_events bigint := 0;
    v_part bigint;
    v_due pgps_internal.received[] := '{}';
begin
    if v_max <= 0 then
        raise exception 'invalid max_events %', v_max using errcode = '22023',
            hint = 'Give a positive number, or null for all that waits.';
    end if;
    perform pgps_internal.require_position(v_subscription, v_after_batch, v_after_event);
    if v_subscription.state = 'active' and not pgps_internal.is_unmet(v_id) then
        with p as materialized (
            select p.batch_id, p.events, p.last_event, pg_column_size(p.delivery) as bytes
            from pgps_internal.stream_parts(v_id, v_after_batch, v_after_event, 9223372036854775807,
                least(v_max, c_most_deliveries) + 1) p
        ),
        r as (
            select p.batch_id, max(p.last_event) as last_event, sum(sum(p.events)) over w as running,
                sum(count(*)) over w <= c_most_deliveries and sum(sum(p.bytes)) over w <= c_most_bytes as fits
            from p group by p.batch_id window w as (order by p.batch_id)
        )
        select r.batch_id, r.last_event, r.running into v_batch, v_event, v_events from r
        where r.running <= v_max and r.fits or r.batch_id = (select min(p.batch_id) from p)
        order by r.batch_id desc limit 1;
        if not found then
            v_batch := v_after_batch;
            v_event := v_after_event;
            v_events := 0;
        elsif v_events > v_max then
            -- The first batch alone has more than max_events: a part of it is taken, or all when fewer are left without
            -- those put back or failed.
            select max(e.event_id), count(*) into v_part, v_events
                from pgps_internal.next_events(v_id, v_after_batch, v_after_event, v_max::integer) e
            where e.batch_id = v_batch;
            v_event := case when v_events = v_max then v_part else v_event end;
        end if;
        if exists (select from pgps_internal.failure f where f.subscription_id = v_id) then
            v_due := coalesce(pgps_internal.hand_out_due(v_id, least(v_max, 1000)::integer), '{}');
        end if;
    end if;
    return jsonb_build_object('batch', v_batch, 'event', v_event, 'events', v_events,
        'retried', (select coalesce(to_jsonb(array_agg(t.event_id order by t.event_id)), '[]') from unnest(v_due) t));
end
$$;
comment on function pgps_internal.do_end_of_stream(name, jsonb) is 'See pgps.end_of_stream';

create or replace function pgps.end_of_stream(subscription text, batch bigint, event bigint, max_events bigint = null)
returns jsonb
language sql
begin atomic
    select pgps._call('end_of_stream',
        jsonb_build_object('subscription', end_of_stream.subscription, 'batch', end_of_stream.batch,
        'event', end_of_stream.event, 'max_events', end_of_stream.max_events));
end;
comment on function pgps.end_of_stream(text, bigint, bigint, bigint) is
'How far a reader that stands at (batch, event) can go: batch, event, events (how many in between) and retried (ids of
events that were put back from the exception queue and come again with this step). max_events: about that many at most,
in whole batches where they fit; null = all that is dispatched, in steps of 100,000 deliveries or 16 MB of ids. A paused
subscription stays where it is. Needs to own the subscription. Errors: 42704, 42501, 22023, 55000 acknowledged beyond
the position, a position of another broker, or as pgps.open_stream.';

create or replace function pgps_internal.do_slice_stream(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription := pgps_internal.find_stream(caller, args ->> 'subscription');
    v_id bigint := v_subscription.subscription_id;
    v_upto_batch bigint := (args ->> 'upto_batch')::bigint;
    v_upto_event bigint := (args ->> 'upto_event')::bigint;
    v_retried bigint[] := array(select e::bigint from jsonb_array_elements_text(args -> 'retried') e);
    v_failed int8multirange;
    -- Steps of a former release had no end: they are given in parts, as jsonb has no room for more than 256 MB.
    c_most_deliveries constant bigint := 100000;
    c_most_bytes constant bigint := 16 * 1024 * 1024;
    v_part jsonb;
begin
    perform pgps_internal.require_position(v_subscription, (args ->> 'batch')::bigint, (args ->> 'event')::bigint);
    select coalesce(range_agg(int8range(f.event_id, f.event_id, '[]')), '{}') into v_failed
    from pgps_internal.failure f where f.subscription_id = v_id;
    with p as materialized (
        select p.* from pgps_internal.stream_parts(v_id, (args ->> 'batch')::bigint, (args ->> 'event')::bigint,
            v_upto_batch, c_most_deliveries + 1) p
    ),
    r as (
        select p.batch_id, sum(count(*)) over w <= c_most_deliveries
            and sum(sum(pg_column_size(p.delivery))) over w <= c_most_bytes as fits
        from p group by p.batch_id window w as (order by p.batch_id)
    ),
    reached as (
        select max(r.batch_id) filter (where r.fits or r.batch_id = (select min(p.batch_id) from p)) as batch_id,
            count(*) filter (where not r.fits) > 0 as has_more
        from r
    ),
    u as (
        select p.batch_id, p.type_id,
            coalesce(p.ids, (p.delivery).ids,
                (select range_agg(int8range(i, i, '[]')) from unnest((p.delivery).event_ids) i)) - v_failed
            - case when p.batch_id = v_upto_batch then int8multirange(int8range(v_upto_event, null, '()'))
                else '{}' end as ids
        from p where p.batch_id <= (select e.batch_id from reached e)
        union all
        select 0, f.type_id, range_agg(int8range(f.event_id, f.event_id, '[]'))
        from pgps_internal.failure f where f.subscription_id = v_id and f.event_id = any (v_retried) group by f.type_id
    ),
    -- Of a type a batch has several deliveries when its filter was asked in parts.
    s as (select u.batch_id, u.type_id, range_agg(u.ids) as ids from u group by u.batch_id, u.type_id)
    select jsonb_build_object(
        'reached', (select case when e.has_more then e.batch_id end from reached e),
        'slices', coalesce(to_jsonb(array_agg(jsonb_build_object('batch', s.batch_id, 'event_type', t.name,
            'ids', case when t.has_policy then pgps_internal.visible(t, v_subscription.owner, s.ids)
                else s.ids end::text) order by s.batch_id, t.name)), '[]'))
    into v_part
    from s join pgps_internal.event_type t using (type_id) where not isempty(s.ids);
    return v_part;
end
$$;
comment on function pgps_internal.do_slice_stream(name, jsonb) is 'See pgps.slice_stream';

create or replace function pgps.slice_stream(
    subscription text, batch bigint, event bigint, upto_batch bigint, upto_event bigint, retried bigint[] = '{}'
) returns table (batch_id bigint, event_type text, ids int8multirange)
language sql
begin atomic
    with recursive part(answer) as (
        select pgps._call('slice_stream',
            jsonb_build_object('subscription', slice_stream.subscription, 'batch', slice_stream.batch,
            'event', slice_stream.event, 'upto_batch', slice_stream.upto_batch, 'upto_event', slice_stream.upto_event,
            'retried', array(select unnest(slice_stream.retried))))
        union all
        -- Behind all events of the batch that was reached.
        select pgps._call('slice_stream',
            jsonb_build_object('subscription', slice_stream.subscription, 'batch', p.answer -> 'reached',
            'event', 9223372036854775806, 'upto_batch', slice_stream.upto_batch,
            'upto_event', slice_stream.upto_event, 'retried', '[]'::jsonb))
        from part p where p.answer ->> 'reached' is not null
    )
    select (s ->> 'batch')::bigint, s ->> 'event_type', (s ->> 'ids')::int8multirange
    from part p cross join lateral jsonb_array_elements(p.answer -> 'slices') s;
end;
comment on function pgps.slice_stream(text, bigint, bigint, bigint, bigint, bigint[]) is
'The ids of a subscription''s events after one position up to another, as pgps.end_of_stream gave it, by batch and event
type; to be read from pgps_queue.<type>_log. What lies between two positions stays there until it is acknowledged, so
reading may be repeated. retried: as pgps.end_of_stream gave them (batch 0). Needs to own the subscription. Errors: as
pgps.end_of_stream.';

grant select on pgps.publications to public;
grant execute on function pgps.open_stream(text), pgps.end_of_stream(text, bigint, bigint, bigint),
    pgps.slice_stream(text, bigint, bigint, bigint, bigint, bigint[]) to public;
