-- Publishing what was detected: events of the composite types, in the transaction of the detection. The attributes are
-- evaluated as a set, with the rights of the composite event's owner; a detection whose attributes raise goes to the
-- exception queue, and the others go on.
-- Locks: those of a publication.
-- Writes: composite, composite_span, failure; by name: the log of a type, its events kept aside.

create or replace function pgps_internal.publish_found(detections jsonb) returns bigint
language plpgsql
as $$
declare
    v_part record;
    v_count bigint := 0;
begin
    for v_part in
        select c as composite, t as event_type, jsonb_agg(f.x order by f.n) as items
        from jsonb_array_elements(publish_found.detections) with ordinality f(x, n)
        join pgps_internal.composite c on c.composite_id = (f.x ->> 'composite_id')::bigint
        join pgps_internal.event_type t using (type_id)
        group by c, t order by min(f.n)
    loop
        v_count := v_count + pgps_internal.publish_part(v_part.composite, v_part.event_type, v_part.items);
    end loop;
    return v_count;
end
$$;
comment on function pgps_internal.publish_found(jsonb) is
'Publishes detections, as pgps_internal.detect_step returns them; returns how many';

create or replace function pgps_internal.publish_part(
    composite pgps_internal.composite, event_type pgps_internal.event_type, items jsonb
) returns bigint
language plpgsql
as $$
declare
    v_count integer := jsonb_array_length(publish_part.items);
    v_state text;
    v_error text;
begin
    if v_count = 0 then
        return 0;
    elsif jsonb_array_length((publish_part.composite).parsed -> 'attributes') = 0 then
        return pgps_internal.insert_found(publish_part.composite, publish_part.event_type, publish_part.items);
    end if;
    begin
        return pgps_internal.insert_found(publish_part.composite, publish_part.event_type, publish_part.items);
    exception when others or assert_failure then
        get stacked diagnostics v_state = returned_sqlstate, v_error = message_text;
        -- Errors that are not those of an expression: a conflict, no resources, a shutdown.
        if left(v_state, 2) in ('40', '53', '57', '58', 'XX') then
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
    select l.subscription_id, (fail_found.event_type).type_id, v_id, 'callback', 'failed', 1, fail_found.sqlstate,
        fail_found.error, pgps_internal.clock(), pgps_internal.clock()
    from pgps_internal.composite_leaf l
    where l.composite_id = (fail_found.composite).composite_id order by l.leaf limit 1;
    update pgps_internal.composite c set last_error = format('%s (in the attributes)', fail_found.error)
    where c.composite_id = (fail_found.composite).composite_id
        and c.last_error is distinct from format('%s (in the attributes)', fail_found.error);
end
$$;
comment on function pgps_internal.fail_found(pgps_internal.composite, pgps_internal.event_type, jsonb, text, text) is
'Puts a detection whose attributes raised into the exception queue of its type, without attributes';
