-- What a step reads of the log: which events of a type the leaves of composite events have got, and these events, each
-- once, whoever wants it. Generated for an event type, and run by pgps_internal.detect_step, whose session keeps it for
-- as long as pgps_internal.reading_version says the same.
-- Not in SQL, which would be planned anew in each step.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.event_columns(event_type pgps_internal.event_type) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return (select format('(select to_json(pgps_row)::text from (select %s) pgps_row) as payload, %s as event_time, %s',
            (select string_agg('l.' || quote_ident(a.name), ', ')
                from pgps_internal.attributes_of((event_columns.event_type).endpoint) a),
            coalesce((select format('pgps_internal.microseconds(l.%I)', a.name) from pgps_internal.time_attribute a
                where a.type_id = (event_columns.event_type).type_id), 'null::bigint'),
            case when i.is_interval then 'pgps_internal.microseconds(l.starts_at) as start_time, '
                    'pgps_internal.microseconds(l.ends_at) as end_time, ' || case when exists (
                        select from pg_attribute a
                        where a.attrelid = (event_columns.event_type).log and a.attname = 'pgps_start_at')
                    then 'l.pgps_start_at::text as start_at, l.pgps_end_at::text as end_at'
                    else 'null as start_at, null as end_at' end
                else 'null::bigint as start_time, null::bigint as end_time, null as start_at, null as end_at' end)
        from (select pgps_internal.is_interval((event_columns.event_type).endpoint) as is_interval) i);
end
$$;
comment on function pgps_internal.event_columns(pgps_internal.event_type) is
'The text of what the detector takes of an event, l being its row of the log';

create or replace function pgps_internal.event_moment(event_type pgps_internal.event_type) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return (select case when exists (select from pgps_internal.composite_leaf f
                where f.type_id = (event_moment.event_type).type_id and f.moment is not null)
            then format('(f.moment is null or pgps_internal.fits_moment(f.moment, f.type_id, '
                '(select x.xid from %s x where x.event_id = e.event_id), e.event_id))',
                (event_moment.event_type).log) end);
end
$$;
comment on function pgps_internal.event_moment(pgps_internal.event_type) is
'The text of a condition: an event e was published at the moment that a leaf f asks for; null when no leaf asks';

create or replace function pgps_internal.leaf_events(event_type pgps_internal.event_type) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select format($query$
        with hits as materialized (
            select d.batch_id, e.event_id, array_agg(w.composite_id) as composites, array_agg(w.leaf) as leaves
            from unnest($1, $2, $3, $4) w(composite_id, leaf, after_batch, upto)
            join pgps_internal.composite_leaf f on f.composite_id = w.composite_id and f.leaf = w.leaf
            join pgps_internal.member m on m.subscription_id = f.subscription_id
            join pgps_internal.delivery d on d.class_id = m.class_id
                and d.batch_id > greatest(w.after_batch, m.from_batch) and d.batch_id <= w.upto
            cross join lateral (select unnest(d.event_ids) union all
                select generate_series(lower(r), upper(r) - 1) from unnest(d.ids) r) e(event_id)
            where (isempty(m.skip) or not e.event_id <@ m.skip) and %4$s
            group by d.batch_id, e.event_id
        )
        select h.batch_id, h.event_id, h.composites, h.leaves, l.xid::text::bigint as xid,
            pgps_internal.microseconds(c.published_at) as published,
            (select o.name from pgps_internal.origin o where o.origin_id = c.origin_id) as origin,
            (select k.name from pgps_internal.client k where k.client_id = c.client_id
                and pg_has_role(c.publisher::oid, k.owner::oid, 'usage')) as client, %1$s
        from hits h
        join %2$s l on l.event_id = h.event_id
        left join lateral (%3$s) c on true$query$,
        pgps_internal.event_columns(leaf_events.event_type), (leaf_events.event_type).log,
        pgps_internal.statement_of('c.published_at, c.origin_id, c.client_id, c.publisher',
            (leaf_events.event_type).type_id::text),
        coalesce(pgps_internal.event_moment(leaf_events.event_type), 'true'))
$$;
comment on function pgps_internal.leaf_events(pgps_internal.event_type) is
'The query that reads the events of a type for leaves one by one, for pgps.explain_composite_event: arrays of composite
events, leaves, after which and up to which batch';

create or replace function pgps_internal.read_hits(event_type pgps_internal.event_type) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    -- A row for what a class has got in a batch: with ranges of ids it stays small however many events there are.
    return (select format($query$
            select d.type_id, d.batch_id, d.subjects, d.leaves, %1$s as ids,
                case when d.ids is not null%2$s then array(select lower(r) from unnest(d.ids) r) end as lows,
                case when d.ids is not null%2$s then array(select upper(r) from unnest(d.ids) r) end as highs,
                case when not isempty(d.skip) then array(select lower(r) from unnest(d.skip) r) end as skip_lows,
                case when not isempty(d.skip) then array(select upper(r) from unnest(d.skip) r) end as skip_highs
            from (
                select d.batch_id, d.event_ids, d.ids, m.skip, f.moment, f.type_id,
                    array_agg(w.subject) as subjects, array_agg(w.leaf) as leaves
                from unnest($1, $2, $3, $4, $5) w(composite_id, leaf, after_batch, upto, subject)
                join pgps_internal.composite_leaf f on f.composite_id = w.composite_id and f.leaf = w.leaf
                join pgps_internal.member m on m.subscription_id = f.subscription_id
                cross join lateral (select d.batch_id, d.class_id, d.event_ids, d.ids from pgps_internal.delivery d
                    where d.class_id = m.class_id and d.batch_id > greatest(w.after_batch, m.from_batch)
                        and d.batch_id <= w.upto offset 0) d
                group by d.batch_id, d.class_id, d.event_ids, d.ids, m.skip, f.moment, f.type_id) d$query$,
            case when m.moment is null then 'd.event_ids' else format(
                'case when d.moment is null then d.event_ids else array(select e.event_id from ('
                'select unnest(d.event_ids) union all '
                'select generate_series(lower(r), upper(r) - 1) from unnest(d.ids) r) e(event_id) '
                'cross join (select d.moment, d.type_id) f where %s) end', m.moment) end,
            case when m.moment is null then '' else ' and d.moment is null' end)
        from (select pgps_internal.event_moment(read_hits.event_type) as moment) m);
end
$$;
comment on function pgps_internal.read_hits(pgps_internal.event_type) is
'The query that reads which events leaves have got, by event type and batch: ids, and ranges of ids, less the ranges to
skip; the same for all types none of whose leaves asks for a moment. Takes arrays of composite events, leaves, after
which and up to which batch, and for which subject of the step';

create or replace function pgps_internal.key_columns(event_type pgps_internal.event_type, keys jsonb)
returns table (name text, value text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    -- A single text stands for itself: making JSON of it and reading that takes as long as reading the event.
    return query select format('%s_%s', case when k.is_text then 'text' else 'key' end, k.n - 1),
        format(case when k.is_text then '%s::text' else 'json_build_array(%s)::text' end, k.names)
    from (
        select x.n, string_agg(format('l.%I', y.name), ', ' order by y.n) as names,
            count(*) = 1 and coalesce(bool_and(a.atttypid in ('text'::regtype, 'varchar'::regtype)), false) as is_text
        from jsonb_array_elements(key_columns.keys) with ordinality x(k, n)
        cross join lateral jsonb_array_elements_text(x.k) with ordinality y(name, n)
        left join pg_attribute a on a.attrelid = (key_columns.event_type).endpoint and a.attname = y.name
        group by x.n) k
    order by k.n;
end
$$;
comment on function pgps_internal.key_columns(pgps_internal.event_type, jsonb) is
'How the keys of an event are read, l being its row of the log: columns text_N of one text each, and key_N, the text of
an array, N being the place in keys, from 0 on';

drop function if exists pgps_internal.reading(integer, jsonb),
    pgps_internal.read_events(pgps_internal.event_type, jsonb);
create or replace function pgps_internal.read_events(
    event_type pgps_internal.event_type, keys jsonb, out ranges text, out alone text
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_lists text := 'array_agg(e.event_id) as ids, array_agg(e.xid) as xids, array_agg(e.payload) as payloads'
        || coalesce((select string_agg(format(', array_agg(e.%1$s) as %1$s', k.name), '')
            from pgps_internal.key_columns(read_events.event_type, read_events.keys) k), '')
        || case when exists (select from pgps_internal.time_attribute a
                where a.type_id = (read_events.event_type).type_id)
            then ', array_agg(e.event_time) as event_times' else '' end
        || case when pgps_internal.is_interval((read_events.event_type).endpoint)
            then ', array_agg(e.start_time) as start_times, array_agg(e.end_time) as end_times, '
                'array_agg(e.start_at::text) as start_points, array_agg(e.end_at::text) as end_points' else '' end;
    v_columns text := 'l.event_id, l.xid::text::bigint as xid, ' || pgps_internal.event_columns(read_events.event_type)
        || coalesce((select string_agg(format(', %s as %s', k.value, k.name), '')
            from pgps_internal.key_columns(read_events.event_type, read_events.keys) k), '');
begin
    -- Each range by itself, along the index: all of them would be sorted. Nested loops by force: a merge join would
    -- read the log from its beginning. In portions, since an array has a limited size.
    ranges := format($query$
        select p.*
        from unnest($1, $2) r(low, high)
        cross join lateral (
            select %1$s
            from (
                select %2$s
                from (select l.* from %3$s l where l.event_id >= r.low and l.event_id < r.high
                    order by l.event_id) l) e) p
        where p.ids is not null$query$, v_lists, v_columns, (read_events.event_type).log);
    alone := format($query$
        select %1$s
        from (
            select %2$s
            from unnest($1) r(event_id)
            cross join lateral (select l.* from %3$s l where l.event_id = r.event_id
                and pgps_internal.log_segment(l.event_id) = pgps_internal.log_segment(r.event_id) offset 0) l
            order by l.event_id) e
        group by e.event_id / 1024$query$, v_lists, v_columns, (read_events.event_type).log);
end
$$;
comment on function pgps_internal.read_events(pgps_internal.event_type, jsonb) is
'The queries that read events of a type as arrays, of which each has a portion. ranges: takes the first and behind the
last of ranges of ids, of which each is a portion; alone: takes ids. keys: lists of attributes; see
pgps_internal.key_columns';

create or replace function pgps_internal.reading_version(event_type pgps_internal.event_type) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return concat((reading_version.event_type).name, ' ', (reading_version.event_type).log::oid, ' ',
        (select a.name from pgps_internal.time_attribute a where a.type_id = (reading_version.event_type).type_id), ' ',
        (exists (select from pgps_internal.composite_leaf f where f.type_id = (reading_version.event_type).type_id
            and f.moment is not null)), ' ',
        (select string_agg(a.attnum || ' ' || a.attname || ' ' || a.atttypid, ' ' order by a.attnum) from pg_attribute a
            where a.attrelid = (reading_version.event_type).endpoint and a.attnum > 0 and not a.attisdropped));
end
$$;
comment on function pgps_internal.reading_version(pgps_internal.event_type) is
'All that what pgps_internal.reading returns for a type depends on: making that takes many times as long as comparing';

create or replace function pgps_internal.reading(
    type_id integer, keys jsonb, out version text, out hits text, out ranges text, out alone text
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    select pgps_internal.reading_version(t), pgps_internal.read_hits(t), e.ranges, e.alone
    into version, hits, ranges, alone
    from pgps_internal.event_type t cross join lateral pgps_internal.read_events(t, reading.keys) e
    where t.type_id = reading.type_id;
end
$$;
comment on function pgps_internal.reading(integer, jsonb) is
'The queries that read the events of a type for a step, and what they depend on; nulls when there is no such type. keys:
as in pgps_internal.read_events';
