-- Composite events tried on what the broker still holds: what would have been detected, and what became of one event.
-- Nothing is kept.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.do_trial(caller name, args jsonb) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_sources jsonb := args -> 'sources';
begin
    if jsonb_typeof(args -> 'types') is distinct from 'array'
        or jsonb_typeof(v_sources) is distinct from 'array' then
        raise exception 'the event types or their sources are not an array' using errcode = '22023',
            hint = 'Use pgps.try_composite_event.';
    end if;
    return jsonb_build_object('intervals', pgps_internal.interval_types(array(
            select jsonb_array_elements_text(args -> 'types'))),
        'broker', (select p.broker from pgps_internal.progress p),
        'held_since', (select min(b.created_at) from pgps_internal.batch b),
        'sources', (select to_jsonb(array_agg(case when s.name is not null
                then jsonb_build_object('broker', s.broker, 'client', s.client) end order by x.place))
            from jsonb_array_elements_text(v_sources) with ordinality x(name, place)
            left join pgps_internal.source s on s.name = x.name),
        -- Readers of a type see its statements, but not whose clients' they are: these are told for sources alone.
        'clients', (select coalesce(jsonb_object_agg(n.name, n.statements), '{}') from (
            select t.name, to_jsonb(array_agg(jsonb_build_array(c.xid::text::bigint, c.lo, c.hi, k.name) order by c.hi))
                as statements
            from pgps_internal.event_type t join pgps_internal.control c using (type_id)
            join pgps_internal.client k on k.client_id = c.client_id
                and pg_has_role(c.publisher::oid, k.owner::oid, 'usage')
            where t.name in (select jsonb_array_elements_text(args -> 'types'))
                and has_table_privilege(caller, t.endpoint, 'select')
                and k.name in (select s.client from pgps_internal.source s
                    where s.name in (select jsonb_array_elements_text(v_sources)))
            group by t.name) n),
        'types', (select jsonb_object_agg(t.name, jsonb_build_object('type_id', t.type_id,
                'time', (select a.name from pgps_internal.time_attribute a where a.type_id = t.type_id),
                'is_interval', pgps_internal.is_interval(t.endpoint)))
            from pgps_internal.event_type t where t.name in (select jsonb_array_elements_text(args -> 'types'))
                and has_table_privilege(caller, t.endpoint, 'select')),
        'batches', (select coalesce(jsonb_object_agg(b.name, b.ranges), '{}') from (
            select t.name,
                to_jsonb(array_agg(jsonb_build_array(lower(r), upper(r) - 1, b.batch_id) order by lower(r))) as ranges
            from pgps_internal.event_type t join pgps_internal.batch_type b using (type_id), unnest(b.ids) r
            where t.name in (select jsonb_array_elements_text(args -> 'types'))
                and has_table_privilege(caller, t.endpoint, 'select')
            group by t.name) b));
end
$$;
comment on function pgps_internal.do_trial(name, jsonb) is
'What pgps.try_composite_event has to know of event types: their numbers, which of their events are in which batch, and
which come from the clients of the sources';

create or replace function pgps._trial_rows(leaf jsonb, place bigint, known jsonb, ids bigint[], since timestamptz,
    until timestamptz, basis text)
returns jsonb
language plpgsql
set timezone = 'UTC' set datestyle = 'ISO' set intervalstyle = 'postgres'
as $$
declare
    v_name text := _trial_rows.leaf ->> 'type';
    v_type jsonb := _trial_rows.known -> 'types' -> v_name;
    v_some jsonb;
begin
    execute pg_catalog.format($query$
        select coalesce(pg_catalog.to_jsonb(pg_catalog.array_agg(pg_catalog.jsonb_build_object(
            'leaf', $1, 'type', $2, 'id', l.pgps_event_id,
            'at', case when $6 = 'event' then l.pgps_time else l.pgps_published end,
            'origin', coalesce(l.pgps_origin, $3), 'xid', l.pgps_xid::text::bigint, 'payload', l.pgps_payload,
            'starts', l.pgps_starts, 'ends', l.pgps_ends))), '[]')
        from (
            select %1$s.pgps_event_id, %1$s.pgps_xid, (%1$s.pgps_statement).origin as pgps_origin,
                (extract(epoch from (%1$s.pgps_statement).published_at) * 1000000)::bigint as pgps_published,
                (%1$s.pgps_statement).published_at as pgps_at,
                coalesce((pgps._as_json(%1$s.*) - 'pgps_event_id' - 'pgps_slot' - 'pgps_xid' - 'pgps_statement')::text,
                    '{}') as pgps_payload,
                %2$s as pgps_time, %3$s
            from pgps_entry.log_%4$s as %1$s where %1$s.pgps_event_id = any ($8)) l
        where ($7 = '' or pgps._fits_moment($7, %4$s, l.pgps_xid, l.pgps_event_id))
            and ($4 is null or l.pgps_at >= $4) and ($5 is null or l.pgps_at <= $5)$query$,
        pg_catalog.quote_ident(v_name),
        case when v_type ->> 'time' is null then 'null::bigint'
            else pg_catalog.format('case when %1$I.%2$I < ''146000-01-01 00:00Z'' and %1$I.%2$I > ''-infinity'' '
                'then (extract(epoch from %1$I.%2$I) * 1000000)::bigint end', v_name, v_type ->> 'time') end,
        case when (v_type ->> 'is_interval')::boolean
            then '(extract(epoch from starts_at) * 1000000)::bigint as pgps_starts, '
                '(extract(epoch from ends_at) * 1000000)::bigint as pgps_ends'
            else 'null::bigint as pgps_starts, null::bigint as pgps_ends' end, v_type ->> 'type_id')
    using _trial_rows.place, v_name, _trial_rows.known ->> 'broker', _trial_rows.since, _trial_rows.until,
        _trial_rows.basis, _trial_rows.leaf ->> 'moment', _trial_rows.ids into v_some;
    return v_some;
end
$$;
comment on function pgps._trial_rows(jsonb, bigint, jsonb, bigint[], timestamptz, timestamptz, text) is
'Events of one leaf as a detector has them, among those of which the ids are given; see pgps.try_composite_event';

create or replace function pgps._trial_events(parsed jsonb, known jsonb, since timestamptz, until timestamptz,
    basis text)
returns jsonb
language plpgsql
as $$
declare
    v_leaf jsonb;
    v_place bigint;
    v_ids bigint[];
    v_events jsonb := '[]';
begin
    for v_leaf, v_place in select l, o - 1 from pg_catalog.jsonb_array_elements(_trial_events.parsed -> 'leaves')
        with ordinality x(l, o) loop
        -- The log as the caller may see it; the predicate runs with the caller's rights and settings.
        execute pg_catalog.format(E'select coalesce(pg_catalog.array_agg(%1$s.pgps_event_id), ''{}'')\n'
            'from pgps_entry.log_%2$s as %1$s where (%3$s\n)', pg_catalog.quote_ident(v_leaf ->> 'type'),
            _trial_events.known -> 'types' -> (v_leaf ->> 'type') ->> 'type_id',
            coalesce(nullif(v_leaf ->> 'predicate', ''), 'true')) into v_ids;
        v_events := v_events || pgps._trial_rows(v_leaf, v_place, _trial_events.known, v_ids, _trial_events.since,
            _trial_events.until, _trial_events.basis);
    end loop;
    return v_events;
end
$$;
comment on function pgps._trial_events(jsonb, jsonb, timestamptz, timestamptz, text) is
'The events of the leaves that are held and that the caller may see; see pgps.try_composite_event';

create or replace function pgps._found_in(job jsonb) returns jsonb
language plpgsql
as $$
declare
    v_message text;
    v_hint text;
begin
    return pgps._try_step(_found_in.job::text) -> 'found';
exception when program_limit_exceeded then
    -- PL/Python puts the name of its exception before a message.
    get stacked diagnostics v_message = message_text, v_hint = pg_exception_hint;
    raise exception '%', pg_catalog.regexp_replace(v_message, '^plpy\.\w+: ', '')
    using errcode = '54000', hint = v_hint;
end
$$;
comment on function pgps._found_in(jsonb) is 'What a trial detects; see pgps.try_composite_event';

create or replace function pgps.try_composite_event(
    expression text, context text = 'recent', partition_by text = null, within interval = null, filter text = null,
    attributes text = null, time_basis text = 'arrival', lateness interval = '0', max_open integer = null,
    since timestamptz = null, until timestamptz = null
) returns setof jsonb
language plpgsql
set extra_float_digits = 1 set bytea_output = 'hex'
as $$
declare
    v_args jsonb := pg_catalog.jsonb_build_object('expression', try_composite_event.expression,
        'context', coalesce(try_composite_event.context, 'recent'), 'partition_by', try_composite_event.partition_by,
        'within', try_composite_event.within, 'filter', try_composite_event.filter,
        'attributes', try_composite_event.attributes, 'time_basis', coalesce(try_composite_event.time_basis, 'arrival'),
        'lateness', coalesce(try_composite_event.lateness, '0'), 'max_open', try_composite_event.max_open,
        'zone', pg_catalog.current_setting('timezone'));
    -- No history is held of the time before 1970 or after now, to which infinity counts.
    v_first timestamptz := case when try_composite_event.since > 'epoch'
        then least(try_composite_event.since, pgps._clock()) end;
    v_last timestamptz := greatest(least(try_composite_event.until, pgps._clock()), 'epoch');
    v_parsed jsonb;
    v_known jsonb;
    v_job jsonb;
    v_found jsonb;
begin
    v_parsed := pgps._call('describe', v_args);
    perform pgps.check_composite(v_parsed);
    v_known := pgps._call('trial', pg_catalog.jsonb_build_object(
        'types', (select coalesce(pg_catalog.to_jsonb(pg_catalog.array_agg(l -> 'type')), '[]')
            from pg_catalog.jsonb_array_elements(v_parsed -> 'leaves') l),
        'sources', (select coalesce(pg_catalog.to_jsonb(pg_catalog.array_agg(l -> 'source' order by o)), '[]')
            from pg_catalog.jsonb_array_elements(v_parsed -> 'leaves') with ordinality x(l, o))));
    if v_parsed -> 'leaves' = '[]' and v_first is null then
        -- Without an event to begin with, the history begins with the first batch that is held.
        v_first := (v_known ->> 'held_since')::timestamptz;
    end if;
    v_job := v_known || pg_catalog.jsonb_build_object('given', v_parsed -> 'given',
        'began', (extract(epoch from v_first) * 1000000)::bigint,
        'now', (extract(epoch from v_last) * 1000000)::bigint,
        'events', pgps._trial_events(v_parsed, v_known, try_composite_event.since, try_composite_event.until,
            v_parsed -> 'given' ->> 'time_basis'),
        'tests', (select coalesce(pg_catalog.jsonb_object_agg(c ->> 'text', pgps._write_test(v_parsed, c)), '{}')
            from pg_catalog.jsonb_array_elements(v_parsed -> 'conditions') c));
    v_found := pgps._found_in(v_job);
    if pg_catalog.jsonb_array_length(v_parsed -> 'attributes') = 0 then
        return query select (f - 'bound' - 'constituents') || pg_catalog.jsonb_build_object('constituents',
            (f ->> 'constituents')::jsonb) from pg_catalog.jsonb_array_elements(v_found) f;
        return;
    end if;
    return query execute pg_catalog.format($query$
        select (pg_catalog.to_jsonb(m.*) - 'pgps_n') || (f.x - 'bound' - 'constituents')
            || pg_catalog.jsonb_build_object('constituents', (f.x ->> 'constituents')::jsonb)
        from pg_catalog.jsonb_array_elements($2) with ordinality f(x, n) join (%s) m on m.pgps_n = f.n order by f.n
        $query$, pgps._write_attributes(v_parsed))
    using (select pg_catalog.format('[%s]', pg_catalog.string_agg(f ->> 'bound', ', ' order by o))
        from pg_catalog.jsonb_array_elements(v_found) with ordinality x(f, o)), v_found;
end
$$;
comment on function pgps.try_composite_event(text, text, text, interval, text, text, text, interval, integer,
    timestamptz, timestamptz) is
'What a composite event would have detected in the events that the broker still holds and the caller may see: one object
for each occurrence. Creates nothing. since, until: published then; null = the first and now. The other arguments are
those of pgps.create_composite_event; as there, all of it is asked in the settings of the session (search_path, time
zone, date style). Errors: as there.';

create or replace function pgps_internal.explain_job(composite pgps_internal.composite, event_id bigint) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_step pgps_internal.composite_step := pgps_internal.step_of((explain_job.composite).composite_id);
    v_broker text := (select p.broker from pgps_internal.progress p);
    v_type pgps_internal.event_type;
    v_some jsonb;
    v_events jsonb := '[]';
begin
    for v_type in select distinct t.* from pgps_internal.composite_leaf l join pgps_internal.event_type t
        using (type_id) where l.composite_id = (explain_job.composite).composite_id
    loop
        execute format($query$
            select coalesce(to_jsonb(array_agg(jsonb_build_object('leaf', f.leaf, 'type', $5, 'id', e.event_id,
                'batch', e.batch_id, 'at', case when $6 = 'event' then e.event_time else e.published end,
                'origin', coalesce(e.origin, $7), 'client', e.client, 'xid', e.xid, 'payload', e.payload,
                'starts', e.start_time, 'ends', e.end_time))), '[]')
            from (%s) e cross join lateral unnest(e.leaves) f(leaf)$query$, pgps_internal.leaf_events(v_type))
        using (select array_agg(l.composite_id order by l.leaf) from pgps_internal.composite_leaf l
                where l.composite_id = (explain_job.composite).composite_id and l.type_id = v_type.type_id),
            (select array_agg(l.leaf order by l.leaf) from pgps_internal.composite_leaf l
                where l.composite_id = (explain_job.composite).composite_id and l.type_id = v_type.type_id),
            (select array_agg((explain_job.composite).after_batch) from pgps_internal.composite_leaf l
                where l.composite_id = (explain_job.composite).composite_id and l.type_id = v_type.type_id),
            (select array_agg(coalesce(v_step.batch_id, (explain_job.composite).after_batch))
                from pgps_internal.composite_leaf l
                where l.composite_id = (explain_job.composite).composite_id and l.type_id = v_type.type_id),
            v_type.name, (explain_job.composite).time_basis, v_broker into v_some;
        v_events := v_events || v_some;
    end loop;
    return jsonb_build_object('given', (explain_job.composite).given, 'intervals', pgps_internal.interval_types(),
        'explain', explain_job.event_id, 'events', v_events, 'batches', '{}'::jsonb,
        'parts', pgps_internal.parts_of(explain_job.composite),
        'part_types', pgps_internal.part_types((explain_job.composite).composite_id),
        'sources', pgps_internal.sources_of((explain_job.composite).composite_id),
        'began', pgps_internal.microseconds((explain_job.composite).began_at),
        'now', (v_step.ordering ->> 'frontier')::bigint,
        'tests', (select coalesce(jsonb_object_agg(t ->> 'text',
                format('select * from pgps_internal.composite_test_%s_%s($1)', (explain_job.composite).composite_id,
                o)), '{}')
            from jsonb_array_elements((explain_job.composite).parsed -> 'conditions') with ordinality x(t, o)));
end
$$;
comment on function pgps_internal.explain_job(pgps_internal.composite, bigint) is
'The history of a composite event that is held, for pgps._try_step to tell what became of one event';

create or replace function pgps_internal.do_explain_composite(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp set timezone = 'UTC' set datestyle = 'ISO' set intervalstyle = 'postgres'
set extra_float_digits = 1 set bytea_output = 'hex'
as $$
declare
    v_composite pgps_internal.composite := pgps_internal.find_composite(caller, args ->> 'name');
    v_id bigint := (args ->> 'event_id')::bigint;
    v_job jsonb := pgps_internal.explain_job(v_composite, v_id);
    v_prepared text := pgps_internal.prepared();
    v_lines jsonb;
begin
    if not exists (select from jsonb_array_elements(v_job -> 'events') e where (e ->> 'id')::bigint = v_id) then
        return jsonb_build_array(jsonb_build_array('matched', case
            when exists (select from pgps_internal.batch_type b where v_id <@ b.ids) then 'no leaf: it is of another '
                'type, does not satisfy the predicate, was published before, or has not been taken yet'
            else 'it is not held any more, or is not dispatched yet' end));
    end if;
    select jsonb_build_array(jsonb_build_array('late', l.reason)) into v_lines from pgps_internal.composite_late l
    where l.composite_id = v_composite.composite_id and l.event_id = v_id limit 1;
    if found then
        return v_lines;
    end if;
    v_lines := pgps._try_step(v_job::text) -> 'lines';
    perform pgps_internal.forget_prepared(v_prepared);
    if v_lines = '[]' then
        return '[["matched", "no leaf: it comes from another source than a leaf asks for"]]';
    end if;
    return v_lines;
end
$$;
comment on function pgps_internal.do_explain_composite(name, jsonb) is 'See pgps.explain_composite_event';

create or replace function pgps_internal.is_composite_alone(name text) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select not exists (select from pgps_internal.subscription s
            where s.name = pgps_internal.fold(is_composite_alone.name) and not s.is_hidden)
        and exists (select from pgps_internal.composite c join pgps_internal.event_type t using (type_id)
            where t.name = pgps_internal.fold(is_composite_alone.name))
$$;
comment on function pgps_internal.is_composite_alone(text) is
'True for the name of a composite event that no subscription has';

create or replace function pgps_internal.explain_detection(event_type pgps_internal.event_type, event_id bigint)
returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_steps jsonb;
begin
    if not exists (select from pgps_internal.composite c
            where c.type_id = (explain_detection.event_type).type_id) then
        return '[]';
    end if;
    execute format('select to_jsonb(array_agg(jsonb_build_array(''detected'', format(''at %%s, of %%s'',
            l.detected_at, (
            select string_agg(coalesce(''event '' || (p ->> ''event_id'') || '' ('' || (p ->> ''as'') || '')'',
                ''a tick at '' || (p ->> ''tick'')), '', '' order by o)
            from jsonb_array_elements(l.constituents) with ordinality x(p, o))))))
        from %s l where l.event_id = $1', (explain_detection.event_type).log)
    using explain_detection.event_id into v_steps;
    return coalesce(v_steps, '[]');
end
$$;
comment on function pgps_internal.explain_detection(pgps_internal.event_type, bigint) is
'What a detected event is made of, as a step of pgps.explain; no step for other events';

create or replace function pgps_internal.explain_as_leaf(
    caller name, subscription pgps_internal.subscription, event_type pgps_internal.event_type, event_id bigint
) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text;
begin
    select t.name into v_name from pgps_internal.composite c join pgps_internal.event_type t using (type_id)
    join pgps_internal.composite_leaf l using (composite_id)
    where t.name = (explain_as_leaf.subscription).event_type
        and l.type_id = (explain_as_leaf.event_type).type_id
        and (pg_has_role(explain_as_leaf.caller, 'pgps_admin', 'usage')
            or pgps_internal.may_drop(explain_as_leaf.caller, t))
    limit 1;
    return case when v_name is null then '[]' else pgps_internal.do_explain_composite(explain_as_leaf.caller,
        jsonb_build_object('name', quote_ident(v_name), 'event_id', explain_as_leaf.event_id)) end;
end
$$;
comment on function pgps_internal.explain_as_leaf(
    name, pgps_internal.subscription, pgps_internal.event_type, bigint
) is
'What became of an event in the composite event that a subscription is about, for who may ask that';

create or replace function pgps.explain_composite_event(name text, event_id bigint)
returns table (step text, outcome text)
language sql
begin atomic
    select l ->> 0, l ->> 1
    from jsonb_array_elements(pgps._call('explain_composite', jsonb_build_object('name', explain_composite_event.name,
        'event_id', explain_composite_event.event_id))) with ordinality x(l, o) order by o;
end;
comment on function pgps.explain_composite_event(text, bigint) is
'What became of an event in a composite event: which leaf it matched, and in which part of the expression it was opened,
paired, replaced, expired, given up, closed, or failed the filter. Told from the events that the broker still holds, by
detecting in them again. Needs to own it, or pgps_admin. Errors: 42704, 42501.';

revoke all on function pgps._trial_events(jsonb, jsonb, timestamptz, timestamptz, text),
    pgps._trial_rows(jsonb, bigint, jsonb, bigint[], timestamptz, timestamptz, text), pgps._found_in(jsonb)
from public;
grant execute on function pgps._trial_events(jsonb, jsonb, timestamptz, timestamptz, text),
    pgps._trial_rows(jsonb, bigint, jsonb, bigint[], timestamptz, timestamptz, text), pgps._found_in(jsonb),
    pgps.try_composite_event(text, text, text, interval, text, text, text, interval, integer, timestamptz, timestamptz),
    pgps.explain_composite_event(text, bigint)
to public;
