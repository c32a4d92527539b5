-- Direct events: a note that holds only numbers is pushed, and the client fetches the events with its own rights;
-- clients that were not connected get a note later, on the channel that they alone know: it is about events of former
-- transactions, which are taken from no channel whose name can be guessed (decision 122).
-- Locks: none in fetch; in retries share update exclusive on registration_type, rows of registrations and of event
-- types.
-- Writes: pgps_entry.client_calls, registration.

-- ---------------------------------------------------------------------------------------------------------------------
-- Fetch what a note stands for
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.fetch_note(
    client pgps_internal.client, event_type pgps_internal.event_type, place integer, xid xid8, first bigint,
    after bigint, upto bigint,
    max_events integer, broker text
) returns pgps_internal.handed[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text;
    v_after bigint := fetch_note.after;
    v_taken pgps_internal.received[];
    v_visible bigint[];
    v_part pgps_internal.message[];
    v_messages pgps_internal.message[] := '{}';
    v_handed pgps_internal.handed[];
begin
    -- Of several matching registrations the most particular name counts.
    select r.event_name into v_name from pgps_internal.registration_type t join pgps_internal.registration r
        using (registration_id)
    where t.type_id = (fetch_note.event_type).type_id and r.client_id = (fetch_note.client).client_id
        and r.mode = 'direct' and r.state = 'valid'
    order by r.is_pattern, length(r.event_name) desc limit 1;
    if not found then
        return '{}';
    elsif fetch_note.xid is not null and not (fetch_note.event_type).has_policy then
        execute 'select pgps_internal.push_' || (fetch_note.event_type).type_id
            || '($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)'
        using (fetch_note.client).client_id, fetch_note.place, v_name, fetch_note.xid, fetch_note.first,
            fetch_note.after, fetch_note.upto,
            fetch_note.max_events, (fetch_note.event_type).name, (fetch_note.event_type).handler, fetch_note.broker
                into v_handed;
        if v_handed is not null then
            return v_handed;
        end if;
    end if;
    -- Slices of bounded size are read until enough events are visible, since policies may hide a whole slice.
    loop
        execute 'select pgps_internal.slice_' || (fetch_note.event_type).type_id || '($1, $2, $3, null, $4)'
        using fetch_note.xid, v_after, fetch_note.upto, fetch_note.max_events - cardinality(v_messages) into v_taken;
        exit when cardinality(v_taken) = 0;
        v_after := v_taken[cardinality(v_taken)].event_id;
        v_visible := pgps_internal.visible_ids(fetch_note.event_type, (fetch_note.client).owner,
            array(select r.event_id from unnest(v_taken) r));
        v_part := pgps_internal.unfold_these(v_taken, fetch_note.event_type, v_visible, fetch_note.broker);
        v_messages := v_messages || pgps_internal.for_client((fetch_note.client).client_id, v_part);
        exit when cardinality(v_messages) >= fetch_note.max_events;
    end loop;
    return pgps_internal.with_occurrence(array(
        select (fetch_note.place, v_name, pgps_internal.raiser_of(m.client_id, quote_ident(m.publisher)::regrole), null,
                m)::pgps_internal.handed
            from unnest(v_messages) m order by m.event_id));
end
$$;
comment on function pgps_internal.fetch_note(pgps_internal.client, pgps_internal.event_type, integer, xid8, bigint,
    bigint, bigint, integer, text) is
'The events that a note stands for, as far as the client''s owner may see them and the handler clause lets it have
them';

create or replace function pgps_internal.fetch_safely(
    client pgps_internal.client, event_type pgps_internal.event_type, place integer, xid xid8, first bigint,
    after bigint, upto bigint,
    max_events integer, broker text
) returns pgps_internal.handed[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_handed pgps_internal.handed[];
begin
    return pgps_internal.fetch_note($1, $2, $3, $4, $5, $6, $7, $8, $9);
exception when others or assert_failure then
    if not pgps_internal.is_no_json(sqlstate) then
        raise;
    end if;
    perform pgps_internal.or_null(true);
    v_handed := pgps_internal.fetch_note($1, $2, $3, $4, $5, $6, $7, $8, $9);
    perform pgps_internal.or_null(false);
    return v_handed;
end
$$;
comment on function pgps_internal.fetch_safely(pgps_internal.client, pgps_internal.event_type, integer, xid8, bigint,
    bigint, bigint, integer, text) is
'As fetch_note; an event that cannot become JSON comes without its payload';

create or replace function pgps_internal.fetch_direct(caller name, args jsonb) returns pgps_internal.handed[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_client pgps_internal.client := pgps_internal.look_session(caller, args);
    v_max integer := pgps_internal.limit_of(args, 'max_events');
    v_after bigint := coalesce((args ->> 'after')::bigint, 0);
    v_broker text := pgps_internal.broker_name();
    v_note text;
    v_place integer := 0;
    v_parts text[];
    v_type pgps_internal.event_type;
    v_part pgps_internal.handed[];
    v_handed pgps_internal.handed[] := '{}';
begin
    if args ->> 'notes' is null then
        raise exception 'the notes are null' using errcode = '22023',
            hint = 'Give the payloads of notifications as they came.';
    end if;
    for v_note in select n.note from jsonb_array_elements_text(args -> 'notes') with ordinality n(note, place)
        order by n.place loop
        v_place := v_place + 1;
        v_parts := regexp_match(v_note, '^(\d{1,9}) (\d{1,18}) (\d{1,18})(?: (\d{1,18}))?(?: \[.*)?$');
        if v_parts is null then
            raise exception 'invalid note "%"', v_note using errcode = '22023',
                hint = 'Give the payload of a notification as it came.';
        end if;
        select t.* into v_type from pgps_internal.event_type t where t.type_id = v_parts[1]::integer;
        if found and has_table_privilege(v_client.owner::oid, v_type.endpoint, 'select') then
            v_part := pgps_internal.fetch_safely(v_client, v_type, v_place, v_parts[4]::xid8, v_parts[2]::bigint,
                greatest(v_parts[2]::bigint - 1, case when v_place = 1 then v_after else 0 end), v_parts[3]::bigint,
                v_max - cardinality(v_handed), v_broker);
            v_handed := v_handed || v_part;
            exit when cardinality(v_handed) >= v_max;
        end if;
    end loop;
    return v_handed;
end
$$;
comment on function pgps_internal.fetch_direct(name, jsonb) is 'See pgps.fetch_direct';

create or replace function pgps_internal.with_occurrence(pushed pgps_internal.handed[]) returns pgps_internal.handed[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_statement record;
    v_first pgps_internal.received[];
    v_occurrence jsonb := '{}';
begin
    for v_statement in
        select t.type_id, (p.message).xid, coalesce((p.message).lo, (p.message).event_id) as lo,
            coalesce((p.message).hi, (p.message).event_id) as hi,
            min((p.message).event_id) as event_id
        from unnest(with_occurrence.pushed) p join pgps_internal.event_type t on t.name = (p.message).event_type
        group by 1, 2, 3, 4
    loop
        -- The log is searched by the transaction that wrote the event, which for immediate events is not the
        -- publisher's.
        execute format('select pgps_internal.slice_%1$s((pgps_internal.statement_%1$s($3)).xid, $1, $2, null, 1)',
            v_statement.type_id)
        using v_statement.lo - 1, v_statement.hi, v_statement.event_id into v_first;
        v_occurrence := v_occurrence
            || jsonb_build_object(format('%s %s', v_statement.xid, v_statement.hi), v_first[1].event_id);
    end loop;
    return array(
        select (p.note, p.event_name, p.raiser,
            (v_occurrence ->> format('%s %s', (p.message).xid, coalesce((p.message).hi, (p.message).event_id)))::bigint,
            p.message)::pgps_internal.handed
        from unnest(with_occurrence.pushed) with ordinality p(note, event_name, raiser, occurrence, message, n)
            order by p.n);
end
$$;
comment on function pgps_internal.with_occurrence(pgps_internal.handed[]) is
'Fills in, for each event, the id of the first event of the statement that raised it';

create or replace function pgps.fetch_direct(
    client text, notes text[], after bigint = 0, max_events integer = 1000, session bigint = null
)
returns table (note integer, event_id bigint, event_type text, event_name text, payload jsonb, published_at timestamptz,
    publisher name, xid xid8,
    origin text, raiser text, occurrence bigint, up_to bigint)
language plpgsql rows 100
as $$
#variable_conflict use_column
begin
    return query
    with fetched as (
        insert into pgps_entry.client_calls (verb, args)
            values ('fetch_direct', pg_catalog.jsonb_build_object('client', fetch_direct.client,
            'notes', fetch_direct.notes, 'after', fetch_direct.after, 'max', fetch_direct.max_events, 'session',
                fetch_direct.session)) returning pushed
    )
    select p.note, (p.message).event_id, (p.message).event_type, p.event_name, (p.message).payload,
        (p.message).published_at, (p.message).publisher,
        (p.message).xid, (p.message).origin, p.raiser, p.occurrence, coalesce((p.message).hi, (p.message).event_id)
    from fetched f cross join lateral pg_catalog.unnest(f.pushed) p order by p.note, (p.message).event_id;
end
$$;
comment on function pgps.fetch_direct(text, text[], bigint, integer, bigint) is
'The events that notes stand for (payloads of notifications, see pgps.client_channels): those that a client is
registered for directly, that its owner may see and that the handler clause lets it have. In the order of the notes
(counted from 1), then event id; when max_events rows came, ask again with the notes from the last row''s note on and
after = the last event id. occurrence: the id of the first event that the same statement raised; up_to: none of its
events has a higher id. Events of several statements may lie between each other. A note for which there is nothing gives
no row. payload: as in pgps.fetch_tuples. Errors: 42704, 42501, 08003, 22023.';

-- ---------------------------------------------------------------------------------------------------------------------
-- Clients that are not reached
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.free_registrations() returns setof bigint
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select r.registration_id from pgps_internal.registration r where r.mode = 'direct' and r.state = 'valid'
    for no key update skip locked
$$;
comment on function pgps_internal.free_registrations() is
'Locks the direct registrations that nobody has locked: whoever registers anew in an open transaction is not waited
for';

create or replace function pgps_internal.note_missed(client pgps_internal.client) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_looked bigint := pg_sequence_last_value('pgps_internal.direct_looked_seq'::regclass);
begin
    if pgps_internal.is_reachable(note_missed.client) then
        return;
    end if;
    update pgps_internal.registration r set attempts = 1, missed_batch = v_looked, due_at = pgps_internal.clock()
    where r.client_id = (note_missed.client).client_id and r.mode = 'direct' and r.state = 'valid' and r.attempts = 0
        and exists (select from pgps_internal.registration_type t join pgps_internal.batch_type e using (type_id)
            where t.registration_id = r.registration_id and e.batch_id > v_looked and not isempty(e.ids));
end
$$;
comment on function pgps_internal.note_missed(pgps_internal.client) is
'When a client connects whose former session has ended: notes that it may have missed what came since a worker has
looked who is away, as the worker does that looks before the client is back';

create or replace function pgps.retry_direct(since bigint = null) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off
as $$
declare
    v_last bigint := coalesce((pgps_internal.last_batch()).batch_id, 0);
    v_looked bigint := pg_sequence_last_value('pgps_internal.direct_looked_seq'::regclass);
    v_away bigint[];
    v_told bigint;
begin
    -- One session at a time does this; the others return at once.
    if not exists (select from pgps_internal.registration r where r.mode = 'direct' and r.state = 'valid')
        or not pgps_internal.try_lock(
            'pgps_internal.registration_type', 'share update exclusive') then
        return v_last;
    end if;
    v_away := array(select r.registration_id from pgps_internal.registration r join pgps_internal.client c
        using (client_id)
        where r.mode = 'direct' and r.state = 'valid' and not pgps_internal.is_reachable(c));
    -- A client that is connected again gets a note for what it has missed, half a second after it connected, so that it
    -- listens by then.
    with back as (
        update pgps_internal.registration r set attempts = 0, missed_batch = null, due_at = null
        from pgps_internal.client c, pgps_internal.registration o
        where c.client_id = r.client_id and o.registration_id = r.registration_id and r.mode = 'direct'
            and r.state = 'valid' and r.attempts > 0
            and r.registration_id <> all (v_away) and r.due_at <= pgps_internal.clock()
                and c.connected_at < pgps_internal.clock() - interval '0.5 seconds'
            and r.registration_id in (select f from pgps_internal.free_registrations() f)
        returning r.registration_id, r.client_id, o.missed_batch
    ),
    missed as (
        select b.client_id, concat_ws(' ', t.type_id, min(lower(e.ids)), max(upper(e.ids)) - 1) as note
        from back b join pgps_internal.registration_type t using (registration_id)
        join pgps_internal.batch_type e on e.type_id = t.type_id and e.batch_id > b.missed_batch and not isempty(e.ids)
        group by b.client_id, t.type_id
    )
    select count(pg_notify('pgps_carried_' || c.secret, m.note)::text) into v_told
    from missed m join pgps_internal.client c on c.client_id = m.client_id and c.secret is not null;
    perform pgps_internal.refresh_direct(t.type_id)
    from pgps_internal.count_attempts(v_away, coalesce(retry_direct.since, v_looked)) a
    join pgps_internal.registration_type t on t.registration_id = a;
    perform setval('pgps_internal.direct_looked_seq', v_last) where v_last > coalesce(v_looked, 0);
    return v_last;
end
$$;
comment on function pgps.retry_direct(bigint) is
'Pushes direct events again to clients that were not connected when they came, and gives up after direct_retries
attempts (Ariel, section 3.1). since: the batch that the previous call returned; null at first: what came since anybody
has called it. The worker calls it once
a second. Needs pgps_worker or pgps_admin.';

create or replace function pgps_internal.count_attempts(away bigint[], since bigint) returns setof bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tries integer := pgps_internal.setting('direct_retries')::integer;
    v_pause interval := pgps_internal.setting('direct_retry_interval')::interval;
begin
    -- An event has come since then and the client is not connected: the first attempt.
    update pgps_internal.registration r set attempts = 1, missed_batch = count_attempts.since,
        due_at = pgps_internal.clock() + v_pause
    where r.registration_id in (select f from pgps_internal.free_registrations() f)
        and r.registration_id = any (count_attempts.away) and r.attempts = 0 and exists (
        select from pgps_internal.registration_type t join pgps_internal.batch_type e using (type_id)
        where t.registration_id = r.registration_id and e.batch_id > count_attempts.since and not isempty(e.ids));
    return query
    update pgps_internal.registration r
    set attempts = r.attempts + 1, due_at = pgps_internal.clock() + v_pause,
        state = case when r.attempts >= v_tries then 'invalid' else 'valid' end,
        reason = case when r.attempts >= v_tries
            then format('not reached at %s tries; register again', r.attempts + 1) end
    where r.registration_id in (select f from pgps_internal.free_registrations() f)
        and r.registration_id = any (count_attempts.away) and r.attempts > 0 and r.due_at <= pgps_internal.clock()
    returning r.registration_id;
end
$$;
comment on function pgps_internal.count_attempts(bigint[], bigint) is
'Counts an attempt for each direct registration in away (their clients are not connected) that is due, and makes those
invalid that have used up their attempts; returns the registrations tried again';

create or replace function pgps_internal.for_registration(
    subscription pgps_internal.subscription, messages pgps_internal.message[]
)
returns pgps_internal.message[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return coalesce((select pgps_internal.for_client(r.client_id, for_registration.messages)
        from pgps_internal.registration r
        where r.subscription_id = (for_registration.subscription).subscription_id), for_registration.messages);
end
$$;
comment on function pgps_internal.for_registration(pgps_internal.subscription, pgps_internal.message[]) is
'Those of the messages that the handler clause lets the client of a queued registration have; all of them when the
subscription belongs to none';

grant execute on function pgps.fetch_direct(text, text[], bigint, integer, bigint) to public;
revoke all on function pgps.retry_direct(bigint) from public;
grant execute on function pgps.retry_direct(bigint) to pgps_worker, pgps_admin;
