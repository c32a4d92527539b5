-- What the neighbours of one role may make up here: other brokers as which they speak, brokers that they say are behind
-- them, names of event types. Each costs every change of routes, or every batch, of all links (decision 97). What they
-- send that is no event here, and gaps, are kept until an administrator has seen them.
-- Locks: the turn of recording a neighbour, or that of routes, which the callers have.
-- Writes: setting.

insert into pgps_internal.setting (name, value, kind, description) values
    ('link_neighbours', '100', 'integer',
        'As how many brokers one role may open links to this one; links that are defined here do not count'),
    ('link_origins', '1000', 'integer',
        'How many brokers, each epoch by itself, the neighbours of one role may name that this one has not heard of'),
    ('link_types', '20000', 'integer',
        'How many names of event types the neighbours of one role may say: advertised, all brokers behind them '
        'together, and, counted by itself, described'),
    ('link_refused', '100000', 'integer',
        'How many events of the neighbours of one role that are refused here, and gaps, may wait in pgps.exceptions')
on conflict (name) do nothing;

create or replace function pgps_internal.require_few(
    count bigint, setting text, role regrole, what text, remedy text
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_most integer := pgps_internal.setting(require_few.setting)::integer;
begin
    if require_few.count > v_most then
        raise exception 'the neighbours of role "%" %: % are allowed at broker "%"', require_few.role, require_few.what,
            v_most, pgps_internal.broker_name()
        using errcode = '54000', hint = format('%s Or allow more there, as an administrator: select '
            'pgps.configure(%L, %L)', require_few.remedy, require_few.setting, require_few.count::text);
    end if;
end
$$;
comment on function pgps_internal.require_few(bigint, text, regrole, text, text) is
'Raises 54000 when something is more than a setting allows to the neighbours of a role; what: what they do, remedy: what
they can do about it';

create or replace function pgps_internal.check_neighbours(role regrole) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    select pgps_internal.require_few(count(*) + 1, 'link_neighbours', check_neighbours.role, 'are too many brokers',
        'Drop the links of those that are gone, there and here.')
    from pgps_internal.neighbour n where n.role = check_neighbours.role and n.link_id is null
$$;
comment on function pgps_internal.check_neighbours(regrole) is
'Raises 54000 when a role may not be one more neighbour that has opened its link itself';

create or replace function pgps_internal.check_origins(role regrole) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    select pgps_internal.require_few(count(*) + 1, 'link_origins', check_origins.role, 'name too many brokers',
        'Link those that only receive with direction => ''in'': they are not named to others.')
    from pgps_internal.origin o where o.named_by = check_origins.role
$$;
comment on function pgps_internal.check_origins(regrole) is
'Raises 54000 when the neighbours of a role may not name one more broker that is not known here';

create or replace function pgps_internal.check_advertised(
    neighbour pgps_internal.neighbour, origin_id integer, types integer
) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    select pgps_internal.require_few(coalesce(sum(cardinality(f.types)), 0) + check_advertised.types, 'link_types',
        (check_advertised.neighbour).role, 'advertise too many event types',
        'Advertise fewer: select pgps.unadvertise(name).')
    from pgps_internal.offer f join pgps_internal.neighbour n using (neighbour_id)
    where n.role = (check_advertised.neighbour).role
        and (f.neighbour_id, f.origin_id) is distinct from
            ((check_advertised.neighbour).neighbour_id, check_advertised.origin_id)
$$;
comment on function pgps_internal.check_advertised(pgps_internal.neighbour, integer, integer) is
'Raises 54000 when a neighbour advertises so many event types for an origin, in place of what it did before, that those
of its role would be too many';

create or replace function pgps_internal.check_described(neighbour pgps_internal.neighbour, name text) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    select pgps_internal.require_few(count(*) + 1, 'link_types', (check_described.neighbour).role,
        'describe too many event types', 'Advertise fewer: select pgps.unadvertise(name).')
    from pgps_internal.foreign_type f join pgps_internal.neighbour n using (neighbour_id)
    where n.role = (check_described.neighbour).role
        and (f.neighbour_id, f.name) is distinct from ((check_described.neighbour).neighbour_id, check_described.name)
$$;
comment on function pgps_internal.check_described(pgps_internal.neighbour, text) is
'Raises 54000 when a neighbour describes one more event type, and those of its role would be too many';

create or replace function pgps_internal.check_refused(role regrole) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    select pgps_internal.require_few(count(*), 'link_refused', check_refused.role,
        'have too many refused events and gaps', 'Settle them there: select pgps.discard_exception(event_type), null '
        'for gaps.')
    from pgps_internal.rejected r where r.publisher = check_refused.role
$$;
comment on function pgps_internal.check_refused(regrole) is
'Raises 54000 when more of what the neighbours of a role have sent waits in pgps.exceptions than may';

create or replace function pgps_internal.crowded_neighbours() returns table (
    role text, setting text, event_type text, used bigint, most integer
)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select u.role::text, u.setting, u.event_type, u.used, m.most
    from (
        select n.role, 'link_neighbours' as setting, null as event_type, count(*) as used
        from pgps_internal.neighbour n where n.link_id is null group by n.role
        union all
        select o.named_by, 'link_origins', null, count(*) from pgps_internal.origin o
        where o.named_by is not null group by o.named_by
        union all
        select r.publisher, 'link_refused', null, count(*) from pgps_internal.rejected r group by r.publisher
        union all
        -- What is advertised and what is described are counted apart.
        select a.role, 'link_types', null, max(a.used) from (
            select n.role, sum(cardinality(f.types)) as used
            from pgps_internal.offer f join pgps_internal.neighbour n using (neighbour_id) group by n.role
            union all
            select n.role, count(*)
            from pgps_internal.foreign_type f join pgps_internal.neighbour n using (neighbour_id)
            group by n.role) a group by a.role
        union all
        select g.owner, 'link_filters', t.name, count(*)
        from pgps_internal.signature g join pgps_internal.event_type t using (type_id)
        where not g.in_lane and g.owner in (select n.role from pgps_internal.neighbour n)
        group by g.owner, t.name
    ) u
    cross join lateral (select pgps_internal.setting(u.setting)::integer as most) m
    where u.used >= 0.8 * m.most
    order by 1, 2, 3
$$;
comment on function pgps_internal.crowded_neighbours() is
'Roles whose neighbours have made up four fifths or more of what a setting allows them; event_type: of which type, for
link_filters';
