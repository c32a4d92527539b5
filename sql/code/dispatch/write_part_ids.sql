-- Generated: pgps_internal.part_ids_<type>, which finds the events of given transactions in given ranges of a log.
-- Called by dispatch.sql.
-- Writes: nothing.

create or replace function pgps_internal.write_part_ids(names jsonb) returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    -- No SET clauses: it runs with the caller's settings.
    return pgps_internal.write_function('pgps_internal.part_ids_{type_id}',
        $head$(pgps_xids xid8[], pgps_ranges int8multirange) returns pgps_internal.part_ids
        language plpgsql$head$, $body$
        declare
            v_found pgps_internal.part_ids;
            v_lower bigint := lower(pgps_ranges);
            v_upper bigint := upper(pgps_ranges) - 1;
        begin
            if v_upper - v_lower < 100 then
                select coalesce(range_agg(int8range(l.event_id, l.event_id, '[]')), '{}'), count(*),
                    coalesce(bool_or(l._producer is not null), false)
                into v_found.ids, v_found.events, v_found.numbered
                from {log} l
                where l.event_id between v_lower and v_upper and l.event_id <@ pgps_ranges and l.xid = any (pgps_xids)
                    and (pgps_internal.log_segment(l.event_id) = pgps_internal.log_segment(v_lower)
                        or pgps_internal.log_segment(l.event_id) = pgps_internal.log_segment(v_upper));
                return v_found;
            end if;
            -- Common case: every id in the ranges belongs to these transactions.
            select count(*), coalesce(bool_or(l.numbered), false) into v_found.events, v_found.numbered
            from (select lower(r) as lo, upper(r) as hi from unnest(pgps_ranges) r) r
            cross join lateral (select x.xid, x._producer is not null as numbered from {log} x
                where x.event_id >= r.lo and x.event_id < r.hi offset 0) l
            where l.xid in (select u from unnest(pgps_xids) u);
            if v_found.events = (select sum(upper(r) - lower(r)) from unnest(pgps_ranges) r) then
                v_found.ids := pgps_ranges;
                return v_found;
            end if;
            with l as (
                select l.event_id, l.event_id - row_number() over (order by l.event_id) as island,
                    l._producer is not null as numbered
                from (select lower(r) as lo, upper(r) as hi from unnest(pgps_ranges) r) r
                cross join lateral (select x.event_id, x.xid, x._producer from {log} x
                    where x.event_id >= r.lo and x.event_id < r.hi offset 0) l
                where l.xid in (select u from unnest(pgps_xids) u)
            ),
            i as (select min(event_id) as lo, max(event_id) as hi, count(*) as n, bool_or(numbered) as numbered from l
                group by island)
            select coalesce(range_agg(int8range(lo, hi, '[]')), '{}'), coalesce(sum(n), 0)::bigint,
                coalesce(bool_or(numbered), false)
            into v_found.ids, v_found.events, v_found.numbered from i;
            return v_found;
        end$body$, write_part_ids.names);
end
$write$;
comment on function pgps_internal.write_part_ids(jsonb) is
'Writes pgps_internal.part_ids_<type>, which finds the events of transactions in ranges of the log';
