-- Which events a role may see: row-level policies come first, then filters.
-- Locks: the log of an event type that has policies, access share.
-- Writes: neighbour.

create or replace function pgps_internal.visible_function(type_id integer, owner regrole) returns regproc
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select p.oid from pg_proc p
    where p.pronamespace = 'pgps_internal'::regnamespace and p.proowner = visible_function.owner
        and p.proname between format('visible_%s_', visible_function.type_id)::name
            and format('visible_%s_:', visible_function.type_id)::name
    limit 1
$$;
comment on function pgps_internal.visible_function(integer, regrole) is
'The function that build_visible has made, found by its owner, since a role''s number differs in a restored database';

create or replace function pgps_internal.build_visible(type_id integer, owner regrole) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text;
    v_type pgps_internal.event_type;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = build_visible.type_id;
    if pgps_internal.visible_function(build_visible.type_id, build_visible.owner) is null then
        -- The number only makes the name unique, so that two roles that subscribe to the type at once need not wait for
        -- each other.
        v_name := format('pgps_internal.visible_%s_%s', v_type.type_id,
            nextval('pgps_internal.class_class_id_seq'::regclass));
        perform pgps_internal.build(pgps_internal.write_visible(v_name, pgps_internal.names_of(v_type),
            build_visible.owner), v_type.type_id);
    end if;
end
$$;
comment on function pgps_internal.build_visible(integer, regrole) is
'Makes, for an owner of classes of a type, a function owned by that role that reads the log under row-level security:
which of these events may it see?';

create or replace function pgps_internal.visible(event_type pgps_internal.event_type, owner regrole, ids int8multirange)
returns int8multirange
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ids int8multirange;
    v_prepared text;
    v_done boolean := false;
begin
    if not exists (select from pg_roles r where r.oid = visible.owner)
        or not has_table_privilege(visible.owner::oid, (visible.event_type).endpoint, 'select') then
        return '{}';
    elsif not (visible.event_type).has_policy then
        return visible.ids;
    end if;
    -- As in match_owner.
    perform pgps_internal.hold_log(visible.event_type);
    if pgps_internal.visible_function((visible.event_type).type_id, visible.owner) is null then
        perform pgps_internal.build_visible((visible.event_type).type_id, visible.owner);
    end if;
    -- A policy may call anybody's functions: what they did, settings above all, is rolled back, as in match_owner.
    v_prepared := pgps_internal.prepared();
    begin
        execute format('select %s($1)', pgps_internal.visible_function((visible.event_type).type_id, visible.owner))
            using visible.ids into v_ids;
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
    return v_ids * visible.ids;
end
$$;
comment on function pgps_internal.visible(pgps_internal.event_type, regrole, int8multirange) is
'The events that a role may receive: none without SELECT on the type, those its policies let through otherwise';

create or replace function pgps_internal.visible_ids(event_type pgps_internal.event_type, owner regrole, ids bigint[])
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_visible int8multirange;
begin
    if not (visible_ids.event_type).has_policy
        and has_table_privilege(visible_ids.owner::oid, (visible_ids.event_type).endpoint, 'select') then
        return visible_ids.ids;
    end if;
    v_visible := pgps_internal.visible(visible_ids.event_type, visible_ids.owner,
        (select range_agg(int8range(i, i, '[]')) from unnest(visible_ids.ids) i));
    return array(select i from unnest(visible_ids.ids) with ordinality u(i, place) where i <@ v_visible order by place);
end
$$;
comment on function pgps_internal.visible_ids(pgps_internal.event_type, regrole, bigint[]) is
'Those of the events that a role may receive now, when they are handed out: its rights may have changed since they were
matched';

create or replace function pgps_internal.visible_carefully(
    batch_id bigint, event_type pgps_internal.event_type, owner regrole, ids int8multirange
)
returns int8multirange
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state text;
    v_error text;
    v_context text;
begin
    return pgps_internal.visible(visible_carefully.event_type, visible_carefully.owner, visible_carefully.ids);
exception when others or assert_failure or query_canceled then
    get stacked diagnostics v_state = returned_sqlstate, v_error = message_text, v_context = pg_exception_context;
    if pgps_internal.is_cancelled(v_state, v_context) or pgps_internal.is_held_up(v_state, v_context) then
        raise;
    end if;
    -- A neighbour gets nothing while it is unknown what it may see.
    update pgps_internal.neighbour n set is_blocked = true,
        last_error = format('a policy on event type "%s" raised: %s',
        (visible_carefully.event_type).name, v_error) where n.role = visible_carefully.owner;
    -- Where somebody has a subscription locked, the class is asked again with the next batch.
    perform case when pgps_internal.try_class(c.class_id)
        then pgps_internal.suspend_class(c.class_id, visible_carefully.batch_id - 1, format('policy: %s', v_error))
        else pgps_internal.make_pending(c.class_id, visible_carefully.batch_id - 1) end
    from pgps_internal.class c
    where c.type_id = (visible_carefully.event_type).type_id and c.owner = visible_carefully.owner and c.is_active;
    return '{}';
end
$$;
comment on function pgps_internal.visible_carefully(bigint, pgps_internal.event_type, regrole, int8multirange) is
'The events of a batch that a role may receive; a policy that raises suspends the subscriptions and blocks the links of
that role only';
