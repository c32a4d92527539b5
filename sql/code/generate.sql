-- Generated code: what an event type and a signature need to be matched and handed out. Made when something is defined; what runs per
-- batch is static plpgsql with cached plans. Two tiers of filters:
--   safe   nothing but the event's attributes, constants and built-in data functions: runs with the owner's code, joined to the log
--   owner  anything else (tables, functions): a SECURITY DEFINER function owned by the subscriber, given the events as an array
-- Locks: those of CREATE and DROP on what is generated.

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
        format($sql$language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_bitmapscan = off as %L$sql$, format($body$
        declare
            v_cut pgps_internal.taken;
        begin
            if upper(pgps_ranges) - lower(pgps_ranges) <= 100 then
                select coalesce(range_agg(int8range(l.event_id, l.event_id, '[]')), '{}'), count(*), coalesce(bool_or(l._producer is not null), false)
                into v_cut.ids, v_cut.events, v_cut.numbered
                from %1$s l
                where l.event_id between lower(pgps_ranges) and upper(pgps_ranges) - 1 and l.event_id <@ pgps_ranges and l.xid = any (pgps_xids);
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
        perform pgps_internal.create_function(format('pgps_internal.bring_%s(pgps_events jsonb) returns void', v_type.type_id),
            format($sql$language plpgsql volatile set search_path = pg_catalog, pg_temp as %L$sql$, format($body$
            begin
                insert into pgps_internal.%1$I (%2$s) select %3$s from jsonb_populate_recordset(null::%4$s, pgps_events) r;
            end$body$, v_type.name || '_entry', pgps_internal.column_list(v_type.endpoint), pgps_internal.column_list(v_type.endpoint, 'r.'), v_type.endpoint)));
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
                        pg_get_userbyid(c.publisher), l.xid, v_origin, 1, c.handler, c.client_id, c.lo, c.hi)::pgps_internal.message)::pgps_internal.handed
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
        begin
            select array_agg((r.place, l.event_id, pgps_type, (select to_jsonb(pgps_row) from (select %1$s) pgps_row), c.published_at,
                pg_get_userbyid(c.publisher), l.xid, case when c.origin_id is null then pgps_broker
                    else (select o.name from pgps_internal.origin o where o.origin_id = c.origin_id) end, r.attempt,
                c.handler, c.client_id, c.lo, c.hi)::pgps_internal.message) into v_messages
            from unnest(pgps_taken) with ordinality r(batch_id, event_id, type_id, attempt, place)
            join %2$s l on l.event_id = r.event_id and (l.event_id / 65536) %% 4 = (r.event_id / 65536) %% 4
            left join lateral (select c.published_at, c.publisher, c.origin_id, c.handler, c.client_id, c.lo, c.hi from pgps_internal.control c
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

create or replace function pgps_internal.drop_code(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_function regprocedure;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = drop_code.type_id;
    for v_function in
        select p.oid from pg_proc p
        where p.pronamespace = 'pgps_internal'::regnamespace and (
            p.proname in ('cut_' || v_type.type_id, 'rows_' || v_type.type_id, 'events_' || v_type.type_id, 'unfold_' || v_type.type_id,
                'slice_' || v_type.type_id, 'statement_' || v_type.type_id, 'sent_' || v_type.type_id, 'take_' || v_type.type_id, 'push_' || v_type.type_id, 'bring_' || v_type.type_id)
            or p.proname ~ format('^(visible_%s_|callback_\d+_%s$)', v_type.type_id, v_type.type_id)
            or p.proname in (select 'match_' || g.signature_id from pgps_internal.signature g where g.type_id = v_type.type_id))
    loop
        execute format('drop function %s', v_function);
    end loop;
    perform pgps_internal.drop_receive(v_type);
    execute format('drop view if exists pgps_queue.%I, pgps_queue.%I, pgps_queue.%I, pgps_link.%I',
        v_type.name || '_in', v_type.name || '_out', v_type.name || '_exception', v_type.name || '_sent');
    execute format('drop view if exists pgps_queue.%I', v_type.name || '_log');
    execute format('drop type if exists pgps_internal.wire_%s', v_type.type_id);
end
$$;
comment on function pgps_internal.drop_code(integer) is 'Drops the generated code of an event type';

create or replace function pgps_internal.environment_clause(environment jsonb) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select 'set standard_conforming_strings = on '
        || string_agg(format('set %s = %s', e.key, case e.key when 'search_path' then e.value else quote_literal(e.value) end), ' ')
    from jsonb_each_text(environment_clause.environment) e
$$;
comment on function pgps_internal.environment_clause(jsonb) is 'SET clauses that give generated code the settings under which a filter was written';

create or replace function pgps_internal.write_constants(shape text, alias text) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$ select regexp_replace(write_constants.shape, '\$(\d+)', write_constants.alias || '.pgps_\1', 'g') $$;
comment on function pgps_internal.write_constants(text, text) is 'A shape with $1, $2 … as columns pgps_1, pgps_2 … of alias';

create or replace function pgps_internal.build_signature(signature_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_signature pgps_internal.signature;
    v_type pgps_internal.event_type;
    v_count integer;
    v_constants text;
begin
    select g.* into v_signature from pgps_internal.signature g where g.signature_id = build_signature.signature_id;
    select t.* into v_type from pgps_internal.event_type t where t.type_id = v_signature.type_id;
    v_count := cardinality(v_signature.parameter_types);
    if v_signature.tier = 'safe' then
        if v_signature.has_table then
            v_constants := format('(select * from pgps_internal.const_%s)', v_signature.signature_id);
        else
            v_constants := format('(select c.class_id as pgps_class %s from pgps_internal.class c where c.signature_id = %s and c.is_active offset 0)',
                (select coalesce(string_agg(format(', c.constants[%s]::%s as pgps_%s', n, v_signature.parameter_types[n], n), '' order by n), '')
                    from generate_series(1, v_count) n), v_signature.signature_id);
        end if;
        -- It notes the deliveries itself: handing out 50,000 of them costs as much as finding them.
        perform pgps_internal.create_function(format(
            'pgps_internal.match_%s(pgps_batch bigint, pgps_ids int8multirange, pgps_only int8range) returns bigint[]', v_signature.signature_id),
            format('language plpgsql volatile %s as %L', pgps_internal.environment_clause(v_signature.environment), format($body$
            #variable_conflict use_column
            declare
                pgps_matched bigint[];
            begin
                with pgps_found as (
                    select pgps_c.pgps_class, pg_catalog.array_agg(%1$I.event_id) as pgps_events, pg_catalog.min(%1$I.event_id) as pgps_lowest,
                        pg_catalog.max(%1$I.event_id) as pgps_highest
                    from %2$s as %1$I, %3$s as pgps_c
                    where %1$I.event_id between pg_catalog.lower(pgps_ids) and pg_catalog.upper(pgps_ids) - 1 and %1$I.event_id <@ pgps_ids
                        and (pgps_only is null or pgps_c.pgps_class between pg_catalog.lower(pgps_only) and pg_catalog.upper(pgps_only) - 1)
                        and (%4$s
                        )
                    group by pgps_c.pgps_class
                ),
                pgps_noted as (
                    insert into pgps_internal.delivery (batch_id, class_id, type_id, events, event_ids, ids)
                    select pgps_batch, f.pgps_class, %5$s, pg_catalog.cardinality(f.pgps_events),
                        case when f.pgps_lowest = f.pgps_highest or f.pgps_highest - f.pgps_lowest + 1 <> pg_catalog.cardinality(f.pgps_events)
                            then f.pgps_events end,
                        case when f.pgps_lowest < f.pgps_highest and f.pgps_highest - f.pgps_lowest + 1 = pg_catalog.cardinality(f.pgps_events)
                            then pg_catalog.int8multirange(pg_catalog.int8range(f.pgps_lowest, f.pgps_highest, '[]')) end
                    from pgps_found f
                    returning class_id
                )
                select pg_catalog.array_agg(n.class_id) into pgps_matched from pgps_noted n;
                return pgps_matched;
            end$body$, v_type.name, v_type.log, v_constants, pgps_internal.write_constants(v_signature.shape, 'pgps_c'), v_type.type_id)));
    else
        perform pgps_internal.build_owner_match(v_signature, v_type);
    end if;
end
$$;
comment on function pgps_internal.build_signature(bigint) is 'Generates the matching function of a signature';

create or replace function pgps_internal.build_owner_match(signature pgps_internal.signature, event_type pgps_internal.event_type) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_count integer := cardinality((build_owner_match.signature).parameter_types);
    v_types text[] := (build_owner_match.signature).parameter_types;
    v_name text := format('pgps_internal.match_%s', (build_owner_match.signature).signature_id);
    v_arguments text;
begin
    v_arguments := format('pgps_ids bigint[], pgps_rows pgps_event.%I[], pgps_classes bigint[]%s', (build_owner_match.event_type).name,
        (select coalesce(string_agg(format(', pgps_p%s %s[]', n, v_types[n]), '' order by n), '') from generate_series(1, v_count) n));
    perform pgps_internal.create_function(format(
        '%s(%s) returns table (pgps_class bigint, pgps_events bigint[], pgps_lowest bigint, pgps_highest bigint)', v_name, v_arguments),
        format('language plpgsql volatile security definer set enable_seqscan = on %s as %L',
            pgps_internal.environment_clause((build_owner_match.signature).environment), format($body$
            #variable_conflict use_column
            begin
                return query
                select pgps_c.pgps_class, pg_catalog.array_agg(%1$I.pgps_id), pg_catalog.min(%1$I.pgps_id), pg_catalog.max(%1$I.pgps_id)
                from rows from (pg_catalog.unnest(pgps_ids), pg_catalog.unnest(pgps_rows)) as %1$I(pgps_id, %2$s),
                    rows from (pg_catalog.unnest(pgps_classes)%3$s) as pgps_c(pgps_class%4$s)
                where (%5$s
                )
                group by pgps_c.pgps_class;
            end$body$, (build_owner_match.event_type).name, pgps_internal.column_list((build_owner_match.event_type).endpoint),
            (select coalesce(string_agg(format(', pg_catalog.unnest(pgps_p%s)', n), '' order by n), '') from generate_series(1, v_count) n),
            (select coalesce(string_agg(format(', pgps_%s', n), '' order by n), '') from generate_series(1, v_count) n),
            pgps_internal.write_constants((build_owner_match.signature).shape, 'pgps_c'))));
    execute format('alter function %s(%s) owner to %s', v_name, v_arguments, (build_owner_match.signature).owner);
end
$$;
comment on function pgps_internal.build_owner_match(pgps_internal.signature, pgps_internal.event_type) is
'The matching function of a filter that may read tables: runs with its owner''s rights, sees the events it is given and no log';

create or replace function pgps_internal.promote(signature_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_signature pgps_internal.signature;
    v_table text := format('pgps_internal.const_%s', promote.signature_id);
    v_count integer;
begin
    select g.* into v_signature from pgps_internal.signature g where g.signature_id = promote.signature_id for update;
    if v_signature.has_table then
        return;
    end if;
    v_count := cardinality(v_signature.parameter_types);
    execute format('create table %s (pgps_class bigint primary key%s)', v_table,
        (select string_agg(format(', pgps_%s %s', n, v_signature.parameter_types[n]), '' order by n) from generate_series(1, v_count) n));
    execute format('insert into %s select c.class_id%s from pgps_internal.class c where c.signature_id = %s and c.is_active', v_table,
        (select string_agg(format(', c.constants[%s]::%s', n, v_signature.parameter_types[n]), '' order by n) from generate_series(1, v_count) n),
        promote.signature_id);
    if cardinality(v_signature.key_columns) > 0 then
        execute format('create index on %s (%s)', v_table, (select string_agg('pgps_' || k, ', ' order by place)
            from unnest(v_signature.key_columns) with ordinality u(k, place)));
    end if;
    execute format('analyze %s', v_table);
    update pgps_internal.signature g set has_table = true where g.signature_id = promote.signature_id;
    perform pgps_internal.build_signature(promote.signature_id);
end
$$;
comment on function pgps_internal.promote(bigint) is
'Gives a signature with many members a table of constants, indexed by its equality conditions first, then one range (Hanson et al. 1999)';

create or replace function pgps_internal.drop_signature(signature_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_function regprocedure;
begin
    for v_function in select p.oid from pg_proc p
        where p.pronamespace = 'pgps_internal'::regnamespace and p.proname = 'match_' || drop_signature.signature_id loop
        execute format('drop function %s', v_function);
    end loop;
    if to_regclass(format('pgps_internal.const_%s', drop_signature.signature_id)) is not null then
        execute format('drop table pgps_internal.const_%s', drop_signature.signature_id);
    end if;
    delete from pgps_internal.member m using pgps_internal.class c
    where m.class_id = c.class_id and c.signature_id = drop_signature.signature_id;
    delete from pgps_internal.signature g where g.signature_id = drop_signature.signature_id;
end
$$;
comment on function pgps_internal.drop_signature(bigint) is 'Drops a signature with its function, constants and classes';

create or replace function pgps_internal.store_constants(class pgps_internal.class, signature pgps_internal.signature) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('insert into pgps_internal.const_%s select $1%s', (store_constants.signature).signature_id,
        (select string_agg(format(', ($2)[%s]::%s', n, (store_constants.signature).parameter_types[n]), '' order by n)
            from generate_subscripts((store_constants.signature).parameter_types, 1) n))
    using (store_constants.class).class_id, (store_constants.class).constants;
end
$$;
comment on function pgps_internal.store_constants(pgps_internal.class, pgps_internal.signature) is 'Puts a class into its signature''s table of constants';

create or replace function pgps_internal.set_class_active(class_id bigint, active boolean) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_class pgps_internal.class;
    v_signature pgps_internal.signature;
begin
    update pgps_internal.class c set is_active = set_class_active.active, failures = 0
    where c.class_id = set_class_active.class_id returning * into v_class;
    select g.* into v_signature from pgps_internal.signature g where g.signature_id = v_class.signature_id;
    if v_signature.has_table then
        execute format('delete from pgps_internal.const_%s where pgps_class = $1', v_signature.signature_id) using v_class.class_id;
        if set_class_active.active then
            perform pgps_internal.store_constants(v_class, v_signature);
        end if;
    end if;
end
$$;
comment on function pgps_internal.set_class_active(bigint, boolean) is 'Takes a class into matching, or out of it';

revoke all on all functions in schema pgps_internal from public;
