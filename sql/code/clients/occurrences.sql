-- Queued registrations are read occurrence by occurrence: a publishing statement with all its tuples. Inside a batch
-- the cursor goes by the first event of each statement, since event ids of concurrent statements interleave; the
-- position of the subscription follows it, so that pgps.receive, reclaim and the views agree. Locks: the turns of the
-- client and of its subscriptions, until the transaction ends.
-- Writes: client_mark.

create or replace function pgps_internal.delivered_ids(subscription_id bigint, type_id integer, batch_id bigint)
returns int8multirange
language plpgsql stable
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_ids int8multirange;
    v_failed int8multirange;
begin
    select range_agg(i.ids) into v_ids
    from (
        select coalesce(d.ids, (select range_agg(int8range(e, e, '[]')) from unnest(d.event_ids) e)) - m.skip as ids
        from pgps_internal.member m join pgps_internal.delivery d using (class_id)
        where m.subscription_id = delivered_ids.subscription_id and m.type_id = delivered_ids.type_id
            and d.batch_id = delivered_ids.batch_id
            and (d.batch_id / 4096) % 4 = (delivered_ids.batch_id / 4096) % 4
            and d.batch_id > m.from_batch
    ) s cross join lateral unnest(s.ids) i(ids);
    -- Events that were put back or have failed are handed out by pgps.receive.
    select range_agg(int8range(f.event_id, f.event_id, '[]')) into v_failed from pgps_internal.failure f
    where f.subscription_id = delivered_ids.subscription_id and f.type_id = delivered_ids.type_id;
    return coalesce(v_ids, '{}') - coalesce(v_failed, '{}');
end
$$;
comment on function pgps_internal.delivered_ids(bigint, integer, bigint) is
'The events of a type that a batch has for a subscription, without those in the exception queue';

create or replace function pgps_internal.first_occurrence(
    registration pgps_internal.registration, event_type pgps_internal.event_type, batch_id bigint, ids int8multirange,
    after bigint
) returns pgps_internal.client_mark
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type_id integer := (first_occurrence.event_type).type_id;
    v_rest int8multirange := first_occurrence.ids * int8multirange(int8range(first_occurrence.after, null, '()'));
    v_statement pgps_internal.control;
    v_part pgps_internal.part_ids;
    v_next pgps_internal.received[];
    v_mark pgps_internal.client_mark;
begin
    -- Each round skips a whole statement, not one event: one that began earlier, or is for other clients.
    while not isempty(v_rest) loop
        execute 'select * from pgps_internal.statement_' || v_type_id || '($1)' using lower(v_rest) into v_statement;
        if v_statement.xid is null then
            -- The event is not in the log, since an unlogged one is empty after a crash: go on at the next event that
            -- is there.
            execute 'select pgps_internal.slice_' || v_type_id || '(null, $1, $2, $3, 1)' using lower(v_rest),
                upper(v_rest), v_rest into v_next;
            v_rest := case when cardinality(v_next) = 0 then '{}'
                else v_rest * int8multirange(int8range(v_next[1].event_id, null)) end;
            continue;
        end if;
        execute 'select * from pgps_internal.part_ids_' || v_type_id || '($1, $2)'
        using array[v_statement.xid], int8multirange(int8range(v_statement.lo, v_statement.hi, '[]')) into v_part;
        v_part.ids := v_part.ids * first_occurrence.ids;
        if lower(v_part.ids) = lower(v_rest) and pgps_internal.is_for((first_occurrence.registration).client_id,
                coalesce(v_statement.handler, (first_occurrence.event_type).handler), v_statement.xid, v_statement.hi,
                v_statement.client_id,
                v_statement.publisher) then
            v_mark.client_id := (first_occurrence.registration).client_id;
            v_mark.registration_id := (first_occurrence.registration).registration_id;
            v_mark.batch_id := first_occurrence.batch_id;
            v_mark.type_id := v_type_id;
            v_mark.xid := v_statement.xid;
            v_mark.lo := v_statement.lo;
            v_mark.hi := v_statement.hi;
            v_mark.first_event := lower(v_part.ids);
            v_mark.last_event := upper(v_part.ids) - 1;
            v_mark.tuples := (select sum(upper(r) - lower(r)) from unnest(v_part.ids) r);
            v_mark.attempt := 1;
            v_mark.completed := false;
            return v_mark;
        end if;
        v_rest := v_rest - v_part.ids - int8multirange(int8range(lower(v_rest), lower(v_rest), '[]'));
    end loop;
    return null;
end
$$;
comment on function pgps_internal.first_occurrence(pgps_internal.registration, pgps_internal.event_type, bigint,
    int8multirange, bigint) is
'The first statement among the given events of a type in a batch that begins above the event id after and is for the
client; null when there is none';

create or replace function pgps_internal.next_occurrence(
    registration pgps_internal.registration, in_batch bigint = null
) returns pgps_internal.client_mark
language plpgsql stable
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_subscription pgps_internal.subscription;
    v_position pgps_internal.position := pgps_internal.position_of((next_occurrence.registration).subscription_id);
    v_done pgps_internal.client_mark;
    v_batch bigint;
    v_from bigint;
    v_type pgps_internal.event_type;
    v_ids int8multirange;
    v_found pgps_internal.client_mark;
    v_best pgps_internal.client_mark;
begin
    select s.* into v_subscription from pgps_internal.subscription s
        where s.subscription_id = (next_occurrence.registration).subscription_id;
    select m.* into v_done from pgps_internal.client_mark m
    where m.registration_id = (next_occurrence.registration).registration_id and m.completed
        order by m.mark_id desc limit 1;
    v_from := greatest(v_position.acked_batch, v_done.batch_id, next_occurrence.in_batch, 0);
    loop
        select min(d.batch_id) into v_batch from pgps_internal.member m
        cross join lateral (select d.batch_id from pgps_internal.delivery d
            where d.class_id = m.class_id and d.batch_id >= greatest(v_from, m.from_batch + 1)
                order by d.batch_id limit 1) d
        where m.subscription_id = v_subscription.subscription_id;
        if v_batch is null or v_batch > next_occurrence.in_batch then
            return null;
        end if;
        for v_type in
            select distinct t.* from pgps_internal.member m join pgps_internal.delivery d using (class_id)
                join pgps_internal.event_type t on t.type_id = m.type_id
            where m.subscription_id = v_subscription.subscription_id and d.batch_id = v_batch
                and (d.batch_id / 4096) % 4 = (v_batch / 4096) % 4
        loop
            v_ids := pgps_internal.visible(v_type, v_subscription.owner,
                pgps_internal.delivered_ids(v_subscription.subscription_id, v_type.type_id, v_batch)
                * case when v_position.acked_batch = v_batch
                    then int8multirange(int8range(v_position.acked_event, null, '()')) else '{(,)}' end);
            v_found := pgps_internal.first_occurrence(next_occurrence.registration, v_type, v_batch, v_ids,
                case when v_done.batch_id = v_batch then v_done.first_event else 0 end);
            if v_found.first_event < coalesce(v_best.first_event, 9223372036854775807) then
                v_best := v_found;
            end if;
        end loop;
        if v_best.first_event is not null then
            return v_best;
        end if;
        v_from := v_batch + 1;
    end loop;
end
$$;
comment on function pgps_internal.next_occurrence(pgps_internal.registration, bigint) is
'The next occurrence of a queued registration; in_batch: only of that batch; null when there is none';

create or replace function pgps_internal.follow(registration pgps_internal.registration, batch_id bigint, tuples bigint)
returns pgps_internal.client_mark
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (follow.registration).subscription_id;
    v_position pgps_internal.position := pgps_internal.position_of(v_id);
    v_last bigint := 0;
    v_next pgps_internal.client_mark := pgps_internal.next_occurrence(follow.registration, follow.batch_id);
begin
    if v_next.first_event is null then
        -- Nothing of the batch is left: the position goes past its last event.
        select coalesce(max(e.event_id), 0) into v_last
        from pgps_internal.member m join pgps_internal.delivery d using (class_id)
        cross join lateral (select greatest((select max(i) from unnest(d.event_ids) i), upper(d.ids) - 1) as event_id) e
        where m.subscription_id = v_id and d.batch_id = follow.batch_id;
    end if;
    if (follow.batch_id, v_last) > (v_position.acked_batch, v_position.acked_event) or follow.tuples > 0 then
        perform pgps_internal.move(v_id, greatest(follow.batch_id, v_position.acked_batch),
            case when follow.batch_id > v_position.acked_batch then v_last
                else greatest(v_last, v_position.acked_event) end,
            greatest(follow.batch_id, v_position.acked_batch),
            case when follow.batch_id > v_position.acked_batch then v_last
                else greatest(v_last, v_position.acked_event) end,
            v_position.acked_total + follow.tuples);
    end if;
    return v_next;
end
$$;
comment on function pgps_internal.follow(pgps_internal.registration, bigint, bigint) is
'Moves the position of a registration''s subscription after an occurrence in a batch: to the beginning of the batch, or
past its end when nothing of it is left. Returns the next occurrence in the batch.';

-- ---------------------------------------------------------------------------------------------------------------------
-- receive, receive again, commit
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.last_mark(client_id bigint) returns pgps_internal.client_mark
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_mark pgps_internal.client_mark;
begin
    select m.* into v_mark from pgps_internal.client_mark m where m.client_id = last_mark.client_id
        order by m.mark_id desc limit 1;
    return v_mark;
end
$$;
comment on function pgps_internal.last_mark(bigint) is
'The occurrence that a client has received last, and whether it completed it; null when there is none';

create or replace function pgps_internal.note_mark(mark pgps_internal.client_mark, completed boolean) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgps_internal.client_mark (client_id, registration_id, batch_id, type_id, xid, lo, hi, first_event,
        last_event, tuples, attempt, completed)
    values ((note_mark.mark).client_id, (note_mark.mark).registration_id, (note_mark.mark).batch_id,
        (note_mark.mark).type_id, (note_mark.mark).xid,
        (note_mark.mark).lo, (note_mark.mark).hi, (note_mark.mark).first_event, (note_mark.mark).last_event,
            (note_mark.mark).tuples,
        (note_mark.mark).attempt, note_mark.completed);
end
$$;
comment on function pgps_internal.note_mark(pgps_internal.client_mark, boolean) is
'Notes in the ledger that a client has received or completed an occurrence';

create or replace function pgps_internal.describe_mark(mark pgps_internal.client_mark) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_statement pgps_internal.control;
    v_registration pgps_internal.registration;
begin
    select r.* into v_registration from pgps_internal.registration r
        where r.registration_id = (describe_mark.mark).registration_id;
    if not found or to_regproc('pgps_internal.statement_' || (describe_mark.mark).type_id) is null then
        return null;
    end if;
    execute 'select * from pgps_internal.statement_' || (describe_mark.mark).type_id || '($1)'
        using (describe_mark.mark).first_event into v_statement;
    return case when v_statement.xid is not null
        then jsonb_build_object('event_id', (describe_mark.mark).first_event, 'last_event_id',
        (describe_mark.mark).last_event,
        'tuples', (describe_mark.mark).tuples, 'event_type',
            (select t.name from pgps_internal.event_type t where t.type_id = (describe_mark.mark).type_id),
        'event_name', v_registration.event_name, 'published_at', v_statement.published_at,
        'publisher', case when v_statement.publisher is not null then pg_get_userbyid(v_statement.publisher::oid) end,
            'xid', coalesce(nullif(v_statement.raiser, '0'), v_statement.xid)::text,
        'origin', coalesce((select o.name from pgps_internal.origin o where o.origin_id = v_statement.origin_id),
            pgps_internal.broker_name()),
        'raiser', pgps_internal.raiser_of(v_statement.client_id), 'attempt', (describe_mark.mark).attempt) end;
end
$$;
comment on function pgps_internal.describe_mark(pgps_internal.client_mark) is
'An occurrence as pgps.receive_event returns it; null when its registration or its events are gone';

create or replace function pgps_internal.complete(mark pgps_internal.client_mark) returns pgps_internal.client_mark
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_registration pgps_internal.registration;
begin
    if (complete.mark).first_event is null or (complete.mark).completed then
        return null;
    end if;
    select r.* into v_registration from pgps_internal.registration r
    where r.registration_id = (complete.mark).registration_id and r.subscription_id is not null;
    perform pgps_internal.hold_subscriptions(array[v_registration.subscription_id]),
        pgps_internal.note_mark(complete.mark, true);
    return case when v_registration.registration_id is not null
        then pgps_internal.follow(v_registration, (complete.mark).batch_id, (complete.mark).tuples) end;
end
$$;
comment on function pgps_internal.complete(pgps_internal.client_mark) is
'Completes an occurrence that is open; returns the next one of its registration in the same batch';

create or replace function pgps_internal.has_news(client_id bigint) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_registration pgps_internal.registration;
    v_mark pgps_internal.client_mark := pgps_internal.last_mark(has_news.client_id);
    v_batch bigint;
begin
    if v_mark.first_event is not null and not v_mark.completed then
        return true;
    end if;
    for v_registration in
        select r.* from pgps_internal.registration r join pgps_internal.subscription s using (subscription_id)
        where r.client_id = has_news.client_id and s.state = 'active'
    loop
        v_batch := (pgps_internal.position_of(v_registration.subscription_id)).acked_batch;
        if exists (select from pgps_internal.member m join pgps_internal.delivery d on d.class_id = m.class_id
            and d.batch_id > greatest(v_batch, m.from_batch)
                where m.subscription_id = v_registration.subscription_id)
            or v_batch >= 0 and (pgps_internal.next_occurrence(v_registration, v_batch)).first_event is not null then
            return true;
        end if;
    end loop;
    return false;
end
$$;
comment on function pgps_internal.has_news(bigint) is
'False when a client has completed the occurrence that it received last, and its queued registrations have nothing new;
true when they may have';

create or replace function pgps_internal.receive_event(caller name, args jsonb, checkpoint bytea) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client;
    v_name text := case when args ->> 'event_name' ~ '\*$' then args ->> 'event_name' else
        case when args ->> 'event_name' is not null then pgps_internal.fold(args ->> 'event_name') end end;
    v_registration pgps_internal.registration;
    v_found pgps_internal.client_mark;
    v_best pgps_internal.client_mark;
    v_upto bigint;
    v_next pgps_internal.client_mark;
begin
    perform pgps_internal.require_read_committed();
    v_client := pgps_internal.look_session(caller, args);
    if receive_event.checkpoint is null and not pgps_internal.has_news(v_client.client_id) and (v_name is null
            or exists (select from pgps_internal.registration r
                where r.client_id = v_client.client_id and r.event_name in (v_name, lower(v_name collate "C"))
                    and r.mode = 'queued')) then
        -- A call that finds nothing does not take the client's turn, since locking a row is a write.
        return null;
    end if;
    v_client := pgps_internal.enter_session(caller, args);
    v_next := pgps_internal.complete(pgps_internal.last_mark(v_client.client_id));
    perform pgps_internal.keep_checkpoint(v_client.client_id, 'event', receive_event.checkpoint);
    if v_name is not null and not exists (select from pgps_internal.registration r
            where r.client_id = v_client.client_id and r.event_name in (v_name, lower(v_name collate "C"))
                and r.mode = 'queued') then
        raise exception 'client "%" is not registered for "%" in mode queued', v_client.name, args ->> 'event_name'
        using errcode = '42704',
            hint = format('First: select * from pgps.register_for_event(%L, %L)', quote_ident(v_client.name),
            args ->> 'event_name');
    end if;
    for v_registration in
        select r.* from pgps_internal.registration r join pgps_internal.subscription s using (subscription_id)
        where r.client_id = v_client.client_id
            and (v_name is null or r.event_name in (v_name, lower(v_name collate "C"))) and s.state = 'active'
    loop
        perform pgps_internal.hold_subscription(v_registration.subscription_id);
        v_upto := (pgps_internal.last_batch()).batch_id;
        v_found := case when v_next.registration_id = v_registration.registration_id then v_next
            else pgps_internal.next_occurrence(v_registration) end;
        if v_found.first_event is null then
            perform pgps_internal.pass_others(v_registration, v_upto);
        elsif v_best.batch_id is null
            or (v_found.batch_id, v_found.first_event) < (v_best.batch_id, v_best.first_event) then
            v_best := v_found;
        end if;
    end loop;
    if v_best.first_event is not null then
        perform pgps_internal.note_mark(v_best, false);
    end if;
    return pgps_internal.describe_mark(v_best);
end
$$;
comment on function pgps_internal.receive_event(name, jsonb, bytea) is 'See pgps.receive_event';

create or replace function pgps_internal.pass_others(registration pgps_internal.registration, upto bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_batch bigint;
begin
    -- Events that are for other clients, or hidden by policies, are passed for good, so that the next call does not go
    -- over them again. Only up to the batch that was the last one before the search: a later one may have something for
    -- this client.
    select max(d.batch_id) into v_batch
    from pgps_internal.member m
    cross join lateral (select d.batch_id from pgps_internal.delivery d
        where d.class_id = m.class_id and d.batch_id > m.from_batch and d.batch_id <= pass_others.upto
            order by d.batch_id desc limit 1) d
    where m.subscription_id = (pass_others.registration).subscription_id;
    if v_batch > (pgps_internal.position_of((pass_others.registration).subscription_id)).acked_batch then
        perform pgps_internal.follow(pass_others.registration, v_batch, 0);
    end if;
end
$$;
comment on function pgps_internal.pass_others(pgps_internal.registration, bigint) is
'Moves the position of a registration''s subscription past the batches up to upto, which have nothing for its client';

create or replace function pgps_internal.re_receive_event(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client := pgps_internal.enter_session(caller, args);
    v_mark pgps_internal.client_mark := pgps_internal.last_mark(v_client.client_id);
begin
    v_mark.attempt := v_mark.attempt + 1;
    if v_mark.first_event is not null and not v_mark.completed then
        perform pgps_internal.note_mark(v_mark, false);
    end if;
    return pgps_internal.describe_mark(v_mark);
end
$$;
comment on function pgps_internal.re_receive_event(name, jsonb) is 'See pgps.re_receive_event';

create or replace function pgps_internal.commit_event(caller name, args jsonb, checkpoint bytea) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client := pgps_internal.enter_session(caller, args);
    v_mark pgps_internal.client_mark := pgps_internal.last_mark(v_client.client_id);
begin
    perform pgps_internal.complete(v_mark),
        pgps_internal.keep_checkpoint(v_client.client_id, 'event', commit_event.checkpoint);
    return case when not v_mark.completed then to_jsonb(v_mark.first_event) end;
end
$$;
comment on function pgps_internal.commit_event(name, jsonb, bytea) is 'See pgps.commit_event';

create or replace function pgps_internal.pending_event(client pgps_internal.client) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_registration pgps_internal.registration;
    v_mark pgps_internal.client_mark := pgps_internal.last_mark((pending_event.client).client_id);
begin
    if not v_mark.completed and
        exists (select from pgps_internal.registration r where r.registration_id = v_mark.registration_id) then
        return format('event %s', v_mark.first_event);
    end if;
    for v_registration in select r.* from pgps_internal.registration r
        where r.client_id = (pending_event.client).client_id and r.mode = 'queued' loop
        v_mark := pgps_internal.next_occurrence(v_registration);
        if v_mark.first_event is not null then
            return format('event %s', v_mark.first_event);
        end if;
    end loop;
    return null;
end
$$;
comment on function pgps_internal.pending_event(pgps_internal.client) is
'An event that a client has not completed, for a message; null when there is none';

create or replace function pgps_internal.fetch_tuples(caller name, args jsonb) returns pgps_internal.handed[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client := pgps_internal.look_session(caller, args);
    v_mark pgps_internal.client_mark := pgps_internal.last_mark(v_client.client_id);
    v_subscription pgps_internal.subscription;
    v_after bigint := coalesce((args ->> 'after')::bigint, 0);
    v_max integer := pgps_internal.limit_of(args, 'max_tuples');
    v_part pgps_internal.received[];
    v_messages pgps_internal.message[];
begin
    select s.* into v_subscription from pgps_internal.registration r join pgps_internal.subscription s
        using (subscription_id)
    where r.registration_id = v_mark.registration_id;
    if not found or to_regproc('pgps_internal.slice_' || v_mark.type_id) is null then
        return '{}';
    end if;
    loop
        execute 'select pgps_internal.slice_' || v_mark.type_id || '($1, $2, $3, $4, $5)'
        using v_mark.xid, greatest(v_after, v_mark.first_event - 1), v_mark.last_event,
            pgps_internal.delivered_ids(v_subscription.subscription_id, v_mark.type_id, v_mark.batch_id), v_max
                into v_part;
        exit when cardinality(v_part) = 0;
        v_messages := pgps_internal.unfold(v_part, v_subscription);
        -- A policy may hide a whole slice.
        exit when cardinality(v_messages) > 0;
        v_after := v_part[cardinality(v_part)].event_id;
    end loop;
    return array(select (0, null, null, null, m)::pgps_internal.handed from unnest(v_messages) m);
end
$$;
comment on function pgps_internal.fetch_tuples(name, jsonb) is 'See pgps.fetch_tuples';

revoke all on all functions in schema pgps_internal from public;
