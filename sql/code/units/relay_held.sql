-- What other brokers send about a unit of work or a conversation that an open transaction holds: it waits for its next
-- attempt, and with it what comes behind it in the same conversation, while the relay goes on with all others'. It is
-- tried again after 50 ms, then after twice as long, up to a second.
-- Locks: the units that events are about, then their conversations, as far as nobody has them.
-- Writes: nothing.

create or replace function pgps_internal.what_is_meant(events jsonb)
returns table (event_id bigint, place bigint, unit_no bigint, conversation_no bigint, client_broker text,
    conversation bigint)
language plpgsql volatile rows 100
set search_path = pg_catalog, pg_temp
as $$
begin
    return query
    select (e ->> 'event_id')::bigint, (e ->> 'place')::bigint,
        pgps_internal.unit_meant(e ->> 'origin', e -> 'payload'),
        (pgps_internal.their_conversation(e ->> 'origin', e -> 'payload')).conversation_no,
        e -> 'payload' ->> 'client_broker', (e -> 'payload' ->> 'conversation')::bigint
    from jsonb_array_elements(what_is_meant.events) e;
end
$$;
comment on function pgps_internal.what_is_meant(jsonb) is
'Events from other brokers with the numbers of the unit and the conversation here that they are about, null where there
are none, and which conversation they name';

create or replace function pgps_internal.waiting_relayed()
returns table (event_id bigint, client_broker text, conversation bigint)
language plpgsql volatile rows 100
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    with waits as materialized (
        select f.event_id from pgps_internal.subscription s
        join pgps_internal.failure f on f.subscription_id = s.subscription_id and f.state = 'retrying'
        where s.name = 'pgps_uow'
    )
    select l.event_id, l.client_broker, l.conversation
    from waits w join pgps_internal.pgps_uow_log l on l.event_id = w.event_id
    union
    select k.event_id, k.client_broker, k.conversation
    from waits w join pgps_internal.pgps_uow_kept k on k.event_id = w.event_id;
end
$$;
comment on function pgps_internal.waiting_relayed() is
'The events from other brokers that wait for their next attempt, and which conversation they name';

create or replace function pgps_internal.lock_what_is_meant(events jsonb) returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_told jsonb := (select to_jsonb(array_agg(m)) from pgps_internal.what_is_meant(lock_what_is_meant.events) m);
    v_units bigint[] := array(select (m ->> 'unit_no')::bigint from jsonb_array_elements(v_told) m
        where m ->> 'unit_no' is not null);
    v_conversations bigint[] := array(select (m ->> 'conversation_no')::bigint from jsonb_array_elements(v_told) m
        where m ->> 'conversation_no' is not null);
begin
    -- In the order of SYNCPOINT: first all units, then all conversations. What is left are those that others have.
    v_units := array(select unnest(v_units) except select l.unit_no from (select u.unit_no from pgps_internal.unit u
        where u.unit_no = any (v_units) order by u.unit_no for update skip locked) l);
    v_conversations := array(select unnest(v_conversations) except select l.conversation_no
        from (select c.conversation_no from pgps_internal.conversation c
            where c.conversation_no = any (v_conversations) order by c.conversation_no for update skip locked) l);
    return (
        with told as materialized (
            select m.* from jsonb_to_recordset(v_told) m(event_id bigint, place bigint, unit_no bigint,
                conversation_no bigint, client_broker text, conversation bigint)
        ),
        waiting as materialized (
            select w.* from pgps_internal.waiting_relayed() w
        ),
        held as materialized (
            select t.client_broker, t.conversation, min(t.place) as place from told t
            where t.unit_no = any (v_units) or t.conversation_no = any (v_conversations)
                or exists (select from waiting w where w.client_broker = t.client_broker
                    and w.conversation = t.conversation and w.event_id < t.event_id)
            group by t.client_broker, t.conversation
        )
        select array_agg(t.event_id) from told t
        join held h on h.client_broker = t.client_broker and h.conversation = t.conversation and h.place <= t.place);
end
$$;
comment on function pgps_internal.lock_what_is_meant(jsonb) is
'Locks the units and conversations that events from other brokers are about, as far as nobody has them. Returns the ids
of the events that have to wait: those of which an open transaction holds something, and those behind one that waits, in
the same conversation; null when there are none';

create or replace function pgps_internal.leave_for_later(events jsonb, event_ids bigint[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Never given up: however long that transaction stays open, it ends.
    perform pgps_internal.note_failures(s, h.failed, 'nack', '55P03', null,
        least(interval '1 second', interval '50 milliseconds' * power(2, h.attempt - 1)))
    from pgps_internal.subscription s
    cross join (
        select a.attempt, array_agg((0, a.event_id, t.type_id, a.attempt)::pgps_internal.received) as failed
        from (select (e ->> 'event_id')::bigint as event_id, least((e ->> 'attempt')::integer, 10) as attempt
            from jsonb_array_elements(leave_for_later.events) e) a
        join pgps_internal.event_type t on t.name = 'pgps_uow'
        where a.event_id = any (leave_for_later.event_ids)
        group by a.attempt) h
    where s.name = 'pgps_uow';
end
$$;
comment on function pgps_internal.leave_for_later(jsonb, bigint[]) is
'Has those of the events from other brokers come again that have to wait';
