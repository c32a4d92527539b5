-- The buffer of the consumers: how many events all of them together may hold unacknowledged; the live ones share it.
-- Applied where events are handed out; without a bound, which is the default, nothing of this runs.
-- Locks: the turn of a subscription that is paused.
-- Writes: failure, setting.

insert into pgps_internal.setting (name, value, kind, description) values
    ('buffer_events', '1000000000', 'integer',
        'How many events all consumers together may hold unacknowledged; those that live share it evenly')
on conflict (name) do nothing;

create or replace function pgps_internal.is_dead(
    subscription_id bigint, at pgps_internal.position, dead_after interval
) returns boolean
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    -- As pgps.subscriptions has it: nothing was received or acknowledged for so long, while events waited.
    select coalesce(greatest((is_dead.at).moved_at, min(b.oldest)) <= pgps_internal.clock() - is_dead.dead_after, false)
    from pgps_internal.backlog b where b.subscription_id = is_dead.subscription_id and b.depth > 0
$$;
comment on function pgps_internal.is_dead(bigint, pgps_internal.position, interval) is
'True when the consumer of a subscription is presumed dead';

create or replace function pgps_internal.buffers() returns table (subscription_id bigint, holder text, held bigint)
language plpgsql stable
set search_path = pg_catalog, pg_temp set jit = off
as $$
#variable_conflict use_column
begin
    return query
    select s.subscription_id, null::text, p.outstanding::bigint
    from pgps_internal.subscription s
    cross join lateral pgps_internal.position_of(s.subscription_id) p
    left join pgps_internal.backlog_limit l on l.subscription_id = s.subscription_id
    where s.kind = 'external' and s.handler <> 'any' and s.state = 'active'
        and (p.outstanding > 0 or pgps_internal.have_news(array[s.subscription_id]))
        and (l.dead_after is null or not pgps_internal.is_dead(s.subscription_id, p, l.dead_after))
    union all
    select h.subscription_id, h.holder, count(*)
    from pgps_internal.share h where h.leased_until > pgps_internal.clock() group by h.subscription_id, h.holder;
end
$$;
comment on function pgps_internal.buffers() is
'The live consumers that hold events or have events waiting, and how many they hold. holder: the one of a shared
subscription. What a consumer that is presumed dead was handed is given back, and counts for nobody';

create or replace function pgps_internal.buffer_room(subscription_ids bigint[], holder text, buffer bigint)
returns integer
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- A share alone would not do: who was alone until now may hold the whole buffer.
    select least(greatest(buffer_room.buffer / greatest(w.live + cardinality(buffer_room.subscription_ids) - w.own, 1),
        1), greatest(buffer_room.buffer - w.held, 0) / cardinality(buffer_room.subscription_ids))::integer
    from (
        select count(*) as live, count(*) filter (where b.is_own) as own,
            coalesce(sum(b.held) filter (where not b.is_own), 0) as held
        from (select b.held, b.subscription_id = any (buffer_room.subscription_ids)
                and coalesce(b.holder = buffer_room.holder, true) as is_own
            from pgps_internal.buffers() b) b) w
$$;
comment on function pgps_internal.buffer_room(bigint[], text, bigint) is
'How many events each of some consumers may hold now: an even share of the buffer, less when others hold more than
theirs. holder: who asks, of a shared subscription';

create or replace function pgps_internal.room_of(
    subscription pgps_internal.subscription, consumer text, buffer bigint
) returns integer
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select pgps_internal.buffer_room(array[(room_of.subscription).subscription_id],
        case when (room_of.subscription).handler = 'any' then pgps_internal.holder_for(room_of.consumer) end,
        room_of.buffer)
$$;
comment on function pgps_internal.room_of(pgps_internal.subscription, text, bigint) is
'How many events the consumer that receives from a subscription may hold now';

create or replace function pgps_internal.room_for_rows(
    subscriptions pgps_internal.subscription[], max_events integer, consumer text
) returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_buffer text := pgps_internal.setting('buffer_events');
    v_max integer := room_for_rows.max_events;
begin
    if v_buffer <> '1000000000' then
        v_max := least(v_max, pgps_internal.buffer_room(
            array(select s.subscription_id from unnest(room_for_rows.subscriptions) s), null, v_buffer::bigint));
        if v_max = 0 then
            perform pgps_internal.hold_back(s, room_for_rows.consumer)
            from unnest(room_for_rows.subscriptions) s where s.state = 'active';
        end if;
    end if;
    return v_max;
end
$$;
comment on function pgps_internal.room_for_rows(pgps_internal.subscription[], integer, text) is
'How many events each of several subscriptions may be given now, max_events at most; with none, the next ack covers
nothing';

create or replace function pgps_internal.refuse_suspended(subscription pgps_internal.subscription) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'subscription "%" is suspended: %', (refuse_suspended.subscription).name,
        (refuse_suspended.subscription).last_error
    using errcode = '55000',
        hint = case when (refuse_suspended.subscription).last_error = pgps_internal.catching_up_text()
            then 'Try again in a moment: a worker lets it go on, or: select pgps.dispatch(); call pgps.run_lanes()'
            else format('Mend the cause, then: select pgps.resume(%L)',
                quote_ident((refuse_suspended.subscription).name)) end;
end
$$;
comment on function pgps_internal.refuse_suspended(pgps_internal.subscription) is
'Raises 55000 for a subscription that is suspended, and says what to do: nothing, when it goes on by itself';

create or replace function pgps_internal.hold_back(subscription pgps_internal.subscription, consumer text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (hold_back.subscription).subscription_id;
    v_position pgps_internal.position;
begin
    if (hold_back.subscription).state = 'suspended' then
        perform pgps_internal.refuse_suspended(hold_back.subscription);
    end if;
    if (hold_back.subscription).handler = 'any' then
        perform pgps_internal.forget_leased(v_id, pgps_internal.holder_for(hold_back.consumer));
        return;
    end if;
    v_position := pgps_internal.position_of(v_id);
    if v_position.outstanding = 0 and not exists (select from pgps_internal.failure f
            where f.subscription_id = v_id and f.state = 'leased')
        or v_position.consumer is distinct from hold_back.consumer then
        return;
    end if;
    perform pgps_internal.hold_subscription(v_id, (hold_back.subscription).name);
    v_position := pgps_internal.position_of(v_id);
    update pgps_internal.failure f set state = 'retrying', due_at = pgps_internal.clock()
    where f.subscription_id = v_id and f.state = 'leased';
    perform pgps_internal.move(v_id, v_position.acked_batch, v_position.acked_event, v_position.acked_batch,
        v_position.acked_event, v_position.acked_total, 0, hold_back.consumer,
        coalesce(v_position.seen_batch, v_position.received_batch),
        coalesce(v_position.seen_event, v_position.received_event));
end
$$;
comment on function pgps_internal.hold_back(pgps_internal.subscription, text) is
'A receive that returns nothing since the subscription is paused: the next ack of this consumer covers nothing. Errors:
55000 it is suspended.';
