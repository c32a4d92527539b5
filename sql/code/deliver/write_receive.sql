-- Generated: pgps_queue.<type>_receive, and the view that it reads: pgps_entry.log_<type>, the log as its readers may
-- see it. See receive_rows.sql.
-- Writes: pgps_entry.receive_rows_calls.

create or replace function pgps_internal.write_log_rows(names jsonb) returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    -- Has the columns by which a run is looked up. Read by the function below, with the reader's rights.
    return pgps_internal.write_view('pgps_entry.log_{type_id}', $view$with (security_invoker = true) as
        select l.event_id as pgps_event_id, {segment} as pgps_slot, l.xid as pgps_xid,
            ({statement}) as pgps_statement{more_attributes} from {log} l$view$, 'public',
        write_log_rows.names || jsonb_build_object('segment', pgps_internal.segment_of('l.event_id', 'control'),
            'statement', pgps_internal.statement_of('c', write_log_rows.names ->> 'type_id',
                source => 'pgps_internal.statement')));
end
$write$;
comment on function pgps_internal.write_log_rows(jsonb) is
'Writes pgps_entry.log_<type>: the log as pgps_queue.<type>_receive reads it for its caller';

drop function if exists pgps_internal.write_run_rows(jsonb);
create or replace function pgps_internal.write_run_rows(
    names jsonb, published_at text, publisher text, xid text, origin text, source text = ''
) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    return pgps_internal.render($query$select l.pgps_event_id, {published_at}, {publisher}, {xid}, {origin},
                    case when (r.batch_id, l.pgps_event_id) <= (r.received_batch, r.received_event) then 2 else 1 end,
                        r.places_text{more_attributes}
                -- Values that a run's events have in common are written as text once, not for each event.
                from (select u.*, u.publishers_xid::text::bigint as xid_number, u.places::text as places_text
                    from unnest(pgps_taken.runs) u offset 0) r
                join pgps_entry.log_{type_id} l on l.pgps_event_id >= r.lo and l.pgps_event_id <= r.hi
                    and l.pgps_slot = {segment}{source}$query$,
        write_run_rows.names || jsonb_build_object('segment', pgps_internal.segment_of('r.lo', 'control'),
            'published_at', write_run_rows.published_at, 'publisher', write_run_rows.publisher,
            'xid', write_run_rows.xid, 'origin', write_run_rows.origin, 'source', write_run_rows.source));
end
$write$;
comment on function pgps_internal.write_run_rows(jsonb, text, text, text, text, text) is
'The query of the rows of the runs in pgps_taken, a part of pgps_queue.<type>_receive, with the expressions for what the
statement of an event tells; source: what they read besides the log';

create or replace function pgps_internal.run_rows(names jsonb) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    -- Three ways to the statement of an event that is not the run's own. Each mention of l.pgps_statement is set up as
    -- a look-up of its own, whether or not it is needed (decision 57).
    return jsonb_build_object(
        -- An event alone is that of its run's statement.
        'rows_of_one', pgps_internal.write_run_rows(run_rows.names, 'r.published_at', 'r.publisher', 'r.xid_number',
            'r.origin'),
        -- Many statements: one look-up for each event of another one.
        'rows_of_many', pgps_internal.write_run_rows(run_rows.names,
            'case when s.is_other then s.published_at else r.published_at end',
            'case when s.is_other then s.publisher else r.publisher end',
            'case when l.pgps_xid = r.xid then r.xid_number
                        else coalesce(s.publishers_xid, l.pgps_xid)::text::bigint end',
            'case when s.is_other then coalesce(s.origin, r.broker) else r.origin end', '
                left join lateral (
                    select true as is_other, (o.told).published_at, (o.told).publisher, (o.told).publishers_xid,
                        (o.told).origin
                    from (select l.pgps_statement as told
                        where l.pgps_xid is distinct from r.xid or l.pgps_event_id > r.last_event offset 0) o
                ) s on true'),
        -- One statement, of whose events some may be missing and others in between: nothing more for each event.
        'rows', pgps_internal.write_run_rows(run_rows.names,
            'case when l.pgps_xid = r.xid then r.published_at else (l.pgps_statement).published_at end',
            'case when l.pgps_xid = r.xid then r.publisher else (l.pgps_statement).publisher end',
            'case when l.pgps_xid = r.xid then r.xid_number
                        else coalesce((l.pgps_statement).publishers_xid, l.pgps_xid)::text::bigint end',
            'case when l.pgps_xid = r.xid then r.origin else coalesce((l.pgps_statement).origin, r.broker) end'));
end
$write$;
comment on function pgps_internal.run_rows(jsonb) is
'The queries of pgps_queue.<type>_receive: rows_of_one for a single event, rows for runs that end within the statement
of their first event, rows_of_many for all others';

create or replace function pgps_internal.write_answer(names jsonb) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    return pgps_internal.render($answer$if cardinality(pgps_taken.runs) = 1
                    and (pgps_taken.runs)[1].lo = (pgps_taken.runs)[1].hi then
                return query
                {rows_of_one};
            elsif exists (select from unnest(pgps_taken.runs) r where r.hi > r.last_event) then
                return query
                {rows_of_many}
                order by r.places, r.batch_id, l.pgps_event_id;
            elsif cardinality(pgps_taken.runs) = 1 then
                return query
                {rows};
            elsif cardinality(pgps_taken.runs) > 0 then
                return query
                {rows}
                order by r.places, r.batch_id, l.pgps_event_id;
            end if;$answer$, pgps_internal.run_rows(write_answer.names));
end
$write$;
comment on function pgps_internal.write_answer(jsonb) is
'Writes the part of pgps_queue.<type>_receive that returns the rows of the runs in pgps_taken, by the query that they
need';

create or replace function pgps_internal.arguments_beside(endpoint regclass, arguments text[]) returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select jsonb_object_agg(u.name, case when exists (
            select from pgps_internal.attributes_of(arguments_beside.endpoint) a where a.name = u.name)
        then 'pgps_' || u.name else u.name end)
    from unnest(arguments_beside.arguments) u(name)
$$;
comment on function pgps_internal.arguments_beside(regclass, text[]) is
'Names for the arguments of a function whose result has the attributes of an event type as columns: as they are, or with
pgps_ in front where an attribute has that name';

create or replace function pgps_internal.write_receive(event_type pgps_internal.event_type, names jsonb)
returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    return pgps_internal.write_function('pgps_queue.{receive}',
        $head$({subscriptions} text[], {max_events} integer = 1000, {consumer} text = null)
        returns table (pgps_event_id bigint, pgps_published_at timestamptz, pgps_publisher name, pgps_xid bigint,
            pgps_origin text,
            pgps_attempt integer, pgps_places text{columns})
        language plpgsql set search_path = pg_catalog,
            pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
            set plan_cache_mode = force_generic_plan
        set max_parallel_workers_per_gather = 0$head$, $body$
        #variable_conflict use_column
        declare
            pgps_taken record;
            pgps_rows bigint;
        begin
            insert into pgps_entry.receive_rows_calls (type_id, subscriptions, max_events, consumer)
                values ({type_id}, $1, $2, $3)
            returning runs, others into pgps_taken;
            {answer}
            get diagnostics pgps_rows = row_count;
            if pgps_rows = 0 and cardinality(pgps_taken.runs) > 0 then
                -- The events were lost in a crash: pgps.receive moves the position past them.
                pgps_taken.others := array(select p from unnest(pgps_taken.runs) r, unnest(r.places) m,
                    generate_series(lower(m), upper(m) - 1) p
                    group by p) || pgps_taken.others;
            end if;
            if cardinality(pgps_taken.others) > 0 then
                {tell_texts}return query
                select m.event_id, m.published_at, m.publisher, m.xid::text::bigint, m.origin, m.attempt,
                    int4multirange(int4range(o.place, o.place, '[]'))::text{told_attributes}
                from unnest(pgps_taken.others) with ordinality o(place, turn)
                cross join lateral pgps.receive(($1)[o.place], $2, $3) with ordinality
                    m(event_id, event_type, payload, published_at, publisher, xid, origin, attempt, turn)
                cross join lateral jsonb_populate_record(null::pgps_event.{name}, {told_payload}) l
                order by o.turn, m.turn;{tell_json}
            end if;
        end$body$, write_receive.names
            || jsonb_build_object('receive', quote_ident((write_receive.event_type).name || '_receive'),
            'columns', coalesce((select string_agg(format(', %I %s', a.name, a.type), '')
                from pgps_internal.attributes_of((write_receive.event_type).endpoint) a), ''))
            || pgps_internal.arguments_beside((write_receive.event_type).endpoint,
                '{subscriptions,max_events,consumer}')
            || jsonb_build_object('answer', pgps_internal.write_answer(write_receive.names)),
        comment => 'The next events of subscriptions to this type as pgps.receive gives them, the attributes as '
            'columns. Subscriptions that are at the same place
with the same filter get their rows once: pgps_places is a multirange of their places in the argument, counted from '
    '1. Acknowledge with pgps.ack or pgps.ack_each, under the same consumer.');
end
$write$;
comment on function pgps_internal.write_receive(pgps_internal.event_type, jsonb) is
'Writes pgps_queue.<type>_receive: the next events of several subscriptions, the attributes as columns';

create or replace function pgps_internal.write_statements(names jsonb) returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    return pgps_internal.write_function('pgps_internal.statements_{type_id}',
        $head$(pgps_runs pgps_internal.run[], pgps_batch bigint, pgps_event bigint,
        pgps_places int4multirange, pgps_broker text) returns pgps_internal.run[]
        language plpgsql set search_path = pg_catalog,
            pg_temp set plan_cache_mode = force_generic_plan set enable_bitmapscan = off$head$, $body$
        declare
            v_told pgps_internal.run[];
        begin
            -- A run has the statement of its first event; where concurrent statements interleave, those of the others
            -- are looked up one by one when the rows are read.
            select array_agg((r.batch_id, r.lo, r.hi, l.xid, c.published_at, pg_get_userbyid(c.publisher),
                case when c.origin_id is null then pgps_broker
                    else (select o.name from pgps_internal.origin o where o.origin_id = c.origin_id) end,
                pgps_batch, pgps_event, pgps_places, c.lo, c.hi, pgps_broker,
                coalesce(nullif(c.raiser, '0'), l.xid))::pgps_internal.run order by r.batch_id, r.lo) into v_told
            from unnest(pgps_runs) r
            left join lateral (select l.xid from {log} l
                where l.event_id = r.lo
                    and pgps_internal.log_segment(l.event_id) = pgps_internal.log_segment(r.lo) offset 0) l on true
            left join lateral ({statement}) c on true
            -- Null when an event is kept aside or lost, or its statement is no longer known: pgps.receive handles these
            -- cases.
            having bool_and(c.hi is not null) and not exists (
                select from unnest(pgps_runs) r
                cross join lateral (select from {kept} x where x.event_id between r.lo and r.hi limit 1) k);
            return v_told;
        end$body$, write_statements.names || jsonb_build_object('statement', pgps_internal.statement_of(
            'c.published_at, c.publisher, c.origin_id, c.lo, c.hi, c.raiser', write_statements.names ->> 'type_id',
            'r.lo')));
end
$write$;
comment on function pgps_internal.write_statements(jsonb) is
'Writes pgps_internal.statements_<type>: runs of events with the statements that published them';
