-- Publication. There is no trigger on it: an INSERT into an endpoint is rewritten by a rule into one statement that
-- inserts into the log and, when all rows are in, one row into the control queue. It is planned with the INSERT and
-- kept with its plan (decision 11).
-- Locks: row exclusive on the log's and the control queue's current segment until the transaction ends.
-- Writes: control, receipt; by name: the log of a type (generated), its endpoint.

create or replace function pgps_internal.record(
    type_ids integer[], los bigint[], his bigint[], publisher regrole, volatile boolean[], published_at timestamptz[],
    origin_ids integer[],
    are_news boolean, are_dense boolean[] = null
) returns void
language plpgsql
as $$
declare
    v_told bigint;
begin
    insert into pgps_internal.control (hi, lo, xid, type_id, publisher, woken, volatile, published_at, origin_id,
        is_dense)
    select s.hi, s.lo, pg_current_xact_id(), s.type_id, record.publisher, false, coalesce(s.volatile, false),
        coalesce(s.published_at, pgps_internal.clock()), s.origin_id, s.is_dense
    from unnest(record.type_ids, record.los, record.his, record.volatile, record.published_at, record.origin_ids,
        record.are_dense) s(type_id, lo, hi, volatile, published_at, origin_id, is_dense);
    -- One notification for all statements of a type, since there may be thousands: whoever fetches the events gets each
    -- with its own statement.
    if record.are_news then
        select count(pg_notify('pgps_direct_' || t.type_id,
            concat_ws(' ', t.type_id, s.lo, s.hi, pg_current_xact_id()))::text) into v_told
        from (select s.type_id, min(s.lo) as lo, max(s.hi) as hi
            from unnest(record.type_ids, record.los, record.his) s(type_id, lo, hi)
            group by s.type_id) s
        join pgps_internal.event_type t using (type_id)
        where t.handler <> 'any' and has_table_privilege('pgps_worker'::name, t.log, 'trigger');
    end if;
    if record.are_dense is not null and pgps_internal.hand_on((select sum(s.hi - s.lo + 1)
            from unnest(record.los, record.his) s(lo, hi))::bigint) then
        return;
    end if;
    perform pgps_internal.wake_dispatcher();
end
$$;
comment on function pgps_internal.record(integer[], bigint[], bigint[], regrole, boolean[], timestamptz[], integer[],
    boolean, boolean[]) is
'Does what the rule of an endpoint does besides writing the log, for events that come into it otherwise: over a link, or
after they were refused. Writes the statements (arrays of event types, first and last ids, and so on, matched by place)
into the control queue, notifies clients that are registered for direct events, and wakes the dispatcher, both when the
transaction commits. The rule (pgps_internal.publication) has this as text, since it is planned with the publisher''s
statement: change both together. are_news: false when no client is to be notified; are_dense: which statements have
every id between their first and their last, null = not known';

create or replace function pgps_internal.refuse_copy() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from pg_rewrite w where w.ev_class = tg_relid and w.ev_type = '3') then
        raise exception 'event type "%" cannot be published: the rule of its endpoint is gone', tg_table_name
        using errcode = '55000', hint = format('select pgps.resume_event_type(%L)', quote_ident(tg_table_name));
    end if;
    raise exception 'cannot COPY into event type "%"', tg_table_name using errcode = '0A000',
        hint = 'COPY into a temporary table, then INSERT INTO pgps_event.' || quote_ident(tg_table_name)
            || ' SELECT from it.';
end
$$;
comment on function pgps_internal.refuse_copy() is
'Raises 0A000: an INSERT is rewritten into the log, so what still reaches the endpoint is a COPY; 55000 when
the rule that does this is gone';

create or replace function pgps_internal.refuse_change() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'cannot % event type "%": an event is published, and stays as it is', tg_op, tg_table_name
    using errcode = '0A000', hint = format('Publish with INSERT INTO pgps_event.%1$I. What nobody needs any more goes '
        'by itself, the rest with: '
        'select pgps.drop_event_type(%2$L, cascade => true)', tg_table_name, quote_ident(tg_table_name));
end
$$;
comment on function pgps_internal.refuse_change() is
'Raises 0A000 for UPDATE, DELETE and TRUNCATE of an endpoint, also for roles that have the privilege';

-- ---------------------------------------------------------------------------------------------------------------------
-- pgps.publish. It has the caller's search_path, which defaults and checks of the attributes may need. So names are
-- qualified, as in every public function of that kind: a better match for format(text, text) in a schema of the path
-- would run with the caller's rights.
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.claim_numbers(
    type_id integer, publisher regrole, producer text, first bigint, count integer
) returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_claimed bigint[];
begin
    if claim_numbers.first > 9223372036854775807 - greatest(claim_numbers.count - 1, 0) then
        raise exception 'there are no % numbers from % on', claim_numbers.count, claim_numbers.first
        using errcode = '22023', hint = 'Numbers of a producer are bigint: begin with a smaller one.';
    end if;
    -- A concurrent publication of one of the numbers makes this one wait until it commits or rolls back. In the order
    -- of the numbers, so that two of them do not wait for each other.
    with claimed as (
        insert into pgps_internal.receipt (type_id, publisher, producer, producer_seq)
        select claim_numbers.type_id, claim_numbers.publisher, claim_numbers.producer, claim_numbers.first + n
        from generate_series(0, claim_numbers.count - 1) n order by n
        on conflict do nothing
        returning producer_seq
    )
    select array_agg(c.producer_seq order by c.producer_seq) into v_claimed from claimed c;
    return coalesce(v_claimed, '{}');
end
$$;
comment on function pgps_internal.claim_numbers(integer, regrole, text, bigint, integer) is
'Takes consecutive numbers of a producer for events that are published now; returns those that were free. Errors:
22023.';

create or replace function pgps_internal.id_of_number(type_id integer, publisher regrole, producer text, number bigint)
returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- Below zero: claimed (loads.sql), and not by an event of its own.
    select case when r.event_id > 0 then r.event_id end from pgps_internal.receipt r
    where r.type_id = id_of_number.type_id and r.publisher = id_of_number.publisher
        and r.producer = id_of_number.producer and r.producer_seq = id_of_number.number
$$;
comment on function pgps_internal.id_of_number(integer, regrole, text, bigint) is
'The id of the event that a producer''s number was published as; null for one that was claimed';

create or replace function pgps_internal.note_ids(
    event_type pgps_internal.event_type, publisher regrole, producer text, numbers bigint[], after_event bigint
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if cardinality(note_ids.numbers) = 1 then
        update pgps_internal.receipt r set event_id = currval('pgps_internal.event_id_seq')
        where r.type_id = (note_ids.event_type).type_id and r.publisher = note_ids.publisher
            and r.producer = note_ids.producer and r.producer_seq = note_ids.numbers[1] and r.event_id is null;
        return;
    end if;
    -- Others draw ids meanwhile: which event has which number is read from the log.
    execute format('update pgps_internal.receipt r set event_id = l.event_id
        from %s l
        where l.event_id > $1 and l.event_id <= $2 and l.xid = pg_current_xact_id() and l._producer = $3
            and l._producer_seq = any ($4) and r.type_id = $5 and r.publisher = $6 and r.producer = $3
            and r.producer_seq = l._producer_seq and r.event_id is null', (note_ids.event_type).log)
    using note_ids.after_event, currval('pgps_internal.event_id_seq'), note_ids.producer, note_ids.numbers,
        (note_ids.event_type).type_id, note_ids.publisher;
end
$$;
comment on function pgps_internal.note_ids(pgps_internal.event_type, regrole, text, bigint[], bigint) is
'Notes for a repeated call as which events the numbers were published just now, after the event id after_event';

create or replace function pgps_internal.do_publication(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'event_type');
    v_publisher regrole := quote_ident(caller)::regrole;
    v_visibility text := coalesce(args ->> 'visibility', v_type.visibility);
    v_count integer := (args ->> 'count')::integer;
    v_first bigint := (args ->> 'producer_seq')::bigint;
    v_numbers bigint[];
begin
    if not has_table_privilege(caller, v_type.endpoint, 'insert') then
        raise exception 'role "%" may not publish event type "%"', caller, v_type.name
        using errcode = '42501', hint = format('Ask for: grant insert on %s to %I', v_type.endpoint, caller);
    end if;
    -- Numbers of an immediate publication are taken in its own transaction: they stay taken when this one rolls back.
    if args ->> 'producer' is not null and v_visibility = 'deferred' and v_count > 0 then
        v_numbers := pgps_internal.claim_numbers(v_type.type_id, v_publisher, args ->> 'producer', v_first, v_count);
        if v_numbers = '{}' then
            return jsonb_build_object('numbers', v_numbers, 'event_id', pgps_internal.id_of_number(v_type.type_id,
                v_publisher, args ->> 'producer', v_first + (v_count - 1)));
        end if;
    end if;
    return jsonb_build_object('name', v_type.name, 'visibility', v_visibility, 'numbers', v_numbers,
        'after', coalesce(pg_sequence_last_value('pgps_internal.event_id_seq'::regclass), 0),
        'ids', 'pgps_internal.event_id_seq'::regclass::oid);
end
$$;
comment on function pgps_internal.do_publication(name, jsonb) is
'First step of pgps.publish: checks rights and takes the producer''s numbers; numbers are those that were free. When
there are none, event_id is the id under which the last of them was published before. ids: the sequence of the events';

create or replace function pgps_internal.do_published(caller name, args jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'event_type');
    v_publisher regrole := quote_ident(caller)::regrole;
    v_last bigint := (args ->> 'producer_seq')::bigint + ((args ->> 'count')::integer - 1);
    v_numbers bigint[];
begin
    if not has_table_privilege(caller, v_type.endpoint, 'insert') then
        raise exception 'role "%" may not publish event type "%"', caller, v_type.name
        using errcode = '42501', hint = format('Ask for: grant insert on %s to %I', v_type.endpoint, caller);
    elsif args ->> 'producer' is null then
        return currval('pgps_internal.event_id_seq');
    end if;
    v_numbers := array(select n::bigint from jsonb_array_elements_text(args -> 'numbers') n);
    perform pgps_internal.note_ids(v_type, v_publisher, args ->> 'producer', v_numbers, (args ->> 'after')::bigint);
    return pgps_internal.id_of_number(v_type.type_id, v_publisher, args ->> 'producer', v_last);
end
$$;
comment on function pgps_internal.do_published(name, jsonb) is
'Last step of pgps.publish: returns the id of the last event, and notes the ids for a repeated call';

create or replace function pgps._insert_events(
    event_type text, payload jsonb, producer text, numbers bigint[], target text = null
) returns void
language plpgsql
as $$
declare
    v_endpoint text := pg_catalog.format('pgps_event.%I', _insert_events.event_type);
    v_is_one boolean := pg_catalog.jsonb_array_length(_insert_events.payload) = 1;
    v_columns text;
    v_values text;
    v_unknown text;
begin
    -- One INSERT for all: an attribute that an object leaves out takes its default.
    select pg_catalog.string_agg(pg_catalog.quote_ident(k.name), ', ' order by k.name),
        pg_catalog.string_agg(case when v_is_one or d.adbin is null then 'r.' || pg_catalog.quote_ident(k.name)
            else pg_catalog.format('case when e.object ? %L then r.%I else %s end', k.name, k.name,
                pg_catalog.pg_get_expr(d.adbin, d.adrelid)) end, ', ' order by k.name),
        pg_catalog.min(k.name) filter (where a.attnum is null or k.name in ('_producer', '_producer_seq'))
    into v_columns, v_values, v_unknown
    from (select distinct k from pg_catalog.jsonb_array_elements(_insert_events.payload) e,
        pg_catalog.jsonb_object_keys(e) k) k(name)
    left join pg_catalog.pg_attribute a on a.attrelid = v_endpoint::regclass and a.attname = k.name and a.attnum > 0
        and not a.attisdropped
    left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum;
    if v_unknown is not null then
        raise exception 'event type "%" has no attribute "%"', _insert_events.event_type, v_unknown
            using errcode = '42703',
            hint = 'See the column attributes of pgps.event_types.';
    end if;
    -- Without a producer the statement has two columns less to look at; but there must be a column.
    if _insert_events.producer is not null or v_columns is null then
        v_columns := pg_catalog.concat_ws(', ', v_columns, '_producer, _producer_seq');
        v_values := pg_catalog.concat_ws(', ', v_values,
            case when v_is_one then '$2, $3[1]' else '$2, $3[e.place]' end);
    end if;
    execute pg_catalog.format(case when v_is_one
            then 'insert into %s (%s) select %s from pg_catalog.jsonb_populate_record(null::%s, '
                '$1 operator(pg_catalog.->) 0) r'
            else 'insert into %s (%s) select %s from pg_catalog.jsonb_array_elements($1) with ordinality '
                'e(object, place) cross join lateral pg_catalog.jsonb_populate_record(null::%s, e.object) r '
                'order by e.place' end,
        coalesce(_insert_events.target, v_endpoint), v_columns, v_values, v_endpoint)
    using _insert_events.payload, _insert_events.producer, _insert_events.numbers;
end
$$;
comment on function pgps._insert_events(text, jsonb, text, bigint[], text) is
'Inserts a JSON array of objects into the publish endpoint (or target) with the rights of the caller; see pgps.publish.
numbers: that of each event, null without a producer';

create or replace function pgps._numbered(payload jsonb, first bigint, numbers bigint[]) returns jsonb
language sql immutable
begin atomic
    select case when cardinality(numbers) = jsonb_array_length(payload) then payload
        else (select to_jsonb(array_agg(e.object order by e.place))
            from jsonb_array_elements(payload) with ordinality e(object, place)
            where first + (e.place - 1) = any (numbers)) end;
end;
comment on function pgps._numbered(jsonb, bigint, bigint[]) is
'The objects of an array, numbered from first on, that have one of these numbers';

create or replace function pgps._events_of(payload jsonb) returns jsonb
language plpgsql immutable
as $$
declare
    v_events jsonb := case pg_catalog.jsonb_typeof(_events_of.payload) when 'array' then _events_of.payload
        else pg_catalog.jsonb_build_array(_events_of.payload) end;
    v_wrong text;
begin
    if _events_of.payload is null then
        raise exception 'the payload is null' using errcode = '22023',
            hint = 'Give a JSON object, or an array of objects.';
    -- An expression takes less than a statement, and mostly there is one event.
    elsif pg_catalog.jsonb_array_length(v_events) = 1 then
        v_wrong := nullif(pg_catalog.jsonb_typeof(v_events -> 0), 'object');
    else
        select pg_catalog.jsonb_typeof(e) into v_wrong from pg_catalog.jsonb_array_elements(v_events) e
            where pg_catalog.jsonb_typeof(e) <> 'object' limit 1;
    end if;
    if v_wrong is not null then
        raise exception 'the payload has a JSON % where an object is wanted', v_wrong
        using errcode = '22023', hint = 'An event is an object: {"attribute": value, …}.';
    end if;
    return v_events;
end
$$;
comment on function pgps._events_of(jsonb) is
'The events of a payload as an array of objects: itself, or one object. Errors: 22023.';

create or replace function pgps.publish(
    event_type text, payload jsonb, visibility text = null, reliability text = null, handler text = null,
    producer text = null, producer_seq bigint = null
) returns bigint
language plpgsql
as $$
declare
    v_events jsonb := pgps._events_of(publish.payload);
    v_known jsonb;
    v_key jsonb := pg_catalog.jsonb_build_object('event_type', publish.event_type, 'visibility', publish.visibility,
        'producer', publish.producer, 'producer_seq', publish.producer_seq, 'count',
        pg_catalog.jsonb_array_length(v_events));
    v_numbers bigint[];
    v_handler text := coalesce(pg_catalog.current_setting('pgps.handler', true), '');
    v_is_told boolean := greatest(publish.visibility, publish.reliability, publish.handler,
        pg_catalog.current_setting('pgps.visibility', true),
        pg_catalog.current_setting('pgps.reliability', true)) <> '';
begin
    if publish.visibility not in ('deferred', 'immediate') then
        raise exception 'invalid visibility "%"', publish.visibility using errcode = '22023',
            hint = 'Use deferred or immediate.';
    elsif publish.reliability not in ('guaranteed', 'non-guaranteed') then
        raise exception 'invalid reliability "%"', publish.reliability using errcode = '22023',
            hint = 'Use guaranteed or non-guaranteed.';
    elsif publish.handler not in ('all', 'any', 'raiser') then
        raise exception 'invalid handler "%"', publish.handler using errcode = '22023',
            hint = 'Use all, any or raiser.';
    elsif (publish.producer is null) <> (publish.producer_seq is null) then
        raise exception 'producer and producer_seq belong together' using errcode = '22023',
            hint = 'Give both or neither.';
    end if;
    v_known := pgps._call('publication', v_key);
    if pg_catalog.jsonb_array_length(v_events) = 0 then
        return null;
    elsif v_known -> 'numbers' = '[]' then
        return (v_known ->> 'event_id')::bigint;
    elsif v_known ->> 'visibility' = 'immediate' then
        return (pgps._call('publish_immediately', v_key || pg_catalog.jsonb_build_object('payload', v_events,
            'reliability', publish.reliability, 'handler', publish.handler)) #>> '{}')::bigint;
    elsif publish.producer is not null then
        v_numbers := array(select n::bigint from pg_catalog.jsonb_array_elements_text(v_known -> 'numbers') n);
        v_events := pgps._numbered(v_events, publish.producer_seq, v_numbers);
    end if;
    if not v_is_told then
        perform pgps._insert_events(v_known ->> 'name', v_events, publish.producer, v_numbers);
    else
        perform pg_catalog.set_config('pgps.reliability', coalesce(publish.reliability, ''), true),
            pg_catalog.set_config('pgps.visibility', 'deferred', true),
            pg_catalog.set_config('pgps.handler', coalesce(publish.handler, v_handler), true);
        perform pgps._insert_events(v_known ->> 'name', v_events, publish.producer, v_numbers);
        perform pg_catalog.set_config('pgps.reliability', '', true), pg_catalog.set_config('pgps.visibility', '', true),
            pg_catalog.set_config('pgps.handler', v_handler, true);
    end if;
    if publish.producer is null then
        -- The sequence by its number: publishers may read it, but not look into its schema.
        return pg_catalog.currval((v_known ->> 'ids')::pg_catalog.oid);
    end if;
    return (pgps._call('published', v_key || v_known) #>> '{}')::bigint;
end
$$;
comment on function pgps.publish(text, jsonb, text, text, text, text, bigint) is
'Publishes one event from a JSON object, or several from an array; returns the last event id (null for an empty array).
visibility, reliability, handler: null = as the event type says (handler: the setting pgps.handler comes first).
producer and producer_seq: a repeated call publishes nothing and returns the id given the first time; a concurrent one
waits for the first. The events of an array have consecutive numbers from producer_seq on; those whose number was
published before are left out. The numbers of immediate events stay taken when the transaction rolls back. Needs INSERT
on the event type and an advertisement. Errors: 42704, 42703 unknown attribute, 22023 also when an event is to be
guaranteed whose type is not, or is not persistent, 23xxx, 42501, 55000.';

-- ---------------------------------------------------------------------------------------------------------------------
-- Immediate events: a transaction of their own, over a loopback connection that the session keeps
-- ---------------------------------------------------------------------------------------------------------------------

create extension if not exists dblink schema pgps_internal;

grant usage on sequence pgps_internal.event_id_seq to public;
grant execute on function
    pgps._manner(integer),
    pgps._publisher(integer, name),
    pgps._events_of(jsonb),
    pgps._has_listeners(regclass),
    pgps._no_handler(text),
    pgps._tell(integer, bigint, regclass, text, text),
    pgps._wake(regclass),
    pgps._is_volatile(integer),
    pgps._half_a_number(text, bigint),
    pgps._insert_events(text, jsonb, text, bigint[], text),
    pgps._numbered(jsonb, bigint, bigint[]),
    pgps.publish(text, jsonb, text, text, text, text, bigint)
to public;
