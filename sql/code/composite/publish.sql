-- Publishing what was detected: events of the composite types, in the transaction of the detection. The attributes are
-- evaluated as a set, with the rights of the composite event's owner; a detection whose attributes raise goes to the
-- exception queue, and the others go on.
-- Locks: those of a publication.
-- Writes: composite, composite_span, failure, subscription; by name: the log of a type, its events kept aside.

create or replace function pgps_internal.publish_found(detections jsonb) returns bigint
language plpgsql
as $$
declare
    v_part record;
    v_count bigint := 0;
begin
    for v_part in
        select c as composite, t as event_type, f.items
        from jsonb_each(publish_found.detections) f(composite_id, items)
        join pgps_internal.composite c on c.composite_id = f.composite_id::bigint
        join pgps_internal.event_type t using (type_id)
        order by c.composite_id
    loop
        v_count := v_count + pgps_internal.publish_part(v_part.composite, v_part.event_type, v_part.items);
    end loop;
    return v_count;
end
$$;
comment on function pgps_internal.publish_found(jsonb) is
'Publishes detections, for each composite event an array, as pgps_internal.detect_step returns them; returns how many';

create or replace function pgps_internal.publish_part(
    composite pgps_internal.composite, event_type pgps_internal.event_type, items jsonb
) returns bigint
language plpgsql
as $$
declare
    v_count integer := jsonb_array_length(publish_part.items);
    v_state text;
    v_error text;
    v_limit interval := pgps_internal.setting('dispatch_lane_timeout')::interval + v_count * interval '1 millisecond';
    v_began timestamptz;
begin
    if v_count = 0 then
        return 0;
    elsif jsonb_array_length((publish_part.composite).parsed -> 'attributes') = 0 then
        return pgps_internal.insert_found(publish_part.composite, publish_part.event_type, publish_part.items);
    end if;
    -- The first call in a session loads PL/Python, which takes its time.
    perform pgps_internal.set_alarm(0);
    v_began := clock_timestamp();
    begin
        perform pgps_internal.set_alarm(extract(epoch from v_limit)::double precision);
        v_count := pgps_internal.insert_found(publish_part.composite, publish_part.event_type, publish_part.items);
        -- A cancellation that came just before is noticed here.
        perform pgps_internal.set_alarm(0), pg_sleep(0);
        return v_count;
    exception when others or assert_failure or query_canceled then
        get stacked diagnostics v_state = returned_sqlstate, v_error = message_text;
        perform pgps_internal.set_alarm(0);
        if v_state = '57014' and clock_timestamp() >= v_began + v_limit then
            raise exception 'the attributes take too long' using errcode = '54000',
                hint = 'Make them cheaper; see the setting dispatch_lane_timeout.';
        -- Errors that are not those of an expression: a conflict, no resources, a shutdown.
        elsif left(v_state, 2) in ('40', '53', '57', '58', 'XX') then
            raise;
        end if;
    end;
    if v_count = 1 then
        perform pgps_internal.fail_found(publish_part.composite, publish_part.event_type, publish_part.items -> 0,
            v_state, v_error);
        return 0;
    end if;
    return (
        select sum(pgps_internal.publish_part(publish_part.composite, publish_part.event_type, h.items))
        from (
            select coalesce(jsonb_agg(i.x order by i.n), '[]') as items
            from jsonb_array_elements(publish_part.items) with ordinality i(x, n)
            group by i.n > v_count / 2 order by i.n > v_count / 2) h);
end
$$;
comment on function pgps_internal.publish_part(pgps_internal.composite, pgps_internal.event_type, jsonb) is
'Publishes detections of one composite event; when an attribute raises, halves the set until the one is found, which
goes to the exception queue. Returns how many were published';

create or replace function pgps_internal.insert_found(
    composite pgps_internal.composite, event_type pgps_internal.event_type, items jsonb
) returns bigint
language plpgsql
as $$
declare
    v_parsed jsonb := (insert_found.composite).parsed;
    v_has_attributes boolean := jsonb_array_length(v_parsed -> 'attributes') > 0;
    v_given text;
    v_lo bigint;
    v_hi bigint;
    v_count bigint;
begin
    if v_has_attributes then
        v_given := (select format('[%s]', string_agg(i.x ->> 'bound', ', ' order by i.n))
            from jsonb_array_elements(insert_found.items) with ordinality i(x, n));
    end if;
    execute format($sql$
        with one as materialized (
            select nextval('pgps_internal.event_id_seq') as event_id, i.x, i.n
            from jsonb_array_elements($1) with ordinality i(x, n)
        ),
        made as (
            insert into %1$s (event_id, %2$s starts_at, ends_at, detected_at, constituents)
            select i.event_id, %3$s pgps_internal.moment((i.x ->> 'starts')::bigint),
                pgps_internal.moment((i.x ->> 'ends')::bigint), pgps_internal.moment((i.x ->> 'detected')::bigint),
                (i.x ->> 'constituents')::jsonb
            from one i %4$s
            returning event_id
        ),
        span as (
            insert into pgps_internal.composite_span (event_id, start_at, end_at)
            select i.event_id, (i.x -> 'span' ->> 0)::numeric, (i.x -> 'span' ->> 1)::numeric from one i
            where i.x ? 'span'
        )
        select min(m.event_id), max(m.event_id), count(*) from made m$sql$,
        (insert_found.event_type).log,
        coalesce((select string_agg(format('%I,', a ->> 'name'), ' ' order by o)
            from jsonb_array_elements(v_parsed -> 'attributes') with ordinality x(a, o)), ''),
        coalesce((select string_agg(format('m.%I,', a ->> 'name'), ' ' order by o)
            from jsonb_array_elements(v_parsed -> 'attributes') with ordinality x(a, o)), ''),
        case when v_has_attributes then format('join pgps_internal.composite_make_%s($2) m on m.pgps_n = i.n',
            (insert_found.composite).composite_id) else '' end)
    using insert_found.items, v_given into v_lo, v_hi, v_count;
    perform pgps_internal.record(array[(insert_found.event_type).type_id], array[v_lo], array[v_hi],
        (insert_found.composite).owner, null, null, null, true);
    return v_count;
end
$$;
comment on function pgps_internal.insert_found(pgps_internal.composite, pgps_internal.event_type, jsonb) is
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
    composite pgps_internal.composite, event_type pgps_internal.event_type, item jsonb, sqlstate text, error text
) returns void
language plpgsql
as $$
declare
    v_id bigint := nextval('pgps_internal.event_id_seq');
begin
    execute format('insert into pgps_internal.%I (event_id, xid, pgps_publisher, pgps_published_at, starts_at, '
        'ends_at, detected_at, constituents)
        values ($1, pg_current_xact_id(), $2, pgps_internal.clock(), pgps_internal.moment(($3 ->> ''starts'')::bigint),
            pgps_internal.moment(($3 ->> ''ends'')::bigint), pgps_internal.moment(($3 ->> ''detected'')::bigint),
            ($3 ->> ''constituents'')::jsonb)', (fail_found.event_type).name || '_kept')
    using v_id, (fail_found.composite).owner, fail_found.item;
    insert into pgps_internal.failure (subscription_id, type_id, event_id, step, state, attempts, sqlstate, error,
        failed_at, due_at)
    values (pgps_internal.failing_subscription(fail_found.composite), (fail_found.event_type).type_id, v_id, 'callback',
        'failed', 1, fail_found.sqlstate, fail_found.error, pgps_internal.clock(), pgps_internal.clock());
    update pgps_internal.composite c set last_error = format('%s (in the attributes)', fail_found.error)
    where c.composite_id = (fail_found.composite).composite_id
        and c.last_error is distinct from format('%s (in the attributes)', fail_found.error);
end
$$;
comment on function pgps_internal.fail_found(pgps_internal.composite, pgps_internal.event_type, jsonb, text, text) is
'Puts a detection whose attributes raised into the exception queue of its type, without attributes';

create or replace function pgps_internal.found_again(
    composite pgps_internal.composite, event_type pgps_internal.event_type, event_id bigint
) returns jsonb
language plpgsql stable
as $$
declare
    v_item jsonb;
begin
    -- The names of attributes stand for constituents, of which each says what it was bound as.
    execute format($query$
        select jsonb_build_array(jsonb_build_object('starts', pgps_internal.microseconds(k.starts_at),
            'ends', pgps_internal.microseconds(k.ends_at), 'detected', pgps_internal.microseconds(k.detected_at),
            'constituents', k.constituents, 'bound', (
                select coalesce(jsonb_object_agg(b.name, b.value) filter (where b.value is not null), '{}')
                from (
                    select a ->> 'name' as name, case when (a ->> 'many')::boolean
                        then coalesce(jsonb_agg(p.part -> 'payload' order by p.place)
                            filter (where p.part is not null), '[]')
                        else (array_agg(p.part -> 'payload' order by p.place))[1] end as value
                    from jsonb_array_elements($2) a
                    left join jsonb_array_elements(k.constituents) with ordinality p(part, place)
                        on p.part ->> 'as' = a ->> 'name' and p.part ->> 'event_type' = a ->> 'type'
                    where a ->> 'name' <> ''
                    group by a) b)))
        from pgps_internal.%I k where k.event_id = $1$query$, (found_again.event_type).name || '_kept')
    using found_again.event_id, (found_again.composite).parsed -> 'aliases' into v_item;
    return v_item;
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
