-- Generated: pgps_internal.sent_<type>, the rows of a small batch as text. Called by small_batches.sql.
-- Writes: nothing.

create or replace function pgps_internal.write_few(names jsonb) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    return pgps_internal.render($query$with stated as (
                    select o.lseq, l.event_id, l.pgps_row, c.control, (c.control).hi as hi
                    from unnest(pgps_shipments) o
                    cross join lateral unnest(o.slices) s
                    cross join lateral unnest(s.ids) w(ids)
                    cross join lateral (select x.event_id, x.xid, {row} as pgps_row from {log} x
                        where x.event_id >= lower(w.ids) and x.event_id < upper(w.ids) offset 0) l
                    left join lateral ({statement}) c on true
                    where s.type_id = {type_id}
                ),
                islands as materialized (
                    select s.*,
                        row_number() over (order by s.lseq, s.event_id) - row_number()
                        over (partition by s.lseq, s.hi order by s.event_id) as island
                    from stated s
                )
                select case when b.bytes <= {few_bytes}
                        then (select to_jsonb(array_agg(i.pgps_row order by i.lseq, i.event_id))
                            from islands i) end as found, b.bytes,
                    (select to_jsonb(array_agg(jsonb_build_object('lseq', g.lseq, 'n', g.n)
                        || pgps_internal.part_of(g.control) order by g.lseq, g.event_id))
                        from (select i.lseq, min(i.event_id) as event_id, count(*) as n,
                            (array_agg(i.control))[1] as control
                            from islands i group by i.lseq, i.hi, i.island) g) as runs
                from (select sum(coalesce(octet_length(i.pgps_row), {few_bytes} + 1)) as bytes from islands i) b$query$,
        write_few.names || jsonb_build_object('statement',
            pgps_internal.statement_of('c as control', write_few.names ->> 'type_id')));
end
$write$;
comment on function pgps_internal.write_few(jsonb) is
'The query of the rows and runs of a few events, a part of pgps_internal.sent_<type>';

create or replace function pgps_internal.write_only(names jsonb) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
declare
    -- As pgps_internal.part_of, whose call takes a row.
    v_part text := $part$jsonb_build_object('published_at', c.published_at)
        || case when c.volatile then '{"volatile": true}'::jsonb else '{}'::jsonb end$part$;
begin
    return pgps_internal.render($body$-- One event: its row and its statement, which mostly is in the same segment.
                select l.pgps_row, l.xid, c.part into v_row, v_xid, v_part
                from (select x.xid, {row} as pgps_row from {log} x
                    where x.event_id = pgps_only
                        and pgps_internal.log_segment(x.event_id) = pgps_internal.log_segment(pgps_only) offset 0) l
                left join lateral ({statement_near}) c on true;
                v_bytes := octet_length(v_row);
                if v_bytes > {few_bytes} or found and v_row is null then
                    return null;
                elsif v_row is not null then
                    v_found := jsonb_build_array(v_row);
                end if;
                if v_part is null then
                    v_part := ({statement_far});
                end if;
                v_runs := jsonb_build_array(
                    jsonb_build_object('lseq', pgps_shipments[1].lseq, 'n', 1) || v_part);$body$,
        write_only.names || jsonb_build_object(
            'statement_near', pgps_internal.statement_of(v_part || ' as part', write_only.names ->> 'type_id',
                'pgps_only', also => ' and pgps_internal.log_segment(c.hi) = pgps_internal.log_segment(pgps_only)'),
            'statement_far', pgps_internal.statement_of(v_part, write_only.names ->> 'type_id', 'pgps_only', 'v_xid')));
end
$write$;
comment on function pgps_internal.write_only(jsonb) is
'The statements for the row and the run of one event, a part of pgps_internal.sent_<type>';

create or replace function pgps_internal.write_sent(event_type pgps_internal.event_type, names jsonb)
returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
declare
    v_wire jsonb := pgps_internal.wire_names((write_sent.event_type).endpoint);
    v_row text := format('row(coalesce(x.pgps_origin_event, x.event_id)%s)::text', v_wire ->> 'wire_sent');
    -- Null for a row that is stored longer than a small batch may be: it is not to be written out only to be measured,
    -- and its text may fit into no JSON. A type without attributes of variable length has no such row.
    v_names jsonb := write_sent.names || v_wire || jsonb_build_object('few_bytes', 65536, 'row',
        case v_wire ->> 'wire_size' when '0' then v_row
            else format('case when %s <= 65536 then %s end', v_wire ->> 'wire_size', v_row) end);
    v_head text := $head$(pgps_shipments pgps_internal.shipment[], pgps_only bigint) returns jsonb
        language plpgsql {wire_settings}$head$;
begin
    if not (v_names ->> 'wire_is_plain')::boolean then
        return pgps_internal.write_function('pgps_internal.sent_{type_id}', v_head, 'begin return null; end', v_names);
    end if;
    -- A row is written and read by the types' input and output functions, never by a cast, which could run a user's
    -- code.
    return pgps_internal.write_function('pgps_internal.sent_{type_id}', v_head, $body$
        declare
            v_row text;
            v_found jsonb;
            v_bytes bigint;
            v_runs jsonb;
            v_xid xid8;
            v_part jsonb;
        begin
            if pgps_only is not null then
                {only}
            else
                -- Few events: the statement of each is looked up, and adjacent events of one statement are a run. For
                -- many see pgps_internal.runs.
                {few}
                into v_found, v_bytes, v_runs;
            end if;
            if v_bytes > {few_bytes} then
                return null;
            end if;
            return jsonb_build_object('rows', v_found, 'runs', v_runs, 'attributes', {wire_known}::jsonb);
        end$body$, v_names || jsonb_build_object('few', pgps_internal.write_few(v_names),
            'only', pgps_internal.write_only(v_names)));
end
$write$;
comment on function pgps_internal.write_sent(pgps_internal.event_type, jsonb) is
'Writes pgps_internal.sent_<type>: the rows and runs of a small batch; null when it is too long, or a type''s text does
not represent its values fully';

create or replace function pgps_internal.wire_names(endpoint regclass) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select jsonb_build_object(
            -- Fixed here only if all types are built in, because others can be renamed.
            'wire_known', case when w.columns @? '$[*] ? (@.as_text == true)' then 'null'
                else quote_literal(w.columns) end,
            'wire_sent', (select coalesce(string_agg(format(', x.%I', c.value ->> 'name'), '' order by c.n), '')
                from jsonb_array_elements(w.columns) with ordinality c(value, n)),
            'wire_columns', (select coalesce(string_agg(format(', %I', c.value ->> 'name'), '' order by c.n), '')
                from jsonb_array_elements(w.columns) with ordinality c(value, n)),
            'wire_stored', (select coalesce(string_agg(format(', (x.w).%I', c.value ->> 'name'), '' order by c.n), '')
                from jsonb_array_elements(w.columns) with ordinality c(value, n)),
            'wire_size', (select coalesce(string_agg(format('coalesce(pg_column_size(x.%I), 0)', a.attname), ' + '
                order by a.attnum), '0') from pg_attribute a where a.attrelid = wire_names.endpoint and a.attnum > 0
                and not a.attisdropped and a.attlen = -1),
            'wire_is_plain', (select coalesce(bool_and(pgps_internal.is_plain_text(a.atttypid::regtype)), true)
                from pg_attribute a where a.attrelid = wire_names.endpoint and a.attnum > 0 and not a.attisdropped),
            'wire_settings', pgps_internal.text_settings(wire_names.endpoint))
        from (select pgps_internal.wire_columns(wire_names.endpoint) as columns) w);
end
$$;
comment on function pgps_internal.wire_names(regclass) is
'Names for the templates of sent_<type> and store_<type>: the attributes as they travel';
