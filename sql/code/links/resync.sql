-- Resynchronising a link: both sides tell and compare everything again.
-- Locks: the turn of routes, until the transaction ends.
-- Writes: activation, neighbour, origin, told.

create or replace function pgps_internal.unblock(neighbour pgps_internal.neighbour) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if (unblock.neighbour).is_blocked then
        update pgps_internal.neighbour n set is_blocked = false, last_error = null
            where n.neighbour_id = (unblock.neighbour).neighbour_id;
        perform pgps_internal.resume_class(c, t, true)
        from pgps_internal.member m join pgps_internal.class c using (class_id)
            join pgps_internal.event_type t on t.type_id = c.type_id
        where m.subscription_id = (unblock.neighbour).subscription_id and not c.is_active
            and c.suspended_batch is not null;
    end if;
end
$$;
comment on function pgps_internal.unblock(pgps_internal.neighbour) is
'Resumes a neighbour that a policy had blocked: matches what came meanwhile, and raises what the policy still raises';

create or replace function pgps_internal.do_resync_link(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_neighbour pgps_internal.neighbour;
begin
    perform pgps_internal.require_admin(caller, 'resynchronise links');
    perform pgps_internal.hold_routes();
    v_neighbour := pgps_internal.find_neighbour(args ->> 'name');
    if v_neighbour.neighbour_id is null then
        raise exception 'link "%" has never been up', args ->> 'name' using errcode = '55000',
            hint = 'See last_error and hint in pgps.links.';
    end if;
    perform pgps_internal.unblock(v_neighbour);
    -- Attaches again, with the horizon and the filters in force: what was lost on the way is sent again, and what was
    -- received is dropped as a repeat.
    update pgps_internal.origin o set attachment = o.attachment + 1, is_settled = false
        where o.parent = v_neighbour.neighbour_id;
    update pgps_internal.activation a set is_confirmed = false
    from pgps_internal.origin o where o.origin_id = a.origin_id and o.parent = v_neighbour.neighbour_id;
    -- Marks what was told as stale, so that the next comparison sends all of it again and withdraws what is not wanted
    -- any more.
    update pgps_internal.told t set value = t.value || '{"is_stale": true}'
    where t.neighbour_id = v_neighbour.neighbour_id and t.kind <> 'attach';
    perform pgps_internal.hear_type(v_neighbour, f.definition || jsonb_build_object('name', f.name))
    from pgps_internal.foreign_type f where f.neighbour_id = v_neighbour.neighbour_id;
    perform pg_notify('pgps_link', '');
end
$$;
comment on function pgps_internal.do_resync_link(name, jsonb) is 'See pgps.resync_link';

create or replace function pgps.resync_link(name text) returns void
language sql
begin atomic
    select pgps._call('resync_link', jsonb_build_object('name', resync_link.name));
end;
comment on function pgps.resync_link(text) is
'Tells the neighbour at a link all event types, advertisements and filters again; compares its event types with those
here again, for example after one of them was altered; attaches again to it for the origins whose events come from it. A
link that was blocked because a policy raised resumes where it stood, and this holds the dispatcher until the
transaction ends. No event is lost or repeated by it. name: as in pgps.links, or the broker_id. Locks: changes of routes
wait until the transaction ends. Needs pgps_admin. Errors: 42704, 42P09 several are called so, 55000 it has never been
up, 42501.';

grant execute on function pgps.resync_link(text) to public;
