-- Acknowledging received events (ack) and putting them back (nack).
-- Locks: the turn of the subscription, until the transaction ends; competing consumers: see leases.sql.
-- Writes: failure, position.

create or replace function pgps_internal.do_ack(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription := pgps_internal.find_subscription(caller, args ->> 'subscription');
    v_up_to bigint := (args ->> 'up_to')::bigint;
    v_acked bigint;
begin
    if v_subscription.callback is not null then
        raise exception 'subscription "%" is internal', v_subscription.name
        using errcode = '55000', hint = 'Its events are acknowledged when its function returns.';
    end if;
    if v_subscription.handler = 'any' then
        v_acked := pgps_internal.ack_lease(v_subscription, v_up_to, args ->> 'consumer');
    else
        v_acked := pgps_internal.ack_position(v_subscription, v_up_to, args ->> 'consumer');
    end if;
    return to_jsonb(v_acked);
end
$$;
comment on function pgps_internal.do_ack(name, jsonb) is 'See pgps.ack';

create or replace function pgps_internal.ack_position(
    subscription pgps_internal.subscription, up_to bigint, consumer text
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (ack_position.subscription).subscription_id;
    v_position pgps_internal.position;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform pgps_internal.require_read_committed();
    end if;
    perform pgps_internal.hold_subscription(v_id, (ack_position.subscription).name);
    v_position := pgps_internal.position_of(v_id);
    if v_position.consumer is distinct from ack_position.consumer then
        perform pgps_internal.require_consumer(ack_position.subscription, v_position, ack_position.consumer);
    end if;
    if ack_position.up_to is not null
        or exists (select from pgps_internal.failure f where f.subscription_id = v_id) then
        return pgps_internal.ack_some(ack_position.subscription, v_position, ack_position.up_to);
    end if;
    -- Common case: acknowledges everything received, and the subscription has no failures.
    if v_position.outstanding > 0 then
        insert into pgps_internal.position (subscription_id, acked_batch, acked_event, received_batch,
            received_event, acked_total, outstanding, seen_batch, seen_event)
        values (v_id, v_position.received_batch, v_position.received_event, v_position.received_batch,
            v_position.received_event, v_position.acked_total + v_position.outstanding, 0,
            v_position.seen_batch, v_position.seen_event);
    end if;
    return v_position.outstanding;
end
$$;
comment on function pgps_internal.ack_position(pgps_internal.subscription, bigint, text) is
'Moves the position over what was received, to the end or up to an event; returns how many events that acknowledges';

create or replace function pgps_internal.refuse_unreceived(subscription pgps_internal.subscription, event_id bigint)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'event % has not been received by subscription "%", or is acknowledged already',
        refuse_unreceived.event_id, (refuse_unreceived.subscription).name
    using errcode = '55000', hint = 'Acknowledge the event_id of an event that pgps.receive returned.';
end
$$;
comment on function pgps_internal.refuse_unreceived(pgps_internal.subscription, bigint) is
'Raises 55000 for an event that a consumer acknowledges, and has not';

create or replace function pgps_internal.ack_some(
    subscription pgps_internal.subscription, at pgps_internal.position, up_to bigint
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (ack_some.subscription).subscription_id;
    v_batch bigint;
    v_event bigint;
    v_acked bigint;
    v_left bigint;
    v_is_retry boolean;
    v_retried bigint[];
begin
    -- Events put back are handed out again first, by id: a consumer that acknowledges one of them has not processed the
    -- events after the position yet.
    v_is_retry := exists (select from pgps_internal.failure f
        where f.subscription_id = v_id and f.event_id = ack_some.up_to and f.state = 'leased');
    if not v_is_retry then
        -- Events put back are left out here: they are counted in v_retried, when they are settled.
        with received as materialized (
            select n.batch_id, n.event_id, exists (select from pgps_internal.failure f
                where f.subscription_id = v_id and f.event_id = n.event_id) as is_put_back
            from pgps_internal.received_events(v_id, ack_some.at) n
        ),
        newest as (
            select r.batch_id, r.event_id from received r
            where ack_some.up_to is null or r.event_id = ack_some.up_to
            order by r.batch_id desc, r.event_id desc limit 1
        )
        select n.batch_id, n.event_id, count(*) filter (where (r.batch_id, r.event_id) <= (n.batch_id, n.event_id)),
            count(*) filter (where (r.batch_id, r.event_id) > (n.batch_id, n.event_id))
        into v_batch, v_event, v_acked, v_left
        from newest n left join received r on not r.is_put_back group by n.batch_id, n.event_id;
        if v_batch is null and ack_some.up_to is not null then
            perform pgps_internal.refuse_unreceived(ack_some.subscription, ack_some.up_to);
        elsif v_acked + v_left > (ack_some.at).outstanding then
            -- The consumer has not got those that are hidden from it (count_returned): it acknowledges none of them.
            select v_acked - h.passed, v_left - h.ahead into v_acked, v_left
            from pgps_internal.count_hidden(ack_some.subscription, ack_some.at, v_batch, v_event) h;
        end if;
    end if;
    v_retried := array(select f.event_id from pgps_internal.failure f
        where f.subscription_id = v_id and f.state = 'leased' and (not v_is_retry or f.event_id <= ack_some.up_to));
    if v_batch is null and v_retried = '{}' then
        return 0;
    end if;
    v_acked := coalesce(v_acked, 0) + cardinality(v_retried);
    perform pgps_internal.move(v_id, coalesce(v_batch, (ack_some.at).acked_batch),
        coalesce(v_event, (ack_some.at).acked_event), (ack_some.at).received_batch,
        (ack_some.at).received_event, (ack_some.at).acked_total + v_acked,
        coalesce(v_left, (ack_some.at).outstanding)::integer,
        case when ack_some.up_to is not null then (ack_some.at).consumer end,
        (ack_some.at).seen_batch, (ack_some.at).seen_event);
    perform pgps_internal.settle(v_id, v_retried, true);
    return v_acked;
end
$$;
comment on function pgps_internal.ack_some(pgps_internal.subscription, pgps_internal.position, bigint) is
'Moves the position up to an event, or past what was put back, and settles what was handed out again; see ack_position,
which holds the turn of the subscription. Errors: 55000 the event has not been received.';

drop function if exists pgps_internal.settle(bigint, bigint[]);
create or replace function pgps_internal.settle(subscription_id bigint, event_ids bigint[], moves boolean = false)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A settled event that the position has not passed keeps its row: otherwise it would be delivered again as an event
    -- that never failed.
    update pgps_internal.failure f set state = 'settled'
    where f.subscription_id = settle.subscription_id and f.event_id = any (settle.event_ids);
    if found and settle.moves then
        perform pgps_internal.move_past_failures(settle.subscription_id);
    end if;
    delete from pgps_internal.failure f
    where f.subscription_id = settle.subscription_id and f.state = 'settled'
        and not pgps_internal.is_ahead(f.subscription_id, f.event_id);
end
$$;
comment on function pgps_internal.settle(bigint, bigint[], boolean) is
'Settles failures: deletes their rows, and rows settled earlier, once the position has passed the events; moves: moves
it past those that nothing lies before, for who has the turn of the subscription';

create or replace function pgps.ack(subscription text, up_to bigint = null, consumer text = null) returns bigint
language sql
begin atomic
    select (pgps._call('ack', jsonb_build_object('subscription', ack.subscription, 'up_to', ack.up_to, 'consumer',
        ack.consumer)) #>> '{}')::bigint;
end;
comment on function pgps.ack(text, bigint, text) is
'Acknowledges what has been received so far, or in delivery order up to and including one event; returns how many.
Covered is what the newest pgps.receive of this consumer returned, and nothing else; when its lease has ended, what of
that others have is left to them, and when that is all of it, this is refused (55000). In the transaction of the
application''s own writes it makes consumption exactly once. consumer: the name given to pgps.receive, if one was;
behind a transaction pooler a consumer has to have a name. When another session or token has received under the same
name since, this is refused. Needs to own the subscription. Errors: 42704, 42501, 22023, 55000 not received, not by this
consumer, not held any more, or acknowledged already, or internal.';

create or replace function pgps_internal.put_back(
    subscription pgps_internal.subscription, event_ids bigint[], error text, retry_in interval, consumer text
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_failed pgps_internal.received[];
    v_missing bigint;
begin
    perform pgps_internal.require_read_committed();
    if put_back.retry_in < '0' then
        raise exception 'invalid retry_in %', put_back.retry_in using errcode = '22023',
            hint = 'Give a positive interval, or null.';
    end if;
    perform pgps_internal.check_age(put_back.retry_in, 'retry_in');
    v_failed := case (put_back.subscription).handler when 'any'
        then pgps_internal.release(put_back.subscription, put_back.event_ids, put_back.consumer)
        else pgps_internal.received_of(put_back.subscription, put_back.event_ids, put_back.consumer) end;
    select e.id into v_missing from unnest(put_back.event_ids) e(id)
    where not exists (select from unnest(v_failed) f where f.event_id = e.id) order by e.id limit 1;
    if found then
        raise exception 'event % has not been received by subscription "%", or is settled already', v_missing,
            (put_back.subscription).name
        using errcode = '55000',
            hint = 'Give the event_id of an event that pgps.receive returned and that is not acknowledged.';
    elsif v_failed is not null then
        perform pgps_internal.note_failures(put_back.subscription, v_failed, 'nack', null, put_back.error,
            coalesce(put_back.retry_in, '0'));
    end if;
    return coalesce(cardinality(v_failed), 0);
end
$$;
comment on function pgps_internal.put_back(pgps_internal.subscription, bigint[], text, interval, text) is
'Files events that a consumer has refused: all of them, or none. Errors: 22023, 55000.';

create or replace function pgps_internal.received_of(
    subscription pgps_internal.subscription, event_ids bigint[], consumer text
)
returns pgps_internal.received[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (received_of.subscription).subscription_id;
    v_position pgps_internal.position;
    v_received pgps_internal.received[];
begin
    perform pgps_internal.hold_subscription(v_id, (received_of.subscription).name);
    v_position := pgps_internal.position_of(v_id);
    perform pgps_internal.require_consumer(received_of.subscription, v_position, received_of.consumer);
    with wanted as materialized (
        select distinct e.id from unnest(received_of.event_ids) e(id)
    ),
    known as materialized (
        select f.event_id, f.type_id, f.state, f.attempts from pgps_internal.failure f
        where f.subscription_id = v_id and f.event_id = any (received_of.event_ids)
    ),
    received as (
        select k.event_id, k.type_id, k.attempts + 1 as attempt from known k where k.state = 'leased'
        union all
        select n.event_id, n.type_id, 1
        from pgps_internal.received_events(v_id, v_position) n
        join wanted w on w.id = n.event_id
        where not exists (select from known k where k.event_id = n.event_id)
    )
    select array_agg((0, r.event_id, r.type_id, r.attempt)::pgps_internal.received) into v_received from received r;
    return v_received;
end
$$;
comment on function pgps_internal.received_of(pgps_internal.subscription, bigint[], text) is
'Those events that the one consumer of a subscription has received and neither acknowledged nor put back, with how often
they were tried';

create or replace function pgps_internal.do_nack(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription := pgps_internal.find_subscription(caller, args ->> 'subscription');
begin
    if args ->> 'event_id' is null then
        raise exception 'event_id is null' using errcode = '22023',
            hint = 'Give the event_id of an event that pgps.receive returned.';
    end if;
    perform pgps_internal.put_back(v_subscription, array[(args ->> 'event_id')::bigint], args ->> 'error',
        (args ->> 'retry_in')::interval,
        args ->> 'consumer');
    return null;
end
$$;
comment on function pgps_internal.do_nack(name, jsonb) is 'See pgps.nack';

create or replace function pgps_internal.do_nack_events(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription := pgps_internal.find_subscription(caller, args ->> 'subscription');
    v_ids bigint[];
begin
    if jsonb_typeof(args -> 'event_ids') is distinct from 'array' then
        raise exception 'event_ids is null' using errcode = '22023',
            hint = 'Give an array of the event_ids that pgps.receive returned.';
    end if;
    v_ids := array(select e.id::bigint from jsonb_array_elements_text(args -> 'event_ids') e(id));
    if array_position(v_ids, null) is not null then
        raise exception 'event_ids contains null' using errcode = '22023',
            hint = 'Give an array of the event_ids that pgps.receive returned.';
    end if;
    return to_jsonb(pgps_internal.put_back(v_subscription, v_ids, args ->> 'error', (args ->> 'retry_in')::interval,
        args ->> 'consumer'));
end
$$;
comment on function pgps_internal.do_nack_events(name, jsonb) is 'See pgps.nack_events';

create or replace function pgps.nack(
    subscription text, event_id bigint, error text = null, retry_in interval = null, consumer text = null
) returns void
language sql
begin atomic
    select pgps._call('nack', jsonb_build_object('subscription', nack.subscription, 'event_id', nack.event_id, 'error',
        nack.error,
        'retry_in', nack.retry_in, 'consumer', nack.consumer));
end;
comment on function pgps.nack(text, bigint, text, interval, text) is
'Puts one received event back: it comes again after retry_in (null = at the next receive), and goes to the exception
queue with error after max_attempts. Events after it can be acknowledged before it. consumer: the name given to
pgps.receive, if one was. Needs to own the subscription. Errors: 42704, 42501, 22023, 55000 not received.';

create or replace function pgps.nack_events(
    subscription text, event_ids bigint[], error text = null, retry_in interval = null, consumer text = null
) returns bigint
language sql
begin atomic
    select (pgps._call('nack_events', jsonb_build_object('subscription', nack_events.subscription,
        -- unnest flattens an array of arrays.
        'event_ids', to_jsonb(case when nack_events.event_ids is not null
            then array(select unnest(nack_events.event_ids)) end),
        'error', nack_events.error, 'retry_in', nack_events.retry_in, 'consumer',
            nack_events.consumer)) #>> '{}')::bigint;
end;
comment on function pgps.nack_events(text, bigint[], text, interval, text) is
'Puts several received events back, as pgps.nack does with one, in one step: all of them or, when one has not been
received, none; returns how many. An empty array puts nothing back. Needs to own the subscription. Errors: 42704, 42501,
22023 null, 55000 not received.';

grant execute on function pgps.ack(text, bigint, text), pgps.nack(text, bigint, text, interval, text),
    pgps.nack_events(text, bigint[], text, interval, text) to public;
