-- Publishing what was detected: events of the composite types, in the transaction of the detection. The attributes are
-- evaluated as a set, with the rights of the composite event's owner; a detection whose attributes raise goes to the
-- exception queue, and the others go on.
-- Locks: those of a publication.
-- Writes: composite, failure, subscription; by name: the log of a type, its events kept aside.

drop function if exists pgps_internal.publish_found(jsonb),
    pgps_internal.publish_part(pgps_internal.composite, pgps_internal.event_type, jsonb),
    pgps_internal.insert_found(pgps_internal.composite, pgps_internal.event_type, jsonb),
    pgps_internal.fail_found(pgps_internal.composite, pgps_internal.event_type, jsonb, text, text),
    pgps_internal.found_again(pgps_internal.composite, pgps_internal.event_type, bigint),
    pgps_internal.publish_found(bigint, pgps_internal.detections),
    pgps_internal.publish_part(pgps_internal.composite, pgps_internal.event_type, pgps_internal.detections),
    pgps_internal.fail_found(pgps_internal.composite, pgps_internal.event_type, pgps_internal.detections, text, text);

create or replace function pgps_internal.publish_found(
    composite_id bigint, detections pgps_internal.detections, seconds double precision
) returns bigint
language plpgsql
as $$
declare
    v_composite pgps_internal.composite;
    v_type pgps_internal.event_type;
    v_began timestamptz := clock_timestamp();
begin
    select c.* into v_composite from pgps_internal.composite c where c.composite_id = publish_found.composite_id;
    select t.* into v_type from pgps_internal.event_type t where t.type_id = v_composite.type_id;
    return pgps_internal.publish_part(v_composite, v_type, publish_found.detections,
        v_began + publish_found.seconds * interval '1 second');
end
$$;
comment on function pgps_internal.publish_found(bigint, pgps_internal.detections, double precision) is
'Publishes what was detected of a composite event with attributes, whose code may take so many seconds (null = as long
as it may for so many events); returns how many';

create or replace function pgps_internal.part_of(detections pgps_internal.detections, first integer, last integer)
returns pgps_internal.detections
language sql immutable
as $$
    select (f.starts[first:last], f.ends[first:last], f.detected[first:last], f.start_points[first:last],
        f.end_points[first:last], f.constituents[first:last], f.bound[first:last])::pgps_internal.detections
    from (select (part_of.detections).*) f
$$;
comment on function pgps_internal.part_of(pgps_internal.detections, integer, integer) is
'Detections from one place to another';

create or replace function pgps_internal.publish_part(
    composite pgps_internal.composite, event_type pgps_internal.event_type, detections pgps_internal.detections,
    until timestamptz
) returns bigint
language plpgsql
as $$
declare
    v_count integer := cardinality((publish_part.detections).starts);
    v_state text;
    v_error text;
    v_limit interval := pgps_internal.setting('dispatch_lane_timeout')::interval + v_count * interval '1 millisecond';
    v_began timestamptz;
begin
    -- The first call in a session loads PL/Python, which takes its time.
    perform pgps_internal.set_alarm(0);
    v_began := clock_timestamp();
    v_limit := greatest(least(v_limit, publish_part.until - v_began), interval '1 millisecond');
    begin
        perform pgps_internal.set_alarm(extract(epoch from v_limit)::double precision);
        perform pgps_internal.mark_detection((publish_part.composite).composite_id, v_limit);
        v_count := pgps_internal.insert_found(publish_part.composite, publish_part.event_type, publish_part.detections);
        -- A cancellation that came just before is noticed here.
        perform pgps_internal.set_alarm(0), pgps_internal.mark_detection(null, null), pg_sleep(0);
        return v_count;
    exception when others or assert_failure or query_canceled then
        get stacked diagnostics v_state = returned_sqlstate, v_error = message_text;
        perform pgps_internal.set_alarm(0), pgps_internal.mark_detection(null, null);
        if clock_timestamp() >= v_began + v_limit then
            raise exception 'the attributes take too long' using errcode = '54000',
                hint = 'Make them cheaper; see the setting dispatch_lane_timeout.';
        -- Errors that are not those of an expression: a conflict, no resources, a shutdown.
        elsif left(v_state, 2) in ('40', '53', '57', '58', 'XX') then
            raise;
        end if;
    end;
    if v_count = 1 then
        perform pgps_internal.fail_found(publish_part.composite, publish_part.event_type, publish_part.detections,
            v_state, v_error);
        return 0;
    end if;
    return pgps_internal.publish_part(publish_part.composite, publish_part.event_type,
            pgps_internal.part_of(publish_part.detections, 1, v_count / 2), publish_part.until)
        + pgps_internal.publish_part(publish_part.composite, publish_part.event_type,
            pgps_internal.part_of(publish_part.detections, v_count / 2 + 1, v_count), publish_part.until);
end
$$;
comment on function pgps_internal.publish_part(pgps_internal.composite, pgps_internal.event_type,
    pgps_internal.detections, timestamptz) is
'Publishes detections of one composite event; when an attribute raises, halves the set until the one is found, which
goes to the exception queue. Returns how many were published';

create or replace function pgps_internal.taken_back(
    query text, items jsonb, ids bigint[], bound text, kind anyarray
) returns anyarray
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_events taken_back.kind%type;
    v_prepared text := pgps_internal.prepared();
    v_done boolean := false;
begin
    -- Filters and attributes may call functions of their owner's. What these do is rolled back, as in match_owner: a
    -- search_path that is left behind would hold for statements that run with the rights of pgps, and a constraint that
    -- is deferred would be checked with those of whoever commits.
    begin
        execute taken_back.query using taken_back.items, taken_back.ids, taken_back.bound into v_events;
        v_done := true;
        raise exception 'take back' using errcode = 'PS001';
    exception
        when sqlstate 'PS001' then
            if not v_done then
                raise;
            end if;
        when others or assert_failure or query_canceled then
            perform pgps_internal.forget_prepared(v_prepared);
            raise;
    end;
    perform pgps_internal.forget_prepared(v_prepared);
    return v_events;
end
$$;
comment on function pgps_internal.taken_back(text, jsonb, bigint[], text, anyarray) is
'The array of events that a query makes, with whatever else it has done undone. $1 to $3 of the query are items, ids and
bound; kind: null of the array''s type, since PL/pgSQL keeps a plan for each type that it is called with';

create or replace function pgps_internal.insert_found(
    composite pgps_internal.composite, event_type pgps_internal.event_type, detections pgps_internal.detections
) returns bigint
language plpgsql
as $$
declare
    v_attributes jsonb := (insert_found.composite).parsed -> 'attributes';
    v_lo bigint;
    v_hi bigint;
    v_count bigint;
begin
    execute format($sql$
        with one as materialized (
            select nextval('pgps_internal.event_id_seq') as event_id, i.*
            from unnest(($1).starts, ($1).ends, ($1).detected, ($1).constituents, ($1).start_points,
                ($1).end_points) with ordinality i(starts, ends, detected, constituents, start_point, end_point, n)
        ),
        made as (
            insert into %1$s (event_id, %2$s, starts_at, ends_at, detected_at, constituents, pgps_start_at,
                pgps_end_at)
            select i.event_id, %3$s, pgps_internal.moment(i.starts), pgps_internal.moment(i.ends),
                pgps_internal.moment(i.detected), i.constituents::jsonb, i.start_point, i.end_point
            from one i
            join (select pgps_made, row_number() over () as n from unnest(pgps_internal.composite_made_%4$s(
                format('[%%s]', array_to_string(($1).bound, ', ')))) pgps_made) m using (n)
            returning event_id
        )
        select min(m.event_id), max(m.event_id), count(*) from made m$sql$, (insert_found.event_type).log,
        (select string_agg(quote_ident(a ->> 'name'), ', ' order by o)
            from jsonb_array_elements(v_attributes) with ordinality x(a, o)),
        (select string_agg(format('(m.pgps_made).%I', a ->> 'name'), ', ' order by o)
            from jsonb_array_elements(v_attributes) with ordinality x(a, o)),
        (insert_found.composite).composite_id)
    using insert_found.detections into v_lo, v_hi, v_count;
    perform pgps_internal.record(array[(insert_found.event_type).type_id], array[v_lo], array[v_hi],
        (insert_found.composite).owner, null, null, null, true);
    return v_count;
end
$$;
comment on function pgps_internal.insert_found(pgps_internal.composite, pgps_internal.event_type,
    pgps_internal.detections) is
'Puts detections into the log of their type, as one publication of the composite event''s owner';

create or replace function pgps_internal.failing_subscription(composite pgps_internal.composite) returns bigint
language plpgsql
as $$
declare
    v_id bigint;
begin
    select l.subscription_id into v_id from pgps_internal.composite_leaf l
    where l.composite_id = (failing_subscription.composite).composite_id and l.subscription_id is not null
    order by l.leaf limit 1;
    if found then
        return v_id;
    end if;
    -- What the clock alone makes happen has no leaf, and so no subscription until it needs one: this is in no class.
    insert into pgps_internal.subscription as s (name, owner, event_type, is_pattern, environment, kind, scope,
        priority, max_attempts, handler)
    select format('composite*%s*0', c.composite_id), c.owner, t.name, false, c.environment, 'composite', 'local', 0, 1,
        'all'
    from (select (failing_subscription.composite).*) c join pgps_internal.event_type t using (type_id)
    on conflict (name) do update set name = s.name
    returning s.subscription_id into v_id;
    return v_id;
end
$$;
comment on function pgps_internal.failing_subscription(pgps_internal.composite) is
'The hidden subscription in whose name the detections of a composite event fail: that of its first leaf, or one that is
made for this';

create or replace function pgps_internal.fail_found(
    composite pgps_internal.composite, event_type pgps_internal.event_type, detections pgps_internal.detections,
    sqlstate text, error text, place text = ' (in the attributes)'
) returns void
language plpgsql
as $$
declare
    v_id bigint := nextval('pgps_internal.event_id_seq');
begin
    execute format('insert into pgps_internal.%I (event_id, xid, pgps_publisher, pgps_published_at, starts_at, '
        'ends_at, detected_at, constituents)
        values ($1, pg_current_xact_id(), $2, pgps_internal.clock(), pgps_internal.moment(($3).starts[1]),
            pgps_internal.moment(($3).ends[1]), pgps_internal.moment(($3).detected[1]),
            ($3).constituents[1]::jsonb)', (fail_found.event_type).name || '_kept')
    using v_id, (fail_found.composite).owner, fail_found.detections;
    insert into pgps_internal.failure (subscription_id, type_id, event_id, step, state, attempts, sqlstate, error,
        failed_at, due_at)
    values (pgps_internal.failing_subscription(fail_found.composite), (fail_found.event_type).type_id, v_id, 'callback',
        'failed', 1, fail_found.sqlstate, fail_found.error, pgps_internal.clock(), pgps_internal.clock());
    update pgps_internal.composite c set last_error = fail_found.error || fail_found.place
    where c.composite_id = (fail_found.composite).composite_id
        and c.last_error is distinct from fail_found.error || fail_found.place;
end
$$;
comment on function pgps_internal.fail_found(pgps_internal.composite, pgps_internal.event_type,
    pgps_internal.detections, text, text, text) is
'Puts a detection whose attributes raised into the exception queue of its type, without attributes; place: what is said
behind the error';

create or replace function pgps_internal.fail_large(
    composite_id bigint, detections pgps_internal.detections, sqlstate text, error text
) returns void
language plpgsql
as $$
begin
    perform pgps_internal.fail_found(c, t, fail_large.detections,
        case when pgps_internal.is_no_json(fail_large.sqlstate) then fail_large.sqlstate else '54000' end,
        fail_large.error, '')
    from pgps_internal.composite c join pgps_internal.event_type t using (type_id)
    where c.composite_id = fail_large.composite_id;
end
$$;
comment on function pgps_internal.fail_large(bigint, pgps_internal.detections, text, text) is
'Puts a detection that jsonb does not take, or that has too many constituents, into the exception queue of its type; its
constituents come without payloads, and ticks as runs';

create or replace function pgps_internal.found_again(
    composite pgps_internal.composite, event_type pgps_internal.event_type, event_id bigint
) returns pgps_internal.detections
language plpgsql stable
as $$
declare
    v_found pgps_internal.detections;
begin
    -- The names of attributes stand for constituents, of which each says what it was bound as.
    execute format($query$
        select array[pgps_internal.microseconds(k.starts_at)], array[pgps_internal.microseconds(k.ends_at)],
            array[pgps_internal.microseconds(k.detected_at)], null, null, array[k.constituents::text], array[(
                select coalesce('{' || string_agg(format('%%s: %%s', to_json(b.name), b.value), ', ')
                    filter (where b.value is not null) || '}', '{}')
                from (
                    select a ->> 'name' as name, case when (a ->> 'many')::boolean
                        then coalesce(to_jsonb(array_agg(p.part -> 'payload' order by p.place)
                            filter (where p.part is not null)), '[]')
                        else (array_agg(p.part -> 'payload' order by p.place))[1] end as value
                    from jsonb_array_elements($2) a
                    left join jsonb_array_elements(k.constituents) with ordinality p(part, place)
                        on p.part ->> 'as' = a ->> 'name' and p.part ->> 'event_type' = a ->> 'type'
                    where a ->> 'name' <> ''
                    group by a) b)]
        from pgps_internal.%I k where k.event_id = $1$query$, (found_again.event_type).name || '_kept')
    using found_again.event_id, (found_again.composite).parsed -> 'aliases' into v_found;
    if exists (select from jsonb_array_elements(v_found.constituents[1]::jsonb) p
            where p ? 'event_id' and not p ? 'payload' or p ? 'ticks') then
        raise exception 'the constituents of this detection are too many, no JSON, or together too large for it'
            using errcode = '54000',
            hint = 'They say which events they are; discard it: see pgps.discard_exception.';
    end if;
    return v_found;
end
$$;
comment on function pgps_internal.found_again(pgps_internal.composite, pgps_internal.event_type, bigint) is
'A detection whose attributes raised, made again from what the exception queue keeps of it';

create or replace function pgps_internal.retry_found(subscriptions bigint[], events bigint[]) returns bigint
language plpgsql
as $$
declare
    v_one record;
    v_state text;
    v_error text;
    v_count bigint := 0;
begin
    for v_one in
        select f.subscription_id, f.event_id, c as composite, t as event_type
        from unnest(retry_found.subscriptions, retry_found.events) w(subscription_id, event_id)
        join pgps_internal.failure f on f.subscription_id = w.subscription_id and f.event_id = w.event_id
        join pgps_internal.composite c on c.type_id = f.type_id
        join pgps_internal.event_type t on t.type_id = c.type_id order by f.event_id
    loop
        begin
            v_count := v_count + pgps_internal.insert_found(v_one.composite, v_one.event_type,
                pgps_internal.found_again(v_one.composite, v_one.event_type, v_one.event_id));
            perform pgps_internal.settle(v_one.subscription_id, array[v_one.event_id]);
        exception when others or assert_failure then
            get stacked diagnostics v_state = returned_sqlstate, v_error = message_text;
            if left(v_state, 2) in ('40', '53', '57', '58', 'XX') then
                raise;
            end if;
            update pgps_internal.failure f set attempts = f.attempts + 1, sqlstate = v_state, error = v_error,
                failed_at = pgps_internal.clock()
            where f.subscription_id = v_one.subscription_id and f.event_id = v_one.event_id;
        end;
    end loop;
    return v_count;
end
$$;
comment on function pgps_internal.retry_found(bigint[], bigint[]) is
'Publishes detections whose attributes had raised; those that raise again stay. Returns how many were published';
