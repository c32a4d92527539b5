-- What a call of pgps.receive or pgps.take returns of what is handed out: as far as the owner of the subscription may
-- see it.
-- Locks: none but those of handing out.
-- Writes: consumer, position, share.

create or replace function pgps_internal.count_returned(
    subscription pgps_internal.subscription, hidden integer, acks boolean
) returns void
language plpgsql
as $$
declare
    v_at pgps_internal.position := pgps_internal.position_of((count_returned.subscription).subscription_id);
begin
    perform pgps_internal.move(v_at.subscription_id, v_at.acked_batch, v_at.acked_event, v_at.received_batch,
        v_at.received_event, v_at.acked_total - case when count_returned.acks then count_returned.hidden else 0 end,
        case when count_returned.acks then v_at.outstanding
            else greatest(0, v_at.outstanding - count_returned.hidden) end,
        v_at.consumer, v_at.seen_batch, v_at.seen_event);
end
$$;
comment on function pgps_internal.count_returned(pgps_internal.subscription, integer, boolean) is
'Events that were handed out and that the consumer does not get, since their type has been dropped or its owner may not
see them any more, are not counted as received, nor as acknowledged';

create or replace function pgps_internal.pass_hidden(
    subscription pgps_internal.subscription, handed_out pgps_internal.received[], shown pgps_internal.message[],
    acks boolean, consumer text
) returns void
language plpgsql
as $$
declare
    v_id bigint := (pass_hidden.subscription).subscription_id;
    v_hidden bigint[];
begin
    if pass_hidden.acks then
        -- They are gone already, and were counted as acknowledged.
        insert into pgps_internal.position
            (subscription_id, acked_batch, acked_event, received_batch, received_event, acked_total, outstanding)
        values (v_id, -1, 0, -1, 0, cardinality(pass_hidden.shown) - cardinality(pass_hidden.handed_out), 0);
        return;
    end if;
    with hidden as materialized (
        select h.batch_id, h.event_id
        from unnest(pass_hidden.handed_out) with ordinality h(batch_id, event_id, type_id, attempt, place)
        where h.place not in (select m.place from unnest(pass_hidden.shown) m)
    ),
    dropped as (
        delete from pgps_internal.share s using hidden h
        where s.subscription_id = v_id and s.batch_id = h.batch_id and s.event_id = h.event_id
        returning s.event_id
    ),
    counted as (
        update pgps_internal.consumer c set given = c.given - (select count(*) from dropped)
        where c.subscription_id = v_id and c.holder = pgps_internal.holder_for(pass_hidden.consumer)
    )
    select array_agg(d.event_id) into v_hidden from dropped d;
    perform pgps_internal.settle(v_id, v_hidden) where v_hidden is not null;
end
$$;
comment on function pgps_internal.pass_hidden(pgps_internal.subscription, pgps_internal.received[],
    pgps_internal.message[], boolean, text) is
'What competing consumers share, was handed out, and cannot be shown, nobody holds or acknowledges: they pass it over';

create or replace function pgps_internal.count_hidden(
    subscription pgps_internal.subscription, at pgps_internal.position, batch_id bigint, event_id bigint,
    out passed bigint, out ahead bigint
) returns record
language plpgsql
as $$
begin
    with received as materialized (
        select n.batch_id, n.event_id, n.type_id
        from pgps_internal.received_events((count_hidden.subscription).subscription_id, count_hidden.at) n
        where not exists (select from pgps_internal.failure f
            where f.subscription_id = (count_hidden.subscription).subscription_id and f.event_id = n.event_id)
    ),
    shown as materialized (
        select unnest(pgps_internal.visible_ids(t, (count_hidden.subscription).owner,
            array(select r.event_id from received r where r.type_id = t.type_id))) as event_id
        from pgps_internal.event_type t where t.type_id in (select r.type_id from received r)
    )
    select count(*) filter (where (r.batch_id, r.event_id) <= (count_hidden.batch_id, count_hidden.event_id)),
        count(*) filter (where (r.batch_id, r.event_id) > (count_hidden.batch_id, count_hidden.event_id))
    into passed, ahead
    from received r where r.event_id not in (select s.event_id from shown s);
end
$$;
comment on function pgps_internal.count_hidden(pgps_internal.subscription, pgps_internal.position, bigint, bigint) is
'Of what was received and is not acknowledged, nor put back, how much the owner of the subscription may not see: up to
an event, and beyond it';

create or replace function pgps_internal.hand_out_messages(
    subscription pgps_internal.subscription, max_events integer, acks boolean, consumer text
) returns pgps_internal.message[]
language plpgsql
as $$
declare
    v_handed_out pgps_internal.received[];
    -- A row: a variable that is an array would take it apart, message by message.
    v_answer pgps_entry.receive_calls;
begin
    loop
        v_answer.messages := '{}';
        v_handed_out := case when (hand_out_messages.subscription).handler <> 'any'
                then pgps_internal.hand_out(hand_out_messages.subscription, hand_out_messages.max_events,
                    hand_out_messages.acks, hand_out_messages.consumer)
            when hand_out_messages.acks then pgps_internal.take_shared(hand_out_messages.subscription,
                hand_out_messages.max_events, hand_out_messages.consumer)
            else pgps_internal.lease(hand_out_messages.subscription, hand_out_messages.max_events,
                hand_out_messages.consumer) end;
        exit when cardinality(v_handed_out) = 0;
        v_answer.messages := pgps_internal.unfold(v_handed_out, hand_out_messages.subscription);
        if pg_column_size(v_answer.messages) > 100000000 then
            perform pgps_internal.require_sendable(v_answer.messages);
        end if;
        if (hand_out_messages.subscription).kind <> 'external' then
            v_answer.messages := pgps_internal.after_receive(hand_out_messages.subscription, v_answer.messages);
        end if;
        if cardinality(v_answer.messages) > 0 then
            if cardinality(v_answer.messages) < cardinality(v_handed_out) then
                if (hand_out_messages.subscription).handler = 'any' then
                    perform pgps_internal.pass_hidden(hand_out_messages.subscription, v_handed_out, v_answer.messages,
                        hand_out_messages.acks, hand_out_messages.consumer);
                else
                    perform pgps_internal.count_returned(hand_out_messages.subscription,
                        cardinality(v_handed_out) - cardinality(v_answer.messages), hand_out_messages.acks);
                end if;
            end if;
            exit;
        end if;
        perform pgps_internal.pass_over(hand_out_messages.subscription, v_handed_out);
    end loop;
    return v_answer.messages;
end
$$;
comment on function pgps_internal.hand_out_messages(pgps_internal.subscription, integer, boolean, text) is
'Hands out the next events of a subscription with their payload; those that nobody can see are passed over. Errors:
54000 they are too large for one call, or one of them is by itself (large_events.sql)';
