-- Delivery to external subscriptions: receive, ack, nack. A subscription is a position in the deliveries of its classes, kept
-- as an append-only ledger, with failures (events to come again) and shares (competing consumers) beside it.
-- Locks: advisory (1885826165, subscription), until the transaction ends; competing consumers lock their own rows instead.

create or replace function pgps_internal.position_of(subscription_id bigint) returns pgps_internal.position
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_position pgps_internal.position;
begin
    select p.* into v_position from pgps_internal.position p
    where p.subscription_id = position_of.subscription_id order by p.position_id desc limit 1;
    if not found then
        v_position := row(0, position_of.subscription_id, -1, 0, -1, 0, 0, 0, null)::pgps_internal.position;
    end if;
    return v_position;
end
$$;
comment on function pgps_internal.position_of(bigint) is 'How far a subscription is: (batch, event) acknowledged and received; -1 = from the start';

create or replace function pgps_internal.move(
    subscription_id bigint, acked_batch bigint, acked_event bigint, received_batch bigint, received_event bigint, acked_total bigint = 0, outstanding integer = 0
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgps_internal.position (subscription_id, acked_batch, acked_event, received_batch, received_event, acked_total, outstanding)
    values (move.subscription_id, move.acked_batch, move.acked_event, move.received_batch, move.received_event, move.acked_total, move.outstanding);
end
$$;
comment on function pgps_internal.move(bigint, bigint, bigint, bigint, bigint, bigint, integer) is
'Adds a position to the ledger; outstanding: how many events are received and not acknowledged';

create or replace function pgps_internal.next_events(
    subscription_id bigint, after_batch bigint, after_event bigint, max_events integer
) returns table (batch_id bigint, event_id bigint, type_id integer)
language plpgsql stable rows 100
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_failures bigint := (select count(*) from pgps_internal.failure f where f.subscription_id = next_events.subscription_id);
    v_most bigint := next_events.max_events + v_failures;
begin
    return query
    select d.batch_id, e.event_id, d.type_id
    from (
        -- Only as many deliveries as it takes: a backlog must not make each call slower.
        select d.*, coalesce(sum(case when d.batch_id > next_events.after_batch and isempty(d.skip) then d.events else 0 end)
            over (order by d.batch_id rows between unbounded preceding and 1 preceding), 0) as before
        from pgps_internal.member m
        cross join lateral (
            select d.*, m.skip from pgps_internal.delivery d
            where d.class_id = m.class_id and d.batch_id >= greatest(next_events.after_batch, m.from_batch + 1)
                and (isempty(m.skip) or exists (select from pgps_internal.event_ids(d) e(event_id) where not e.event_id <@ m.skip))
            order by d.batch_id limit v_most + 1
        ) d
        where m.subscription_id = next_events.subscription_id
    ) d
    cross join lateral (
        select unnest(d.event_ids) as event_id
        union all
        select generate_series(lower(r), least(upper(r), lower(r) + v_most) - 1)
        from unnest(d.ids * case when d.batch_id = next_events.after_batch then int8multirange(int8range(next_events.after_event, null, '()'))
            else '{(,)}' end - d.skip) r
    ) e
    where d.before < v_most and (d.batch_id > next_events.after_batch or e.event_id > next_events.after_event)
        and (isempty(d.skip) or not e.event_id <@ d.skip)
        and (v_failures = 0 or not exists (select from pgps_internal.failure f
            where f.subscription_id = next_events.subscription_id and f.event_id = e.event_id))
    order by d.batch_id, e.event_id
    limit next_events.max_events;
end
$$;
comment on function pgps_internal.next_events(bigint, bigint, bigint, integer) is
'The next events of a subscription after a position, in delivery order: batch, then event id; without those that are put back or failed';

create or replace function pgps_internal.holder() returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$ select format('%s@%s', pg_backend_pid(), extract(epoch from a.backend_start)) from pg_stat_get_activity(pg_backend_pid()) a $$;
comment on function pgps_internal.holder() is 'Who holds a lease: this session';

-- ---------------------------------------------------------------------------------------------------------------------
-- receive
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.take_due(subscription_id bigint, max_events integer) returns pgps_internal.received[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_due pgps_internal.received[];
begin
    with due as (
        update pgps_internal.failure f set state = 'leased', due_at = clock_timestamp() + pgps_internal.setting('lease')::interval
        where f.subscription_id = take_due.subscription_id and f.state in ('retrying', 'leased') and f.event_id in (
            select d.event_id from pgps_internal.failure d
            where d.subscription_id = take_due.subscription_id and (d.state = 'retrying' and d.due_at <= clock_timestamp() or d.state = 'leased')
            order by d.event_id limit take_due.max_events)
        returning f.event_id, f.type_id, f.attempts
    )
    select array_agg((0, d.event_id, d.type_id, d.attempts + 1)::pgps_internal.received order by d.event_id) into v_due from due d;
    return v_due;
end
$$;
comment on function pgps_internal.take_due(bigint, integer) is 'Hands out events that were put back and are due again';

create or replace function pgps_internal.take(subscription pgps_internal.subscription, max_events integer) returns pgps_internal.received[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (take.subscription).subscription_id;
    v_position pgps_internal.position;
    v_due pgps_internal.received[];
    v_next pgps_internal.received[];
    v_batch bigint;
    v_event bigint;
begin
    perform pgps_internal.require_read_committed();
    perform pg_advisory_xact_lock(1885826165, v_id::integer);
    v_position := pgps_internal.position_of(v_id);
    -- Events put back come first; they are out of order by the consumer's own wish.
    if exists (select from pgps_internal.failure f where f.subscription_id = v_id) then
        v_due := pgps_internal.take_due(v_id, take.max_events);
    end if;
    select array_agg((n.batch_id, n.event_id, n.type_id,
            case when (n.batch_id, n.event_id) <= (v_position.received_batch, v_position.received_event) then 2 else 1 end)::pgps_internal.received
            order by n.batch_id, n.event_id)
    into v_next
    from pgps_internal.next_events(v_id, v_position.acked_batch, v_position.acked_event, take.max_events - coalesce(cardinality(v_due), 0)) n;
    if v_next is not null then
        v_batch := v_next[cardinality(v_next)].batch_id;
        v_event := v_next[cardinality(v_next)].event_id;
        -- Also back: what an earlier consumer was given and did not acknowledge must not be covered by this one's ack.
        if (v_batch, v_event, cardinality(v_next)) is distinct from (v_position.received_batch, v_position.received_event, v_position.outstanding) then
            perform pgps_internal.move(v_id, v_position.acked_batch, v_position.acked_event, v_batch, v_event, v_position.acked_total,
                cardinality(v_next));
        end if;
    end if;
    return coalesce(v_due, '{}') || coalesce(v_next, '{}');
end
$$;
comment on function pgps_internal.take(pgps_internal.subscription, integer) is
'Hands out the next events of a subscription with one consumer, and notes how far; repeated until acknowledged';

create or replace function pgps_internal.lease(subscription pgps_internal.subscription, max_events integer) returns pgps_internal.received[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (lease.subscription).subscription_id;
    v_taken pgps_internal.received[];
begin
    with free as materialized (
        select s.batch_id, s.event_id from pgps_internal.share s
        where s.subscription_id = v_id and (s.leased_until is null or s.leased_until < clock_timestamp())
            and not exists (select from pgps_internal.failure f
                where f.subscription_id = v_id and f.event_id = s.event_id and (f.state = 'failed' or f.due_at > clock_timestamp()))
        order by s.batch_id, s.event_id limit lease.max_events for update of s skip locked
    ),
    taken as (
        update pgps_internal.share s
        set holder = pgps_internal.holder(), fence = s.fence + 1, attempts = s.attempts + 1,
            leased_until = clock_timestamp() + pgps_internal.setting('lease')::interval
        from free f where s.subscription_id = v_id and s.batch_id = f.batch_id and s.event_id = f.event_id
        returning s.batch_id, s.event_id, s.type_id, s.attempts
    )
    select array_agg((t.batch_id, t.event_id, t.type_id, t.attempts)::pgps_internal.received order by t.batch_id, t.event_id)
    into v_taken from taken t;
    return coalesce(v_taken, '{}');
end
$$;
comment on function pgps_internal.lease(pgps_internal.subscription, integer) is
'Hands out events to one of several competing consumers, for a limited time; each to one of them';

create or replace function pgps_internal.unfold(taken pgps_internal.received[], owner regrole) returns pgps_internal.message[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_messages pgps_internal.message[] := '{}';
    v_part pgps_internal.message[];
    v_type record;
    v_row pgps_internal.event_type;
begin
    for v_type in select t.type_id, t.name, array_agg(r.event_id) as ids
        from unnest(unfold.taken) r join pgps_internal.event_type t using (type_id) group by t.type_id, t.name
    loop
        select t.* into v_row from pgps_internal.event_type t where t.type_id = v_type.type_id;
        execute format('select pgps_internal.unfold_%s($1, $2, $3, $4)', v_type.type_id)
        using unfold.taken, pgps_internal.visible_ids(v_row, unfold.owner, v_type.ids), v_type.name, pgps_internal.broker() into v_part;
        v_messages := v_messages || v_part;
    end loop;
    return v_messages;
end
$$;
comment on function pgps_internal.unfold(pgps_internal.received[], regrole) is 'Events with their payload, as far as owner may see them; one statement for each event type among them';

create or replace function pgps_internal.broker() returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return coalesce((select nullif(s.value, '') from pgps_internal.setting s where s.name = 'broker'), current_database()::text);
end
$$;
comment on function pgps_internal.broker() is 'Name of this broker';

create or replace function pgps_internal.pass_over(subscription pgps_internal.subscription, taken pgps_internal.received[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (pass_over.subscription).subscription_id;
    v_position pgps_internal.position := pgps_internal.position_of(v_id);
    v_last pgps_internal.received;
begin
    delete from pgps_internal.share s using unnest(pass_over.taken) t
    where s.subscription_id = v_id and s.batch_id = t.batch_id and s.event_id = t.event_id;
    if (pass_over.subscription).handler = 'all' then
        select t.* into v_last from unnest(pass_over.taken) t
        where not exists (select from pgps_internal.failure f where f.subscription_id = v_id and f.event_id = t.event_id)
        order by t.batch_id desc, t.event_id desc limit 1;
        if found then
            perform pgps_internal.move(v_id, v_last.batch_id, v_last.event_id, v_last.batch_id, v_last.event_id, v_position.acked_total);
        end if;
    end if;
    perform pgps_internal.settle(v_id, array(select t.event_id from unnest(pass_over.taken) t));
end
$$;
comment on function pgps_internal.pass_over(pgps_internal.subscription, pgps_internal.received[]) is
'Goes on when nothing of what was taken can be shown: an unlogged log is empty after a crash, a policy may hide all of it since';

create or replace function pgps_internal.enter_receive() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
    v_subscription pgps_internal.subscription := pgps_internal.find_subscription(new.caller, new.subscription);
    v_max integer := coalesce(new.max_events, 100);
    v_taken pgps_internal.received[];
begin
    if v_subscription.callback is not null then
        raise exception 'subscription "%" is internal: its events go to %', v_subscription.name, v_subscription.callback
        using errcode = '55000', hint = 'Subscribe without execute to receive events yourself.';
    elsif v_max <= 0 then
        raise exception 'invalid max_events %', v_max using errcode = '22023', hint = 'Give a positive number.';
    elsif v_subscription.state <> 'active' then
        if v_subscription.state = 'suspended' then
            raise exception 'subscription "%" is suspended: %', v_subscription.name, v_subscription.last_error
            using errcode = '55000', hint = format('Mend the cause, then: select pgps.resume(%L)', quote_ident(v_subscription.name));
        end if;
        new.messages := '{}';
        return new;
    end if;
    perform pgps_internal.require_rights(v_subscription);
    loop
        v_taken := case v_subscription.handler when 'any' then pgps_internal.lease(v_subscription, v_max)
            else pgps_internal.take(v_subscription, v_max) end;
        new.messages := pgps_internal.unfold(v_taken, v_subscription.owner);
        exit when cardinality(v_taken) = 0 or cardinality(new.messages) > 0;
        perform pgps_internal.pass_over(v_subscription, v_taken);
    end loop;
    return new;
end
$$;
comment on function pgps_internal.enter_receive() is 'Behind pgps.receive, see pgps_internal.call';

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
        using errcode = '42501', hint = format('Ask for: grant select on pgps_event.%I to %s', v_type, (require_rights.subscription).owner);
    end if;
end
$$;
comment on function pgps_internal.require_rights(pgps_internal.subscription) is 'Raises 42501 when the owner has lost SELECT on the type';

do $$
begin
    if to_regclass('pgps_internal.receive_call') is null then
        create view pgps_internal.receive_call as
        select null::text as subscription, null::integer as max_events, null::name as caller, null::pgps_internal.message[] as messages where false;
        alter view pgps_internal.receive_call alter column caller set default current_user;
        create trigger enter instead of insert on pgps_internal.receive_call
        for each row execute function pgps_internal.enter_receive();
        grant insert (subscription, max_events), select (messages) on pgps_internal.receive_call to public;
    end if;
end
$$;
comment on view pgps_internal.receive_call is 'The way in of pgps.receive; see pgps_internal.call';

create or replace function pgps.receive(subscription text, max_events integer = 100)
returns table (event_id bigint, event_type text, payload jsonb, published_at timestamptz, publisher name, xid xid8, origin text, attempt integer)
language sql volatile rows 100
begin atomic
    with taken as (
        insert into pgps_internal.receive_call (subscription, max_events) values (receive.subscription, receive.max_events) returning messages
    )
    select m.event_id, m.event_type, m.payload, m.published_at, m.publisher, m.xid, m.origin, m.attempt
    from taken t cross join lateral unnest(t.messages) m order by m.place;
end;
comment on function pgps.receive(text, integer) is
'The next events of an external subscription in delivery order: batch, then event id; repeats them until they are acknowledged.
On a handler => ''any'' subscription each session gets events of its own, for the time of the setting lease.
Acknowledged in the same transaction as the application''s writes, consumption is exactly once: another session waits for that transaction.
A paused subscription gives nothing. Needs to own the subscription. Errors: 42704, 42501, 22023, 55000 internal or suspended.';

-- ---------------------------------------------------------------------------------------------------------------------
-- ack and nack
-- ---------------------------------------------------------------------------------------------------------------------

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
        v_acked := pgps_internal.ack_lease(v_subscription, v_up_to);
    else
        v_acked := pgps_internal.ack_position(v_subscription, v_up_to);
    end if;
    return to_jsonb(v_acked);
end
$$;
comment on function pgps_internal.do_ack(name, jsonb) is 'See pgps.ack';

create or replace function pgps_internal.ack_position(subscription pgps_internal.subscription, up_to bigint) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (ack_position.subscription).subscription_id;
    v_position pgps_internal.position;
    v_batch bigint;
    v_event bigint;
    v_acked bigint;
    v_leased bigint[];
    v_retried bigint;
begin
    perform pgps_internal.require_read_committed();
    perform pg_advisory_xact_lock(1885826165, v_id::integer);
    v_position := pgps_internal.position_of(v_id);
    if ack_position.up_to is null and not exists (select from pgps_internal.failure f where f.subscription_id = v_id) then
        -- The usual case: all that was received, and nothing of it was put back.
        if v_position.outstanding > 0 then
            perform pgps_internal.move(v_id, v_position.received_batch, v_position.received_event, v_position.received_batch,
                v_position.received_event, v_position.acked_total + v_position.outstanding);
        end if;
        return v_position.outstanding;
    end if;
    -- Without those put back: these are counted where they are settled.
    with received as materialized (
        select n.batch_id, n.event_id from pgps_internal.received_events(v_id, v_position) n
    ),
    newest as (
        select r.batch_id, r.event_id from received r
        where ack_position.up_to is null or r.event_id = ack_position.up_to
        order by r.batch_id desc, r.event_id desc limit 1
    )
    select n.batch_id, n.event_id, (select count(*) from received r where (r.batch_id, r.event_id) <= (n.batch_id, n.event_id)
        and not exists (select from pgps_internal.failure f where f.subscription_id = v_id and f.event_id = r.event_id))
    into v_batch, v_event, v_acked from newest n;
    -- Events put back came before the others, by id.
    v_leased := array(select f.event_id from pgps_internal.failure f
        where f.subscription_id = v_id and f.state = 'leased' and (ack_position.up_to is null or v_batch is not null
            or f.event_id <= ack_position.up_to and exists (select from pgps_internal.failure u
                where u.subscription_id = v_id and u.event_id = ack_position.up_to and u.state = 'leased')));
    v_retried := cardinality(v_leased);
    if v_batch is null then
        perform pgps_internal.settle(v_id, v_leased);
        if ack_position.up_to is not null and v_retried = 0 then
            raise exception 'event % has not been received by subscription "%", or is acknowledged already', ack_position.up_to, (ack_position.subscription).name
            using errcode = '55000', hint = 'Acknowledge the event_id of an event that pgps.receive returned.';
        end if;
        return v_retried;
    end if;
    perform pgps_internal.move(v_id, v_batch, v_event, v_position.received_batch, v_position.received_event,
        v_position.acked_total + v_acked + v_retried, greatest(v_position.outstanding - v_acked, 0)::integer);
    perform pgps_internal.settle(v_id, v_leased);
    return v_acked + v_retried;
end
$$;
comment on function pgps_internal.ack_position(pgps_internal.subscription, bigint) is
'Moves the position over what was received, to the end or up to an event; counts what is acknowledged thereby';

create or replace function pgps_internal.is_ahead(subscription_id bigint, event_id bigint) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (
        select from pgps_internal.member m
        cross join pgps_internal.position_of(is_ahead.subscription_id) p
        join pgps_internal.delivery d on d.class_id = m.class_id and d.batch_id >= greatest(p.acked_batch, m.from_batch + 1)
        where m.subscription_id = is_ahead.subscription_id and not m.takes_batch and not is_ahead.event_id <@ m.skip
            and (is_ahead.event_id = any (d.event_ids) or is_ahead.event_id <@ d.ids)
            and (d.batch_id, is_ahead.event_id) > (p.acked_batch, p.acked_event));
end
$$;
comment on function pgps_internal.is_ahead(bigint, bigint) is 'True while the position of a subscription has not come to an event of its own';

create or replace function pgps_internal.settle(subscription_id bigint, event_ids bigint[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- What the position has not passed must be remembered, or it would come again as an event that never failed.
    update pgps_internal.failure f set state = 'settled'
    where f.subscription_id = settle.subscription_id and f.event_id = any (settle.event_ids);
    delete from pgps_internal.failure f
    where f.subscription_id = settle.subscription_id and f.state = 'settled' and not pgps_internal.is_ahead(f.subscription_id, f.event_id);
end
$$;
comment on function pgps_internal.settle(bigint, bigint[]) is 'Forgets failures that are over, and earlier ones that the position has passed since';

create or replace function pgps_internal.received_events(subscription_id bigint, at pgps_internal.position)
returns table (batch_id bigint, event_id bigint)
language plpgsql stable rows 100
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    select d.batch_id, e.event_id
    from pgps_internal.member m
    join pgps_internal.delivery d on d.class_id = m.class_id
        and d.batch_id >= greatest((received_events.at).acked_batch, m.from_batch + 1) and d.batch_id <= (received_events.at).received_batch
    cross join lateral (
        select unnest(d.event_ids) as event_id
        union all
        select generate_series(lower(r), upper(r) - 1) from unnest(d.ids) r
    ) e
    where m.subscription_id = received_events.subscription_id and not e.event_id <@ m.skip
        and (d.batch_id, e.event_id) > ((received_events.at).acked_batch, (received_events.at).acked_event)
        and (d.batch_id, e.event_id) <= ((received_events.at).received_batch, (received_events.at).received_event);
end
$$;
comment on function pgps_internal.received_events(bigint, pgps_internal.position) is 'Events received and not acknowledged';

create or replace function pgps_internal.ack_lease(subscription pgps_internal.subscription, up_to bigint) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (ack_lease.subscription).subscription_id;
    v_batch bigint;
    v_acked bigint;
begin
    if ack_lease.up_to is not null then
        select s.batch_id into v_batch from pgps_internal.share s
        where s.subscription_id = v_id and s.event_id = ack_lease.up_to and s.holder = pgps_internal.holder();
        if not found then
            raise exception 'event % is not held by this session on subscription "%"', ack_lease.up_to, (ack_lease.subscription).name
            using errcode = '55000', hint = 'Its lease may have ended and another consumer has it; see the setting lease.';
        end if;
    end if;
    with settled as (
        delete from pgps_internal.share s
        where s.subscription_id = v_id and s.holder = pgps_internal.holder()
            and (ack_lease.up_to is null or (s.batch_id, s.event_id) <= (v_batch, ack_lease.up_to))
        returning s.event_id
    ),
    failures as (
        delete from pgps_internal.failure f using settled s where f.subscription_id = v_id and f.event_id = s.event_id
    )
    select count(*) into v_acked from settled;
    return v_acked;
end
$$;
comment on function pgps_internal.ack_lease(pgps_internal.subscription, bigint) is 'Settles the events that this session holds, all or up to one in delivery order';

create or replace function pgps.ack(subscription text, up_to bigint = null) returns bigint
language sql
begin atomic
    select (pgps._call('ack', jsonb_build_object('subscription', ack.subscription, 'up_to', ack.up_to)) #>> '{}')::bigint;
end;
comment on function pgps.ack(text, bigint) is
'Acknowledges what has been received so far, or in delivery order up to and including one event; returns how many. What pgps.receive has
not returned is never covered. In the transaction of the application''s own writes it makes consumption exactly once.
Needs to own the subscription. Errors: 42704, 42501, 55000 not received or acknowledged already, or internal.';

create or replace function pgps_internal.do_nack(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription := pgps_internal.find_subscription(caller, args ->> 'subscription');
    v_id bigint := v_subscription.subscription_id;
    v_event bigint := (args ->> 'event_id')::bigint;
    v_position pgps_internal.position;
    v_type integer;
    v_attempts integer;
begin
    perform pgps_internal.require_read_committed();
    if v_event is null then
        raise exception 'event_id is null' using errcode = '22023', hint = 'Give the event_id of an event that pgps.receive returned.';
    elsif (args ->> 'retry_in')::interval < '0' then
        raise exception 'invalid retry_in %', args ->> 'retry_in' using errcode = '22023', hint = 'Give a positive interval, or null.';
    end if;
    if v_subscription.handler = 'any' then
        update pgps_internal.share s set leased_until = null, holder = null
        where s.subscription_id = v_id and s.event_id = v_event and s.holder = pgps_internal.holder()
        returning s.type_id, s.attempts into v_type, v_attempts;
    else
        perform pg_advisory_xact_lock(1885826165, v_id::integer);
        v_position := pgps_internal.position_of(v_id);
        select f.type_id, f.attempts + 1 into v_type, v_attempts from pgps_internal.failure f
        where f.subscription_id = v_id and f.event_id = v_event and f.state = 'leased';
        if v_type is null and not exists (select from pgps_internal.failure f where f.subscription_id = v_id and f.event_id = v_event) then
            select m.type_id, 1 into v_type, v_attempts
            from pgps_internal.received_events(v_id, v_position) r
            join pgps_internal.delivery d using (batch_id) join pgps_internal.member m on m.class_id = d.class_id and m.subscription_id = v_id
            where r.event_id = v_event and (v_event = any (d.event_ids) or v_event <@ d.ids) limit 1;
        end if;
    end if;
    if v_type is null then
        raise exception 'event % has not been received by subscription "%", or is settled already', v_event, v_subscription.name
        using errcode = '55000', hint = 'Give the event_id of an event that pgps.receive returned and that is not acknowledged.';
    end if;
    perform pgps_internal.note_failure(v_subscription, v_type, v_event, 'nack', null, args ->> 'error',
        v_attempts, coalesce((args ->> 'retry_in')::interval, '0'));
    return null;
end
$$;
comment on function pgps_internal.do_nack(name, jsonb) is 'See pgps.nack';

create or replace function pgps.nack(subscription text, event_id bigint, error text = null, retry_in interval = null) returns void
language sql
begin atomic
    select pgps._call('nack', jsonb_build_object('subscription', nack.subscription, 'event_id', nack.event_id, 'error', nack.error,
        'retry_in', nack.retry_in));
end;
comment on function pgps.nack(text, bigint, text, interval) is
'Puts one received event back: it comes again after retry_in (null = at the next receive), and goes to the exception queue with error
after max_attempts. The others can be acknowledged over it. Needs to own the subscription. Errors: 42704, 42501, 22023, 55000 not received.';

revoke all on all functions in schema pgps_internal from public;
grant execute on function pgps.receive(text, integer), pgps.ack(text, bigint), pgps.nack(text, bigint, text, interval) to public;
