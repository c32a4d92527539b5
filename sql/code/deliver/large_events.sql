-- Events that are too large: jsonb has at most 256 MB, an array or a message to the client 1 GB. What is handed out in
-- one call is bounded by its size, and an event that cannot be handed out as JSON at all goes to the exception queue,
-- so that those behind it come (decision 88).
-- Locks: those of handing out: the turn of the subscription, or the rows of events that competing consumers share.
-- Writes: nothing.

create or replace function pgps_internal.most_bytes() returns bigint
language sql immutable parallel safe
return 134217728;
comment on function pgps_internal.most_bytes() is
'How many bytes of attributes one receive hands out, if it is more than one event: several times as many are in memory
while it does';

-- Asked where events are handed out: one expression, without queries. Neither stable, as pg_relation_size is not, nor
-- with segment_name, which says more than format of itself: PostgreSQL would not put it in place of its call.
create or replace function pgps_internal.toast_bytes(type_name text, event_id bigint) returns bigint
language sql
-- The server names what it stores out of line after the table.
return coalesce(pg_relation_size(to_regclass('pg_toast.pg_toast_' || to_regclass(format(
    'pgps_log_%s.%I', pgps_internal.log_segment(toast_bytes.event_id), toast_bytes.type_name))::oid)), 0);
comment on function pgps_internal.toast_bytes(text, bigint) is
'How much is stored out of line in the segment of the log of a type that an event is in: when it is little, no event
there is large';

create or replace function pgps_internal.is_toasted(type_name text, first_event bigint, last_event bigint)
returns boolean
language sql
-- The first and the last are in one segment, or in neighbouring ones.
return pgps_internal.toast_bytes(is_toasted.type_name, is_toasted.first_event) > 1000000
    or pgps_internal.log_segment(is_toasted.first_event) <> pgps_internal.log_segment(is_toasted.last_event)
        and pgps_internal.toast_bytes(is_toasted.type_name, is_toasted.last_event) > 1000000;
comment on function pgps_internal.is_toasted(text, bigint, bigint) is
'True when there may be large ones among some events: more than a little of their type is stored out of line';

create or replace function pgps_internal.event_bytes(type_id integer, event_ids bigint[])
returns table (event_id bigint, bytes bigint)
language plpgsql
-- Volatile, as all that reads a log (core/generated.sql).
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_type pgps_internal.event_type;
    v_bytes text;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = event_bytes.type_id;
    -- Nothing is read from where it is stored out of line: the size of a text or bytea stands in the row. How much a
    -- compressed value of another type is, nobody knows; 20 times as much is rare.
    select string_agg(format(case when coalesce(nullif(t.typbasetype, 0), t.oid) = 'bytea'::regtype
                then '2 * coalesce(octet_length(l.%1$I), 0)::bigint'
            when coalesce(nullif(t.typbasetype, 0), t.oid) in ('text'::regtype, 'varchar'::regtype)
                then 'coalesce(octet_length(l.%1$I), 0)::bigint'
            else 'coalesce(pg_column_size(l.%1$I)::bigint * case when pg_column_compression(l.%1$I) is null then 2 '
                'else 20 end, 0)' end, a.attname), ' + ')
    into v_bytes
    from pg_attribute a join pg_type t on t.oid = a.atttypid
    where a.attrelid = v_type.endpoint and a.attnum > 0 and not a.attisdropped and t.typlen = -1;
    return query execute format('select l.event_id, %1$s from %2$s l where l.event_id = any ($1)
            union all
            select l.event_id, %1$s from pgps_internal.%3$I l where l.event_id = any ($1)',
        coalesce(v_bytes, '0::bigint'), v_type.log, v_type.name || '_kept')
    using event_bytes.event_ids;
end
$$;
comment on function pgps_internal.event_bytes(integer, bigint[]) is
'About how large events of a type are as JSON, wherever they are kept';

create or replace function pgps_internal.how_many_fit(handed_out pgps_internal.received[]) returns integer
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_part record;
    v_found record;
    v_ids bigint[] := '{}';
    v_bytes bigint[] := '{}';
begin
    for v_part in select r.type_id, array_agg(r.event_id) as ids from unnest(how_many_fit.handed_out) r group by 1 loop
        select array_agg(b.event_id) as ids, array_agg(b.bytes) as bytes into v_found
        from pgps_internal.event_bytes(v_part.type_id, v_part.ids) b;
        v_ids := v_ids || v_found.ids;
        v_bytes := v_bytes || v_found.bytes;
    end loop;
    return (select greatest(count(*), 1) from (
        select sum(b.bytes) over (order by r.place) as upto
        from unnest(how_many_fit.handed_out) with ordinality r(batch_id, event_id, type_id, attempt, place)
        left join unnest(v_ids, v_bytes) b(event_id, bytes) using (event_id)) x
        where coalesce(x.upto, 0) <= pgps_internal.most_bytes());
end
$$;
comment on function pgps_internal.how_many_fit(pgps_internal.received[]) is
'How many of some events, from the first on, can be handed out in one call: at least one';

create or replace function pgps_internal.require_fit(handed_out pgps_internal.received[]) returns void
language plpgsql stable
as $$
begin
    if pgps_internal.how_many_fit(require_fit.handed_out) < cardinality(require_fit.handed_out) then
        raise exception 'these events are too large to be handed out at once' using errcode = '54000',
            hint = 'Receive fewer.';
    end if;
end
$$;
comment on function pgps_internal.require_fit(pgps_internal.received[]) is
'Raises 54000 when several events are too large to be handed out in one call';

create or replace function pgps_internal.require_sendable(messages pgps_internal.message[]) returns void
language plpgsql stable
as $$
declare
    v_longest bigint;
begin
    -- Writing it as text raises, too, when that takes more than 1 GB: in a string one byte may become six.
    if pg_column_size(require_sendable.messages) > pgps_internal.most_bytes() then
        select max(octet_length(m.payload::text)) into v_longest from unnest(require_sendable.messages) m
        where pg_column_size(m.payload) > 100000000;
    end if;
    -- The row of a message has some more columns than this.
    if v_longest > 1073000000 then
        raise exception 'as text it has % bytes', v_longest using errcode = '54000', hint = 'Receive it as a row.';
    end if;
end
$$;
comment on function pgps_internal.require_sendable(pgps_internal.message[]) is
'Raises 54000 when a payload is too long to be sent to a client';

create or replace function pgps_internal.is_too_large(sqlstate text, error text) returns boolean
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    -- 54001: levels of JSON that were not too deep for the publisher's stack.
    select is_too_large.sqlstate in ('54000', '54001', '53200')
        or is_too_large.sqlstate = 'XX000' and is_too_large.error ~ '^invalid memory alloc request size'
$$;
comment on function pgps_internal.is_too_large(text, text) is
'True for an error that says that a value, or what is made of many, is too large';

create or replace function pgps_internal.next_to_receive(
    subscription pgps_internal.subscription, max_events integer, consumer text
) returns pgps_internal.received[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (next_to_receive.subscription).subscription_id;
    v_due pgps_internal.received[];
begin
    if (next_to_receive.subscription).handler = 'any' then
        -- As in lease: those that another session has locked are its own, and those behind them come instead.
        return array(
            select (s.batch_id, s.event_id, s.type_id, s.attempts + 1)::pgps_internal.received
            from pgps_internal.share s
            where s.subscription_id = v_id and (s.holder is null or s.leased_until < pgps_internal.clock()
                    or s.holder = pgps_internal.holder_for(next_to_receive.consumer))
                and not exists (select from pgps_internal.failure f where f.subscription_id = v_id
                    and f.event_id = s.event_id and (f.state = 'failed' or f.due_at > pgps_internal.clock()))
            order by s.batch_id, s.event_id limit next_to_receive.max_events for update of s skip locked);
    end if;
    perform pgps_internal.hold_subscription(v_id, (next_to_receive.subscription).name);
    v_due := array(
        select (0, d.event_id, d.type_id, d.attempts + 1)::pgps_internal.received from pgps_internal.failure d
        where d.subscription_id = v_id
            and (d.state = 'retrying' and d.due_at <= pgps_internal.clock() or d.state = 'leased')
        order by d.event_id limit next_to_receive.max_events);
    return v_due || case when cardinality(v_due) < next_to_receive.max_events then pgps_internal.next_received(v_id,
        pgps_internal.position_of(v_id), next_to_receive.max_events - cardinality(v_due), true) end;
end
$$;
comment on function pgps_internal.next_to_receive(pgps_internal.subscription, integer, text) is
'What a receive would hand out, in its order, held until the transaction ends';

create or replace function pgps_internal.file_if_too_large(
    subscription pgps_internal.subscription, one pgps_internal.received
) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_one pgps_internal.received := file_if_too_large.one;
    v_state text;
    v_error text;
    v_type text;
begin
    begin
        perform pgps_internal.require_sendable(pgps_internal.unfold(array[v_one], file_if_too_large.subscription));
        return false;
    exception when program_limit_exceeded or statement_too_complex or out_of_memory or internal_error then
        get stacked diagnostics v_state = returned_sqlstate, v_error = message_text;
        if not pgps_internal.is_too_large(v_state, v_error) then
            raise;
        end if;
    end;
    select t.name into v_type from pgps_internal.event_type t where t.type_id = v_one.type_id;
    -- The server may have more memory another time; nothing else changes.
    v_one.attempt := case when v_state = '53200' then v_one.attempt
        else (file_if_too_large.subscription).max_attempts end;
    perform pgps_internal.note_failures(file_if_too_large.subscription, array[v_one], 'nack', '54000',
        format('event %s of event type "%s" is too large for JSON (%s); pgps_queue.%I gives events as rows',
            v_one.event_id, v_type, v_error, v_type || '_receive'), null);
    return true;
end
$$;
comment on function pgps_internal.file_if_too_large(pgps_internal.subscription, pgps_internal.received) is
'Files an event that cannot be handed out as failed, so that those behind it come; false when it can be';

create or replace function pgps_internal.fewer_events(
    subscription pgps_internal.subscription, tried integer, consumer text, error text
) returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_next pgps_internal.received[] := pgps_internal.next_to_receive(fewer_events.subscription, fewer_events.tried,
        fewer_events.consumer);
    v_fit integer;
begin
    if cardinality(v_next) > 1 then
        v_fit := pgps_internal.how_many_fit(v_next);
        return case when v_fit < cardinality(v_next) then v_fit else cardinality(v_next) / 2 end;
    elsif cardinality(v_next) = 1 and not pgps_internal.file_if_too_large(fewer_events.subscription, v_next[1]) then
        raise exception '%', fewer_events.error using errcode = '54000';
    end if;
    return null;
end
$$;
comment on function pgps_internal.fewer_events(pgps_internal.subscription, integer, text, text) is
'How many events to hand out when so many (tried) were too large for one call; null: as many as were asked for first,
since the next one was too large by itself, and has been filed. error: what was said. Errors: 54000 none is too large.';
