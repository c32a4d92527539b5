-- Matching: one statement per signature over the whole batch. Code is generated when something is defined; what runs
-- per batch is static plpgsql with cached plans. There are two tiers of filters:
--   safe   only the event's attributes, constants and built-in data functions: runs in code of pgps's owner, joined to
--          the log
--   owner  anything else (tables, functions): a SECURITY DEFINER function owned by the subscriber, which is given the
--          events as an array
-- The dispatcher asks the first; the second, and all filters of pattern subscriptions, are asked in lanes, one for each
-- role (lanes.sql).
-- Writes: delivery.

-- ---------------------------------------------------------------------------------------------------------------------
-- Matching a batch
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.match(
    batch_id bigint, event_type pgps_internal.event_type, ids int8multirange, events bigint, has_unfiltered boolean,
    signatures pgps_internal.signature[], careful boolean
) returns bigint
language plpgsql
as $$
declare
    v_classes bigint[];
    v_woken bigint;
begin
    if match.events > 200 then
        perform pgps_internal.plan_for_many(true);
    end if;
    v_classes := pgps_internal.match_type(match.batch_id, match.event_type, match.ids, match.events,
        match.has_unfiltered, match.signatures, match.careful);
    if match.careful then
        -- Each signature was matched on its own, so that a filter or event that fails is found by bisection
        -- (isolate.sql) and affects no other.
        v_classes := array(select d.class_id from pgps_internal.delivery d
            where d.batch_id = match.batch_id and d.type_id = (match.event_type).type_id);
    end if;
    if cardinality(v_classes) > 0 then
        v_woken := pgps_internal.wake_members(v_classes);
    end if;
    if match.events > 200 then
        perform pgps_internal.plan_for_many(false);
    end if;
    return v_woken;
end
$$;
comment on function pgps_internal.match(bigint, pgps_internal.event_type, int8multirange, bigint, boolean,
    pgps_internal.signature[], boolean) is
'Matches the events of one type in a batch against all classes, and wakes the subscribers that get some; returns how
many were woken, null = none. careful: a filter may fail';

create or replace function pgps_internal.plan_for_many(many boolean) returns void
language plpgsql
as $$
begin
    -- A custom plan is made for these events and knows how many there are; a generic plan does not.
    perform set_config('plan_cache_mode', case when plan_for_many.many then 'force_custom_plan'
        else 'force_generic_plan' end, true),
        set_config('enable_seqscan', case when plan_for_many.many then 'on' else 'off' end, true),
        set_config('enable_bitmapscan', case when plan_for_many.many then 'on' else 'off' end, true);
end
$$;
comment on function pgps_internal.plan_for_many(boolean) is
'Has statements planned for the events at hand, or (many false) once for all, as the entry points of dispatch set it;
until the transaction ends';

create or replace function pgps_internal.event_ids(delivery pgps_internal.delivery) returns setof bigint
language plpgsql stable rows 100
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    select unnest((event_ids.delivery).event_ids)
    union all
    select generate_series(lower(r), upper(r) - 1) from unnest((event_ids.delivery).ids) r;
end
$$;
comment on function pgps_internal.event_ids(pgps_internal.delivery) is 'The event ids of a delivery, not in order';

create or replace function pgps_internal.match_type(
    batch_id bigint, event_type pgps_internal.event_type, ids int8multirange, events bigint, has_unfiltered boolean,
    signatures pgps_internal.signature[], careful boolean
) returns bigint[]
language plpgsql
as $$
declare
    v_signature pgps_internal.signature;
    v_ids int8multirange := match_type.ids;
    v_classes bigint[];
    v_mark bigint;
    v_began timestamptz;
    v_entered timestamptz;
    v_took interval[];
begin
    -- Without a filter there is nothing to evaluate but the type's policies, if it has any.
    if match_type.has_unfiltered and not (match_type.event_type).has_policy then
        v_classes := pgps_internal.note_unfiltered(match_type.batch_id, match_type.event_type, match_type.ids,
            match_type.events);
    elsif match_type.has_unfiltered then
        v_classes := pgps_internal.match_unfiltered(match_type.batch_id, match_type.event_type, match_type.ids,
            match_type.careful);
    end if;
    v_began := clock_timestamp();
    foreach v_signature in array match_type.signatures loop
        if (match_type.event_type).has_policy then
            -- What a policy takes is not its reader's fault, nor that of the filter before.
            v_mark := setval('pgps_internal.matching_seq', 0);
            v_ids := case when match_type.careful
                then pgps_internal.visible_carefully(match_type.batch_id, match_type.event_type, v_signature.owner,
                    match_type.ids)
                else pgps_internal.visible(match_type.event_type, v_signature.owner, match_type.ids) end;
        end if;
        v_entered := clock_timestamp();
        if not isempty(v_ids) then
            -- Noted so that pgps.cut_filter sees how long it takes, and pgps.blame finds it when that cancels it.
            v_mark := setval('pgps_internal.matching_since_seq',
                match_type.events + (1000 * date_part('epoch', v_entered))::bigint);
            v_mark := setval('pgps_internal.matching_seq', (pg_backend_pid()::bigint << 40) + v_signature.signature_id);
            if match_type.careful then
                perform pgps_internal.match_carefully(match_type.batch_id, v_signature, v_ids);
            else
                v_classes := v_classes || pgps_internal.match_signature(match_type.batch_id, v_signature, v_ids, null);
            end if;
        end if;
        v_took := v_took || (clock_timestamp() - v_entered);
    end loop;
    if v_mark is not null then
        v_mark := setval('pgps_internal.matching_seq', 0);
        if clock_timestamp() - v_began > pgps_internal.usual_time(match_type.events, cardinality(v_took),
            coalesce(cardinality(v_classes), 0)) then
            perform pgps_internal.weigh(match_type.batch_id, (match_type.event_type).type_id, match_type.events,
                match_type.signatures, v_took);
        end if;
    end if;
    return v_classes;
end
$$;
comment on function pgps_internal.match_type(
    bigint, pgps_internal.event_type, int8multirange, bigint, boolean, pgps_internal.signature[], boolean
) is
'Notes the deliveries of one type in a batch: unfiltered classes, then signature by signature; returns the classes that
have one. careful: failures are isolated';

create or replace function pgps_internal.match_unfiltered(
    batch_id bigint, event_type pgps_internal.event_type, ids int8multirange, careful boolean
) returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_owner record;
    v_ids int8multirange;
    v_classes bigint[] := '{}';
begin
    for v_owner in
        select c.owner, array_agg(c.class_id) as classes from pgps_internal.class c
        where c.type_id = (match_unfiltered.event_type).type_id and c.signature_id is null and c.is_active
            group by c.owner
    loop
        v_ids := case when match_unfiltered.careful
            then pgps_internal.visible_carefully(match_unfiltered.batch_id, match_unfiltered.event_type, v_owner.owner,
                match_unfiltered.ids)
            else pgps_internal.visible(match_unfiltered.event_type, v_owner.owner, match_unfiltered.ids) end;
        if not isempty(v_ids) then
            insert into pgps_internal.delivery (batch_id, class_id, type_id, events, ids)
            select match_unfiltered.batch_id, c, (match_unfiltered.event_type).type_id,
                (select sum(upper(r) - lower(r)) from unnest(v_ids) r), v_ids
            from unnest(v_owner.classes) c;
            v_classes := v_classes || v_owner.classes;
        end if;
    end loop;
    return v_classes;
end
$$;
comment on function pgps_internal.match_unfiltered(bigint, pgps_internal.event_type, int8multirange, boolean) is
'Notes the deliveries of classes without a filter on a type with policies, owner by owner';

create or replace function pgps_internal.prepared() returns text
language plpgsql stable
as $$
begin
    -- In plpgsql, since SQL is planned at each call, and without settings: these costs are half of what it takes to ask
    -- a filter about one event.
    return (select pg_catalog.string_agg(p.name operator(pg_catalog.||) p.prepare_time::pg_catalog.text, ' '
        order by p.name)
        from pg_catalog.pg_prepared_statement() p where p.from_sql);
end
$$;
comment on function pgps_internal.prepared() is
'The statements prepared in this session with PREPARE; see forget_prepared';

create or replace function pgps_internal.forget_prepared(known text) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text;
begin
    if pgps_internal.prepared() is not distinct from forget_prepared.known then
        return false;
    end if;
    for v_name in select p.name from pg_prepared_statements p where p.from_sql loop
        execute format('deallocate %I', v_name);
    end loop;
    return true;
end
$$;
comment on function pgps_internal.forget_prepared(text) is
'Deallocates all prepared statements of the session when a user''s code has prepared one, which no rollback undoes and
which the client would run as its own; true when it did. known: prepared() before that code ran';

create or replace function pgps_internal.constants_of(
    signature pgps_internal.signature, only_classes int8range, out classes text, out constants text
)
returns record
language plpgsql stable
as $$
begin
    -- Not in SQL, which would be planned anew for each batch.
    with chosen as (
        select c.class_id, c.constants from pgps_internal.class c
        where c.signature_id = (constants_of.signature).signature_id and c.is_active
            and (constants_of.only_classes is null or c.class_id <@ constants_of.only_classes)
    )
    select (select array_agg(c.class_id order by c.class_id)::text from chosen c),
        (select coalesce(string_agg(format(', %L::%s[]',
            (select array_agg(c.constants[n] order by c.class_id) from chosen c)::text, p.type), '' order by n), '')
            from unnest((constants_of.signature).parameter_types) with ordinality p(type, n))
    into constants_of.classes, constants_of.constants;
end
$$;
comment on function pgps_internal.constants_of(pgps_internal.signature, int8range) is
'The active classes of a signature, null = none, and their constants, each as the text of further arguments for the
function that matches them';

create or replace function pgps_internal.match_owner(
    batch_id bigint, signature pgps_internal.signature, ids int8multirange, only_classes int8range
)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_classes text;
    v_constants text;
    v_found pgps_internal.found[];
    v_prepared text;
    v_done boolean := false;
    v_matched bigint[];
begin
    v_prepared := pgps_internal.prepared();
    select c.classes, c.constants into v_classes, v_constants
    from pgps_internal.constants_of(match_owner.signature, match_owner.only_classes) c;
    if v_classes is null then
        return null;
    end if;
    -- Who alters the type is waited for before the code that reads its events is looked up, and before the snapshot in
    -- which it reads them.
    perform pgps_internal.hold_log(t) from pgps_internal.event_type t
    where t.type_id = (match_owner.signature).type_id;
    -- The filter runs with its owner's rights, but a search_path or another setting that it leaves behind would hold
    -- for the statements after it, which run with ours. Rolling back a subtransaction undoes all of that; variables
    -- keep the result.
    begin
        execute format('select array_agg(((m.pgps_class, m.pgps_events, m.pgps_lowest, '
            'm.pgps_highest)::pgps_internal.found))
            from pgps_internal.rows_%s($1, $2) r cross join lateral pgps_internal.match_%s(r.event_ids, r.events, '
                '%L::bigint[]%s) m',
            (match_owner.signature).type_id, (match_owner.signature).signature_id, v_classes, v_constants)
        using match_owner.ids, (match_owner.signature).unread into v_found;
        v_done := true;
        raise exception 'take back' using errcode = 'PS001';
    exception
        when sqlstate 'PS001' then
            if not v_done then
                raise;
            end if;
        when others or assert_failure or query_canceled then
            perform pgps_internal.forget_prepared(v_prepared);
            raise;
    end;
    perform pgps_internal.forget_prepared(v_prepared);
    with d as (
        insert into pgps_internal.delivery (batch_id, class_id, type_id, events, event_ids, ids)
        select match_owner.batch_id, f.class_id, (match_owner.signature).type_id, cardinality(f.event_ids),
            case when not f.contiguous then f.event_ids end,
            case when f.contiguous then int8multirange(int8range(f.lowest, f.highest, '[]')) end
        from (select f.*, f.highest > f.lowest and f.highest - f.lowest + 1 = cardinality(f.event_ids) as contiguous
            from unnest(v_found) f) f
        where f.class_id = any (v_classes::bigint[]) returning class_id
    )
    select array_agg(d.class_id) into v_matched from d;
    return v_matched;
end
$$;
comment on function pgps_internal.match_owner(bigint, pgps_internal.signature, int8multirange, int8range) is
'Notes the deliveries of a signature whose filter may do anything, with its owner''s rights; see match_signature';

create or replace function pgps_internal.match_signature(
    batch_id bigint, signature pgps_internal.signature, ids int8multirange, only_classes int8range
)
returns bigint[]
language plpgsql
as $$
declare
    v_matched bigint[];
begin
    if (match_signature.signature).tier = 'safe' then
        execute 'select pgps_internal.match_' || (match_signature.signature).signature_id || '($1, $2, $3)'
        using match_signature.batch_id, match_signature.ids, match_signature.only_classes into v_matched;
        return v_matched;
    end if;
    return pgps_internal.match_owner(match_signature.batch_id, match_signature.signature, match_signature.ids,
        match_signature.only_classes);
end
$$;
comment on function pgps_internal.match_signature(bigint, pgps_internal.signature, int8multirange, int8range) is
'Notes the deliveries of one signature in a batch and returns the classes that have one; only_classes: of these only,
null = all';
