-- Acknowledging what was read from a stream, and rejecting some of it.
-- Locks: the turn of the subscription, until the transaction ends.
-- Writes: failure, stream.

create or replace function pgps_internal.close_stream(subscription_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    update pgps_internal.stream s set holder = '' where s.subscription_id = close_stream.subscription_id;
end
$$;
comment on function pgps_internal.close_stream(bigint) is
'Has the reader of a stream open it again, since what comes between two positions is something else now: it must not
acknowledge what it was not given';

create or replace function pgps_internal.count_read(
    subscription_id bigint, after_batch bigint, after_event bigint, upto_batch bigint, upto_event bigint
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_read bigint;
    v_has_failures boolean := exists (select from pgps_internal.failure f
        where f.subscription_id = count_read.subscription_id);
begin
    select coalesce(sum(case when p.batch_id < count_read.upto_batch or p.last_event <= count_read.upto_event
            then p.events
        else (select count(*) from pgps_internal.event_ids(p.delivery) e(event_id)
            where e.event_id <= count_read.upto_event and (p.ids is null or e.event_id <@ p.ids)) end - f.events), 0)
    into v_read
    from pgps_internal.stream_parts(count_read.subscription_id, count_read.after_batch, count_read.after_event,
        count_read.upto_batch, 9223372036854775807) p
    -- By range first: a delivery may have very many ids, and a subscription many failures.
    cross join lateral (
        select count(*) as events from pgps_internal.failure f
        where v_has_failures and f.subscription_id = count_read.subscription_id
            and f.event_id >= lower(coalesce(p.ids, (p.delivery).ids,
                (select int8multirange(int8range(min(i), null)) from unnest((p.delivery).event_ids) i)))
            and f.event_id <= p.last_event
            and (p.batch_id < count_read.upto_batch or f.event_id <= count_read.upto_event)
            and (f.event_id <@ coalesce(p.ids, (p.delivery).ids)
                or p.ids is null and f.event_id = any ((p.delivery).event_ids))
    ) f;
    return v_read;
end
$$;
comment on function pgps_internal.count_read(bigint, bigint, bigint, bigint, bigint) is
'How many events a reader of a stream was given between two positions: without those that it has rejected, and those
that were put back, which are counted when they are settled';

create or replace function pgps_internal.do_ack_stream(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription := pgps_internal.find_subscription(caller, args ->> 'subscription');
    v_id bigint := v_subscription.subscription_id;
    v_batch bigint := (args ->> 'batch')::bigint;
    v_event bigint := (args ->> 'event')::bigint;
    v_retried bigint[] := array(select e::bigint from jsonb_array_elements_text(args -> 'retried') e);
    v_position pgps_internal.position;
    v_settled bigint;
    v_acked bigint := 0;
begin
    perform pgps_internal.require_read_committed();
    perform pgps_internal.hold_subscription(v_id, v_subscription.name);
    v_position := pgps_internal.position_of(v_id);
    if exists (select from pgps_internal.stream s where s.subscription_id = v_id and s.holder = '') then
        raise exception 'subscription "%" was moved or altered while it was read as a stream', v_subscription.name
        using errcode = '55000', hint = 'Open it again, and go on from where it stands: select pgps.open_stream(…).';
    elsif v_batch is null or v_event is null then
        raise exception 'the position to acknowledge of subscription "%" is null', v_subscription.name
        using errcode = '22023', hint = 'Give batch and event as pgps.end_of_stream returned them.';
    elsif v_batch > coalesce((pgps_internal.last_batch()).batch_id, 0) then
        raise exception 'there is no batch % to acknowledge', v_batch using errcode = '55000',
            hint = 'Acknowledge what pgps.end_of_stream gave.';
    end if;
    if (v_batch, v_event) > (v_position.acked_batch, v_position.acked_event) then
        v_acked := pgps_internal.count_read(v_id, v_position.acked_batch, v_position.acked_event, v_batch, v_event);
    else
        v_batch := v_position.acked_batch;
        v_event := v_position.acked_event;
    end if;
    select count(*) into v_settled from pgps_internal.failure f
    where f.subscription_id = v_id and f.event_id = any (v_retried) and f.state = 'leased';
    if v_acked + v_settled > 0 or (v_batch, v_event) > (v_position.acked_batch, v_position.acked_event) then
        perform pgps_internal.move(v_id, v_batch, v_event, v_batch, v_event,
            v_position.acked_total + v_acked + v_settled);
    end if;
    -- What the reader has rejected stays in the exception queue; what was put back since is for a later step.
    perform pgps_internal.settle(v_id, array(select f.event_id from pgps_internal.failure f
        where f.subscription_id = v_id and f.event_id = any (v_retried) and f.state = 'leased'), true);
    return to_jsonb(v_acked + v_settled);
end
$$;
comment on function pgps_internal.do_ack_stream(name, jsonb) is 'See pgps.ack_stream';

create or replace function pgps.ack_stream(subscription text, batch bigint, event bigint, retried bigint[] = '{}')
returns bigint
language sql
begin atomic
    select (pgps._call('ack_stream',
        jsonb_build_object('subscription', ack_stream.subscription, 'batch', ack_stream.batch,
        'event', ack_stream.event, 'retried', array(select unnest(ack_stream.retried)))) #>> '{}')::bigint;
end;
comment on function pgps.ack_stream(text, bigint, bigint, bigint[]) is
'Acknowledges a subscription up to a position, and the retried events; returns how many, without those that were
rejected. What is acknowledged already is not moved back. Needs to own the subscription. Errors: 42704, 42501, 55000 a
position that is not there yet, or pgps.seek or pgps.alter_subscription since the stream was opened; 25001.';

create or replace function pgps_internal.do_reject_events(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription := pgps_internal.find_stream(caller, args ->> 'subscription');
    v_id bigint := v_subscription.subscription_id;
    v_position pgps_internal.position := pgps_internal.position_of(v_id);
    v_ids bigint[];
    v_types integer[];
    v_errors text[];
    v_rejected bigint;
begin
    if jsonb_typeof(args -> 'event_ids') is distinct from 'array'
        or jsonb_typeof(args -> 'errors') is distinct from 'array'
        or jsonb_array_length(args -> 'event_ids') <> jsonb_array_length(args -> 'errors') then
        raise exception 'event_ids and errors are not of the same length' using errcode = '22023',
            hint = 'Give an array of event ids and an array with the reason of each.';
    end if;
    -- Only what this subscription was given: from its position on, or put back from its exception queue.
    select array_agg(g.id order by g.id), array_agg(coalesce(f.type_id, d.type_id) order by g.id),
        array_agg(g.error order by g.id)
    into v_ids, v_types, v_errors
    from (
        select distinct on (e.id) e.id::bigint, r.error
        from jsonb_array_elements_text(args -> 'event_ids') with ordinality e(id, place)
        join jsonb_array_elements_text(args -> 'errors') with ordinality r(error, place) using (place)
        where e.id is not null
    ) g
    left join pgps_internal.failure f on f.subscription_id = v_id and f.event_id = g.id
    left join lateral (
        select d.type_id from pgps_internal.member m
        join pgps_internal.delivery d on d.class_id = m.class_id
            and d.batch_id >= greatest(v_position.acked_batch, m.from_batch + 1)
        where f.event_id is null and m.subscription_id = v_id and not g.id <@ m.skip
            and (g.id = any (d.event_ids) or g.id <@ d.ids)
                and (d.batch_id, g.id) > (v_position.acked_batch, v_position.acked_event)
        limit 1
    ) d on true
    where f.state is distinct from 'settled' and coalesce(f.type_id, d.type_id) is not null;
    perform pgps_internal.keep_events(k.type_id, array(
        select i.id from unnest(v_ids, v_types) i(id, type_id) where i.type_id = k.type_id))
    from (select distinct u.type_id from unnest(v_types) u(type_id)) k;
    insert into pgps_internal.failure as f (subscription_id, type_id, event_id, step, state, attempts, sqlstate, error)
    select v_id, i.type_id, i.id, 'nack', 'failed', 1, '22000', i.error
    from unnest(v_ids, v_types, v_errors) i(id, type_id, error)
    on conflict on constraint failure_pkey do update
    set state = 'failed', attempts = f.attempts + 1, sqlstate = excluded.sqlstate, error = excluded.error,
        failed_at = pgps_internal.clock()
    where f.state <> 'failed';
    get diagnostics v_rejected = row_count;
    return to_jsonb(v_rejected);
end
$$;
comment on function pgps_internal.do_reject_events(name, jsonb) is 'See pgps.reject_events';

create or replace function pgps.reject_events(subscription text, event_ids bigint[], errors text[]) returns bigint
language sql
begin atomic
    select (pgps._call('reject_events', jsonb_build_object('subscription', reject_events.subscription,
        'event_ids', to_jsonb(reject_events.event_ids), 'errors', to_jsonb(reject_events.errors))) #>> '{}')::bigint;
end;
comment on function pgps.reject_events(text, bigint[], text[]) is
'For the reader of a stream: puts events that it cannot represent into the exception queue at once, each with its
reason, SQLSTATE 22000; returns how many are new there. They stay there when the stream is acknowledged;
pgps.retry_exception lets them come again. Ids that the subscription was not given, or has acknowledged, are passed
over; repeated, it changes nothing. Needs to own the subscription. Errors: 42704, 42501, 22023 null or arrays of
different length, 55000 as pgps.open_stream.';

grant execute on function pgps.ack_stream(text, bigint, bigint, bigint[]), pgps.reject_events(text, bigint[], text[])
    to public;
