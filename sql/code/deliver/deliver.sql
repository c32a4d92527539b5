-- Delivery to external subscriptions: receive and take (ack and nack: acknowledge.sql). A subscription is a position in
-- the deliveries of its classes, kept as an append-only ledger, with failures (events to come again) and shares
-- (competing consumers) beside it.
-- Locks: the turn of the subscription, until the transaction ends; competing consumers: see leases.sql.
-- Writes: failure, pgps_entry.receive_calls, position.

create or replace function pgps_internal.require_consumer(
    subscription pgps_internal.subscription, at pgps_internal.position, consumer text
) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if (require_consumer.at).consumer is distinct from require_consumer.consumer
            and ((require_consumer.at).consumer is not null or (require_consumer.at).outstanding > 0) then
        raise exception 'what subscription "%" gave last was received %, not %', (require_consumer.subscription).name,
            coalesce('by consumer "' || (require_consumer.at).consumer || '"', 'without the name of a consumer'),
            coalesce('by consumer "' || pgps_internal.check_consumer(require_consumer.consumer) || '"', 'without one')
        using errcode = '55000',
            hint = 'Receive again under the name that acknowledges. Two consumers share a subscription with handler '
            '=> ''any''; '
            'otherwise subscribe once for each.';
    end if;
    return true;
end
$$;
comment on function pgps_internal.require_consumer(pgps_internal.subscription, pgps_internal.position, text) is
'Returns true; raises 55000 when the events last received from a subscription with one consumer went to another
consumer';

create or replace function pgps_internal.hand_out_due(subscription_id bigint, max_events integer)
returns pgps_internal.received[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_due pgps_internal.received[];
begin
    with chosen as materialized (
        select d.event_id from pgps_internal.failure d
        where d.subscription_id = hand_out_due.subscription_id
            and (d.state = 'retrying' and d.due_at <= pgps_internal.clock() or d.state = 'leased')
        order by d.event_id limit hand_out_due.max_events
    ),
    returned as (
        -- Events that an earlier call handed out and this one does not: the next ack must not cover them.
        update pgps_internal.failure f set state = 'retrying', due_at = pgps_internal.clock()
        where f.subscription_id = hand_out_due.subscription_id and f.state = 'leased'
            and f.event_id not in (select c.event_id from chosen c)
    ),
    due as (
        update pgps_internal.failure f set state = 'leased',
            due_at = pgps_internal.clock() + pgps_internal.setting('lease')::interval
        from chosen c where f.subscription_id = hand_out_due.subscription_id and f.event_id = c.event_id
        returning f.event_id, f.type_id, f.attempts
    )
    select array_agg((0, d.event_id, d.type_id, d.attempts + 1)::pgps_internal.received order by d.event_id) into v_due
        from due d;
    return v_due;
end
$$;
comment on function pgps_internal.hand_out_due(bigint, integer) is
'Hands out events that were put back and are due again';

create or replace function pgps_internal.has_due(subscription_id bigint) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from pgps_internal.failure f
        where f.subscription_id = has_due.subscription_id
            and (f.state = 'retrying' and f.due_at <= pgps_internal.clock() or f.state = 'leased'));
end
$$;
comment on function pgps_internal.has_due(bigint) is 'True when hand_out_due has something to hand out';

create or replace function pgps_internal.move_to_acked(
    subscription_id bigint, at pgps_internal.position, events integer, acks boolean, consumer text
) returns void
language plpgsql
as $$
declare
    v_seen_batch bigint := coalesce((move_to_acked.at).seen_batch, (move_to_acked.at).received_batch);
    v_seen_event bigint := coalesce((move_to_acked.at).seen_event, (move_to_acked.at).received_event);
    v_is_back boolean := (v_seen_batch, v_seen_event)
        > ((move_to_acked.at).acked_batch, (move_to_acked.at).acked_event);
begin
    if move_to_acked.acks or (move_to_acked.at).outstanding > 0
        or (move_to_acked.at).consumer is distinct from move_to_acked.consumer then
        perform pgps_internal.move(move_to_acked.subscription_id, (move_to_acked.at).acked_batch,
            (move_to_acked.at).acked_event, (move_to_acked.at).acked_batch, (move_to_acked.at).acked_event,
            (move_to_acked.at).acked_total + case when move_to_acked.acks then move_to_acked.events else 0 end, 0,
            case when not move_to_acked.acks then move_to_acked.consumer end,
            case when v_is_back then v_seen_batch end, case when v_is_back then v_seen_event end);
    end if;
end
$$;
comment on function pgps_internal.move_to_acked(bigint, pgps_internal.position, integer, boolean, text) is
'Notes that only events put back were handed out, so many; acks: they are acknowledged at once. What was received before
is not received any more: the next ack must not cover events that only an earlier call handed out, to a consumer that
may have crashed since';

create or replace function pgps_internal.is_uncommon(subscription pgps_internal.subscription) returns boolean
language plpgsql stable
as $$
begin
    -- Common case: nobody ever failed, which a sequence tells, or nobody has, which the size of the table tells.
    if pg_sequence_last_value('pgps_internal.failure_place_seq'::regclass) is not null
            and pg_relation_size('pgps_internal.failure'::regclass) > 0 then
        if exists (select from pgps_internal.failure f
                where f.subscription_id = (is_uncommon.subscription).subscription_id) then
            return true;
        end if;
    end if;
    return (is_uncommon.subscription).is_pattern
        and pg_sequence_last_value('pgps_internal.unmet_place_seq'::regclass) is not null;
end
$$;
comment on function pgps_internal.is_uncommon(pgps_internal.subscription) is
'True when events of a subscription have failed, or it may have to meet an event type (is_unmet): then the shortcut of
next_received is not taken';

-- The functions that run for each receive and take have no search_path of their own: they run with that of
-- enter_receive, since setting it again for each of them took as long as taking the turn.
create or replace function pgps_internal.hand_out(
    subscription pgps_internal.subscription, max_events integer, acks boolean, consumer text
) returns pgps_internal.received[]
language plpgsql
as $$
declare
    v_id bigint := (hand_out.subscription).subscription_id;
    v_position pgps_internal.position;
    v_has_failures boolean;
    v_is_back boolean;
    v_due pgps_internal.received[] := '{}';
    v_next pgps_internal.received[];
    v_last pgps_internal.received;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform pgps_internal.require_read_committed();
    end if;
    v_position := pgps_internal.position_of(v_id);
    v_has_failures := pgps_internal.is_uncommon(hand_out.subscription);
    v_next := pgps_internal.next_received(v_id, v_position, hand_out.max_events, v_has_failures);
    -- Taking the turn writes, and a call that finds nothing to hand out writes nothing.
    if v_next is null and not (v_has_failures and pgps_internal.has_due(v_id)) then
        return v_due;
    end if;
    if not pgps_internal.hold_unmoved(v_id, v_position.position_id, (hand_out.subscription).name) then
        -- The position has moved meanwhile, or there are failures. Events put back come first: by putting them back the
        -- consumer has given up their order.
        perform pgps_internal.require_subscription(hand_out.subscription);
        v_position := pgps_internal.position_of(v_id);
        v_due := coalesce(pgps_internal.hand_out_due(v_id, hand_out.max_events), '{}');
        v_next := pgps_internal.next_received(v_id, v_position, hand_out.max_events - cardinality(v_due), true);
    end if;
    v_last := v_next[cardinality(v_next)];
    v_is_back := (coalesce(v_position.seen_batch, v_position.received_batch),
        coalesce(v_position.seen_event, v_position.received_event)) > (v_last.batch_id, v_last.event_id);
    if v_next is null and v_due <> '{}' then
        perform pgps_internal.move_to_acked(v_id, v_position, cardinality(v_due), hand_out.acks, hand_out.consumer);
    -- Written also when this moves it back: the next ack must not cover what only an earlier call handed out.
    elsif v_next is not null and (hand_out.acks or v_position.consumer is distinct from hand_out.consumer
        or (v_last.batch_id, v_last.event_id, cardinality(v_next)) is distinct from
            (v_position.received_batch, v_position.received_event, v_position.outstanding)) then
        insert into pgps_internal.position (subscription_id, acked_batch, acked_event, received_batch, received_event,
            acked_total, outstanding, consumer, seen_batch, seen_event)
        values (v_id, case when hand_out.acks then v_last.batch_id else v_position.acked_batch end,
            case when hand_out.acks then v_last.event_id else v_position.acked_event end,
            v_last.batch_id, v_last.event_id,
            v_position.acked_total + case when hand_out.acks then cardinality(v_due || v_next) else 0 end,
            case when hand_out.acks then 0 else cardinality(v_next) end,
            case when not hand_out.acks then hand_out.consumer end,
            case when v_is_back then coalesce(v_position.seen_batch, v_position.received_batch) end,
            case when v_is_back then coalesce(v_position.seen_event, v_position.received_event) end);
    end if;
    if hand_out.acks and v_due <> '{}' then
        perform pgps_internal.settle(v_id, array(select d.event_id from unnest(v_due) d), true);
    end if;
    return v_due || v_next;
end
$$;
comment on function pgps_internal.hand_out(pgps_internal.subscription, integer, boolean, text) is
'Hands out the next events of a subscription with one consumer, and notes how far it has received; they come again until
acknowledged. acks: acknowledges them at once';

create or replace function pgps_internal.enter_receive() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp set standard_conforming_strings = on
set jit = off set enable_seqscan = off set max_parallel_workers_per_gather = 0
as $$
declare
    -- Folded as in find_subscription; a plain lower-case name needs no call.
    v_name text := case when new.subscription ~ '^[a-z_][a-z0-9_]*$' then new.subscription
        else pgps_internal.fold(new.subscription) end;
    v_subscription pgps_internal.subscription;
    v_found record;
    v_max integer := coalesce(new.max_events, 100);
    v_few integer;
    v_tries integer := 0;
    v_state text;
    v_error text;
begin
    -- One statement checks what find_subscription and require_rights check, which raise the error when it fails.
    select s as subscription, pg_has_role(new.caller, s.owner::oid, 'usage')
        and s.owner::text <> s.owner::oid::text as is_theirs,
        s.is_pattern or has_table_privilege(s.owner::oid, t.endpoint, 'select') as may_receive,
        (select e.value from pgps_internal.setting e where e.name = 'buffer_events') as buffer
    into v_found
    from pgps_internal.subscription s left join pgps_internal.event_type t on t.name = s.event_type
    where s.name = v_name and not s.is_hidden;
    v_subscription := case when v_found.is_theirs then v_found.subscription
        else pgps_internal.find_subscription(new.caller, new.subscription) end;
    if v_subscription.callback is not null then
        raise exception 'subscription "%" is internal: its events go to %', v_subscription.name, v_subscription.callback
        using errcode = '55000', hint = 'Subscribe without execute to receive events yourself.';
    elsif v_max <= 0 then
        raise exception 'invalid max_events %', v_max using errcode = '22023', hint = 'Give a positive number.';
    elsif v_found.buffer <> '1000000000' and new.acks is not true and v_subscription.state = 'active' then
        v_max := least(v_max, pgps_internal.room_of(v_subscription, new.consumer, v_found.buffer::bigint));
    end if;
    if v_subscription.state <> 'active' or v_max = 0 then
        perform pgps_internal.hold_back(v_subscription, new.consumer);
        return new;
    end if;
    if v_found.may_receive is not true then perform pgps_internal.require_rights(v_subscription); end if;
    if new.consumer is not null then perform pgps_internal.check_consumer(new.consumer); end if;
    loop
        begin
            new.messages := pgps_internal.hand_out_messages(v_subscription, coalesce(nullif(v_few, -1), v_max),
                coalesce(new.acks, false), new.consumer);
            exit;
        exception when others or assert_failure then
            get stacked diagnostics v_state = returned_sqlstate, v_error = message_text;
            v_tries := v_tries + 1;
            if v_tries > 3 or v_state <> '42703' and not pgps_internal.is_race(v_state, '', v_error) then
                v_few := pgps_internal.few_that_can_be(v_subscription, coalesce(nullif(v_few, -1), v_max),
                    new.consumer, v_state, v_error);
                if v_few = 0 or v_few = -1 and v_tries > 100 then raise; end if;
            end if;
        end;
        v_subscription := pgps_internal.find_subscription(new.caller, new.subscription);
    end loop;
    return new;
end
$$;
comment on function pgps_internal.enter_receive() is
'Behind pgps.receive and pgps.take, see pgps_internal.call. Looks once more when, while it waited for the log, an
attribute was dropped, or the type with the code that reads its events';

create or replace function pgps_internal.require_rights(subscription pgps_internal.subscription) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type text;
begin
    select t.name into v_type
    from pgps_internal.member m join pgps_internal.event_type t using (type_id)
    where m.subscription_id = (require_rights.subscription).subscription_id
        and not has_table_privilege((require_rights.subscription).owner::oid, t.endpoint, 'select') limit 1;
    if v_type is not null and not (require_rights.subscription).is_pattern then
        raise exception 'role % may not receive event type "%" any more', (require_rights.subscription).owner, v_type
        using errcode = '42501',
            hint = format('Ask for: grant select on pgps_event.%I to %s', v_type, (require_rights.subscription).owner);
    end if;
end
$$;
comment on function pgps_internal.require_rights(pgps_internal.subscription) is
'Raises 42501 when the owner has lost SELECT on the event type; not for a subscription to a prefix';

do $$
begin
    if to_regclass('pgps_entry.receive_calls') is null then
        create view pgps_entry.receive_calls as
        select null::text as subscription, null::integer as max_events, null::boolean as acks, null::name as caller,
            null::pgps_internal.message[] as messages, null::text as consumer where false;
        alter view pgps_entry.receive_calls alter column caller set default current_user;
        create trigger enter instead of insert on pgps_entry.receive_calls
        for each row execute function pgps_internal.enter_receive();
        grant insert (subscription, max_events, acks), select (messages) on pgps_entry.receive_calls to public;
    end if;
    -- The column consumer was added later; create or replace can append a column to a view.
    create or replace view pgps_entry.receive_calls as
    select null::text as subscription, null::integer as max_events, null::boolean as acks, null::name as caller,
        null::pgps_internal.message[] as messages, null::text as consumer where false;
    grant insert (consumer) on pgps_entry.receive_calls to public;
end
$$;
comment on view pgps_entry.receive_calls is 'The way in of pgps.receive and pgps.take; see pgps_internal.call';

create or replace function pgps.receive(subscription text, max_events integer = 100, consumer text = null)
returns table (event_id bigint, event_type text, payload jsonb, published_at timestamptz, publisher name, xid xid8,
    origin text, attempt integer)
language plpgsql rows 100
as $$
#variable_conflict use_column
declare
    v_messages pgps_entry.receive_calls.messages%type;
begin
    insert into pgps_entry.receive_calls (subscription, max_events, consumer)
        values (receive.subscription, receive.max_events, receive.consumer)
    returning messages into v_messages;
    if pg_catalog.array_ndims(v_messages) is not null then
        return query
        select m.event_id, m.event_type, m.payload, m.published_at, m.publisher, m.xid, m.origin, m.attempt
        from pg_catalog.unnest(v_messages) m order by m.place;
    end if;
end
$$;
comment on function pgps.receive(text, integer, text) is
'The next events of an external subscription in delivery order: batch, then event id; repeats them until they are
acknowledged. On a handler => ''any'' subscription each session gets events of its own, for the time of the setting
lease, and first those that it holds. pgps.ack covers what the newest call returned, and nothing that only an earlier
one did. attempt: 1 for an event that is handed out for the first time. consumer: a name that the events are given to,
whatever session it uses; behind a transaction pooler a consumer of such a subscription has to name itself, here and to
pgps.ack. On other subscriptions it makes sure that only the consumer that received acknowledges. Acknowledged in the
same transaction as the application''s writes, consumption is exactly once: another session waits for that transaction.
An event that cannot become JSON goes to the exception queue: pgps_queue.<type>_receive gives events as rows.
A paused subscription gives nothing, and none gives more than the consumer''s share of the setting buffer_events. Needs
to own the subscription. Errors: 42704, 42501, 22023, 55000 internal or suspended.';

create or replace function pgps.take(subscription text, max_events integer = 100, consumer text = null)
returns table (event_id bigint, event_type text, payload jsonb, published_at timestamptz, publisher name, xid xid8,
    origin text, attempt integer)
language plpgsql rows 100
as $$
#variable_conflict use_column
declare
    v_messages pgps_entry.receive_calls.messages%type;
begin
    insert into pgps_entry.receive_calls (subscription, max_events, acks, consumer)
        values (take.subscription, take.max_events, true, take.consumer)
    returning messages into v_messages;
    if pg_catalog.array_ndims(v_messages) is not null then
        return query
        select m.event_id, m.event_type, m.payload, m.published_at, m.publisher, m.xid, m.origin, m.attempt
        from pg_catalog.unnest(v_messages) m order by m.place;
    end if;
end
$$;
comment on function pgps.take(text, integer, text) is
'Receives the next events of an external subscription and acknowledges them, in one step, for three quarters of the cost
of pgps.receive and pgps.ack. In the transaction of the application''s own writes consumption is exactly once: if it
rolls back, the events come again. What has been taken cannot be put back with pgps.nack. consumer: as for pgps.receive.
Needs to own the subscription. Errors: 42704, 42501, 22023, 55000 internal or suspended.';

grant execute on function pgps.receive(text, integer, text), pgps.take(text, integer, text) to public;
