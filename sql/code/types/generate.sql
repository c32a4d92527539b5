-- Generated code: what an event type and a signature need to be matched and handed out. Made when something is defined; what runs per
-- batch is static plpgsql with cached plans. Two tiers of filters:
--   safe   nothing but the event's attributes, constants and built-in data functions: runs with the owner's code, joined to the log
--   owner  anything else (tables, functions): a SECURITY DEFINER function owned by the subscriber, given the events as an array
-- Locks: those of CREATE and DROP on what is generated.
-- Writes: by name: the entry of an immediate type (generated).

create or replace function pgps_internal.create_function(signature text, definition text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('create or replace function %s %s', create_function.signature, create_function.definition);
    execute format('revoke all on function %s from public',
        regexp_replace(regexp_replace(create_function.signature, '\s+returns .*$', '', 'is'), '\s*=\s*null', '', 'g'));
end
$$;
comment on function pgps_internal.create_function(text, text) is 'Creates generated code and closes it to the public';

create or replace function pgps_internal.build_code(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_columns text;
    v_attributes text;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = build_code.type_id;
    v_columns := pgps_internal.column_list(v_type.endpoint, 'l.');
    v_attributes := coalesce((select string_agg('l.' || quote_ident(a.name), ', ') from pgps_internal.attributes_of(v_type.endpoint) a), '');
    perform pgps_internal.create_function(format(
        'pgps_internal.cut_%s(pgps_xids xid8[], pgps_ranges int8multirange) returns pgps_internal.taken', v_type.type_id),
        -- With the settings of who calls it.
        format($sql$language plpgsql stable as %L$sql$, format($body$
        declare
            v_cut pgps_internal.taken;
            v_lower bigint := lower(pgps_ranges);
            v_upper bigint := upper(pgps_ranges) - 1;
        begin
            if v_upper - v_lower < 100 then
                select coalesce(range_agg(int8range(l.event_id, l.event_id, '[]')), '{}'), count(*), coalesce(bool_or(l._producer is not null), false)
                into v_cut.ids, v_cut.events, v_cut.numbered
                from %1$s l
                where l.event_id between v_lower and v_upper and l.event_id <@ pgps_ranges and l.xid = any (pgps_xids)
                    and (l.event_id / 65536) %% 4 in ((v_lower / 65536) %% 4, (v_upper / 65536) %% 4);
                return v_cut;
            end if;
            -- Mostly all numbers there are theirs.
            select count(*), coalesce(bool_or(l.numbered), false) into v_cut.events, v_cut.numbered
            from (select lower(r) as lo, upper(r) as hi from unnest(pgps_ranges) r) r
            cross join lateral (select x.xid, x._producer is not null as numbered from %1$s x
                where x.event_id >= r.lo and x.event_id < r.hi offset 0) l
            where l.xid in (select u from unnest(pgps_xids) u);
            if v_cut.events = (select sum(upper(r) - lower(r)) from unnest(pgps_ranges) r) then
                v_cut.ids := pgps_ranges;
                return v_cut;
            end if;
            with l as (
                select l.event_id, l.event_id - row_number() over (order by l.event_id) as island, l._producer is not null as numbered
                from (select lower(r) as lo, upper(r) as hi from unnest(pgps_ranges) r) r
                cross join lateral (select x.event_id, x.xid, x._producer from %1$s x
                    where x.event_id >= r.lo and x.event_id < r.hi offset 0) l
                where l.xid in (select u from unnest(pgps_xids) u)
            ),
            i as (select min(event_id) as lo, max(event_id) as hi, count(*) as n, bool_or(numbered) as numbered from l group by island)
            select coalesce(range_agg(int8range(lo, hi, '[]')), '{}'), coalesce(sum(n), 0)::bigint, coalesce(bool_or(numbered), false)
            into v_cut.ids, v_cut.events, v_cut.numbered from i;
            return v_cut;
        end$body$, v_type.log)));
    perform pgps_internal.create_function(format(
        'pgps_internal.rows_%s(pgps_ids int8multirange, out event_ids bigint[], out events pgps_event.%I[]) returns record',
        v_type.type_id, v_type.name), format($sql$language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as %L$sql$, format($body$
        begin
            select array_agg(l.event_id order by l.event_id), array_agg(row(%s)::pgps_event.%I order by l.event_id) into event_ids, events
            from %s l where l.event_id between lower(pgps_ids) and upper(pgps_ids) - 1 and l.event_id <@ pgps_ids;
        end$body$, v_columns, v_type.name, v_type.log)));
    perform pgps_internal.create_function(format(
        'pgps_internal.events_%s(pgps_ids bigint[]) returns table (event_id bigint, event pgps_event.%I)',
        v_type.type_id, v_type.name), format($sql$language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as %L$sql$, format($body$
        #variable_conflict use_column
        begin
            return query
            select l.event_id, row(%1$s)::pgps_event.%2$I from %3$s l where l.event_id = any (pgps_ids)
            union all
            select l.event_id, row(%1$s)::pgps_event.%2$I from pgps_internal.%4$I l
            where l.event_id = any (pgps_ids) and not exists (select from %3$s x where x.event_id = l.event_id);
        end$body$, v_columns, v_type.name, v_type.log, v_type.name || '_kept')));
    perform pgps_internal.create_function(format(
        'pgps_internal.slice_%s(pgps_xid xid8, pgps_after bigint, pgps_upto bigint, pgps_ids int8multirange, pgps_max integer)
        returns pgps_internal.received[]', v_type.type_id),
        format($sql$language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_bitmapscan = off as %L$sql$, format($body$
        begin
            return array(
                select (null, l.event_id, %2$s, 1)::pgps_internal.received from %1$s l
                where l.event_id > pgps_after and l.event_id <= pgps_upto and (pgps_xid is null or l.xid = pgps_xid)
                    and (pgps_ids is null or l.event_id <@ pgps_ids)
                order by l.event_id limit pgps_max);
        end$body$, v_type.log, v_type.type_id)));
    perform pgps_internal.create_function(format(
        'pgps_internal.statement_%s(pgps_event bigint) returns pgps_internal.control', v_type.type_id),
        format($sql$language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_bitmapscan = off as %L$sql$, format($body$
        declare
            v_statement pgps_internal.control;
            v_xid xid8 := (select l.xid from %1$s l where l.event_id = pgps_event and (l.event_id / 65536) %% 4 = (pgps_event / 65536) %% 4);
        begin
            select c.* into v_statement from pgps_internal.control c
            where c.xid = v_xid and c.hi >= pgps_event and c.lo <= pgps_event and c.type_id = %2$s order by c.hi limit 1;
            if not found and v_xid is not null then
                v_statement.xid := v_xid;
                v_statement.lo := pgps_event;
                v_statement.hi := pgps_event;
            end if;
            return v_statement;
        end$body$, v_type.log, v_type.type_id)));
    if v_type.visibility = 'immediate' then
        -- On the loopback connection: rows of the stage, with all their attributes.
        perform pgps_internal.create_function(format(
            'pgps_internal.bring_%s(pgps_events jsonb, pgps_publisher name, pgps_reliability text, pgps_raiser text, pgps_handler text, pgps_client text,
            pgps_timezone text) returns bigint', v_type.type_id),
            -- As in forward_stage.
            format($sql$language plpgsql volatile set search_path = pg_catalog, pg_temp set datestyle = 'ISO, YMD' set intervalstyle = postgres
            set lc_monetary = 'C' as %L$sql$, format($body$
            declare
                v_type pgps_internal.event_type;
                v_carries boolean;
            begin
                select t.* into v_type from pgps_internal.event_type t where t.type_id = %5$s;
                if current_setting('timezone') <> pgps_timezone then
                    perform set_config('timezone', pgps_timezone, true);
                end if;
                v_carries := pgps_internal.assume(v_type, pgps_publisher, pgps_reliability, pgps_raiser, pgps_handler, pgps_client);
                insert into pgps_internal.%1$I (%2$s) select %3$s from jsonb_populate_recordset(null::%4$s, pgps_events) r;
                if v_carries then
                    perform pgps_internal.carry(v_type, currval('pgps_internal.event_id_seq'));
                end if;
                return currval('pgps_internal.event_id_seq');
            end$body$, v_type.name || '_entry', pgps_internal.column_list(v_type.endpoint), pgps_internal.column_list(v_type.endpoint, 'r.'), v_type.endpoint,
            v_type.type_id)));
    end if;
    -- What a note of a direct event stands for, in one statement: a push is to be quick. The segments stand in it: to set up the scans of all
    -- four of each ledger took two thirds of its time.
    perform pgps_internal.create_function(format(
        'pgps_internal.push_%s(pgps_client bigint, pgps_note integer, pgps_name text, pgps_xid xid8, pgps_first bigint, pgps_after bigint, pgps_hi bigint,
        pgps_max integer, pgps_type text, pgps_handler text, pgps_broker text) returns pgps_internal.handed[]', v_type.type_id),
        format($sql$language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_bitmapscan = off as %L$sql$, format($body$
        declare
            c pgps_internal.control;
            v_slot bigint := pgps_first / 65536;
            v_last bigint := pgps_hi / 65536 - pgps_first / 65536;
            v_raiser text;
            v_origin text := pgps_broker;
        begin
            select x.* into c from pgps_internal.control x
            where x.xid = pgps_xid and x.hi = pgps_hi and x.type_id = %3$s and (x.hi / 65536) %% 4 = (pgps_hi / 65536) %% 4;
            if not found then
                return null;
            elsif not (coalesce(c.handler, pgps_handler) = 'all'
                    or pgps_internal.is_for(pgps_client, coalesce(c.handler, pgps_handler), c.xid, c.hi, c.client_id, c.publisher)) then
                return '{}';
            end if;
            if c.client_id is not null then
                v_raiser := (select k.name from pgps_internal.client k where k.client_id = c.client_id);
            end if;
            if c.origin_id is not null then
                v_origin := (select o.name from pgps_internal.origin o where o.origin_id = c.origin_id);
            end if;
            return array(
                select (pgps_note, pgps_name, v_raiser, coalesce((select f.event_id from %2$s f
                        where f.event_id >= c.lo and f.event_id <= c.hi and f.xid = pgps_xid
                            and (f.event_id / 65536) %% 4 in (v_slot %% 4, (v_slot + least(v_last, 1)) %% 4, (v_slot + least(v_last, 2)) %% 4, (v_slot + least(v_last, 3)) %% 4)
                        order by f.event_id limit 1), l.event_id),
                    (null, l.event_id, pgps_type, (select to_jsonb(pgps_row) from (select %1$s) pgps_row), c.published_at,
                        pg_get_userbyid(c.publisher), coalesce(nullif(c.raiser, '0'), l.xid), v_origin, 1, c.handler, c.client_id, c.lo, c.hi)::pgps_internal.message)::pgps_internal.handed
                from %2$s l
                where l.event_id > pgps_after and l.event_id <= pgps_hi and l.xid = pgps_xid
                    and (l.event_id / 65536) %% 4 in (v_slot %% 4, (v_slot + least(v_last, 1)) %% 4, (v_slot + least(v_last, 2)) %% 4, (v_slot + least(v_last, 3)) %% 4)
                order by l.event_id limit pgps_max);
        end$body$, v_attributes, v_type.log, v_type.type_id)));
    -- Static, so that its plan is kept. The segment stands in the join, so that one is looked into for each event, not four.
    perform pgps_internal.create_function(format(
        'pgps_internal.unfold_%s(pgps_taken pgps_internal.received[], pgps_ids bigint[], pgps_type text, pgps_broker text)
        returns pgps_internal.message[]', v_type.type_id),
        format($sql$language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_bitmapscan = off as %L$sql$, format($body$
        declare
            v_messages pgps_internal.message[];
            v_first bigint := pgps_taken[1].event_id / 65536 %% 4;
            v_last bigint := pgps_taken[cardinality(pgps_taken)].event_id / 65536 %% 4;
        begin
            -- Mostly all are in one segment of the log, and their statements in the same one of the control queue. To set up the scans
            -- of the others took more than finding the events.
            select array_agg((r.place, l.event_id, pgps_type, (select to_jsonb(pgps_row) from (select %1$s) pgps_row), c.published_at,
                pg_get_userbyid(c.publisher), coalesce(nullif(c.raiser, '0'), l.xid), case when c.origin_id is null then pgps_broker
                    else (select o.name from pgps_internal.origin o where o.origin_id = c.origin_id) end, r.attempt,
                c.handler, c.client_id, c.lo, c.hi)::pgps_internal.message) into v_messages
            from unnest(pgps_taken) with ordinality r(batch_id, event_id, type_id, attempt, place)
            join %2$s l on l.event_id = r.event_id and (l.event_id / 65536) %% 4 in (v_first, v_last)
            cross join lateral (select c.published_at, c.publisher, c.origin_id, c.handler, c.client_id, c.lo, c.hi, c.raiser from pgps_internal.control c
                where c.xid = l.xid and c.hi >= l.event_id and c.lo <= l.event_id and c.type_id = %4$s and (c.hi / 65536) %% 4 in (v_first, v_last)
                order by c.hi limit 1) c
            where r.type_id = %4$s and (pgps_ids is null or r.event_id = any (pgps_ids));
            if cardinality(v_messages) = coalesce(cardinality(pgps_ids), cardinality(pgps_taken)) then
                return v_messages;
            end if;
            select array_agg((r.place, l.event_id, pgps_type, (select to_jsonb(pgps_row) from (select %1$s) pgps_row), c.published_at,
                pg_get_userbyid(c.publisher), coalesce(nullif(c.raiser, '0'), l.xid), case when c.origin_id is null then pgps_broker
                    else (select o.name from pgps_internal.origin o where o.origin_id = c.origin_id) end, r.attempt,
                c.handler, c.client_id, c.lo, c.hi)::pgps_internal.message) into v_messages
            from unnest(pgps_taken) with ordinality r(batch_id, event_id, type_id, attempt, place)
            join %2$s l on l.event_id = r.event_id and (l.event_id / 65536) %% 4 = (r.event_id / 65536) %% 4
            left join lateral (select c.published_at, c.publisher, c.origin_id, c.handler, c.client_id, c.lo, c.hi, c.raiser from pgps_internal.control c
                where c.xid = l.xid and c.hi >= l.event_id and c.lo <= l.event_id and c.type_id = %4$s order by c.hi limit 1) c on true
            where r.type_id = %4$s and (pgps_ids is null or r.event_id = any (pgps_ids));
            if coalesce(cardinality(v_messages), 0) < coalesce(cardinality(pgps_ids), cardinality(pgps_taken)) then
                v_messages := coalesce(v_messages, '{}') || (
                    select array_agg((r.place, l.event_id, pgps_type, (select to_jsonb(pgps_row) from (select %1$s) pgps_row), l.pgps_published_at,
                        pg_get_userbyid(l.pgps_publisher), l.xid, coalesce(l.pgps_origin, pgps_broker), r.attempt, null, null, null, null)::pgps_internal.message)
                    from unnest(pgps_taken) with ordinality r(batch_id, event_id, type_id, attempt, place)
                    join pgps_internal.%3$I l on l.event_id = r.event_id
                    where r.type_id = %4$s and (pgps_ids is null or r.event_id = any (pgps_ids))
                        and r.event_id not in (select (m).event_id from unnest(v_messages) m));
            end if;
            return v_messages;
        end$body$, v_attributes, v_type.log, v_type.name || '_kept', v_type.type_id)));
    perform pgps_internal.build_carry(v_type, v_attributes);
    perform pgps_internal.build_views(v_type);
    perform pgps_internal.build_link(v_type);
    perform pgps_internal.build_receive(v_type);
    perform pgps_internal.build_log_view(v_type);
    perform pgps_internal.build_signature(g.signature_id) from pgps_internal.signature g where g.type_id = v_type.type_id;
    perform pgps_internal.build_visible(v_type.type_id, c.owner)
    from (select distinct c.owner from pgps_internal.class c where c.type_id = v_type.type_id) c;
    perform pgps_internal.build_callback(m.subscription_id, v_type.type_id)
    from pgps_internal.member m join pgps_internal.subscription s using (subscription_id)
    where m.type_id = v_type.type_id and s.callback is not null;
end
$$;
comment on function pgps_internal.build_code(integer) is 'Generates all code of an event type; again after its attributes have changed';

create or replace function pgps_internal.drop_functions(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_function regprocedure;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = drop_functions.type_id;
    for v_function in
        select p.oid from pg_proc p
        where p.pronamespace = 'pgps_internal'::regnamespace and (
            p.proname in ('cut_' || v_type.type_id, 'rows_' || v_type.type_id, 'events_' || v_type.type_id, 'unfold_' || v_type.type_id,
                'slice_' || v_type.type_id, 'statement_' || v_type.type_id, 'sent_' || v_type.type_id, 'take_' || v_type.type_id, 'push_' || v_type.type_id, 'carry_' || v_type.type_id, 'bring_' || v_type.type_id)
            or p.proname ~ format('^(visible_%s_|callback_\d+_%s$)', v_type.type_id, v_type.type_id)
            or p.proname in (select 'match_' || g.signature_id from pgps_internal.signature g where g.type_id = v_type.type_id))
    loop
        execute format('drop function %s', v_function);
    end loop;
    perform pgps_internal.drop_receive(v_type);
    execute format('drop view if exists pgps_link.%I', v_type.name || '_sent');
    execute format('drop type if exists pgps_internal.wire_%s', v_type.type_id);
end
$$;
comment on function pgps_internal.drop_functions(integer) is
'Drops the generated code of an event type, but for the views that users may have built upon';

create or replace function pgps_internal.drop_code(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := (select t.name from pgps_internal.event_type t where t.type_id = drop_code.type_id);
begin
    perform pgps_internal.drop_functions(drop_code.type_id);
    execute format('drop view if exists pgps_queue.%I, pgps_queue.%I, pgps_queue.%I, pgps_queue.%I',
        v_name || '_in', v_name || '_out', v_name || '_exception', v_name || '_log');
end
$$;
comment on function pgps_internal.drop_code(integer) is 'Drops the generated code of an event type';

revoke all on all functions in schema pgps_internal from public;
