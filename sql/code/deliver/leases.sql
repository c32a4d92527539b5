-- Leases: how consumers that share a subscription (handler => 'any') get events, each to one of them, and settle them.
-- A row of share is an event that waits; holder, leased_until and leased_by say who has it, for how long, and which
-- transaction handed it out. A row of consumer says what its newest receive returned and is not acknowledged as a
-- whole: where the first and the last of those events are, in which transaction (leased_by; null: nothing), and to
-- whom, which is the name with its token and a server process. Acknowledging covers exactly these, and only for who
-- received them: neither a consumer that was restarted nor one of two that live under one name must settle what only
-- the other has seen (decision 39). Leases belong to the name without its token.
-- Locks: rows of events, those that another session has locked being passed over; then the row of the consumer, until
-- the transaction ends, so that a session waits for another one that has received under the same name.
-- Writes: consumer, failure, position, share.

drop function if exists pgps_internal.note_next(pgps_internal.consumer, text, pgps_internal.received,
    pgps_internal.received, timestamptz);
create or replace function pgps_internal.note_next(
    before pgps_internal.consumer, consumer text, events pgps_internal.received[], at timestamptz
) returns boolean
language plpgsql
as $$
begin
    -- Waits for a session that has received under this name and is not committed; then leased_by is another one, and
    -- what that session was given is part of what comes again.
    update pgps_internal.consumer c
    set leased_by = pg_current_xact_id(), first_batch = events[1].batch_id, first_event = events[1].event_id,
        last_batch = events[cardinality(events)].batch_id, last_event = events[cardinality(events)].event_id,
        given = cardinality(events), used_at = note_next.at, received_as = note_next.consumer,
        pid = pg_backend_pid(), overtaken = case when c.pid = pg_backend_pid() and c.overtaken = '{}'
            then c.overtaken else pgps_internal.overtaken_by(c, pg_backend_pid()) end
    where c.subscription_id = (note_next.before).subscription_id and c.holder = (note_next.before).holder
        and c.leased_by is not distinct from (note_next.before).leased_by;
    return found;
end
$$;
comment on function pgps_internal.note_next(pgps_internal.consumer, text, pgps_internal.received[], timestamptz) is
'Notes what a consumer that has received before is given now; false when it has received in another session meanwhile';

create or replace function pgps_internal.lease(
    subscription pgps_internal.subscription, max_events integer, consumer text
) returns pgps_internal.received[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (lease.subscription).subscription_id;
    -- As holder_for, without a call: the name was checked before.
    v_holder text := coalesce('consumer/' || split_part(lease.consumer, '#', 1), pgps_internal.holder_for(null));
    v_now timestamptz := pgps_internal.clock();
    v_until timestamptz := v_now + pgps_internal.setting('lease')::interval;
    v_found record;
begin
    if lease.consumer is null then
        perform pgps_internal.may_be_nameless(lease.subscription);
    end if;
    loop
        with free as materialized (
            -- What this consumer holds comes again, until it is acknowledged.
            select s.batch_id, s.event_id, s.holder = v_holder and s.leased_until >= v_now as is_repeat, s.leased_by
            from pgps_internal.share s
            where s.subscription_id = v_id and (s.holder is null or s.leased_until < v_now or s.holder = v_holder)
                and not exists (select from pgps_internal.failure f
                    where f.subscription_id = v_id and f.event_id = s.event_id
                        and (f.state = 'failed' or f.due_at > v_now))
            order by s.batch_id, s.event_id limit lease.max_events for update of s skip locked
        ),
        leased as (
            -- A repeat is no further attempt: a consumer may look as often as it likes before it acknowledges.
            update pgps_internal.share s
            set holder = v_holder, fence = s.fence + 1, leased_by = pg_current_xact_id(), leased_until = v_until,
                attempts = s.attempts + case when f.is_repeat then 0 else 1 end
            from free f where s.subscription_id = v_id and s.batch_id = f.batch_id and s.event_id = f.event_id
            returning s.batch_id, s.event_id, s.type_id, s.attempts + coalesce(f.is_repeat, false)::integer as attempt,
                f.is_repeat and f.leased_by <> pg_current_xact_id() as is_of_another
        )
        select array_agg((l.batch_id, l.event_id, l.type_id, l.attempt)::pgps_internal.received
                order by l.batch_id, l.event_id) as events,
            count(*) filter (where l.is_of_another) as repeats,
            (select c from pgps_internal.consumer c where c.subscription_id = v_id and c.holder = v_holder) as before
        into v_found from leased l;
        exit when v_found.events is null;
        exit when case when v_found.before is null
            then pgps_internal.note_first(v_id, v_holder, lease.consumer, v_found.events, v_now)
            else pgps_internal.note_next(v_found.before, lease.consumer, v_found.events, v_now) end;
    end loop;
    if v_found.events is null and (v_found.before).leased_by is not null then
        perform pgps_internal.forget_leased(v_id, v_holder);
    elsif v_found.repeats > 0 and lease.consumer is null then
        perform pgps_internal.warn_of_repeats(v_found.repeats);
    end if;
    return coalesce(v_found.events, '{}');
end
$$;
comment on function pgps_internal.lease(pgps_internal.subscription, integer, text) is
'Hands out events to one of several competing consumers, for a limited time, each to one of them: first what it holds
already';

create or replace function pgps_internal.take_shared(
    subscription pgps_internal.subscription, max_events integer, consumer text
) returns pgps_internal.received[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (take_shared.subscription).subscription_id;
    v_holder text := coalesce('consumer/' || split_part(take_shared.consumer, '#', 1), pgps_internal.holder_for(null));
    v_now timestamptz := pgps_internal.clock();
    v_found record;
begin
    with free as materialized (
        select s.batch_id, s.event_id from pgps_internal.share s
        where s.subscription_id = v_id and (s.holder is null or s.leased_until < v_now or s.holder = v_holder)
            and not exists (select from pgps_internal.failure f
                where f.subscription_id = v_id and f.event_id = s.event_id
                    and (f.state = 'failed' or f.due_at > v_now))
        order by s.batch_id, s.event_id limit take_shared.max_events for update of s skip locked
    ),
    taken as (
        delete from pgps_internal.share s
        using free f where s.subscription_id = v_id and s.batch_id = f.batch_id and s.event_id = f.event_id
        returning s.batch_id, s.event_id, s.type_id, s.attempts + 1 as attempt
    ),
    failures as (
        delete from pgps_internal.failure f using taken t where f.subscription_id = v_id and f.event_id = t.event_id
    ),
    given as materialized (
        select array_agg((t.batch_id, t.event_id, t.type_id, t.attempt)::pgps_internal.received
            order by t.batch_id, t.event_id) as events
        from taken t
    ),
    counted as (
        insert into pgps_internal.position
            (subscription_id, acked_batch, acked_event, received_batch, received_event, acked_total, outstanding)
        select v_id, -1, 0, -1, 0, cardinality(g.events), 0 from given g where g.events is not null
    )
    select g.events, c.leased_by into v_found
    from given g left join pgps_internal.consumer c on c.subscription_id = v_id and c.holder = v_holder;
    if v_found.leased_by is not null then
        perform pgps_internal.forget_leased(v_id, v_holder);
    end if;
    return coalesce(v_found.events, '{}');
end
$$;
comment on function pgps_internal.take_shared(pgps_internal.subscription, integer, text) is
'Hands out events to one of several competing consumers and acknowledges them: first what it holds already';

create or replace function pgps_internal.require_given(
    subscription pgps_internal.subscription, given pgps_internal.consumer, held bigint
) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if held < (given).given then
        raise exception 'the lease has ended on % of the events that subscription "%" gave this consumer last, and '
            'others have them', (given).given - held, (require_given.subscription).name
        using errcode = '55000', hint = 'Roll back and receive again: what is not acknowledged comes again. For what '
            'takes longer, see the setting lease.';
    end if;
end
$$;
comment on function pgps_internal.require_given(pgps_internal.subscription, pgps_internal.consumer, bigint) is
'Raises 55000 when a consumer holds fewer events than it was given last and has not settled';

create or replace function pgps_internal.require_all_held(
    subscription pgps_internal.subscription, given pgps_internal.consumer
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_held bigint;
begin
    -- Locked, so that nobody takes one over between this and the acknowledgement.
    select count(*) into v_held from (
        select from pgps_internal.share s
        where s.subscription_id = (given).subscription_id and s.holder = (given).holder
            and s.leased_by = (given).leased_by
            and (s.batch_id, s.event_id) >= ((given).first_batch, (given).first_event)
            and (s.batch_id, s.event_id) <= ((given).last_batch, (given).last_event)
        for update) s;
    perform pgps_internal.require_given(require_all_held.subscription, require_all_held.given, v_held);
end
$$;
comment on function pgps_internal.require_all_held(pgps_internal.subscription, pgps_internal.consumer) is
'Raises 55000 when a consumer does not hold any more all that it was given last and has not settled; locks what it
holds';

create or replace function pgps_internal.given_up_to(
    subscription pgps_internal.subscription, given pgps_internal.consumer, up_to bigint, consumer text
) returns pgps_internal.consumer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_upto pgps_internal.consumer := given;
    v_until timestamptz;
begin
    select s.batch_id, s.event_id, s.leased_until into v_upto.last_batch, v_upto.last_event, v_until
    from pgps_internal.share s
    where s.subscription_id = (given).subscription_id and s.event_id = given_up_to.up_to and s.holder = (given).holder
        and s.leased_by = (given).leased_by
        and (s.batch_id, s.event_id) >= ((given).first_batch, (given).first_event)
        and (s.batch_id, s.event_id) <= ((given).last_batch, (given).last_event);
    if not found then
        perform pgps_internal.require_own(given_up_to.subscription, given_up_to.consumer);
        raise exception 'event % is not held by this % on subscription "%"', given_up_to.up_to,
            case when given_up_to.consumer is null then 'session' else 'consumer' end, (given_up_to.subscription).name
        using errcode = '55000',
            hint = 'Acknowledge an event that the newest pgps.receive returned. Its lease may have ended and '
            'another consumer has it; see the setting lease.';
    elsif v_until < pgps_internal.clock() + interval '1 second' then
        -- Others may have taken some of the events before this one, or do so before they are acknowledged: all leases
        -- of one receive end at the same time.
        perform pgps_internal.require_all_held(given_up_to.subscription, given_up_to.given);
    end if;
    return v_upto;
end
$$;
comment on function pgps_internal.given_up_to(pgps_internal.subscription, pgps_internal.consumer, bigint, text) is
'What a consumer was given last, ended with one event. Errors: 55000 it does not hold that one, or has lost others';

create or replace function pgps_internal.ack_lease(subscription pgps_internal.subscription, up_to bigint, consumer text)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (ack_lease.subscription).subscription_id;
    v_holder text := pgps_internal.holder_for(ack_lease.consumer);
    v_given pgps_internal.consumer;
    v_acked bigint;
begin
    select c.* into v_given from pgps_internal.consumer c where c.subscription_id = v_id and c.holder = v_holder;
    if v_given.received_as is distinct from ack_lease.consumer
            or v_given.overtaken <> '{}' and strpos(ack_lease.consumer, '#') = 0 then
        perform pgps_internal.require_receiver(ack_lease.subscription, v_given, ack_lease.consumer);
    end if;
    if ack_lease.up_to is not null then
        v_given := pgps_internal.given_up_to(ack_lease.subscription, v_given, ack_lease.up_to, ack_lease.consumer);
    end if;
    with settled as (
        delete from pgps_internal.share s
        where s.subscription_id = v_id and s.holder = v_holder and s.leased_by = v_given.leased_by
            and (s.batch_id, s.event_id) >= (v_given.first_batch, v_given.first_event)
            and (s.batch_id, s.event_id) <= (v_given.last_batch, v_given.last_event)
        returning s.event_id
    ),
    failures as (
        delete from pgps_internal.failure f using settled s where f.subscription_id = v_id and f.event_id = s.event_id
    ),
    closed as (
        update pgps_internal.consumer c set leased_by = case when ack_lease.up_to is not null then c.leased_by end,
            given = c.given - (select count(*) from settled)
        where c.subscription_id = v_id and c.holder = v_holder and c.leased_by = v_given.leased_by
    )
    insert into pgps_internal.position
        (subscription_id, acked_batch, acked_event, received_batch, received_event, acked_total, outstanding)
    select v_id, -1, 0, -1, 0, count(*), 0 from settled having count(*) > 0
    returning acked_total into v_acked;
    if v_acked is null then
        perform pgps_internal.require_own(ack_lease.subscription, ack_lease.consumer);
    end if;
    if ack_lease.up_to is null and v_given.leased_by is not null and v_acked is null then
        -- What others have had meanwhile this consumer must not believe to be his: his transaction fails.
        perform pgps_internal.require_given(ack_lease.subscription, v_given, 0);
    end if;
    return coalesce(v_acked, 0);
end
$$;
comment on function pgps_internal.ack_lease(pgps_internal.subscription, bigint, text) is
'Settles the events that the newest receive of this consumer returned and it still holds: all, or up to one in delivery
order. Errors: 55000 it holds none of them any more';

create or replace function pgps_internal.release(
    subscription pgps_internal.subscription, event_ids bigint[], consumer text
) returns pgps_internal.received[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (release.subscription).subscription_id;
    v_holder text := pgps_internal.holder_for(release.consumer);
    v_given pgps_internal.consumer;
    v_released pgps_internal.received[];
begin
    select c.* into v_given from pgps_internal.consumer c where c.subscription_id = v_id and c.holder = v_holder;
    perform pgps_internal.require_receiver(release.subscription, v_given, release.consumer);
    with released as (
        update pgps_internal.share s set leased_until = null, holder = null, leased_by = null
        where s.subscription_id = v_id and s.event_id = any (release.event_ids)
            and s.holder = v_holder and s.leased_by = v_given.leased_by
            and (s.batch_id, s.event_id) >= (v_given.first_batch, v_given.first_event)
            and (s.batch_id, s.event_id) <= (v_given.last_batch, v_given.last_event)
        returning s.event_id, s.type_id, s.attempts
    ),
    noted as (
        update pgps_internal.consumer c set given = c.given - (select count(*) from released)
        where c.subscription_id = v_id and c.holder = v_holder and c.leased_by = v_given.leased_by
    )
    select array_agg((0, r.event_id, r.type_id, r.attempts)::pgps_internal.received) into v_released from released r;
    return v_released;
end
$$;
comment on function pgps_internal.release(pgps_internal.subscription, bigint[], text) is
'Ends the leases on events that the newest receive of this consumer returned, and returns those';
