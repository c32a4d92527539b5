-- Small batches: their events travel in the answer of pgps.link_next, each as the text of a row, and are received in
-- one statement (decision 34).
-- Locks: those of pgps.link_begin.
-- Writes: arrival.

create or replace function pgps_internal.is_plain_text(type regtype) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- Types whose text means the same at another broker, if it is written and read under the same settings: no names or
    -- oids of objects. Types that are not built in travel as text in any batch; whether that text is exact is up to the
    -- type.
    select is_plain_text.type::oid >= 16384
        or t.oid = any ('{bool,int2,int4,int8,float4,float8,numeric,text,varchar,bpchar,bytea,date,time,timetz,
            timestamp,timestamptz,interval,uuid,json,jsonb,inet,cidr,macaddr,macaddr8,bit,varbit,money,point,lseg,
            path,box,polygon,line,circle,
            int4range,int8range,numrange,tsrange,tstzrange,daterange,int4multirange,int8multirange,nummultirange,
            tsmultirange,tstzmultirange,datemultirange}'::regtype[])
        or t.typsubscript = 'array_subscript_handler'::regproc and pgps_internal.is_plain_text(t.typelem::regtype)
    from pg_type t where t.oid = is_plain_text.type
$$;
comment on function pgps_internal.is_plain_text(regtype) is
'True for types whose text represents a value fully, and means the same at another broker';

create or replace function pgps_internal.text_settings(endpoint regclass) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_settings text := 'set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan';
    v_times text := ' set datestyle = ''ISO, YMD'' set timezone = ''UTC''';
    v_types oid[] := array(select case when t.typsubscript = 'array_subscript_handler'::regproc then t.typelem
        else a.atttypid end
        from pg_attribute a join pg_type t on t.oid = a.atttypid where a.attrelid = text_settings.endpoint
            and a.attnum > 0 and not a.attisdropped);
    v_fixed oid[] := '{bool,int2,int4,int8,numeric,text,varchar,bpchar,uuid,json,jsonb,inet,cidr,macaddr,macaddr8,bit,
        varbit,int4range,int8range,numrange}'::regtype[];
    v_timed oid[] := '{date,time,timestamp,timestamptz}'::regtype[];
begin
    -- Only what the types need: each setting costs time at every call, time zone and currency most.
    if v_types <@ v_fixed then
        return v_settings;
    elsif v_types <@ (v_fixed || v_timed) then
        return v_settings || v_times;
    end if;
    return v_settings || v_times
        || ' set intervalstyle = postgres set extra_float_digits = 1 set bytea_output = hex set lc_monetary '
        '= ''C'' set xmloption = content';
end
$$;
comment on function pgps_internal.text_settings(regclass) is
'The settings under which the text of an event type''s values is written and read: those that the text depends on';

create or replace function pgps_internal.small_parts(shipments pgps_internal.shipment[]) returns jsonb
language plpgsql stable
as $$
declare
    v_only bigint;
    v_types integer[];
    v_rewound boolean;
    v_type pgps_internal.event_type;
    v_part jsonb;
begin
    if cardinality(small_parts.shipments) = 1 then
        v_types := array[small_parts.shipments[1].slices[1].type_id] || small_parts.shipments[1].slices[2].type_id;
        v_rewound := small_parts.shipments[1].body is not null;
        v_only := case when small_parts.shipments[1].events = 1 then lower(small_parts.shipments[1].slices[1].ids) end;
    else
        select array_agg(distinct s.type_id), coalesce(bool_or(o.body is not null), false) into v_types, v_rewound
        from unnest(small_parts.shipments) o left join lateral unnest(o.slices) s on true where o.upto is not null;
    end if;
    v_types := array_remove(v_types, null);
    if cardinality(v_types) <> 1 or v_rewound then
        return null;
    end if;
    select t.* into v_type from pgps_internal.event_type t where t.type_id = v_types[1];
    if not found then
        -- Dropped since, with its events: as below.
        return '[]';
    end if;
    execute 'select pgps_internal.sent_' || v_types[1] || '($1, $2)' using small_parts.shipments, v_only into v_part;
    if v_part is null then
        return null;
    elsif v_part -> 'rows' = 'null' then
        -- The events are missing from the log without a reclaim. The receiver finds that they did not come, and reports
        -- it.
        return '[]';
    end if;
    if v_part -> 'attributes' = 'null' then
        v_part := v_part || jsonb_build_object('attributes', pgps_internal.wire_columns(v_type.endpoint));
    end if;
    return jsonb_build_array(v_part || jsonb_build_object('name', v_type.name, 'ordered', false));
end
$$;
comment on function pgps_internal.small_parts(pgps_internal.shipment[]) is
'As pgps_internal.parts, with the events themselves; null when they cannot travel as text: of several types, rewound, of
a type without exact text, or too long';

drop function if exists pgps_internal.store_rows(pgps_internal.neighbour, jsonb, jsonb);
create or replace function pgps_internal.store_rows(neighbour pgps_internal.neighbour, wire jsonb) returns jsonb
language plpgsql
as $$
declare
    v_type pgps_internal.event_type;
    v_known jsonb := store_rows.wire -> 'attributes';
    v_count bigint := pgps_internal.count_runs(store_rows.wire -> 'runs');
    v_ids bigint[];
begin
    if v_known @? '$[*] ? (@.as_text == true)' then
        v_type := pgps_internal.received_type(store_rows.neighbour, store_rows.wire);
        v_known := null;
    else
        select t.* into v_type from pgps_internal.event_type t where t.name = store_rows.wire ->> 'name';
    end if;
    if v_type.type_id is not null then
        if v_known is not null then
            perform pgps_internal.require_publisher(store_rows.neighbour, v_type);
        end if;
        execute format('select pgps_internal.store_%s($1, $2)', v_type.type_id) using store_rows.wire -> 'rows', v_known
            into v_ids;
    end if;
    if v_ids is null then
        -- Raises with the difference if the types differ. Otherwise only their descriptions do.
        perform pgps_internal.received_type(store_rows.neighbour, store_rows.wire);
        raise exception 'event type "%" of broker "%" cannot go straight into the log', store_rows.wire ->> 'name',
            (store_rows.neighbour).name
        using errcode = '40001', hint = 'Again with staged.';
    end if;
    if cardinality(v_ids) <> v_count or v_count = 0 then
        raise exception '% events of type "%" came, and % were said', cardinality(v_ids), v_type.name, v_count
        using errcode = '55000', hint = 'The link is opened again and sends them anew.';
    end if;
    return pgps_internal.runs_with_ids(store_rows.wire -> 'runs', v_type.type_id, v_ids[1],
        case when v_ids[v_count] - v_ids[1] + 1 <> v_count then v_ids end);
end
$$;
comment on function pgps_internal.store_rows(pgps_internal.neighbour, jsonb) is
'Puts the rows of a batch into the log and returns its runs with their ids. Errors: 55000 another schema, 42501, 40001
not all would be taken, class 22 and 23 a value or constraint refuses; the batch is then received once more with
staged.';

create or replace function pgps_internal.require_next(neighbour pgps_internal.neighbour, batch jsonb, last bigint)
returns void
language plpgsql
as $$
begin
    if (require_next.batch ->> 'after')::bigint is distinct from require_next.last then
        raise exception 'a batch behind % came from broker "%", and the last received is %',
            require_next.batch ->> 'after',
            (require_next.neighbour).name, require_next.last
        using errcode = '55000', hint = 'The link is opened again and goes on from there.';
    elsif jsonb_array_length(require_next.batch -> 'items') > 1000 then
        raise exception 'a batch of % items came from broker "%", which are too many for one transaction',
            jsonb_array_length(require_next.batch -> 'items'), (require_next.neighbour).name
        using errcode = '54000', hint = 'pgps.link_next gives at most 1000.';
    end if;
end
$$;
comment on function pgps_internal.require_next(pgps_internal.neighbour, jsonb, bigint) is
'Raises 55000 unless a batch begins where the last received ends, and 54000 when it has more items than a broker sends
at once: other links wait until all are heard';

create or replace function pgps_internal.awaits_answer(neighbour_id integer) returns boolean
language sql stable
as $$
    -- An origin has a parent and an attachment also where nobody here wants anything of it: then nothing was asked.
    select exists (select from pgps_internal.origin o
        where o.parent = awaits_answer.neighbour_id and o.answered is distinct from o.attachment
            and exists (select from pgps_internal.told t
                where t.neighbour_id = o.parent and t.kind = 'attach' and t.key = o.origin_id::text
                    and (t.value ->> 'attachment')::integer = o.attachment))
$$;
comment on function pgps_internal.awaits_answer(integer) is
'True while a neighbour was asked for an origin and has not answered: what comes next of that may be the answer';

create or replace function pgps_internal.may_change_routes(
    neighbour pgps_internal.neighbour, batch jsonb, staged boolean
) returns boolean
language plpgsql stable
as $$
begin
    return (may_change_routes.staged or may_change_routes.batch -> 'types' -> 0 is null)
                and not pgps_internal.is_flowing(may_change_routes.neighbour, may_change_routes.batch -> 'items')
            or pgps_internal.awaits_answer((may_change_routes.neighbour).neighbour_id);
end
$$;
comment on function pgps_internal.may_change_routes(pgps_internal.neighbour, jsonb, boolean) is
'True when a batch may change routes. Data in sequence (is_flowing) changes none, except in the first batch of an
attachment: it is the answer, which is noted.';

create or replace function pgps_internal.note_admitted(
    neighbour pgps_internal.neighbour, batch jsonb, slices jsonb, ids int8multirange, staged boolean
) returns void
language plpgsql
as $$
declare
    v_fetched int8multirange := '{}';
begin
    if note_admitted.staged then
        -- Events that are fetched again never go straight into the log.
        select coalesce(range_agg(r), '{}') into v_fetched from pgps_internal.arrival a, unnest(a.ids) r
        where a.neighbour_id = (note_admitted.neighbour).neighbour_id
            and a.lseq > (note_admitted.batch ->> 'after')::bigint and a.upto < a.horizon;
    end if;
    if v_fetched && note_admitted.ids then
        -- Recorded apart, because nobody here is told of these events.
        perform pgps_internal.note_slices(note_admitted.neighbour, note_admitted.batch, note_admitted.slices,
            note_admitted.ids * v_fetched, false);
    end if;
    if not note_admitted.ids <@ v_fetched then
        perform pgps_internal.note_slices(note_admitted.neighbour, note_admitted.batch, note_admitted.slices,
            note_admitted.ids - v_fetched, true);
    end if;
end
$$;
comment on function pgps_internal.note_admitted(pgps_internal.neighbour, jsonb, jsonb, int8multirange, boolean) is
'Records the slices of a batch that was admitted: events that were fetched again apart from the others';

create or replace function pgps_internal.note_last(
    neighbour pgps_internal.neighbour, batch jsonb, item jsonb, staged boolean
) returns void
language plpgsql
as $$
begin
    -- Unless the row of the last item has the number. That is the common case: the item has events, and all were taken
    -- just now.
    if (note_last.staged or ((note_last.item ->> 'events')::integer > 0
        and note_last.item -> 'lseq' = note_last.batch -> 'upto') is not true)
            and pgps_internal.last_received((note_last.neighbour).neighbour_id)
                < (note_last.batch ->> 'upto')::bigint then
        insert into pgps_internal.arrival (neighbour_id, lseq, mark)
        values ((note_last.neighbour).neighbour_id, (note_last.batch ->> 'upto')::bigint, note_last.batch ->> 'mark');
    end if;
end
$$;
comment on function pgps_internal.note_last(pgps_internal.neighbour, jsonb, jsonb, boolean) is
'Notes the last number of a batch that was admitted; item: its last one';

create or replace function pgps_internal.admit_batch(
    neighbour pgps_internal.neighbour, batch jsonb, slices jsonb, staged boolean
) returns jsonb
language plpgsql
as $$
declare
    v_item jsonb;
    v_slices jsonb;
    v_ids int8multirange := '{}';
    v_heard boolean := false;
    -- The last batch of the dispatcher before filters are heard.
    v_began bigint := case when admit_batch.batch @? '$.items[*] ? (@.kind == "sub")'
        then coalesce((pgps_internal.last_batch()).batch_id, 0) end;
    v_counts jsonb := '[]';
begin
    -- The turn of routes is taken before any other lock, or two receivers would wait for each other.
    if pgps_internal.may_change_routes(admit_batch.neighbour, admit_batch.batch, admit_batch.staged) then
        perform pgps_internal.hold_routes();
    end if;
    v_slices := pgps_internal.slices_by_item(admit_batch.neighbour, admit_batch.batch -> 'items', admit_batch.slices);
    for v_item in select i.value from jsonb_array_elements(admit_batch.batch -> 'items') with ordinality i(value, n)
        order by i.n loop
        if v_item ? 'upto' then
            v_ids := v_ids + pgps_internal.admit_item(admit_batch.neighbour, v_item,
                coalesce(v_slices -> (v_item ->> 'lseq'), '[]'), admit_batch.batch ->> 'mark');
        elsif v_item ->> 'kind' = 'audit' then
            v_counts := v_counts || jsonb_build_array((v_item -> 'body')
                || jsonb_build_object('lseq', v_item -> 'lseq'));
        else
            perform pgps_internal.hear(admit_batch.neighbour, v_item ->> 'kind', v_item -> 'body');
            v_heard := true;
        end if;
    end loop;
    if admit_batch.staged then
        perform pgps_internal.publish_stages(admit_batch.neighbour, admit_batch.batch, admit_batch.slices, v_ids);
    elsif pgps_internal.count_ids(v_ids) <> pgps_internal.count_runs(admit_batch.batch #> '{types,0,runs}') then
        raise exception 'what came from broker "%" cannot go straight into the log', (admit_batch.neighbour).name
        using errcode = '40001', hint = 'Again with staged.';
    end if;
    if admit_batch.batch -> 'types' -> 0 is not null then
        perform pgps_internal.note_admitted(admit_batch.neighbour, admit_batch.batch, admit_batch.slices, v_ids,
            admit_batch.staged);
    end if;
    -- Last, because events that are compared have to be in the log.
    if v_counts <> '[]' then
        perform pgps_internal.hear_counts(admit_batch.neighbour, c.value) from jsonb_array_elements(v_counts) c;
    end if;
    perform pgps_internal.note_last(admit_batch.neighbour, admit_batch.batch, v_item, admit_batch.staged);
    if v_heard then
        perform pg_notify('pgps_link', '');
    end if;
    if v_began is not null then
        perform pgps_internal.begin_filters(admit_batch.neighbour, v_began);
    end if;
    return jsonb_build_object('last', (admit_batch.batch ->> 'upto')::bigint, 'taken', pgps_internal.count_ids(v_ids));
end
$$;
comment on function pgps_internal.admit_batch(pgps_internal.neighbour, jsonb, jsonb, boolean) is
'Acts on the items of a batch in their order, and notes that it was received. slices: the ids of its rows; staged: these
are in the staging tables, not in the log';

create or replace function pgps_internal.do_link_take(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_neighbour pgps_internal.neighbour := pgps_internal.linked('receive');
    v_last bigint := pgps_internal.lock_batch(v_neighbour, args);
    v_look record;
    v_slices jsonb := '[]';
begin
    if (args ->> 'after')::bigint < v_last then
        return jsonb_build_object('last', v_last);
    end if;
    perform pgps_internal.require_next(v_neighbour, args, v_last);
    if jsonb_array_length(args -> 'types') > 1 or not coalesce(args -> 'types' -> 0 ? 'rows', true) then
        raise exception 'the events of the batch up to % are not in it', args ->> 'upto' using errcode = '22023',
            hint = 'Use pgps.link_begin(batch) and pgps.link_apply().';
    end if;
    select l.* into v_look from pgps_internal.look_at_items(v_neighbour, args -> 'items') l;
    if args -> 'types' -> 0 is not null then
        if not v_look.is_flowing then
            raise exception 'what came from broker "%" cannot go straight into the log', v_neighbour.name
            using errcode = '40001', hint = 'Again with staged.';
        end if;
        v_slices := pgps_internal.store_rows(v_neighbour, args -> 'types' -> 0);
    end if;
    if v_look.is_settled and args #> '{items,-1,lseq}' = args -> 'upto' then
        return pgps_internal.take_flowing(v_neighbour, args, v_slices, v_look.origins);
    end if;
    return pgps_internal.admit_batch(v_neighbour, args, v_slices, false);
end
$$;
comment on function pgps_internal.do_link_take(name, jsonb) is 'See pgps.link_take';

create or replace function pgps.link_take(batch jsonb) returns jsonb
language sql
begin atomic
    select pgps._call('link_take', link_take.batch);
end;
comment on function pgps.link_take(jsonb) is
'Receives a batch that contains its events (rows in its types), or has none, as pgps.link_begin and pgps.link_apply do,
in one statement that is its own transaction. Returns last, and taken, how many events were taken; a last above the
batch''s after, without taken: it was received before. A batch that is refused because of its data (class 22 or 23) or a
concurrent change (40001) is to be received once more with link_begin and staged. Needs pgps.link_open. Errors: 55000 a
batch is missing, another schema, not open; 42501 the role may not publish a type; 22023 no batch, its events are not in
it; 54000 more than 1000 items.';

revoke all on function pgps.link_take(jsonb) from public;
grant execute on function pgps.link_take(jsonb) to pgps_link, pgps_worker, pgps_admin;
