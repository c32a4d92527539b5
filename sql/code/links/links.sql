-- Links to other brokers: their definitions and their state.
-- Locks: catalogue rows.
-- Writes: link, neighbour.

create or replace function pgps_internal.do_create_link(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.check_name(args ->> 'name', 'link');
    v_role regrole;
begin
    perform pgps_internal.require_admin(caller, 'create links');
    if args ->> 'direction' is null or args ->> 'direction' not in ('both', 'in', 'out') then
        raise exception 'invalid direction "%"', args ->> 'direction' using errcode = '22023',
            hint = 'Use both, in or out.';
    end if;
    perform pgps_internal.check_conninfo(v_name, args ->> 'conninfo');
    if exists (select from pgps_internal.link l where l.name = v_name) then
        raise exception 'link "%" exists already', v_name using errcode = '42710',
            hint = format('Change it with pgps.alter_link(%L, …).', quote_ident(v_name));
    end if;
    v_role := pgps_internal.find_role(coalesce(args ->> 'role', 'pgps_neighbour'));
    if args ->> 'role' is not null and not pg_has_role(caller, v_role::oid, 'usage') then
        raise exception 'role "%" may not link with the rights of role %', caller, v_role
        using errcode = '42501', hint = format('Ask for: grant %s to %I', v_role, caller);
    end if;
    perform pgps_internal.warn_of_password(v_name, args ->> 'conninfo');
    insert into pgps_internal.link (name, conninfo, direction, role)
        values (v_name, args ->> 'conninfo', args ->> 'direction', v_role);
    perform pgps_internal.lend(t) from pgps_internal.event_type t;
end
$$;
comment on function pgps_internal.do_create_link(name, jsonb) is 'See pgps.create_link';

create or replace function pgps.create_link(name text, conninfo text, direction text = 'both', role name = null)
returns void
language sql
begin atomic
    select pgps._call('create_link', jsonb_build_object('name', create_link.name, 'conninfo', create_link.conninfo,
        'direction', create_link.direction, 'role', create_link.role));
end;
comment on function pgps.create_link(text, text, text, name) is
'Defines a link to another broker (paper, section 4.6); a worker of this broker connects it and carries both ways.
conninfo: a libpq string; a password belongs into a passfile or a service file where the worker runs, not here: whoever
may call pgps.serve_links, members of pgps_worker and pgps_admin, sees the string, and a dump has it; a warning says so.
The role in it needs pgps_link there. By which methods a worker logs in there its own host says (--link-auth); beside
service stands nothing of where that is, and beside host no hostaddr unless sslmode=verify-full. direction: both, in
(events come here) or out. role: with whose rights the neighbour receives and publishes here; its SELECT, INSERT and
policies decide what may cross. null = pgps_neighbour, which gets SELECT and INSERT once on each event type of an
administrator, now and later, that may be revoked: no right of the caller''s is lent. Locks: until the transaction
ends, GRANT, REVOKE, alter_event_type and drop_event_type wait on the types on which that right is given now, which are
all with the first link, and so does another create_link; nobody who publishes or receives. Needs pgps_admin and to be a
member of role. Errors: 42710, 22023, 42501, 42704.';

create or replace function pgps_internal.require_link(name text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from pgps_internal.link l where l.name = pgps_internal.fold(require_link.name)) then
        raise exception 'link "%" does not exist', pgps_internal.fold(require_link.name)
        using errcode = '42704', hint = 'See pgps.links.';
    end if;
end
$$;
comment on function pgps_internal.require_link(text) is
'Raises 42704 unless this broker has defined a link of that name';

create or replace function pgps_internal.find_neighbour(name text) returns pgps_internal.neighbour
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.fold(find_neighbour.name);
    v_link integer := (select l.link_id from pgps_internal.link l where l.name = v_name);
    v_neighbour pgps_internal.neighbour;
begin
    -- A link that is defined here has a name that nobody else gives; how a neighbour is called that connects, it says
    -- itself, and others may say the same.
    select n.* into v_neighbour from pgps_internal.neighbour n
    where case when v_link is not null then n.link_id = v_link
        else n.broker_id::text = v_name or n.link_id is null and n.name = v_name end
    order by n.broker_id::text = v_name desc limit 1;
    if not found then
        perform pgps_internal.require_link(find_neighbour.name);
    elsif v_link is null and exists (
            select from pgps_internal.neighbour n where n.link_id is null and n.name = v_name
                and n.neighbour_id <> v_neighbour.neighbour_id) then
        raise exception 'several neighbours are called "%"', v_name using errcode = '42P09',
            hint = 'Give the broker_id of the one that is meant, as in pgps.links.';
    end if;
    return v_neighbour;
end
$$;
comment on function pgps_internal.find_neighbour(text) is
'The neighbour at a link, by its name, which is the neighbour''s own where the link was defined there, or by the
broker_id; nulls while the link has never been up. Errors: 42704 no such link, 42P09 several are called so.';

create or replace function pgps_internal.do_alter_link(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.require_admin(caller, 'alter links');
    if args ->> 'conninfo' is not null then
        perform pgps_internal.check_conninfo(pgps_internal.fold(args ->> 'name'), args ->> 'conninfo');
    end if;
    perform pgps_internal.warn_of_password(args ->> 'name', args ->> 'conninfo');
    update pgps_internal.link l
    set conninfo = coalesce(args ->> 'conninfo', l.conninfo),
        enabled = coalesce((args ->> 'enabled')::boolean, l.enabled),
        -- Whoever resumes a link that waits has mended something: the worker tries again at once.
        state = case when (args ->> 'enabled')::boolean and l.state in ('waiting', 'blocked') then 'connecting'
            else l.state end
    where l.name = pgps_internal.fold(args ->> 'name');
    if not found then
        perform pgps_internal.require_link(args ->> 'name');
    end if;
end
$$;
comment on function pgps_internal.do_alter_link(name, jsonb) is 'See pgps.alter_link';

create or replace function pgps.alter_link(name text, conninfo text = null, enabled boolean = null) returns void
language sql
begin atomic
    select pgps._call('alter_link',
        jsonb_build_object('name', alter_link.name, 'conninfo', alter_link.conninfo, 'enabled', alter_link.enabled));
end;
comment on function pgps.alter_link(text, text, boolean) is
'Changes a link; null leaves a property as it is. conninfo: see pgps.create_link, also for passwords. enabled: true
has the worker try a link at once that waits for its next attempt, or is blocked. Needs pgps_admin. Errors: 42704, 22023
no connection string of libpq, 42501.';

create or replace function pgps_internal.do_drop_link(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.fold(args ->> 'name');
    v_neighbour pgps_internal.neighbour;
begin
    perform pgps_internal.require_admin(caller, 'drop links');
    perform pgps_internal.hold_routes();
    v_neighbour := pgps_internal.find_neighbour(args ->> 'name');
    v_name := coalesce((select l.name from pgps_internal.link l where l.link_id = v_neighbour.link_id), v_name);
    if v_neighbour.neighbour_id is null and not coalesce((args ->> 'cascade')::boolean, false)
        and exists (select from pgps_internal.link l where l.name = v_name and (l.is_known or l.is_dropped)) then
        -- This broker was resumed and has not met the other one again, which still has the link and waits.
        update pgps_internal.link l set is_dropped = true, enabled = true where l.name = v_name;
    elsif v_neighbour.neighbour_id is null or coalesce((args ->> 'cascade')::boolean, false) then
        perform pgps_internal.forget_neighbour(v_neighbour.neighbour_id) where v_neighbour.neighbour_id is not null;
        delete from pgps_internal.link l where l.link_id = v_neighbour.link_id
            or v_neighbour.neighbour_id is null and l.name = v_name;
        return;
    end if;
    update pgps_internal.neighbour n set is_draining = true, is_dropped_here = true
        where n.neighbour_id = v_neighbour.neighbour_id;
    update pgps_internal.link l set enabled = true where l.link_id = v_neighbour.link_id;
    perform pg_notify('pgps_link', '');
    raise notice 'link "%" is being drained, and goes when nothing is under way any more', v_name
        using hint = format('pgps.links shows it until then. At once, with what waits: select pgps.drop_link(%L, '
            'cascade => true)', quote_ident(v_name));
end
$$;
comment on function pgps_internal.do_drop_link(name, jsonb) is 'See pgps.drop_link';

create or replace function pgps.drop_link(name text, cascade boolean = false) returns void
language sql
begin atomic
    select pgps._call('drop_link', jsonb_build_object('name', drop_link.name, 'cascade', drop_link.cascade));
end;
comment on function pgps.drop_link(text, boolean) is
'Drops a link by its name, also that of a neighbour which connects to here (where several are called so: its broker_id),
on both sides, after it is drained: the two brokers attach and ask for nothing over it from now on, origins with another
path change to that, what is under way is delivered. Then the workers remove the link and what each side knows of the
other. Until then it is in pgps.links, draining; a NOTICE says so. A further call does no harm; a paused link is resumed
to drain. A definition that the other side made stays there, paused. cascade: at once, on this side alone, and what
waits is discarded. A link that was never up is dropped at once; one that has not been up since
pgps.resume_links(''restored'') goes when the other side has been reached once more. Locks: changes of routes wait until
the transaction ends. Needs pgps_admin. Errors: 42704, 42P09 several are called so, 42501.';

create or replace function pgps_internal.do_serve_links(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.require_worker(caller, 'serve links');
    return (select coalesce(to_jsonb(array_agg(jsonb_build_object('name', l.name, 'conninfo', l.conninfo, 'state',
            l.state, 'draining', coalesce(n.is_draining, l.is_dropped)) order by l.name)), '[]')
        from pgps_internal.link l left join pgps_internal.neighbour n using (link_id) where l.enabled);
end
$$;
comment on function pgps_internal.do_serve_links(name, jsonb) is 'See pgps.serve_links';

create or replace function pgps.serve_links() returns jsonb
language sql
begin atomic
    select pgps._call('serve_links', '{}');
end;
comment on function pgps.serve_links() is
'The links that a worker of this broker has to serve: name, conninfo, state, draining. Callers see the connection
strings whole, with any password in them: use passfile or service instead, see pgps.create_link. Needs pgps_worker or
pgps_admin. Errors: 42501.';

create or replace function pgps_internal.do_note_link(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.require_worker(caller, 'serve links');
    if args ->> 'state' is null then
        raise exception 'the state of link "%" is null', args ->> 'name' using errcode = '22023',
            hint = 'Give up, or what keeps it from being up.';
    end if;
    -- Error and hint may be what the server at the other end has said.
    update pgps_internal.link l set state = args ->> 'state', last_error = x.error, hint = x.hint,
        changed_at = pgps_internal.clock()
    from (select pgps_internal.told_text(args ->> 'error', 1000) as error,
        pgps_internal.told_text(args ->> 'hint', 300) as hint) x
    where l.name = args ->> 'name' and (l.state, l.last_error, l.hint) is distinct from (args ->> 'state', x.error,
        x.hint);
end
$$;
comment on function pgps_internal.do_note_link(name, jsonb) is 'See pgps.note_link';

create or replace function pgps.note_link(name text, state text, error text = null, hint text = null) returns void
language sql
begin atomic
    select pgps._call('note_link',
        jsonb_build_object('name', note_link.name, 'state', note_link.state, 'error', note_link.error, 'hint',
        note_link.hint));
end;
comment on function pgps.note_link(text, text, text, text) is
'Records the state of a link that a worker serves, for pgps.links. Needs pgps_worker or pgps_admin. Errors: 42501, 22023
null state.';

create or replace function pgps._link_sessions(
    reader name
) returns table (neighbour_id integer, duty text, since timestamptz)
language sql security definer stable
set search_path = pg_catalog, pg_temp
as $$
    -- The view passes its reader as reader. Anybody may call this and pass another role, so the session must be a
    -- member of it.
    select s.neighbour_id, s.duty, s.since from pgps_internal.link_session s
    where pgps_internal.may_become(session_user, quote_ident(_link_sessions.reader)::regrole::oid)
        and pgps_internal.is_alive(s.holder)
        and (pg_has_role(_link_sessions.reader, 'pgps_admin', 'usage')
            or pg_has_role(_link_sessions.reader, 'pgps_worker', 'usage'))
$$;
comment on function pgps._link_sessions(name) is
'The live sessions that serve neighbours, which otherwise only their owners and superusers could see. For pgps.links and
pgps.link_details, not for applications; no rows unless the session may be reader and reader is in pgps_admin or
pgps_worker.';
grant execute on function pgps._link_sessions(name) to public;

create or replace view pgps.links with (security_barrier) as
select coalesce(l.name, n.name) as name, coalesce(l.direction, n.direction) as direction,
    coalesce(l.enabled, true) as enabled,
    case
        when not l.enabled then 'paused'
        when n.is_draining or l.is_dropped then 'draining'
        when n.is_blocked or n.refusal is not null then 'blocked'
        when u.is_up and (d.is_lacking or w.origins is not null) then 'incomplete'
        when u.is_up then 'up'
        when l.link_id is null then 'waiting'
        when l.state = 'up' then 'connecting'
        else l.state end as state,
    concat_ws('; ', n.last_error, coalesce(l.last_error, said.error),
        'it says that this broker was restored, since ' || to_char(n.claimed_at at time zone 'UTC',
            'YYYY-MM-DD HH24:MI "UTC"'), d.differences, w.origins) as last_error,
    case
        when n.is_draining and not u.is_up or l.is_dropped and n.neighbour_id is null
            then format('It goes when %s has been reached. Without that: select pgps.drop_link(%L, cascade '
            '=> true)',
            coalesce(format('broker "%s"', n.name), 'the other broker'), quote_ident(y.typed))
        when u.is_up and w.origins is not null
            then format('If it stays so: select pgps.resync_link(%L)', quote_ident(y.typed))
        when n.is_blocked then format('When that is mended: select pgps.resync_link(%L)',
            quote_ident(y.typed))
        else coalesce(l.hint, said.hint) end as hint, n.name as neighbour, n.broker_id, n.epoch,
            pg_get_userbyid(coalesce(l.role, n.role))::text as role, l.link_id is not null as defined_here,
    coalesce(b.depth, 0) as lag_events,
    coalesce(extract(epoch from pgps._clock() - b.oldest), 0)::double precision as lag_seconds,
    coalesce(p.acked_total, 0) as events_sent, r.rate as sent_rate, i.events_received, i.rate as received_rate,
    i.last_received_at,
    (select count(*) from pgps_internal.told t where t.neighbour_id = n.neighbour_id
        and t.kind = 'sub') as filters_sent,
    (select count(*) from pgps_internal.wanted w where w.neighbour_id = n.neighbour_id
        and w.gone_batch is null) as filters_received, l.changed_at,
    x.refused, x.gaps
from pgps_internal.link l
full join pgps_internal.neighbour n using (link_id)
-- What pgps.drop_link and the like take: neighbours that connect name themselves, and several may be called the same.
cross join lateral (select case when l.link_id is null and exists (select from pgps_internal.neighbour o
        left join pgps_internal.link k using (link_id)
        where o.neighbour_id <> n.neighbour_id and coalesce(k.name, o.name) = n.name)
    then n.broker_id::text else coalesce(l.name, n.name) end as typed) y
-- A neighbour's own word is shown as such.
cross join lateral (select
    case when n.refused_by is null or n.refusal is null then n.refusal
        else format('role "%s" says: %s', n.refused_by, n.refusal) end as error,
    case when n.refused_by is null or n.refusal_hint is null then n.refusal_hint
        else format('Role "%s" advises: %s', n.refused_by, n.refusal_hint) end as hint) said
cross join lateral (select count(*) = 2 as is_up from pgps._link_sessions(current_user) s
    where s.neighbour_id = n.neighbour_id) u
cross join lateral (select count(*) filter (where x.type_id is not null) as refused,
    count(*) filter (where x.type_id is null) as gaps
    from pgps_internal.rejected x where x.neighbour_id = n.neighbour_id) x
cross join lateral (select string_agg(format('event type "%s": %s', f.name, f.difference), '; '
    order by f.name) as differences,
        -- A missing type that the setting link_create_types does not allow here is not counted as lacking.
        bool_or(t.type_id is not null
            or (select s.value::boolean from pgps_internal.setting s where s.name = 'link_create_types')) as is_lacking
    from pgps_internal.foreign_type f left join pgps_internal.event_type t on t.name = f.name
    where f.neighbour_id = n.neighbour_id and f.difference is not null) d
-- Origins of which it is the parent, and has not said for a minute what there is. Only where a filter is in force that
-- the parent has not confirmed: without one, a parent that has nothing of an origin says nothing.
cross join lateral (select string_agg(format('it has not answered for a minute what it has of broker "%s"', o.name),
    '; ' order by o.name) as origins
    from pgps_internal.origin o
    where o.parent = n.neighbour_id and o.answered is distinct from o.attachment
        and o.asked_at < pgps._clock() - interval '1 minute'
        and exists (select from pgps_internal.told t where t.neighbour_id = o.parent and t.kind = 'attach'
            and t.key = o.origin_id::text and (t.value ->> 'attachment')::integer = o.attachment)
        and exists (select from pgps_internal.activation a where a.origin_id = o.origin_id)
        and not exists (select from pgps_internal.activation a where a.origin_id = o.origin_id and a.is_confirmed)) w
left join pgps_internal.standing p on p.subscription_id = n.subscription_id
left join lateral (select sum(x.depth)::bigint as depth, min(x.oldest) as oldest from pgps_internal.backlog x
    where x.subscription_id = n.subscription_id) b on true
cross join lateral (select coalesce((max(h.acked_total) - min(h.acked_total)) / nullif(extract(epoch
    from pgps._clock() - min(h.moved_at)), 0), 0)::double precision as rate
    from (select h.* from pgps_internal.position h where h.subscription_id = n.subscription_id
        order by h.position_id desc limit 100) h
    where h.moved_at > pgps._clock() - interval '1 minute') r
cross join lateral (select coalesce(sum(c.events), 0)::bigint as events_received,
    max(c.received_at) as last_received_at,
        coalesce(sum(c.events) filter (where c.received_at > pgps._clock() - interval '1 minute') / 60.0,
            0)::double precision as rate
    from pgps_internal.arrival c where c.neighbour_id = n.neighbour_id) i
where pg_has_role(current_user, 'pgps_admin', 'usage') or pg_has_role(current_user, 'pgps_worker', 'usage');
comment on view pgps.links is
'Links to other brokers, those defined here and those of neighbours that connect, for pgps_admin and pgps_worker. state:
defined, connecting, up, incomplete (connected, but events of some type, or of some broker, do not cross: last_error
says which and why), waiting (not connected; last_error says why), elsewhere (served from the other side), blocked (an
administrator must act), paused, draining. refused, gaps: how many of its events, and holes in the history of an origin,
are in pgps.exceptions';
grant select on pgps.links to public;

revoke all on function pgps.serve_links(), pgps.note_link(text, text, text, text) from public;
grant execute on function pgps.serve_links(), pgps.note_link(text, text, text, text) to pgps_worker, pgps_admin;
grant execute on function pgps.create_link(text, text, text, name), pgps.alter_link(text, text, boolean),
    pgps.drop_link(text, boolean) to public;
