-- What a call of pgps.receive or pgps.take returns of what is handed out: as far as the owner of the subscription may
-- see it.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.count_returned(
    subscription pgps_internal.subscription, hidden integer, acks boolean
) returns void
language plpgsql
as $$
declare
    v_at pgps_internal.position := pgps_internal.position_of((count_returned.subscription).subscription_id);
begin
    if (count_returned.subscription).handler = 'any' then
        return;
    end if;
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
            perform pgps_internal.count_returned(hand_out_messages.subscription,
                cardinality(v_handed_out) - cardinality(v_answer.messages), hand_out_messages.acks)
            where cardinality(v_answer.messages) < cardinality(v_handed_out);
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
