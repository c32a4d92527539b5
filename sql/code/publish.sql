-- Publication. Hot path: three statement triggers on the log and one deferred trigger on the control row; no loops, no
-- exception blocks, no search_path clause (2.5 us a call): every name, type and operator is written out with its schema instead
-- (nullif and case x when look an operator up, too).
-- Each plpgsql expression is set up anew in each transaction (2 us and more, with one event a transaction most of the cost):
-- so one expression where there could be five, and "return new", which has none, where null is meant.
-- Locks: row exclusive on the log's and the control queue's current segment until the transaction ends.

create or replace function pgps_internal.open_statement() returns trigger
language plpgsql security definer
as $$
declare
    v_open pg_catalog.text;
begin
    -- Before the first event of the statement: everything it inserts has a higher number than the sequence has now. A
    -- statement inside the statement (a function that publishes) must not narrow the outer range: a stack.
    v_open := pg_catalog.set_config(pg_catalog.concat('pgps.open_', tg_relid), pg_catalog.concat(
        pg_catalog.current_setting(pg_catalog.concat('pgps.open_', tg_relid), true), ' ',
        coalesce(pg_catalog.pg_sequence_last_value('pgps_internal.event_id_seq'::pg_catalog.regclass), 0)), true);
    return new;
end
$$;
comment on function pgps_internal.open_statement() is
'Before a publishing statement: notes the highest event id so far, in the setting pgps.open_<log>. It is empty until the transaction
publishes, begins with "-" once it has, and has a number for each statement that is open';

create or replace function pgps_internal.note_publisher() returns trigger
language plpgsql
as $$
declare
    v_publisher pg_catalog.text;
begin
    -- With the publisher's rights, as the last thing before record_statement: no code of the user runs in between.
    v_publisher := pg_catalog.set_config('pgps.publisher', case
        when pg_catalog.current_setting('pgps.act_as', true) operator(pg_catalog.<>) ''
            and pg_catalog.current_setting('is_superuser')::boolean and session_user operator(pg_catalog.=) current_user
        then pg_catalog.current_setting('pgps.act_as') else current_user end, true);
    return new;
end
$$;
comment on function pgps_internal.note_publisher() is 'After a publishing statement: tells record_statement who publishes';

create or replace function pgps_internal.record_statement() returns trigger
language plpgsql security definer
as $$
declare
    v_open pg_catalog.text;
    v_hi bigint;
    v_closed pg_catalog.text;
begin
    v_open := pg_catalog.current_setting(pg_catalog.concat('pgps.open_', tg_relid));
    v_hi := pg_catalog.pg_sequence_last_value('pgps_internal.event_id_seq'::pg_catalog.regclass);
    v_closed := pg_catalog.set_config(pg_catalog.concat('pgps.open_', tg_relid),
        pg_catalog.concat('-', pg_catalog.ltrim(pg_catalog.rtrim(pg_catalog.rtrim(v_open, '0123456789'), ' '), '-')), true);
    -- The advertisement is looked up and the row written in one statement. Nothing volatile in it: that would be a subquery scan.
    insert into pgps_internal.control (hi, lo, xid, type_id, publisher, seals, volatile, raiser)
    select v_hi, pg_catalog.split_part(v_open, ' ', -1)::bigint operator(pg_catalog.+) 1, pg_catalog.pg_current_xact_id(),
        a.type_id, a.role, pg_catalog.rtrim(v_open, ' 0123456789') operator(pg_catalog.=) '',
        coalesce(pg_catalog.current_setting('pgps.reliability', true), '') operator(pg_catalog.=) 'non-guaranteed',
        case when pg_catalog.current_setting('pgps.raiser', true) operator(pg_catalog.<>) ''
            then pg_catalog.current_setting('pgps.raiser')::pg_catalog.xid8 end
    from pgps_internal.advertisement a
    where a.type_id operator(pg_catalog.=) tg_argv[0]::integer
        and a.role operator(pg_catalog.=) pg_catalog.quote_ident(pg_catalog.current_setting('pgps.publisher'))::pg_catalog.regrole
        and v_hi operator(pg_catalog.>) pg_catalog.split_part(v_open, ' ', -1)::bigint;
    if not found then
        perform pgps_internal.record_unadvertised(v_open, tg_argv[0]::integer);
    end if;
    return new;
end
$$;
comment on function pgps_internal.record_statement() is
'After a publishing statement: checks the advertisement and adds the statement''s row to the control queue (paper, section 5.2)';

create or replace function pgps_internal.record_unadvertised(open text, type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_lo bigint := split_part(record_unadvertised.open, ' ', -1)::bigint + 1;
    v_hi bigint := pg_sequence_last_value('pgps_internal.event_id_seq'::regclass);
    v_publisher regrole := quote_ident(current_setting('pgps.publisher'))::regrole;
begin
    if v_hi is null or v_hi < v_lo then
        return;
    end if;
    perform pgps_internal.require_advertised(record_unadvertised.type_id, v_publisher::oid);
    insert into pgps_internal.control (hi, lo, xid, type_id, publisher, seals, volatile, raiser)
    values (v_hi, v_lo, pg_current_xact_id(), record_unadvertised.type_id, v_publisher,
        rtrim(record_unadvertised.open, ' 0123456789') = '', coalesce(current_setting('pgps.reliability', true), '') = 'non-guaranteed',
        nullif(current_setting('pgps.raiser', true), '')::xid8);
end
$$;
comment on function pgps_internal.record_unadvertised(text, integer) is
'The rest of record_statement: a statement without events, a publisher with another''s advertisement, or with none';

create or replace function pgps_internal.seal() returns trigger
language plpgsql security definer
as $$
begin
    -- The commit trigger (Paton and Diaz, Active Database Systems). NOTIFY takes a database-wide lock until the commit is
    -- on disk, so it is sent only when the dispatcher is asleep: while awake it holds this lock exclusively.
    if pg_catalog.pg_try_advisory_xact_lock_shared(1885826163, 2) then
        notify pgps_dispatch;
    end if;
    return old;
end
$$;
comment on function pgps_internal.seal() is 'At commit of a publishing transaction: wakes the dispatcher if it sleeps';

do $$
begin
    if not exists (select from pg_catalog.pg_trigger where tgname = 'pgps_seal' and tgrelid = 'pgps_internal.control'::regclass) then
        create constraint trigger pgps_seal after insert on pgps_internal.control
        deferrable initially deferred for each row when (new.seals) execute function pgps_internal.seal();
    end if;
end
$$;
grant usage on sequence pgps_internal.event_id_seq to public;

create or replace function pgps_internal.refuse_copy() returns trigger
language plpgsql
as $$
begin
    raise exception 'cannot COPY into event type "%"', tg_table_name using errcode = '0A000',
        hint = 'COPY into a temporary table, then INSERT INTO pgps_event.' || quote_ident(tg_table_name) || ' SELECT from it.';
end
$$;
comment on function pgps_internal.refuse_copy() is 'An INSERT is rewritten into the log; what still reaches the endpoint is a COPY: 0A000';

-- ---------------------------------------------------------------------------------------------------------------------
-- pgps.publish
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.do_publication(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type := pgps_internal.find_type(args ->> 'event_type');
    v_first bigint;
    v_taken boolean;
begin
    if not has_table_privilege(caller, v_type.endpoint, 'insert') then
        raise exception 'role "%" may not publish event type "%"', caller, v_type.name
        using errcode = '42501', hint = format('Ask for: grant insert on %s to %I', v_type.endpoint, caller);
    end if;
    if args ->> 'producer' is not null then
        -- A concurrent publication of the same number makes this one wait until it commits or rolls back.
        insert into pgps_internal.receipt (type_id, publisher, producer, producer_seq)
        values (v_type.type_id, quote_ident(caller)::regrole, args ->> 'producer', (args ->> 'producer_seq')::bigint) on conflict do nothing;
        v_taken := not found;
        if v_taken then
            select r.event_id into v_first from pgps_internal.receipt r
            where r.type_id = v_type.type_id and r.publisher = quote_ident(caller)::regrole and r.producer = args ->> 'producer' and r.producer_seq = (args ->> 'producer_seq')::bigint;
        end if;
    end if;
    return jsonb_build_object('name', v_type.name, 'visibility', v_type.visibility, 'taken', coalesce(v_taken, false), 'event_id', v_first);
end
$$;
comment on function pgps_internal.do_publication(name, jsonb) is
'Start of pgps.publish: rights, and whether (producer, number) was published before and under which event id';

create or replace function pgps_internal.do_published(caller name, args jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if not has_table_privilege(caller, (pgps_internal.find_type(args ->> 'event_type')).endpoint, 'insert') then
        raise exception 'role "%" may not publish event type "%"', caller, args ->> 'event_type'
        using errcode = '42501', hint = format('Ask for INSERT on pgps_event.%s.', args ->> 'event_type');
    end if;
    update pgps_internal.receipt r set event_id = currval('pgps_internal.event_id_seq')
    where r.type_id = (pgps_internal.find_type(args ->> 'event_type')).type_id and r.publisher = quote_ident(caller)::regrole
        and r.producer = args ->> 'producer'
        and r.producer_seq = (args ->> 'producer_seq')::bigint and r.event_id is null;
    return currval('pgps_internal.event_id_seq');
end
$$;
comment on function pgps_internal.do_published(name, jsonb) is 'End of pgps.publish: the id of the last event, noted for a repeat';

create or replace function pgps._insert_events(
    event_type text, payload jsonb, producer text, producer_seq bigint, target text = null
) returns void
language plpgsql
as $$
declare
    v_endpoint text := format('pgps_event.%I', _insert_events.event_type);
    v_keys text[] := array(select distinct k from jsonb_array_elements(_insert_events.payload) e, jsonb_object_keys(e) k order by k);
    v_columns text[];
    v_unknown text;
begin
    select k into v_unknown from unnest(v_keys) k
    where k in ('_producer', '_producer_seq') and _insert_events.target is null or not exists (select from pg_catalog.pg_attribute a
        where a.attrelid = v_endpoint::regclass and a.attname = k and a.attnum > 0 and not a.attisdropped) limit 1;
    if v_unknown is not null then
        raise exception 'event type "%" has no attribute "%"', _insert_events.event_type, v_unknown using errcode = '42703',
            hint = 'See the column attributes of pgps.event_types.';
    end if;
    v_columns := v_keys || array(select c from unnest(array['_producer', '_producer_seq']) c where c <> all (v_keys));
    -- One INSERT for all: an attribute that an object leaves out takes its default.
    execute format('insert into %s (%s) select %s from jsonb_array_elements($1) with ordinality e(object, place)
        cross join lateral jsonb_populate_record(null::%s, e.object) r order by e.place', coalesce(_insert_events.target, v_endpoint),
        (select string_agg(quote_ident(k), ', ' order by n) from unnest(v_columns) with ordinality u(k, n)),
        (select string_agg(case
                when k <> all (v_keys) then case k when '_producer' then '$2' else '$3' end
                when d.adbin is null then 'r.' || quote_ident(k)
                else format('case when e.object ? %L then r.%I else %s end', k, k, pg_catalog.pg_get_expr(d.adbin, d.adrelid)) end, ', ' order by n)
            from unnest(v_columns) with ordinality u(k, n)
            join pg_catalog.pg_attribute a on a.attrelid = v_endpoint::regclass and a.attname = k and not a.attisdropped
            left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum), v_endpoint)
    using _insert_events.payload, _insert_events.producer, _insert_events.producer_seq;
end
$$;
comment on function pgps._insert_events(text, jsonb, text, bigint, text) is
'Inserts a JSON array of objects into the publish endpoint (or target) with the rights of the caller; see pgps.publish';

create or replace function pgps.publish(
    event_type text, payload jsonb, visibility text = null, reliability text = null, handler text = null,
    producer text = null, producer_seq bigint = null
) returns bigint
language plpgsql
as $$
declare
    v_events jsonb := case jsonb_typeof(publish.payload) when 'array' then publish.payload else jsonb_build_array(publish.payload) end;
    v_known jsonb;
    v_key jsonb := jsonb_build_object('event_type', publish.event_type, 'producer', publish.producer, 'producer_seq', publish.producer_seq);
    v_wrong text;
begin
    if publish.payload is null then
        raise exception 'the payload is null' using errcode = '22023', hint = 'Give a JSON object, or an array of objects.';
    elsif publish.visibility not in ('deferred', 'immediate') then
        raise exception 'invalid visibility "%"', publish.visibility using errcode = '22023', hint = 'Use deferred or immediate.';
    elsif publish.reliability not in ('guaranteed', 'non-guaranteed') then
        raise exception 'invalid reliability "%"', publish.reliability using errcode = '22023', hint = 'Use guaranteed or non-guaranteed.';
    elsif publish.handler not in ('all', 'any', 'raiser') then
        raise exception 'invalid handler "%"', publish.handler using errcode = '22023', hint = 'Use all, any or raiser.';
    elsif (publish.producer is null) <> (publish.producer_seq is null) then
        raise exception 'producer and producer_seq belong together' using errcode = '22023', hint = 'Give both or neither.';
    elsif publish.producer is not null and jsonb_array_length(v_events) <> 1 then
        raise exception 'a producer number stands for one event, not for %', jsonb_array_length(v_events)
        using errcode = '22023', hint = 'Publish one event a number, or INSERT with _producer and _producer_seq.';
    end if;
    select jsonb_typeof(e) into v_wrong from jsonb_array_elements(v_events) e where jsonb_typeof(e) <> 'object' limit 1;
    if v_wrong is not null then
        raise exception 'the payload has a JSON % where an object is wanted', v_wrong
        using errcode = '22023', hint = 'An event is an object: {"attribute": value, …}.';
    end if;
    v_known := pgps._call('publication', v_key);
    if (v_known ->> 'taken')::boolean then
        return (v_known ->> 'event_id')::bigint;
    elsif jsonb_array_length(v_events) = 0 then
        return null;
    end if;
    if coalesce(publish.visibility, v_known ->> 'visibility') = 'immediate' then
        return (pgps._call('publish_immediately', v_key || jsonb_build_object('payload', v_events,
            'reliability', publish.reliability)) #>> '{}')::bigint;
    end if;
    perform set_config('pgps.reliability', coalesce(publish.reliability, ''), true), set_config('pgps.visibility', 'deferred', true);
    perform pgps._insert_events(v_known ->> 'name', v_events, publish.producer, publish.producer_seq);
    perform set_config('pgps.reliability', '', true), set_config('pgps.visibility', '', true);
    return (pgps._call('published', v_key) #>> '{}')::bigint;
end
$$;
comment on function pgps.publish(text, jsonb, text, text, text, text, bigint) is
'Publishes one event from a JSON object, or several from an array; returns the last event id (null for an empty array).
visibility, reliability, handler: null = as the event type says. producer and producer_seq: a repeated call publishes nothing
and returns the id given the first time; a concurrent one waits for the first.
Needs INSERT on the event type and an advertisement. Errors: 42704, 42703 unknown attribute, 22023, 23xxx, 42501, 55000.';

-- ---------------------------------------------------------------------------------------------------------------------
-- Immediate events: a transaction of their own, over a loopback connection that the session keeps
-- ---------------------------------------------------------------------------------------------------------------------

create extension if not exists dblink schema pgps_internal;

revoke all on all functions in schema pgps_internal from public;
grant execute on function
    pgps._insert_events(text, jsonb, text, bigint, text),
    pgps.publish(text, jsonb, text, text, text, text, bigint)
to public;
