-- Queued registrations are read occurrence by occurrence: a publishing statement with all its tuples. Inside a batch
-- the cursor goes by the first event of each statement, since event ids of concurrent statements interleave; the
-- position of the subscription follows it, so that pgps.receive, reclaim and the views agree.
-- Locks: the turns of the client and of its subscriptions, until the transaction ends.
-- Writes: nothing.

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
            and pgps_internal.batch_segment(d.batch_id) = pgps_internal.batch_segment(delivered_ids.batch_id)
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
    -- Whoever has moved the position with pgps.seek gets again what was completed before.
    if v_done.batch_id not in (v_position.acked_batch, coalesce(next_occurrence.in_batch, -1)) then
        v_done := null;
    end if;
    v_from := greatest(v_position.acked_batch, next_occurrence.in_batch, 0);
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
                and pgps_internal.batch_segment(d.batch_id) = pgps_internal.batch_segment(v_batch)
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
