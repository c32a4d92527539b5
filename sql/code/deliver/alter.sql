-- Changing a subscription that keeps its position: filter, priority, attempts, limits (owner: give.sql). Waiting events
-- are matched anew, from the position on.
-- Locks: until the transaction ends, the turn of the subscription and, for a new filter or owner, the owner's lane and
-- a lock against reclaim; with competing consumers its members, for which the dispatcher does not wait.
-- Writes: backlog_limit, joining, member, share, subscription.

create or replace function pgps_internal.do_types_of(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription := pgps_internal.find_subscription(caller, args ->> 'name');
begin
    return (select coalesce(to_jsonb(array_agg(t.name order by t.name)), '[]')
        from pgps_internal.member m join pgps_internal.event_type t using (type_id)
        where m.subscription_id = v_subscription.subscription_id
            and (not v_subscription.is_pattern
                or has_table_privilege(v_subscription.owner::oid, t.endpoint, 'select')
                -- What somebody is dropping may be gone when it is looked at.
                and pgps_internal.try_lock(t.endpoint, 'access share')));
end
$$;
comment on function pgps_internal.do_types_of(name, jsonb) is
'The names of the event types of one of the caller''s subscriptions, against which a new filter is checked; of a prefix
those that its owner may see and that nobody is changing, which are locked, access share. Errors: 42704, 42501.';

create or replace function pgps_internal.asked_upto(member pgps_internal.member, last pgps_internal.batch)
returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select case when not c.is_active then c.suspended_batch
            -- A class whose owner was dropped is no longer matched: it ends with its last delivery or, if that has been
            -- reclaimed, before the oldest delivery that is left.
            when c.owner::text = c.owner::oid::text then greatest((asked_upto.member).from_batch,
                (select max(d.batch_id) from pgps_internal.delivery d where d.class_id = c.class_id),
                (select min(d.batch_id) - 1 from pgps_internal.delivery d))
            else pgps_internal.matched_upto(c.owner,
                (select g from pgps_internal.signature g where g.signature_id = c.signature_id), asked_upto.last) end
    from pgps_internal.class c where c.class_id = (asked_upto.member).class_id
$$;
comment on function pgps_internal.asked_upto(pgps_internal.member, pgps_internal.batch) is
'The last batch about which the filter of a subscription''s class has been asked';

create or replace function pgps_internal.rematch_shares(
    subscription_id bigint, member pgps_internal.member, event_type pgps_internal.event_type, class_id bigint,
    matched bigint, upto bigint
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_first bigint;
begin
    perform pgps_internal.add_feature((rematch_shares.event_type).type_id, 'share');
    select min(s.batch_id) - 1 into v_first from pgps_internal.share s
    where s.subscription_id = rematch_shares.subscription_id and s.type_id = (rematch_shares.event_type).type_id;
    perform pgps_internal.replay(rematch_shares.class_id, rematch_shares.event_type, 0,
        least(v_first, rematch_shares.matched), rematch_shares.upto);
    -- Of batches matched before, waiting events stay if they match the new filter (events without a row are settled).
    -- Then events of batches that were not matched yet are added. What has failed goes its own way (rematch), and what
    -- was among the exceptions is of no batch any more.
    delete from pgps_internal.share s
    where s.subscription_id = rematch_shares.subscription_id and s.type_id = (rematch_shares.event_type).type_id
        and (s.batch_id, s.event_id) not in (
            select d.batch_id, e.event_id
            from pgps_internal.delivery d cross join lateral pgps_internal.event_ids(d) e(event_id)
            where d.class_id = rematch_shares.class_id)
        and not exists (select from pgps_internal.failure f
            where f.subscription_id = s.subscription_id and f.event_id = s.event_id);
    insert into pgps_internal.share (subscription_id, batch_id, event_id, type_id)
    select rematch_shares.subscription_id, d.batch_id, e.event_id, d.type_id
    from pgps_internal.delivery d cross join lateral pgps_internal.event_ids(d) e(event_id)
    where d.class_id = rematch_shares.class_id
        and d.batch_id > greatest(rematch_shares.matched, (rematch_shares.member).from_batch)
        and not e.event_id <@ (rematch_shares.member).skip
        and not exists (select from pgps_internal.failure f
            where f.subscription_id = rematch_shares.subscription_id and f.event_id = e.event_id)
    on conflict do nothing;
    update pgps_internal.member m set takes_batch = true
    where m.subscription_id = rematch_shares.subscription_id and m.class_id = rematch_shares.class_id;
end
$$;
comment on function pgps_internal.rematch_shares(bigint, pgps_internal.member, pgps_internal.event_type, bigint, bigint,
    bigint) is
'The waiting events of a shared subscription when its filter has changed: those that its new class wants, too. matched:
the last batch about which the old filter was asked; upto: the last one for the new filter';

create or replace function pgps_internal.rematch(
    subscription pgps_internal.subscription, member pgps_internal.member, last pgps_internal.batch
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (rematch.subscription).subscription_id;
    v_position pgps_internal.position := pgps_internal.position_of(v_id);
    v_type pgps_internal.event_type;
    v_class bigint;
    v_in_lane boolean;
    v_matched bigint := pgps_internal.asked_upto(rematch.member, rematch.last);
    v_upto bigint;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = (rematch.member).type_id;
    -- What has been shared out is not shared out again: where the lane is behind, it does not begin before that.
    select o.* into v_class, v_in_lane, v_upto
    from pgps_internal.own_class(rematch.subscription, v_type,
        case when (rematch.member).takes_batch then v_matched end, rematch.last) o;
    rematch.member := pgps_internal.as_shown(rematch.member);
    rematch.member.skip := (select m.skip from pgps_internal.current_member m
        where m.subscription_id = v_id and m.class_id = (rematch.member).class_id);
    -- What has failed goes its own way. Were it left to the new class, and that did not want it, it would come again as
    -- an event that never failed when it was settled meanwhile and a later class wants it.
    update pgps_internal.member m set class_id = v_class, takes_batch = false,
        skip = m.skip + coalesce((select range_agg(int8range(f.event_id, f.event_id, '[]'))
            from pgps_internal.failure f
            where f.subscription_id = v_id and f.type_id = m.type_id and not m.takes_batch
                -- Older ones are passed already, and there may be many among the exceptions.
                and f.event_id >= (select min(lower(b.ids)) from pgps_internal.batch_type b
                    where b.type_id = m.type_id and b.batch_id >= v_position.acked_batch)), '{}')
    where m.subscription_id = v_id and m.class_id = (rematch.member).class_id;
    if (rematch.member).takes_batch then
        perform pgps_internal.rematch_shares(v_id, rematch.member, v_type, v_class, v_matched, v_upto);
    else
        perform pgps_internal.replay(v_class, v_type, 0,
            greatest((rematch.member).from_batch, v_position.acked_batch - 1), v_upto);
    end if;
    if v_in_lane is not true then
        perform pgps_internal.make_pending(v_class, v_upto);
    end if;
    perform pgps_internal.drop_unused_classes(array[(rematch.member).class_id]);
end
$$;
comment on function pgps_internal.rematch(pgps_internal.subscription, pgps_internal.member, pgps_internal.batch) is
'Moves a subscription, on one event type, to the class of its new filter, and matches the waiting events for it, up to
the last batch or the batch that its lane has reached';

create or replace function pgps_internal.rematch_unseen(
    subscription pgps_internal.subscription, member pgps_internal.member, last pgps_internal.batch
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state text;
    v_schema text;
    v_error text;
    v_context text;
begin
    begin
        perform pgps_internal.rematch(rematch_unseen.subscription, rematch_unseen.member, rematch_unseen.last);
        return;
    exception when others or assert_failure or query_canceled then
        get stacked diagnostics v_state = returned_sqlstate, v_schema = schema_name, v_error = message_text,
            v_context = pg_exception_context;
        if pgps_internal.is_passing(v_state, v_context, v_schema, v_error) then
            raise;
        end if;
    end;
    -- As when it was subscribed: no error, since the owner may not even know the type, and gets nothing of it.
    delete from pgps_internal.member m where m.subscription_id = (rematch_unseen.member).subscription_id
        and m.class_id = (rematch_unseen.member).class_id;
    delete from pgps_internal.share s where s.subscription_id = (rematch_unseen.member).subscription_id
        and s.type_id = (rematch_unseen.member).type_id;
    perform pgps_internal.drop_unused_classes(array[(rematch_unseen.member).class_id]);
end
$$;
comment on function pgps_internal.rematch_unseen(pgps_internal.subscription, pgps_internal.member,
    pgps_internal.batch) is
'Moves a subscription to a prefix, on an event type that its owner may not see, to the class of its new filter; where
that does not fit the type, it leaves it';

create or replace function pgps_internal.rematch_all(
    subscription pgps_internal.subscription, last pgps_internal.batch
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription := rematch_all.subscription;
begin
    perform case when x.is_seen then pgps_internal.rematch(v_subscription, x.m, rematch_all.last)
        else pgps_internal.rematch_unseen(v_subscription, x.m, rematch_all.last) end
    from (select m, not v_subscription.is_pattern
            or has_table_privilege(v_subscription.owner::oid, t.endpoint, 'select') as is_seen
        from pgps_internal.member m join pgps_internal.event_type t using (type_id)
        where m.subscription_id = v_subscription.subscription_id offset 0) x(m, is_seen);
end
$$;
comment on function pgps_internal.rematch_all(pgps_internal.subscription, pgps_internal.batch) is
'Moves a subscription, on each of its event types, to the class of its new filter or owner';

create or replace function pgps_internal.limit_backlog(subscription_id bigint, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_limit pgps_internal.backlog_limit;
begin
    if coalesce(args ->> 'dead_after', args ->> 'max_backlog', args ->> 'on_backlog') is null then
        return;
    end if;
    select l.* into v_limit from pgps_internal.backlog_limit l
        where l.subscription_id = limit_backlog.subscription_id for update;
    perform pgps_internal.check_age((args ->> 'dead_after')::interval, 'dead_after');
    v_limit.dead_after := nullif(coalesce((args ->> 'dead_after')::interval, v_limit.dead_after), interval '0');
    v_limit.max_backlog := coalesce((args ->> 'max_backlog')::bigint, v_limit.max_backlog);
    v_limit.on_backlog := coalesce(case args ->> 'on_backlog' when 'drop' then 'drop_oldest'
        else args ->> 'on_backlog' end, v_limit.on_backlog, 'suspend');
    if args ->> 'on_backlog' = 'keep' and args ->> 'max_backlog' is null then
        -- on_backlog => 'keep' takes the limit away.
        v_limit.max_backlog := null;
        v_limit.on_backlog := 'suspend';
    end if;
    insert into pgps_internal.backlog_limit as l (subscription_id, dead_after, max_backlog, on_backlog)
    values (limit_backlog.subscription_id, v_limit.dead_after, v_limit.max_backlog, v_limit.on_backlog)
    on conflict on constraint backlog_limit_pkey do update set dead_after = excluded.dead_after,
        max_backlog = excluded.max_backlog,
        on_backlog = excluded.on_backlog, is_resting = l.is_resting and args ->> 'max_backlog' is null;
    delete from pgps_internal.backlog_limit l
    where l.subscription_id = limit_backlog.subscription_id and l.dead_after is null and l.max_backlog is null
        and l.on_backlog = 'suspend';
end
$$;
comment on function pgps_internal.limit_backlog(bigint, jsonb) is
'Sets, changes or takes away the limits of what waits for a subscription';

create or replace function pgps_internal.give_again(subscription pgps_internal.subscription) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (give_again.subscription).subscription_id;
    v_position pgps_internal.position := pgps_internal.position_of(v_id);
begin
    -- Competing consumers have rows of their own, and no position.
    if (give_again.subscription).handler = 'any' and (give_again.subscription).callback is null then
        return;
    end if;
    perform pgps_internal.close_stream(v_id);
    -- Written in any case: who has looked for events and waits for the turn sees by a newer position that what he has
    -- found is not what is next.
    perform pgps_internal.move(v_id, v_position.acked_batch, v_position.acked_event, v_position.acked_batch,
        v_position.acked_event, v_position.acked_total, 0, null,
        coalesce(v_position.seen_batch, v_position.received_batch),
        coalesce(v_position.seen_event, v_position.received_event));
end
$$;
comment on function pgps_internal.give_again(pgps_internal.subscription) is
'What was received of a subscription and not acknowledged is given again, if it matches still. The caller has its turn';

create or replace function pgps_internal.wake_changed(subscription pgps_internal.subscription) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.wake_consumers(array[(wake_changed.subscription).subscription_id]);
    -- A type may have been made meanwhile, and nobody reads before it has been joined anew (pgps_internal.is_unmet).
    perform pgps_internal.wake_dispatcher() where (wake_changed.subscription).is_pattern;
end
$$;
comment on function pgps_internal.wake_changed(pgps_internal.subscription) is
'Wakes who has something to do when the filter or the owner of a subscription has changed';

create or replace function pgps_internal.do_alter_subscription(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    -- A filter runs with the owner's rights, so only a role that has them may set one.
    v_subscription pgps_internal.subscription := case when args ->> 'filter' is null
        then pgps_internal.find_administered(caller, args ->> 'name')
        else pgps_internal.find_subscription(caller, args ->> 'name') end;
    v_id bigint := v_subscription.subscription_id;
    v_was text := v_subscription.state;
    v_last pgps_internal.batch;
begin
    if args ->> 'filter' is not null then
        perform pgps_internal.require_read_committed(), pgps_internal.hold_subscription(v_id, v_subscription.name);
    end if;
    update pgps_internal.subscription s
    set priority = coalesce((args ->> 'priority')::integer, s.priority),
        max_attempts = coalesce((args ->> 'max_attempts')::integer, s.max_attempts)
    where s.subscription_id = v_id;
    perform pgps_internal.require_subscription(v_subscription), pgps_internal.limit_backlog(v_id, args);
    if args ->> 'filter' is null then
        return;
    end if;
    -- The turn of the role before its lane, as those who subscribe have them.
    perform pgps_internal.hold_owner(v_subscription.owner::oid), pgps_internal.hold_lane(v_subscription.owner);
    if v_subscription.handler = 'any' and v_subscription.callback is null then
        -- Events that were shared out meanwhile could be taken before they are matched anew, and would come twice. Not
        -- before the lane is held, which may let it join an event type.
        perform pgps_internal.hold_members(v_id);
    end if;
    v_last := pgps_internal.hold_shares(v_subscription);
    perform pgps_internal.retire(v_subscription, false);
    update pgps_internal.subscription s
    set filter = nullif(args ->> 'filter', ''), parameter_types = pgps_internal.clean_types(args -> 'constant_types'),
        environment = pgps_internal.current_environment(args -> 'schemas', args ->> 'filter'),
        state = case when s.state = 'suspended' then 'active' else s.state end, last_error = null
    where s.subscription_id = v_id returning * into v_subscription;
    update pgps_internal.backlog_limit l set is_resting = true where l.subscription_id = v_id and v_was = 'suspended'
        and l.on_backlog = 'suspend';
    perform pgps_internal.build_rules(r.type_id) from pgps_internal.coupled_rule r where r.subscription_id = v_id;
    perform pgps_internal.note_unmet('pgps_internal.event_type') where v_subscription.is_pattern;
    perform pgps_internal.rematch_all(v_subscription, v_last),
        pgps_internal.join_rest(v_subscription, v_last);
    -- Types that could not be joined with the old filter are tried with the new one, in the owner's lane; until then
    -- the subscription stays suspended.
    update pgps_internal.joining j set failures = -1 where j.subscription_id = v_id and j.failures >= 3;
    if found then
        update pgps_internal.subscription s set state = 'suspended' where s.subscription_id = v_id;
        perform pg_notify('pgps_lanes', '');
    end if;
    perform pgps_internal.give_again(v_subscription), pgps_internal.wake_changed(v_subscription);
end
$$;
comment on function pgps_internal.do_alter_subscription(name, jsonb) is 'See pgps.alter_subscription';

create or replace function pgps.alter_subscription(
    name text, filter text = null, priority integer = null, max_attempts integer = null, dead_after interval = null,
    max_backlog bigint = null,
    on_backlog text = null, owner name = null
) returns void
language plpgsql
as $$
declare
    v_type text;
    v_constants text[];
begin
    if alter_subscription.max_attempts < 1 then
        raise exception 'invalid max_attempts %', alter_subscription.max_attempts using errcode = '22023',
            hint = 'Give 1 or more.';
    elsif alter_subscription.dead_after < '0' then
        raise exception 'invalid dead_after %', alter_subscription.dead_after using errcode = '22023',
            hint = 'Give a time above 0, as ''1 hour''; ''0'' takes it away.';
    elsif alter_subscription.max_backlog < 1 then
        raise exception 'invalid max_backlog %', alter_subscription.max_backlog using errcode = '22023',
            hint = 'Give 1 or more; on_backlog => ''keep'' takes the limit away.';
    elsif alter_subscription.on_backlog not in ('keep', 'suspend', 'drop', 'drop_oldest') then
        raise exception 'invalid on_backlog "%"', alter_subscription.on_backlog using errcode = '22023',
            hint = 'Use suspend, drop (drop_oldest), or keep for no limit.';
    elsif alter_subscription.on_backlog = 'keep' and alter_subscription.max_backlog is not null then
        raise exception 'max_backlog % with on_backlog "keep", which takes it away', alter_subscription.max_backlog
            using errcode = '22023',
            hint = 'Leave one of them out.';
    end if;
    if alter_subscription.owner is not null then
        perform pgps._call('give_subscription',
            pg_catalog.jsonb_build_object('name', alter_subscription.name, 'owner', alter_subscription.owner));
    end if;
    if alter_subscription.filter <> '' then
        for v_type in
            select pg_catalog.jsonb_array_elements_text(pgps._call('types_of',
                pg_catalog.jsonb_build_object('name', alter_subscription.name)))
        loop
            v_constants := pgps.check_filter(v_type, alter_subscription.filter);
        end loop;
    end if;
    perform pgps._call('alter_subscription',
        pg_catalog.jsonb_build_object('name', alter_subscription.name, 'filter', alter_subscription.filter,
        'constant_types', v_constants, 'priority', alter_subscription.priority, 'max_attempts',
            alter_subscription.max_attempts,
        'dead_after', alter_subscription.dead_after, 'max_backlog', alter_subscription.max_backlog, 'on_backlog',
            alter_subscription.on_backlog,
        'schemas', pg_catalog.to_jsonb(pg_catalog.current_schemas(false))));
end
$$;
comment on function pgps.alter_subscription(text, text, integer, integer, interval, bigint, text, name) is
'Changes a subscription that keeps its position; null leaves a value as it is. filter: any SQL predicate, as in
pgps.subscribe, '''' takes it away: what waits is matched anew from the position on, and what was received but not
acknowledged comes again if it matches; a suspended subscription is active again. It runs with the owner''s rights.
priority: among the owner''s subscriptions. max_attempts: of what fails from now on. dead_after: when nobody has
received or acknowledged anything (internal: it was not run) for so long although events waited, pgps.subscriptions and
pgps doctor show it as dead; ''0'' takes it away. max_backlog: how many events may wait for it, whether it is dead or
not; more than that, and the next pgps.reclaim (a worker''s, every few seconds) does what on_backlog says. ''suspend'',
the default: the subscription is suspended; it keeps its position and all that waits, so nothing is lost and no space is
freed, until it is resumed (then the limit counts again once no more than max_backlog wait), moved with pgps.seek, or
ended. ''drop'' (''drop_oldest''): the oldest events beyond the limit, received or not, are passed over, their space is
free, and pgps.exceptions has a row of state gap that says how many, from which to which; competing consumers keep what
they have in hand. ''keep'' takes max_backlog away: the log is the buffer. An error that a new filter raises on a
waiting event is raised here. owner: gives it to that role, of which the caller is a member and which may subscribe to
its types: its filter and callback run with that role''s rights from then on, what waits is matched anew with them,
and its position stays; a caller that is also pgps_admin may give away a subscription whose owner was dropped. Needs
to own the subscription; pgps_admin may change the rest of anybody''s. Errors: 42704, 42501, 22023, and PostgreSQL''s
own for the filter.';

grant execute on function pgps.alter_subscription(text, text, integer, integer, interval, bigint, text, name) to public;
