-- pgps.explain: why an event did, or did not, reach a subscription. Returns the steps of the event's path, one row
-- each.
-- Writes: nothing.

create or replace function pgps_internal.do_explain(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription;
    v_event bigint := (args ->> 'event_id')::bigint;
    v_type pgps_internal.event_type;
    v_xid xid8;
    v_control pgps_internal.control;
    v_last pgps_internal.batch := pgps_internal.last_batch();
    v_steps jsonb := '[]';
begin
    select s.* into v_subscription from pgps_internal.subscription s
    where s.name = pgps_internal.fold(args ->> 'subscription') and pg_has_role(caller, 'pgps_admin', 'usage');
    if not found then
        if pgps_internal.is_composite_alone(args ->> 'subscription') then
            return pgps_internal.do_explain_composite(caller, jsonb_build_object('name', args -> 'subscription',
                'event_id', v_event));
        end if;
        v_subscription := pgps_internal.find_subscription(caller, args ->> 'subscription');
    end if;
    select f.type_id, f.xid into v_type.type_id, v_xid from pgps_internal.find_event(v_event, caller, v_subscription) f;
    if v_xid is null then
        return v_steps || jsonb_build_array(jsonb_build_array('event',
            format('event %s is not there: never published, rolled back, or reclaimed', v_event)));
    end if;
    select t.* into v_type from pgps_internal.event_type t where t.type_id = v_type.type_id;
    if not (has_table_privilege(caller, v_type.endpoint, 'select') or pg_has_role(caller, 'pgps_admin', 'usage')) then
        return v_steps || jsonb_build_array(jsonb_build_array('event',
            format('event %s is not there: never published, rolled back, or reclaimed', v_event)));
    end if;
    execute pgps_internal.statement_of('c.*', '$1', '$2', '$3') into v_control using v_type.type_id, v_event, v_xid;
    if not pg_has_role(caller, 'pgps_admin', 'usage')
        and cardinality(pgps_internal.visible_ids(v_type, v_subscription.owner, array[v_event])) = 0 then
        -- A row-level policy hides the event, so its publisher and time are not shown either.
        v_steps := v_steps || jsonb_build_array(jsonb_build_array('published', format('as %s', v_type.name)));
    else
        v_steps := v_steps || jsonb_build_array(jsonb_build_array('published',
            format('as %s by %s at %s, transaction %s', v_type.name,
            coalesce(v_control.publisher::text, 'an archived publisher'),
            coalesce(v_control.published_at::text, 'an archived time'), v_xid)));
    end if;
    v_steps := v_steps || pgps_internal.explain_detection(v_type, v_event);
    if v_control.origin_id is not null then
        v_steps := v_steps || pgps_internal.explain_origin(v_type, v_event, v_control.origin_id);
    end if;
    if not pgps_internal.is_dispatched(v_xid, v_event, v_last) then
        return v_steps || jsonb_build_array(jsonb_build_array('dispatched',
            'not yet: committed, and waits for pgps.dispatch() or a worker'));
    elsif exists (select from pgps_internal.set_aside s where s.batch_id is null and s.type_id = v_type.type_id
            and s.ranges @> v_event) then
        return v_steps || jsonb_build_array(jsonb_build_array('dispatched',
            'not yet: set aside, see state and last_error of pgps.event_types'));
    end if;
    return v_steps || pgps_internal.explain_match(v_subscription, v_type, v_event)
        || pgps_internal.explain_as_leaf(caller, v_subscription, v_type, v_event);
end
$$;
comment on function pgps_internal.do_explain(name, jsonb) is 'See pgps.explain';

drop function if exists pgps_internal.find_event(bigint);
create or replace function pgps_internal.find_event(
    event_id bigint, caller name, subscription pgps_internal.subscription, out type_id integer, out xid xid8
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
begin
    -- Those of the subscription first. A type that the caller may not see is left alone: he would wait for whoever
    -- changes it, and keep others from changing it.
    for v_type in
        select t.* from pgps_internal.event_type t
        where has_table_privilege(find_event.caller, t.endpoint, 'select')
            or pg_has_role(find_event.caller, 'pgps_admin', 'usage')
        order by not exists (select from pgps_internal.member m where m.type_id = t.type_id
            and m.subscription_id = (find_event.subscription).subscription_id), t.type_id
    loop
        execute format('select l.xid from %s l where l.event_id = $1 union all select k.xid from pgps_internal.%I k '
            'where k.event_id = $1
            union all select a.xid from pgps_internal.%I a where a.event_id = $1 limit 1', v_type.log, v_type.name
                || '_kept', v_type.name || '_audit')
        using find_event.event_id into find_event.xid;
        if find_event.xid is not null then
            find_event.type_id := v_type.type_id;
            return;
        end if;
    end loop;
end
$$;
comment on function pgps_internal.find_event(bigint, name, pgps_internal.subscription) is
'The type and the transaction of an event that the caller may see, looked for first where the subscription has its own;
nulls when it is gone';

create or replace function pgps_internal.explain_batch(type_id integer, event_id bigint, batch_id bigint) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select case
        when explain_batch.batch_id is not null then format('in batch %s', explain_batch.batch_id)
        when exists (select from pgps_internal.batch_type b where b.type_id = explain_batch.type_id and b.repeats > 0)
                and not exists (select from pgps_internal.batch_type b where b.type_id = explain_batch.type_id
                    and lower(b.ids) > explain_batch.event_id and b.batch_id = 1)
            then 'a repeat of a (producer, number) that had been taken, and dropped; or long reclaimed'
        else 'in a batch that is reclaimed' end
$$;
comment on function pgps_internal.explain_batch(integer, bigint, bigint) is
'The step of an event that was dispatched; batch_id: null when no batch that is left has it';

create or replace function pgps_internal.explain_rights(
    owner regrole, event_type pgps_internal.event_type, event_id bigint, out is_visible boolean, out said text
)
returns record
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    is_visible := not isempty(pgps_internal.visible(explain_rights.event_type, explain_rights.owner,
        int8multirange(int8range(explain_rights.event_id, explain_rights.event_id, '[]'))));
    said := case when is_visible then format('role %s may see it', explain_rights.owner)
        else format('role %s may not see it: %s', explain_rights.owner,
            case when has_table_privilege(explain_rights.owner::oid, (explain_rights.event_type).endpoint, 'select')
                then 'no row-level policy lets it through' else 'no SELECT on the event type' end) end;
end
$$;
comment on function pgps_internal.explain_rights(regrole, pgps_internal.event_type, bigint) is
'Whether a role may see an event, and if not, what forbids it';

create or replace function pgps_internal.explain_match(
    subscription pgps_internal.subscription, event_type pgps_internal.event_type, event_id bigint
) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (explain_match.subscription).subscription_id;
    v_type_id integer := (explain_match.event_type).type_id;
    v_filter text := (explain_match.subscription).filter;
    v_batch bigint;
    v_member pgps_internal.member;
    v_rights record;
    v_steps jsonb;
    v_delivery bigint;
begin
    select b.batch_id into v_batch from pgps_internal.batch_type b
    where b.type_id = v_type_id and explain_match.event_id <@ b.ids order by b.batch_id desc limit 1;
    v_steps := jsonb_build_array(jsonb_build_array('dispatched',
        pgps_internal.explain_batch(v_type_id, explain_match.event_id, v_batch)));
    select m.* into v_member from pgps_internal.member m
    where m.subscription_id = v_id and m.type_id = v_type_id limit 1;
    if not found then
        return v_steps || jsonb_build_array(jsonb_build_array('type', format('the subscription is about "%s", not "%s"',
            (explain_match.subscription).event_type, (explain_match.event_type).name)));
    end if;
    v_steps := v_steps || jsonb_build_array(jsonb_build_array('type',
        format('"%s" is what the subscription is about', (explain_match.event_type).name)));
    if v_batch <= v_member.from_batch or explain_match.event_id <@ v_member.skip then
        return v_steps || jsonb_build_array(jsonb_build_array('start',
            pgps_internal.explain_skip(v_id, v_member, v_batch, explain_match.event_id)));
    end if;
    select r.* into v_rights from pgps_internal.explain_rights((explain_match.subscription).owner,
        explain_match.event_type, explain_match.event_id) r;
    v_steps := v_steps || jsonb_build_array(jsonb_build_array('rights', v_rights.said));
    if not v_rights.is_visible then
        return v_steps;
    end if;
    select d.batch_id into v_delivery from pgps_internal.unfolded d
    where d.class_id = v_member.class_id and d.event_id = explain_match.event_id
        and (v_batch is null or d.batch_id = v_batch) limit 1;
    if v_delivery is null and v_filter is not null and exists (select from pgps_internal.lane_next n
            where n.owner = (explain_match.subscription).owner and n.type_id = v_type_id and n.position < v_batch) then
        return v_steps || jsonb_build_array(jsonb_build_array('filter', format('%s: not asked yet, the filters of role '
            '%s are behind (see pgps.lanes)', v_filter, (explain_match.subscription).owner)));
    end if;
    if v_filter is not null then
        v_steps := v_steps || jsonb_build_array(jsonb_build_array('filter', format('%s: %s', v_filter,
            case when v_delivery is not null then 'matched when it was dispatched'
                else 'did not match when it was dispatched (false or null)' end)));
    end if;
    if v_delivery is null and not exists (select from pgps_internal.failure f
            where f.subscription_id = v_id and f.event_id = explain_match.event_id) then
        return v_steps || jsonb_build_array(jsonb_build_array('delivery', case when v_filter is null
            then 'none: the subscription was not active, or the delivery is reclaimed' else 'none' end));
    end if;
    return v_steps || jsonb_build_array(jsonb_build_array('delivery',
        pgps_internal.explain_delivery(v_id, v_delivery, explain_match.event_id)));
end
$$;
comment on function pgps_internal.explain_match(pgps_internal.subscription, pgps_internal.event_type, bigint) is
'The steps of an event from its batch to a subscription: type, start, rights, filter, delivery';

create or replace function pgps_internal.explain_skip(
    subscription_id bigint, member pgps_internal.member, batch_id bigint, event_id bigint
) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_arrival pgps_internal.arrival;
    v_origin text;
    v_since bigint;
begin
    select a.* into v_arrival from pgps_internal.arrival a
    where a.hi >= explain_skip.event_id and a.lo <= explain_skip.event_id and explain_skip.event_id <@ a.ids
        order by a.arrival_id desc limit 1;
    if explain_skip.batch_id <= (explain_skip.member).from_batch or not found then
        return 'published before the start of the subscription';
    end if;
    select o.name into v_origin from pgps_internal.origin o where o.origin_id = v_arrival.origin_id;
    select min(a.since) into v_since from pgps_internal.pushed p
    join pgps_internal.activation a on a.key = p.key and a.origin_id = v_arrival.origin_id
    where p.subscription_id = explain_skip.subscription_id and p.type_id = (explain_skip.member).type_id;
    if v_arrival.horizon > v_arrival.upto then
        return format('batch %s of broker "%s" was asked for again for a broker behind this one, which has all of '
            'that broker up to batch %s for its own '
            'subscriptions', v_arrival.upto, v_origin, v_arrival.horizon);
    elsif v_since is null then
        return format('it is of batch %s of broker "%s", where the filter of the subscription was not in force yet',
            v_arrival.upto, v_origin);
    elsif v_since >= v_arrival.upto then
        return format('it is of batch %s of broker "%s", and the filter of the subscription is in force there from '
            'behind batch %s on',
            v_arrival.upto, v_origin, v_since);
    end if;
    return 'published before the start of the subscription';
end
$$;
comment on function pgps_internal.explain_skip(bigint, pgps_internal.member, bigint, bigint) is
'Why an event that was delivered to a subscription''s class is not for the subscription: it is from before its start,
its filter was not in force yet at the origin, or the batch was fetched again for others';

create or replace function pgps_internal.explain_delivery(subscription_id bigint, batch_id bigint, event_id bigint)
returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_failure pgps_internal.failure;
    v_share pgps_internal.share;
    v_gap pgps_internal.backlog_gap;
    v_position pgps_internal.position := pgps_internal.position_of(explain_delivery.subscription_id);
begin
    select f.* into v_failure from pgps_internal.failure f
    where f.subscription_id = explain_delivery.subscription_id and f.event_id = explain_delivery.event_id;
    if found then
        return format('%s failed %s times, state %s: %s %s', v_failure.step, v_failure.attempts, v_failure.state,
            v_failure.sqlstate, v_failure.error);
    end if;
    select g.* into v_gap from pgps_internal.backlog_gap g
    where g.subscription_id = explain_delivery.subscription_id and case when g.ids is not null
        then explain_delivery.event_id <@ g.ids
        else (explain_delivery.batch_id, explain_delivery.event_id) > (g.after_batch, g.after_event)
            and (explain_delivery.batch_id, explain_delivery.event_id) <= (g.upto_batch, g.upto_event) end limit 1;
    if found then
        return format('passed over at %s: more than max_backlog %s waited', v_gap.noted_at, v_gap.max_backlog);
    end if;
    if exists (select from pgps_internal.member m where m.subscription_id = explain_delivery.subscription_id
        and m.takes_batch) then
        select s.* into v_share from pgps_internal.share s
        where s.subscription_id = explain_delivery.subscription_id and s.event_id = explain_delivery.event_id;
        return case when v_share.event_id is null then 'delivered and acknowledged'
            when v_share.leased_until > pgps_internal.clock() then format('leased until %s', v_share.leased_until)
                else 'waits for a consumer' end;
    elsif (explain_delivery.batch_id, explain_delivery.event_id) <= (v_position.acked_batch,
        v_position.acked_event) then
        return 'delivered and acknowledged';
    elsif (explain_delivery.batch_id, explain_delivery.event_id) <= (v_position.received_batch,
        v_position.received_event) then
        return 'received, not acknowledged';
    end if;
    return format('waits; the subscription is %s', (select s.state from pgps_internal.subscription s
        where s.subscription_id = explain_delivery.subscription_id));
end
$$;
comment on function pgps_internal.explain_delivery(bigint, bigint, bigint) is
'Where a delivered event is with its subscription';

create or replace function pgps.explain(subscription text, event_id bigint) returns table (step text, outcome text)
language sql rows 6
begin atomic
    select s.value ->> 0, s.value ->> 1
    from jsonb_array_elements(pgps._call('explain',
        jsonb_build_object('subscription', explain.subscription, 'event_id', explain.event_id)))
        with ordinality s(value, place)
    order by s.place;
end;
comment on function pgps.explain(text, bigint) is
'Why an event did, or did not, reach a subscription: the steps of its path (published, dispatched, type, start, rights,
filter, delivery), and of a detected event what it is made of. Of an event that the subscription''s composite event is
made of, or with the name of a composite event in place of a subscription''s: as pgps.explain_composite_event. Needs to
own the subscription, or pgps_admin, and to see the event. Errors: 42704, 42501.';

grant execute on function pgps.explain(text, bigint) to public;
