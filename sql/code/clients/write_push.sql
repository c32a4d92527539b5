-- Generated: pgps_internal.push_<type>, the events that a note stands for. Called by direct.sql.
-- Writes: nothing.

create or replace function pgps_internal.write_push(names jsonb) returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    -- One query returns all, since a push must be quick. It names the segments to scan: setting up the scans of all
    -- four segments of each ledger took two thirds of the time.
    return pgps_internal.write_function('pgps_internal.push_{type_id}',
        $head$(pgps_client bigint, pgps_note integer, pgps_name text, pgps_xid xid8, pgps_first bigint,
            pgps_after bigint, pgps_hi bigint,
        pgps_max integer, pgps_type text, pgps_handler text, pgps_broker text) returns pgps_internal.handed[]
        language plpgsql set search_path = pg_catalog,
            pg_temp set plan_cache_mode = force_generic_plan set enable_bitmapscan = off$head$, $body$
        declare
            c pgps_internal.control;
            v_raiser text;
            v_origin text := pgps_broker;
        begin
            select x.* into c from pgps_internal.control x
            where x.xid = pgps_xid and x.hi = pgps_hi and x.type_id = {type_id}
                and pgps_internal.log_segment(x.hi) = pgps_internal.log_segment(pgps_hi);
            if not found then
                return null;
            elsif not (coalesce(c.handler, pgps_handler) = 'all'
                    or pgps_internal.is_for(pgps_client, coalesce(c.handler, pgps_handler), c.xid, c.hi, c.client_id,
                        c.publisher)) then
                return '{}';
            end if;
            if c.client_id is not null then
                v_raiser := pgps_internal.raiser_of(c.client_id, c.publisher);
            end if;
            if c.origin_id is not null then
                v_origin := (select o.name from pgps_internal.origin o where o.origin_id = c.origin_id);
            end if;
            return array(
                select (pgps_note, pgps_name, v_raiser, coalesce((select f.event_id from {log} f
                        where f.event_id >= c.lo and f.event_id <= c.hi and f.xid = pgps_xid
                            and {f_in_segments}
                        order by f.event_id limit 1), l.event_id),
                    (null, l.event_id, pgps_type, (select {to_json} from (select {attributes}) pgps_row),
                        c.published_at,
                        pg_get_userbyid(c.publisher), coalesce(nullif(c.raiser, '0'), l.xid), v_origin, 1, c.handler,
                        c.client_id, c.lo, c.hi)::pgps_internal.message)::pgps_internal.handed
                from {log} l
                where l.event_id > pgps_after and l.event_id <= pgps_hi and l.xid = pgps_xid
                    and {l_in_segments}
                order by l.event_id limit pgps_max);
        end$body$, write_push.names || jsonb_build_object(
            'f_in_segments', pgps_internal.in_log_segments('f.event_id', 'pgps_first', 'pgps_hi'),
            'l_in_segments', pgps_internal.in_log_segments('l.event_id', 'pgps_first', 'pgps_hi')));
end
$write$;
comment on function pgps_internal.write_push(jsonb) is
'Writes pgps_internal.push_<type>: the events of one statement for a client that is registered directly';
