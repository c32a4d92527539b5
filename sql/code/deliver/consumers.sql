-- Consumers of shared subscriptions: who holds leases, and who has received last under a name. How they get events and
-- settle them: leases.sql.
-- Locks: the row of a consumer, until the transaction ends.
-- Writes: consumer.

create or replace function pgps_internal.holder() returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$ begin return (select format('%s@%s', pg_backend_pid(), extract(epoch from a.backend_start))
    from pg_stat_get_activity(pg_backend_pid()) a); end $$;
comment on function pgps_internal.holder() is 'The holder of a lease: this session, as process id and start time';

create or replace function pgps._is_alive(holder text) returns boolean
language sql stable security definer
begin atomic
    select exists (select from pg_stat_get_activity(split_part(_is_alive.holder, '@', 1)::integer) a
        where extract(epoch from a.backend_start)::text = split_part(_is_alive.holder, '@', 2));
end;
comment on function pgps._is_alive(text) is
'True while the session that pgps_internal.holder() names so is alive. For the views: the server tells their readers,
also pgps_admin, of sessions of other roles neither when they began nor whether they are the same';
grant execute on function pgps._is_alive(text) to public;

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
    return 'consumer/' || split_part(pgps_internal.check_consumer(holder_for.consumer), '#', 1);
end
$$;
comment on function pgps_internal.holder_for(text) is
'Who holds a lease on an event of a shared subscription: the consumer of that name, without its token; null = this
session';

create or replace function pgps_internal.check_consumer(consumer text) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if check_consumer.consumer ~ '^(#|$)' or octet_length(check_consumer.consumer) > 200 then
        raise exception 'invalid consumer "%"', check_consumer.consumer
        using errcode = '22023', hint = 'Give a name of 1 to 200 bytes that no other consumer has, or null. What '
            'follows a # is a token: programs that share the name tell themselves apart by it.';
    end if;
    return check_consumer.consumer;
end
$$;
comment on function pgps_internal.check_consumer(text) is
'Returns the name of a consumer, null = none; raises 22023 when it is invalid';

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

create or replace function pgps_internal.overtaken_by(before pgps_internal.consumer, pid integer) returns integer[]
language sql immutable
as $$
    select case when (before).pid is distinct from overtaken_by.pid and (before).leased_by is not null
            -- A hundred of them are more than a pooler has; the oldest go.
            then array_append(array_remove((before).overtaken[greatest(cardinality((before).overtaken) - 98, 1):],
                overtaken_by.pid), (before).pid)
        when (before).overtaken = '{}' then (before).overtaken
        else array_remove((before).overtaken, overtaken_by.pid) end
$$;
comment on function pgps_internal.overtaken_by(pgps_internal.consumer, integer) is
'The server processes that have received under a name, and not acknowledged before another one did: pid is the one that
receives now';

drop function if exists pgps_internal.note_first(bigint, text, text, pgps_internal.received, pgps_internal.received,
    timestamptz);
create or replace function pgps_internal.note_first(
    subscription_id bigint, holder text, consumer text, events pgps_internal.received[], at timestamptz
) returns boolean
language plpgsql
as $$
begin
    insert into pgps_internal.consumer (subscription_id, holder, leased_by, first_batch, first_event, last_batch,
        last_event, used_at, received_as, pid, given)
    values (note_first.subscription_id, note_first.holder, pg_current_xact_id(), events[1].batch_id,
        events[1].event_id, events[cardinality(events)].batch_id, events[cardinality(events)].event_id, note_first.at,
        note_first.consumer, pg_backend_pid(), cardinality(events))
    on conflict do nothing;
    return found;
end
$$;
comment on function pgps_internal.note_first(bigint, text, text, pgps_internal.received[], timestamptz) is
'Notes what a consumer was given, of which nothing is known so far; false when another session has received under its
name meanwhile';

create or replace function pgps_internal.forget_leased(subscription_id bigint, holder text) returns void
language sql
as $$
    update pgps_internal.consumer c
    set leased_by = null, pid = pg_backend_pid(), overtaken = pgps_internal.overtaken_by(c, pg_backend_pid())
    where c.subscription_id = forget_leased.subscription_id and c.holder = forget_leased.holder
        and c.leased_by is not null
$$;
comment on function pgps_internal.forget_leased(bigint, text) is
'The newest call of this consumer returned nothing that can be acknowledged: the next ack covers nothing. What it holds
is handed out to it again';

create or replace function pgps_internal.require_receiver(
    subscription pgps_internal.subscription, given pgps_internal.consumer, consumer text
) returns void
language plpgsql stable
as $$
begin
    if (given).received_as is distinct from require_receiver.consumer and (given).leased_by is not null then
        raise exception 'what subscription "%" gave consumer "%" last was received by "%"',
            (require_receiver.subscription).name, require_receiver.consumer, (given).received_as
        using errcode = '55000', hint = 'Receive again: what is not acknowledged comes again.';
    elsif strpos(require_receiver.consumer, '#') = 0 and pg_backend_pid() = any ((given).overtaken) then
        raise exception 'what subscription "%" gave consumer "%" last was received by another session',
            (require_receiver.subscription).name, require_receiver.consumer
        using errcode = '55000', hint = format('Receive again: what is not acknowledged comes again. When two programs '
            'use one name, or one program sessions of a pooler, let each add a token of its own: consumer => %L.',
            split_part(require_receiver.consumer, '#', 1) || '#1');
    end if;
end
$$;
comment on function pgps_internal.require_receiver(pgps_internal.subscription, pgps_internal.consumer, text) is
'Raises 55000 when what a consumer was given last went to another token, or to another session after this one had
received';

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
            and not exists (select from pg_stat_activity a where a.pid = any (c.overtaken))
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
