-- Giving a subscription, with its position, to another role.
-- Locks: until the transaction ends, the turn of the subscription, its owner's lane and a lock against reclaim; with
-- competing consumers its members, for which the dispatcher does not wait.
-- Writes: subscription.

create or replace function pgps_internal.require_new_owner(
    caller name, subscription pgps_internal.subscription, owner name
) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := (require_new_owner.subscription).name;
    v_present regrole := (require_new_owner.subscription).owner;
    v_type text;
begin
    -- regrole prints the bare OID of a role that was dropped.
    if v_present::text <> v_present::oid::text and not pg_has_role(require_new_owner.caller, v_present, 'usage') then
        raise exception 'subscription "%" belongs to role %', v_name, v_present
        using errcode = '42501',
            hint = format('Become a member of role %s; an administrator gives away only what has no owner any more.',
            v_present);
    elsif not pg_has_role(require_new_owner.caller, require_new_owner.owner, 'usage') then
        -- Filter and callback will run with the new owner's rights, so the caller has to have them.
        raise exception 'role "%" has not the rights of role "%"', require_new_owner.caller, require_new_owner.owner
        using errcode = '42501',
            hint = format('Ask for: grant %I to %I; or let that role subscribe itself.', require_new_owner.owner,
            require_new_owner.caller);
    end if;
    select t.name into v_type from pgps_internal.member m join pgps_internal.event_type t using (type_id)
    -- Of a prefix a role gets what it may see.
    where m.subscription_id = (require_new_owner.subscription).subscription_id
        and not (require_new_owner.subscription).is_pattern
        and not has_table_privilege(require_new_owner.owner, t.endpoint, 'select') limit 1;
    if v_type is not null then
        raise exception 'role "%" may not subscribe to event type "%"', require_new_owner.owner, v_type
        using errcode = '42501',
            hint = format('Ask for: grant select on pgps_event.%I to %I', v_type, require_new_owner.owner);
    end if;
    perform pgps_internal.require_coupled_owner(r, require_new_owner.owner)
    from pgps_internal.coupled_rule r
    where r.subscription_id = (require_new_owner.subscription).subscription_id;
end
$$;
comment on function pgps_internal.require_new_owner(name, pgps_internal.subscription, name) is
'Raises 42501 unless the caller may give a subscription to a role, and that role may have its events';

create or replace function pgps_internal.do_give_subscription(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription := pgps_internal.find_administered(caller, args ->> 'name');
    v_id bigint := v_subscription.subscription_id;
    v_function regprocedure;
    v_owner oid := pgps_internal.find_role(args ->> 'owner');
    v_last pgps_internal.batch;
begin
    perform pgps_internal.require_new_owner(caller, v_subscription, args ->> 'owner');
    if v_owner = v_subscription.owner::oid then
        return;
    end if;
    perform pgps_internal.require_read_committed(), pgps_internal.hold_subscription(v_id, v_subscription.name),
        pgps_internal.require_subscription(v_subscription);
    -- Both in one order: somebody else may give one the other way.
    perform pgps_internal.hold_owner(o) from (select unnest(array[v_owner, v_subscription.owner::oid]) order by 1
        offset 0) r(o);
    perform pgps_internal.hold_lane(v_subscription.owner);
    if v_subscription.handler = 'any' and v_subscription.callback is null then
        perform pgps_internal.hold_members(v_id);
    end if;
    v_last := pgps_internal.hold_shares(v_subscription);
    update pgps_internal.subscription s set owner = v_owner::regrole, last_error = null,
        state = case when s.state = 'suspended' then 'active' else s.state end
    where s.subscription_id = v_id returning * into v_subscription;
    if v_subscription.is_pattern then
        perform pgps_internal.note_unmet('pgps_internal.event_type'), pgps_internal.open_lane(v_owner::regrole);
    end if;
    perform pgps_internal.rematch_all(v_subscription, v_last),
        pgps_internal.join_rest(v_subscription, v_last);
    for v_function in select p.oid from pg_proc p where p.pronamespace = 'pgps_internal'::regnamespace
        and p.proname ~ format('^callback_%s_\d+$', v_id) loop
        execute format('drop function %s', v_function);
    end loop;
    perform pgps_internal.build_callback(v_id, m.type_id) from (select distinct m.type_id from pgps_internal.member m
        where m.subscription_id = v_id and v_subscription.callback is not null) m;
    perform pgps_internal.build_rules(r.type_id) from pgps_internal.coupled_rule r where r.subscription_id = v_id;
    perform pgps_internal.give_again(v_subscription), pgps_internal.wake_changed(v_subscription),
        pg_notify('pgps_lanes', '');
end
$$;
comment on function pgps_internal.do_give_subscription(name, jsonb) is
'Gives a subscription to another role, whose rights its filter and callback have from then on: what waits is matched
anew with them';
