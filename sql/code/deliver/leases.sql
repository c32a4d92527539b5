-- Leases: how consumers that share a subscription (handler => 'any') get events, each to one of them, and settle them.
-- A row of share is an event that waits; holder, leased_until and leased_by say who has it, for how long, and which
-- transaction handed it out. A row of consumer says what its newest receive returned: where the first and the last of
-- those events are, and in which transaction. Acknowledging covers exactly these: a consumer that was restarted must
-- not settle what only its predecessor of the same name has seen (decision 39).
-- Locks: rows of events, those that another session has locked being passed over; then the row of the consumer, until
-- the transaction ends, so that a session waits for another one that has received under the same name.
-- Writes: consumer, failure, position, share.

create or replace function pgps_internal.holder() returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$ begin return (select format('%s@%s', pg_backend_pid(), extract(epoch from a.backend_start))
    from pg_stat_get_activity(pg_backend_pid()) a); end $$;
comment on function pgps_internal.holder() is 'The holder of a lease: this session, as process id and start time';

create or replace function pgps_internal.holder_for(consumer text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if holder_for.consumer is null then
        -- Behind a transaction pooler a server process serves many clients: application_name tells them apart if they
        -- set it.
        return pgps_internal.holder() || '/' || current_setting('application_name');
    end if;
    return 'consumer/' || pgps_internal.check_consumer(holder_for.consumer);
end
$$;
comment on function pgps_internal.holder_for(text) is
'Who holds a lease on an event of a shared subscription: the consumer of that name, null = this session';

create or replace function pgps_internal.check_consumer(consumer text) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if check_consumer.consumer = '' or octet_length(check_consumer.consumer) > 200 then
        raise exception 'invalid consumer "%"', check_consumer.consumer
        using errcode = '22023', hint = 'Give a name of 1 to 200 bytes that no other consumer has, or null.';
    end if;
    return check_consumer.consumer;
end
$$;
comment on function pgps_internal.check_consumer(text) is
'Returns the name of a consumer, null = none; raises 22023 when it is invalid';

create or replace function pgps_internal.lease(
    subscription pgps_internal.subscription, max_events integer, acks boolean, consumer text
) returns pgps_internal.received[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (lease.subscription).subscription_id;
    -- As holder_for, without a call: the name was checked before.
    v_holder text := coalesce('consumer/' || lease.consumer, pgps_internal.holder_for(null));
    v_now timestamptz := pgps_internal.clock();
    v_before pgps_internal.consumer;
    v_leased pgps_internal.received[];
    v_repeats bigint;
begin
    if lease.consumer is null and not lease.acks then
        perform pgps_internal.may_be_nameless(lease.subscription);
    end if;
    loop
        select c.* into v_before from pgps_internal.consumer c
        where c.subscription_id = v_id and c.holder = v_holder;
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
            set holder = v_holder, fence = s.fence + 1, leased_by = pg_current_xact_id(),
                leased_until = v_now + (select pgps_internal.setting('lease')::interval),
                attempts = s.attempts + case when f.is_repeat then 0 else 1 end
            from free f where s.subscription_id = v_id and s.batch_id = f.batch_id and s.event_id = f.event_id
            returning s.batch_id, s.event_id, s.type_id, s.attempts + coalesce(f.is_repeat, false)::integer as attempt,
                f.is_repeat and f.leased_by <> pg_current_xact_id() as is_of_another
        )
        select array_agg((l.batch_id, l.event_id, l.type_id, l.attempt)::pgps_internal.received
            order by l.batch_id, l.event_id), count(*) filter (where l.is_of_another)
        into v_leased, v_repeats from leased l;
        exit when v_leased is null or lease.acks;
        -- When another session has received under this name meanwhile, what it was given is part of what comes again.
        exit when pgps_internal.note_leased(v_before, v_id, v_holder, v_leased, v_now);
    end loop;
    if lease.acks and v_leased is not null then
        delete from pgps_internal.share s using unnest(v_leased) l
        where s.subscription_id = v_id and s.batch_id = l.batch_id and s.event_id = l.event_id;
        delete from pgps_internal.failure f using unnest(v_leased) l where f.subscription_id = v_id
            and f.event_id = l.event_id;
        insert into pgps_internal.position
            (subscription_id, acked_batch, acked_event, received_batch, received_event, acked_total, outstanding)
        values (v_id, -1, 0, -1, 0, cardinality(v_leased), 0);
    end if;
    if v_before.leased_by is not null and (lease.acks or v_leased is null) then
        perform pgps_internal.forget_leased(v_before);
    elsif v_repeats > 0 and lease.consumer is null then
        perform pgps_internal.warn_of_repeats(v_repeats);
    end if;
    return coalesce(v_leased, '{}');
end
$$;
comment on function pgps_internal.lease(pgps_internal.subscription, integer, boolean, text) is
'Hands out events to one of several competing consumers, for a limited time, each to one of them: first what it holds
already. acks: acknowledges them at once';

create or replace function pgps_internal.may_be_nameless(subscription pgps_internal.subscription) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if pgps_internal.setting('named_consumers')::boolean then
        raise exception 'a consumer of shared subscription "%" has to name itself', (may_be_nameless.subscription).name
        using errcode = '55000',
            hint = format('select * from pgps.receive(%L, consumer => ''…''), and the same name for pgps.ack; see the '
            'setting named_consumers.', quote_ident((may_be_nameless.subscription).name));
    end if;
end
$$;
comment on function pgps_internal.may_be_nameless(pgps_internal.subscription) is
'Raises 55000 when consumers have to name themselves';

create or replace function pgps_internal.warn_of_repeats(repeats bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A session of its own may look again. A client of a transaction pooler looks the same here, so this is a warning
    -- and no error.
    raise warning 'an earlier transaction of this server process received % of these events, and has not '
        'acknowledged them: behind a transaction pooler they may be another client''s', warn_of_repeats.repeats
    using errcode = '01000', hint = 'Name the consumer: receive(…, consumer => ''…''), ack(…, consumer => ''…''). '
        'The setting named_consumers makes that a duty.';
end
$$;
comment on function pgps_internal.warn_of_repeats(bigint) is
'Says that what a server process holds, without a name, may be that of several clients of a transaction pooler';

create or replace function pgps_internal.note_leased(
    before pgps_internal.consumer, subscription_id bigint, holder text, leased pgps_internal.received[], at timestamptz
) returns boolean
language plpgsql
as $$
begin
    -- Waits for a session that has received under this name and is not committed; then leased_by is another one.
    update pgps_internal.consumer c
    set leased_by = pg_current_xact_id(), first_batch = leased[1].batch_id, first_event = leased[1].event_id,
        last_batch = leased[cardinality(leased)].batch_id, last_event = leased[cardinality(leased)].event_id,
        used_at = note_leased.at
    where c.subscription_id = note_leased.subscription_id and c.holder = note_leased.holder
        and c.leased_by is not distinct from (before).leased_by;
    if not found and (before).holder is null then
        insert into pgps_internal.consumer
            (subscription_id, holder, leased_by, first_batch, first_event, last_batch, last_event, used_at)
        values (note_leased.subscription_id, note_leased.holder, pg_current_xact_id(), leased[1].batch_id,
            leased[1].event_id, leased[cardinality(leased)].batch_id, leased[cardinality(leased)].event_id,
            note_leased.at)
        on conflict do nothing;
    end if;
    return found;
end
$$;
comment on function pgps_internal.note_leased(
    pgps_internal.consumer, bigint, text, pgps_internal.received[], timestamptz
) is
'Notes what a consumer was given, for its ack and nack; false when another session has received under its name since
before was read';

create or replace function pgps_internal.forget_leased(consumer pgps_internal.consumer) returns void
language plpgsql
as $$
begin
    -- Writes nothing when there is nothing to forget: who waits for events calls this again and again.
    if exists (select from pgps_internal.share s
            where s.subscription_id = (consumer).subscription_id
                and s.holder = (consumer).holder and s.leased_by = (consumer).leased_by
                and (s.batch_id, s.event_id) >= ((consumer).first_batch, (consumer).first_event)
                and (s.batch_id, s.event_id) <= ((consumer).last_batch, (consumer).last_event)) then
        update pgps_internal.consumer c set leased_by = null
        where c.subscription_id = (forget_leased.consumer).subscription_id
            and c.holder = (forget_leased.consumer).holder;
    end if;
end
$$;
comment on function pgps_internal.forget_leased(pgps_internal.consumer) is
'The newest call of this consumer returned nothing that can be acknowledged: the next ack covers nothing. What it holds
is handed out to it again';

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
    if ack_lease.up_to is not null then
        select s.batch_id, s.event_id into v_given.last_batch, v_given.last_event from pgps_internal.share s
        where s.subscription_id = v_id and s.event_id = ack_lease.up_to and s.holder = v_holder
            and s.leased_by = v_given.leased_by
            and (s.batch_id, s.event_id) >= (v_given.first_batch, v_given.first_event)
            and (s.batch_id, s.event_id) <= (v_given.last_batch, v_given.last_event);
        if not found then
            perform pgps_internal.require_own(ack_lease.subscription, ack_lease.consumer);
            raise exception 'event % is not held by this % on subscription "%"', ack_lease.up_to,
                case when ack_lease.consumer is null then 'session' else 'consumer' end, (ack_lease.subscription).name
            using errcode = '55000',
                hint = 'Acknowledge an event that the newest pgps.receive returned. Its lease may have ended and '
                'another consumer has it; see the setting lease.';
        end if;
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
    )
    select count(*) into v_acked from settled s;
    if v_acked > 0 then
        insert into pgps_internal.position
            (subscription_id, acked_batch, acked_event, received_batch, received_event, acked_total, outstanding)
        values (v_id, -1, 0, -1, 0, v_acked, 0);
    else
        perform pgps_internal.require_own(ack_lease.subscription, ack_lease.consumer);
    end if;
    return v_acked;
end
$$;
comment on function pgps_internal.ack_lease(pgps_internal.subscription, bigint, text) is
'Settles the events that the newest receive of this consumer returned and it still holds: all, or up to one in delivery
order';

create or replace function pgps_internal.require_own(subscription pgps_internal.subscription, consumer text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_session text := pgps_internal.holder() || '/';
begin
    if require_own.consumer is null and exists (select from pgps_internal.share s
            where s.subscription_id = (require_own.subscription).subscription_id and starts_with(s.holder, v_session)
                and s.holder <> v_session || current_setting('application_name')) then
        raise exception 'the events of subscription "%" that this server process holds were received under another '
            'application_name than "%"',
            (require_own.subscription).name, current_setting('application_name')
        using errcode = '55000',
            hint = 'Behind a transaction pooler name the consumer: receive(…, consumer => ''…''), ack(…, consumer '
            '=> ''…'').';
    end if;
end
$$;
comment on function pgps_internal.require_own(pgps_internal.subscription, text) is
'Raises 55000 when no consumer is named and this server process holds events that were received under another
application_name';

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
    with released as (
        update pgps_internal.share s set leased_until = null, holder = null, leased_by = null
        where s.subscription_id = v_id and s.event_id = any (release.event_ids)
            and s.holder = v_holder and s.leased_by = v_given.leased_by
            and (s.batch_id, s.event_id) >= (v_given.first_batch, v_given.first_event)
            and (s.batch_id, s.event_id) <= (v_given.last_batch, v_given.last_event)
        returning s.event_id, s.type_id, s.attempts
    )
    select array_agg((0, r.event_id, r.type_id, r.attempts)::pgps_internal.received) into v_released from released r;
    return v_released;
end
$$;
comment on function pgps_internal.release(pgps_internal.subscription, bigint[], text) is
'Ends the leases on events that the newest receive of this consumer returned, and returns those';

create or replace function pgps_internal.sweep_consumers() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A consumer that holds nothing needs no row; it gets another with the next event that it is given. Rows that a
    -- session has locked are in use.
    delete from pgps_internal.consumer c using (
        select c.subscription_id, c.holder from pgps_internal.consumer c
        where c.used_at < pgps_internal.clock() - interval '1 hour'
            and not exists (select from pgps_internal.share s
                where s.subscription_id = c.subscription_id and s.holder = c.holder
                    and (s.batch_id, s.event_id) >= (c.first_batch, c.first_event)
                    and (s.batch_id, s.event_id) <= (c.last_batch, c.last_event))
        for update of c skip locked) idle
    where c.subscription_id = idle.subscription_id and c.holder = idle.holder;
end
$$;
comment on function pgps_internal.sweep_consumers() is
'Deletes what is known of consumers that have held nothing for an hour';
