-- One rule in the publisher's transaction (firing.sql): what it is about, and its callback. Both are code of the rule's
-- owner's in somebody else's session and transaction, so that nothing of it may be left there (decision 65).
-- Locks: none.
-- Writes: subscription.

create or replace function pgps_internal.found_events(
    composite pgps_internal.composite, event_type pgps_internal.event_type
) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select format($query$array(
            select row(%1$s pgps_internal.moment((i.x ->> 'starts')::bigint),
                pgps_internal.moment((i.x ->> 'ends')::bigint), pgps_internal.moment((i.x ->> 'detected')::bigint),
                (i.x ->> 'constituents')::jsonb, null, null)::pgps_event.%2$I
            from jsonb_array_elements($1) with ordinality i(x, n) %3$s order by i.n)$query$,
        coalesce((select string_agg(format('m.%I,', a ->> 'name'), ' ' order by o)
            from jsonb_array_elements((found_events.composite).parsed -> 'attributes') with ordinality x(a, o)), ''),
        (found_events.event_type).name,
        case when jsonb_array_length((found_events.composite).parsed -> 'attributes') > 0
            then format($make$join pgps_internal.composite_make_%s((select format('[%%s]',
                    string_agg(g.x ->> 'bound', ', ' order by g.n))
                    from jsonb_array_elements($1) with ordinality g(x, n))) m on m.pgps_n = i.n$make$,
                (found_events.composite).composite_id) else '' end)
$$;
comment on function pgps_internal.found_events(pgps_internal.composite, pgps_internal.event_type) is
'The text of an array of events of a composite type, of detections in $1';

create or replace function pgps_internal.deferring_tables(owner regrole) returns text[]
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- Foreign keys are checked with the rights of the tables' owners, and plain columns with code of superusers.
    select array(
        select format('%s %s %s', c.conname, c.conrelid::regclass, case when current_setting('track_counts')::boolean
            then (pg_stat_get_xact_tuples_inserted(c.conrelid) + pg_stat_get_xact_tuples_updated(c.conrelid)
                + pg_stat_get_xact_tuples_deleted(c.conrelid))::text
            when has_table_privilege(deferring_tables.owner::oid, c.conrelid, 'insert, update, delete')
                then gen_random_uuid()::text else '0' end)
        from pg_constraint c
        where c.condeferrable and c.connamespace <> 'pgps_internal'::regnamespace
            and (c.contype = 't' or c.contype = 'x' and exists (select from pg_index i
                where i.indexrelid = c.conindid and (i.indexprs is not null or i.indpred is not null))))
$$;
comment on function pgps_internal.deferring_tables(regrole) is
'The constraints that run code of users at the commit when they are deferred, with their tables and how many rows of
these the session has written. Where the server does not count, those that owner could have written differ each time';

create or replace function pgps_internal.check_deferred(before text[], owner regrole, what text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_written text;
begin
    select d into v_written from unnest(pgps_internal.deferring_tables(check_deferred.owner)) d
    where d <> all (check_deferred.before) and d not like '% 0' limit 1;
    if found then
        raise exception '% wrote to table %, whose constraint "%" can be deferred', check_deferred.what,
            split_part(v_written, ' ', 2), split_part(v_written, ' ', 1)
        using errcode = '0A000', hint = 'It would be checked at the commit with the rights of whoever publishes. Make '
            'it not deferrable, or use the coupling detached.';
    end if;
end
$$;
comment on function pgps_internal.check_deferred(text[], regrole, text) is
'Raises 0A000 when the session has written to a table whose constraint may run code of a user''s at the commit. before:
of deferring_tables';

create or replace function pgps_internal.write_choose(
    subscription pgps_internal.subscription, type_id integer, events text
) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select format($query$
        with e as materialized (select %1$s as events)
        select array(select u.event from (select pgps_event as event, row_number() over () as place
                from unnest(e.events) pgps_event) u
            join unnest(pgps_internal.coupled_%2$s_%3$s(e.events)) p(place) using (place) order by place)
        from e$query$, write_choose.events, (write_choose.subscription).subscription_id, write_choose.type_id)
$$;
comment on function pgps_internal.write_choose(pgps_internal.subscription, integer, text) is
'The query for an array of the events that satisfy the filter of a rule, of the text of an array';

create or replace function pgps_internal.call_rule(
    subscription pgps_internal.subscription, event_type pgps_internal.event_type, events text, items jsonb, ids bigint[]
) returns void
language plpgsql
as $$
declare
    v_owner regrole := (call_rule.subscription).owner;
    -- Whoever may do everything, or has the session, needs nobody's rights and harms only itself.
    v_is_trusted boolean := (select r.rolsuper or r.rolname = session_user from pg_roles r where r.oid = v_owner);
    v_before pgps_internal.session_state := pgps_internal.session_state(v_is_trusted);
begin
    if v_is_trusted then
        perform pgps_internal.call_and_check(call_rule.subscription, call_rule.event_type, call_rule.events,
            call_rule.items, call_rule.ids, v_before, null);
        return;
    end if;
    begin
        perform pgps_internal.call_and_check(call_rule.subscription, call_rule.event_type, call_rule.events,
            call_rule.items, call_rule.ids, v_before, pgps_internal.deferring_tables(v_owner));
    exception when others or assert_failure or query_canceled then
        perform pgps_internal.forget_prepared(v_before.prepared);
        raise;
    end;
end
$$;
comment on function pgps_internal.call_rule(pgps_internal.subscription, pgps_internal.event_type, text, jsonb,
    bigint[]) is
'Calls the callback of a rule, in the session and the transaction of whoever publishes, and sees to it that nothing is
left there that would run, or be believed, with other rights, whether it raises or not. Errors: 55000 a setting or
temporary objects, 0A000, and those of the callback';

create or replace function pgps_internal.call_and_check(
    subscription pgps_internal.subscription, event_type pgps_internal.event_type, events text, items jsonb,
    ids bigint[], before pgps_internal.session_state, deferring text[]
) returns void
language plpgsql
as $$
declare
    v_what text := format('rule "%s"', (call_and_check.subscription).name);
begin
    execute format($run$select pgps_internal.callback_%1$s_%2$s(c.events)
        from (select pgps_internal.taken_back($1, $2, $3, null, null::pgps_event.%3$I[]) as events offset 0) c
        where cardinality(c.events) > 0$run$, (call_and_check.subscription).subscription_id,
        (call_and_check.event_type).type_id, (call_and_check.event_type).name)
    using pgps_internal.write_choose(call_and_check.subscription, (call_and_check.event_type).type_id,
        call_and_check.events), call_and_check.items, call_and_check.ids;
    -- From here on nothing depends on search_path, which the callback may have changed, until it is compared.
    perform pgps_internal.check_settings(call_and_check.before, v_what);
    if call_and_check.deferring is not null then
        perform pgps_internal.check_deferred(call_and_check.deferring, (call_and_check.subscription).owner, v_what);
    end if;
    perform pgps_internal.check_session(call_and_check.before, v_what);
end
$$;
comment on function pgps_internal.call_and_check(pgps_internal.subscription, pgps_internal.event_type, text, jsonb,
    bigint[], pgps_internal.session_state, text[]) is
'Calls the callback of a rule and compares the session with what it was before. deferring: of deferring_tables, null =
whoever made the rule is trusted. Errors: 55000, 0A000';

drop function if exists
    pgps_internal.run_rule(pgps_internal.coupled_rule, pgps_internal.coupling_mark, jsonb, bigint);
create or replace function pgps_internal.run_rule(
    rule pgps_internal.coupled_rule, mark pgps_internal.coupling_mark, detections jsonb, done bigint,
    late int8multirange
) returns void
language plpgsql
as $$
declare
    v_type pgps_internal.event_type;
    v_composite pgps_internal.composite;
    v_subscription pgps_internal.subscription;
    v_items jsonb;
    v_ids bigint[];
    v_events text;
begin
    select s.* into v_subscription from pgps_internal.subscription s
    where s.subscription_id = (run_rule.rule).subscription_id;
    select t.* into v_type from pgps_internal.event_type t where t.type_id = (run_rule.rule).type_id;
    if v_subscription.subscription_id is null or v_type.type_id is null then
        -- It was dropped while another rule ran.
        return;
    elsif not has_table_privilege(v_subscription.owner::oid, v_type.endpoint, 'select') then
        -- Until this is committed, others publish without it as well.
        update pgps_internal.subscription s set state = 'suspended', last_error = format(
            'role %s may not receive event type "%s" any more', s.owner, s.event_type)
        where s.subscription_id = (select x.subscription_id from pgps_internal.subscription x
            where x.subscription_id = v_subscription.subscription_id for no key update skip locked);
        return;
    end if;
    select c.* into v_composite from pgps_internal.composite c where c.type_id = v_type.type_id;
    if found then
        v_items := run_rule.detections -> v_composite.composite_id::text;
        v_events := pgps_internal.found_events(v_composite, v_type);
    else
        execute 'select ' || pgps_internal.coupled_ids(v_type,
            case when run_rule.late is null then 'l.event_id > $1 and l.event_id <= $2'
                else '(l.event_id > $1 and l.event_id <= $2 or l.event_id <@ $3)' end, (run_rule.mark).numbered)
        using (run_rule.mark).done, run_rule.done, run_rule.late into v_ids;
        v_ids := pgps_internal.visible_ids(v_type, v_subscription.owner, v_ids);
        v_events := format('array(select e.event from unnest($2) with ordinality u(event_id, place)
            join pgps_internal.events_%s($2) e using (event_id) order by u.place)', v_type.type_id);
    end if;
    if v_items is null and coalesce(cardinality(v_ids), 0) = 0 then
        return;
    end if;
    perform pgps_internal.call_rule(v_subscription, v_type, v_events, v_items, v_ids);
end
$$;
comment on function pgps_internal.run_rule(pgps_internal.coupled_rule, pgps_internal.coupling_mark, jsonb, bigint,
    int8multirange) is
'Calls the callback of a rule for what it is about: detections of its composite event, or events up to the id done, and
late ones. A rule whose owner has lost SELECT is suspended';
