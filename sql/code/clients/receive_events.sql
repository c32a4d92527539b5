-- What pgps.receive_event does for a client: it completes the occurrences that the client has of the registrations that
-- the call is among, and gives the next one of these, whose tuples can be fetched until then.
-- Locks: the turns of the client and of its subscriptions, until the transaction ends.
-- Writes: nothing.

create or replace function pgps_internal.has_news(registration_ids bigint[]) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_registration pgps_internal.registration;
    v_batch bigint;
begin
    if exists (select from pgps_internal.last_marks(has_news.registration_ids) m where not m.completed) then
        return true;
    end if;
    for v_registration in
        select r.* from pgps_internal.registration r join pgps_internal.subscription s using (subscription_id)
        where r.registration_id = any (has_news.registration_ids) and s.state = 'active'
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
comment on function pgps_internal.has_news(bigint[]) is
'False when the occurrences received last of these registrations are completed, and the queued ones have nothing new;
true when they may have';

create or replace function pgps_internal.best_occurrence(
    registration_ids bigint[], event_name text, next pgps_internal.client_mark[]
) returns pgps_internal.client_mark
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_registration pgps_internal.registration;
    v_found pgps_internal.client_mark;
    v_best pgps_internal.client_mark;
    v_upto bigint;
begin
    for v_registration in
        select r.* from pgps_internal.registration r join pgps_internal.subscription s using (subscription_id)
        where r.registration_id = any (best_occurrence.registration_ids)
            and (best_occurrence.event_name is null
                or r.event_name in (best_occurrence.event_name, lower(best_occurrence.event_name collate "C")))
            and s.state = 'active'
    loop
        perform pgps_internal.hold_subscription(v_registration.subscription_id, v_registration.event_name);
        -- Whoever read on would pass events of the type that is still to be met.
        continue when pgps_internal.is_unmet(v_registration.subscription_id);
        v_upto := (pgps_internal.last_batch()).batch_id;
        select n.* into v_found from unnest(best_occurrence.next) n
        where n.registration_id = v_registration.registration_id;
        if not found then
            v_found := pgps_internal.next_occurrence(v_registration);
        end if;
        if v_found.first_event is null then
            perform pgps_internal.pass_others(v_registration, v_upto);
        elsif v_best.batch_id is null
            or (v_found.batch_id, v_found.first_event) < (v_best.batch_id, v_best.first_event) then
            v_best := v_found;
        end if;
    end loop;
    return v_best;
end
$$;
comment on function pgps_internal.best_occurrence(bigint[], text, pgps_internal.client_mark[]) is
'The next occurrence of these registrations in delivery order, of those with the event name (null: all); null when there
is none. next: what is known to be the next one of some of them. Takes their turns';

create or replace function pgps_internal.receive_event(caller name, args jsonb, checkpoint bytea) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client;
    v_name text := case when args ->> 'event_name' ~ '\*$' then args ->> 'event_name' else
        case when args ->> 'event_name' is not null then pgps_internal.fold(args ->> 'event_name') end end;
    v_best pgps_internal.client_mark;
    v_among bigint[];
    v_next pgps_internal.client_mark[];
begin
    perform pgps_internal.require_read_committed();
    v_client := pgps_internal.look_session(caller, args);
    v_among := pgps_internal.among(v_client.client_id, args);
    if receive_event.checkpoint is null and not pgps_internal.has_news(v_among) and (v_name is null
            or exists (select from pgps_internal.registration r
                where r.registration_id = any (v_among) and r.event_name in (v_name, lower(v_name collate "C"))
                    and r.mode = 'queued')) then
        -- A call that finds nothing does not take the client's turn, since locking a row is a write.
        return null;
    end if;
    v_client := pgps_internal.enter_session(caller, args);
    v_among := pgps_internal.among(v_client.client_id, args);
    v_next := pgps_internal.complete_all(
        array(select m from pgps_internal.last_marks(v_among) m where not m.completed));
    perform pgps_internal.keep_checkpoint(v_client.client_id, 'event', receive_event.checkpoint);
    if v_name is not null and not exists (select from pgps_internal.registration r
            where r.registration_id = any (v_among) and r.event_name in (v_name, lower(v_name collate "C"))
                and r.mode = 'queued') then
        raise exception 'client "%" is not registered for "%" in mode queued', v_client.name, args ->> 'event_name'
        using errcode = '42704',
            hint = format('First: select * from pgps.register_for_event(%L, %L)', quote_ident(v_client.name),
            args ->> 'event_name');
    end if;
    v_best := pgps_internal.best_occurrence(v_among, v_name, v_next);
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
    v_mark pgps_internal.client_mark := pgps_internal.last_mark(pgps_internal.among(v_client.client_id, args));
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
    v_mark pgps_internal.client_mark := pgps_internal.last_mark(pgps_internal.among(v_client.client_id, args));
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
    v_mark pgps_internal.client_mark
        := pgps_internal.last_mark(pgps_internal.among((pending_event.client).client_id, '{}'));
begin
    if not v_mark.completed then
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
    v_mark pgps_internal.client_mark := pgps_internal.last_mark(pgps_internal.among(v_client.client_id, args));
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
        begin
            v_messages := pgps_internal.unfold(v_part, v_subscription);
        exception when others or assert_failure then
            if not pgps_internal.is_no_json(sqlstate) then
                raise;
            end if;
            perform pgps_internal.or_null(true);
            v_messages := pgps_internal.unfold(v_part, v_subscription);
            perform pgps_internal.or_null(false);
        end;
        -- A policy may hide a whole slice.
        exit when cardinality(v_messages) > 0;
        v_after := v_part[cardinality(v_part)].event_id;
    end loop;
    return array(select (0, null, null, null, m)::pgps_internal.handed from unnest(v_messages) m);
end
$$;
comment on function pgps_internal.fetch_tuples(name, jsonb) is 'See pgps.fetch_tuples';
