-- Routing: what comes from whom, which filters are told to whom, and from which batch on they are in force.
-- Locks: the turn of routes, one change of them at a time, until the transaction ends.
-- Writes: activation, attached, origin, unsettled.

create or replace function pgps_internal.horizon(origin_id integer) returns bigint
language plpgsql volatile
set plan_cache_mode = force_generic_plan
as $$
declare
    v_horizon bigint;
    v_newest bigint := pg_sequence_last_value('pgps_internal.arrival_id_seq'::regclass);
begin
    -- The newest arrival of an origin is usually in the newest segment: one scan to set up, not four.
    select i.horizon into v_horizon from pgps_internal.arrival i
    where i.origin_id = horizon.origin_id
        and pgps_internal.arrival_segment(i.arrival_id) = pgps_internal.arrival_segment(v_newest)
        and i.arrival_id >= pgps_internal.arrival_segment_start(v_newest)
    order by i.arrival_id desc limit 1;
    if not found then
        select i.horizon into v_horizon from pgps_internal.arrival i where i.origin_id = horizon.origin_id
        order by i.arrival_id desc limit 1;
    end if;
    return coalesce(v_horizon, 0);
end
$$;
comment on function pgps_internal.horizon(integer) is
'Up to which batch of an origin this broker has all that its filters want';

create or replace function pgps_internal.horizon_seen(origin_id integer) returns bigint
language plpgsql stable
as $$
begin
    return coalesce((select i.horizon from pgps_internal.arrival i where i.origin_id = horizon_seen.origin_id
        order by i.arrival_id desc limit 1), 0);
end
$$;
comment on function pgps_internal.horizon_seen(integer) is
'As horizon, in the snapshot of the statement that asks: what has come and what waits for dispatch is one picture then.
For who has read the ledger of arrivals in this transaction before; see decision 105';

create or replace function pgps_internal.reached(origin_id integer) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A past epoch of this broker has no more batches, however far a neighbour got in it before the restore.
    return (select case when o.is_self and o.to_batch is not null then 9223372036854775807 when o.is_self
        then coalesce((pgps_internal.last_batch()).batch_id, 0)
        else pgps_internal.horizon(o.origin_id) end
    from pgps_internal.origin o where o.origin_id = reached.origin_id);
end
$$;
comment on function pgps_internal.reached(integer) is
'The newest batch of an origin that this broker may have; the highest number for a past epoch of its own';

create or replace function pgps_internal.last_sent(neighbour_id integer) returns bigint
language plpgsql volatile
as $$
begin
    return coalesce((select o.lseq from pgps_internal.shipment o where o.neighbour_id = last_sent.neighbour_id
        order by o.lseq desc limit 1), 0);
end
$$;
comment on function pgps_internal.last_sent(integer) is 'The highest number in the ledger of shipments of a neighbour';

create or replace view pgps_internal.carried as
-- Which event types of an origin come here by way of a neighbour that offers it, and over how many links.
select f.neighbour_id, f.origin_id, t.type_id, cardinality(f.path) as links
from pgps_internal.offer f
join pgps_internal.neighbour n using (neighbour_id)
join pgps_internal.event_type t on t.name = any (f.types)
where has_table_privilege(n.role::oid, t.endpoint, 'insert')
    and not exists (select from pgps_internal.foreign_type x
        where x.neighbour_id = f.neighbour_id and x.name = t.name and x.difference is not null);
comment on view pgps_internal.carried is
'Event types of origins, by the neighbours that offer them: those that are the same here and there, and that the
neighbour''s role may publish here';

create or replace function pgps_internal.farthest() returns integer
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A power of two, so that a broker that joins changes the number for hardly any filter. Who subscribes has heard of
    -- each broker on the way to an origin, since each is an origin itself.
    return (select greatest(16, 1 << length(ltrim((2 * count(*))::integer::bit(30)::text, '0')))
        from pgps_internal.origin);
end
$$;
comment on function pgps_internal.farthest() is
'Over how many links a filter of this broker may travel: more than twice as many as there are brokers, so that half of
it is enough from any broker to any other';

create or replace function pgps_internal.links_to(origin_id integer) returns integer
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select case when o.is_self then 0 else (select cardinality(f.path) from pgps_internal.offer f
        where f.origin_id = o.origin_id and f.neighbour_id = o.parent) end
    from pgps_internal.origin o where o.origin_id = links_to.origin_id
$$;
comment on function pgps_internal.links_to(integer) is
'Over how many links an origin''s events come here; null while no way is known';

create or replace function pgps_internal.goes_as_far(reach integer, links integer) returns boolean
language sql immutable
as $$ select coalesce(goes_as_far.reach >= goes_as_far.links, true) $$;
comment on function pgps_internal.goes_as_far(integer, integer) is
'True when a filter that may travel over so many links concerns an origin that is so many away; a former release says no
reach, which is enough';

drop function if exists pgps_internal.link_filters_for(pgps_internal.neighbour);
drop function if exists pgps_internal.link_filters_for(pgps_internal.neighbour, pgps_internal.interest[]);
create function pgps_internal.link_filters_for(
    neighbour pgps_internal.neighbour, interests pgps_internal.interest[]
) returns table (key text, type_id integer, reach integer)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_farthest integer := pgps_internal.farthest();
    v_enough integer := v_farthest / 2;
begin
    -- A filter is passed on over one link less than it came with. Neighbours do not say for which origins they want
    -- it, so in a ring each broker may want a filter because the one before it does, long after the last subscription
    -- has gone: it ends when its reach does. Who subscribes begins with the whole reach.
    return query
    with desired as materialized (
        select i.key, i.type_id, max(case when i.neighbour_id is null then v_farthest
            else coalesce(w.reach, v_farthest) - 1 end) as reach
        from unnest(link_filters_for.interests) i
        join pgps_internal.origin o using (origin_id)
        left join pgps_internal.still_wanted w on w.neighbour_id = i.neighbour_id and w.key = i.key
        where o.parent = (link_filters_for.neighbour).neighbour_id
        group by i.key, i.type_id
        having max(case when i.neighbour_id is null then v_farthest else coalesce(w.reach, v_farthest) - 1 end) > 0
    )
    -- One that ends earlier on the way does not stand for one that goes on.
    select d.key, d.type_id, d.reach from desired d
    where d.key not in (
        select c.key from pgps_internal.cover c join desired w on w.key = c.by_key join desired k on k.key = c.key
        where w.reach >= least(k.reach, v_enough));
end
$$;
comment on function pgps_internal.link_filters_for(pgps_internal.neighbour, pgps_internal.interest[]) is
'The filters that a neighbour should have from here: wanted, and not implied by another one; and over how many links,
the one to the neighbour included, each may travel';

create or replace function pgps_internal.answer_again(origin_id integer, key text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_links integer := pgps_internal.links_to(answer_again.origin_id);
begin
    perform pgps_internal.note_lack(answer_again.origin_id, answer_again.key);
    -- A child that was told that the filter is in force takes silence for completeness. It is told nothing more of the
    -- origin until the filter is in force again from where it stands on, as if it had just attached. Unless no way
    -- brings the type any more, because somebody has revoked it: the other types are not held up for it.
    -- First the ledger is locked in which the next statement reads what was sent (decision 105).
    perform pgps_internal.last_sent(a.neighbour_id) from pgps_internal.attached a
    where a.origin_id = answer_again.origin_id and a.is_live;
    update pgps_internal.attached a
    set is_live = false, missing = '{}',
        horizon = greatest(a.horizon, pgps_internal.sent(a.neighbour_id, a.origin_id, a.attachment)),
        keep = array(select distinct w.key from pgps_internal.still_wanted w
            where w.neighbour_id = a.neighbour_id and pgps_internal.goes_as_far(w.reach - 1, v_links)
                and pgps_internal.is_told_active(a.neighbour_id, a.origin_id, w.known_as))
    where a.origin_id = answer_again.origin_id and a.is_live and exists (
        select from pgps_internal.still_wanted w
        where w.neighbour_id = a.neighbour_id and w.key = answer_again.key
            and pgps_internal.goes_as_far(w.reach - 1, v_links)
            and pgps_internal.is_told_active(a.neighbour_id, a.origin_id, w.known_as))
        and exists (select from pgps_internal.link_filter f join pgps_internal.carried c using (type_id)
            where f.key = answer_again.key and c.origin_id = answer_again.origin_id);
end
$$;
comment on function pgps_internal.answer_again(integer, text) is
'A filter is not in force any more for an origin: attachments of children to which it was in force are answered once
more, from what they have been sent on';

create or replace function pgps_internal.is_told_active(neighbour_id integer, origin_id integer, known_as text)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select exists (select from pgps_internal.told t
        where t.neighbour_id = is_told_active.neighbour_id and t.kind = 'active'
            and t.key = concat(is_told_active.origin_id, ' ', is_told_active.known_as))
$$;
comment on function pgps_internal.is_told_active(integer, integer, text) is
'True when a neighbour was told that a filter of its own is in force here for an origin';

drop function if exists pgps_internal.activate();
create or replace function pgps_internal.activate(interests pgps_internal.interest[]) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_has_new boolean;
    v_broken bigint;
begin
    -- A filter is in force where another one is that covers it and was told to the parent; but only from the horizon
    -- on, since what came before was skipped for it.
    -- "not in" and "materialized", since the planner does not know how many there are of what, and would compare each
    -- with each: there may be many thousand filters, and few of them cover others.
    with fresh as materialized (
        select distinct i.origin_id, i.key from unnest(activate.interests) i
        where (i.origin_id, i.key) not in (select x.origin_id, x.key from pgps_internal.activation x)
    ),
    covered as materialized (
        select i.origin_id, i.key, c.by_key from fresh i join pgps_internal.cover c using (key)
    )
    insert into pgps_internal.activation (origin_id, key, since, is_confirmed)
    select i.origin_id, i.key, greatest(min(a.since), pgps_internal.horizon(i.origin_id)), false
    from covered i
    join pgps_internal.origin o using (origin_id)
    join pgps_internal.activation a on a.origin_id = i.origin_id and a.key = i.by_key
    join pgps_internal.told t on t.neighbour_id = o.parent and t.kind = 'sub' and t.key = i.by_key
        and pgps_internal.goes_as_far((t.value ->> 'reach')::integer, pgps_internal.links_to(o.origin_id))
    group by i.origin_id, i.key
    on conflict do nothing;
    v_has_new := found;
    with broken as (
        delete from pgps_internal.activation a
        where (a.origin_id, a.key) not in (select i.origin_id, i.key from unnest(activate.interests) i)
            and not exists (select from pgps_internal.origin o join pgps_internal.told t on t.neighbour_id = o.parent
                where o.origin_id = a.origin_id and t.kind = 'sub' and t.key = a.key
                    and pgps_internal.goes_as_far((t.value ->> 'reach')::integer, pgps_internal.links_to(a.origin_id)))
            -- Kept where the path to an origin is lost, and not the interest in it.
            and exists (select from pgps_internal.offer f join pgps_internal.origin o using (origin_id)
                where f.origin_id = a.origin_id and o.parent = f.neighbour_id)
        returning a.origin_id, a.key
    )
    select count(pgps_internal.answer_again(b.origin_id, b.key)) into v_broken from broken b;
    return v_has_new or v_broken > 0;
end
$$;
comment on function pgps_internal.activate(pgps_internal.interest[]) is
'Maintains "since" of filters: those implied by one in force get it, those that nobody wants lose it. True when it has
changed something: then who is interested in what may be something else';

create or replace view pgps_internal.early as
-- Up to "since", what comes of an origin is not for the member, nor for one that its lane has yet to make (class_id
-- null): what comes meanwhile is matched for it afterwards.
-- A filter that was changed in the meantime counts where the former one is in force.
select m.subscription_id, m.class_id, m.type_id, o.origin_id, least(a.since, f.since) as since,
    coalesce(a.had_since, a.since) as had_since
from pgps_internal.subscription s
join (
    select n.subscription_id, n.class_id, n.type_id from pgps_internal.member n
    union all
    select j.subscription_id, null, j.type_id from pgps_internal.joining j
) m using (subscription_id)
cross join pgps_internal.origin o
left join pgps_internal.pushed p on p.subscription_id = m.subscription_id and p.type_id = m.type_id and p.is_current
left join pgps_internal.activation a on a.origin_id = o.origin_id and a.key = p.key
left join (
    select p.subscription_id, p.type_id, b.origin_id, min(b.since) as since
    from pgps_internal.pushed p join pgps_internal.activation b using (key)
    where not p.is_current
    group by p.subscription_id, p.type_id, b.origin_id
) f on f.subscription_id = m.subscription_id and f.type_id = m.type_id and f.origin_id = o.origin_id
where s.scope = 'global' and not o.is_self;
comment on view pgps_internal.early is
'Global subscriptions, by origin, and from which batch on its events are for them; null: not known yet. had_since: from
which batch on they have had all that their filters want, truncated or not';

create or replace function pgps_internal.settle_origins() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Settled for the subscriptions that this transaction sees. One that is being made has a row in unsettled when it
    -- commits, which ends the state; the rows that are seen here have been answered for when they are gone.
    if pgps_internal.is_news() then
        delete from pgps_internal.unsettled u;
        update pgps_internal.origin o set is_settled = false where o.is_settled;
    end if;
    -- A type that nobody promises does not keep an origin from it: it may never be published there. It is noted,
    -- because what comes of it all the same was published when somebody promised it. "offset 0", since the planner
    -- would look at all subscriptions before it knows that no origin is left.
    update pgps_internal.origin o set is_settled = true, unpromised = w.types
    from (
        select g.origin_id, pgps_internal.horizon(g.origin_id) as horizon
        from pgps_internal.origin g where not g.is_settled and not g.is_self offset 0
    ) u
    cross join lateral (
        select coalesce(array_agg(e.type_id), '{}') as types, coalesce(bool_or(exists (select from pgps_internal.offer f
            where f.origin_id = u.origin_id and t.name = any (f.types))), false) as is_promised
        from (select distinct e.type_id from pgps_internal.early e
            where e.origin_id = u.origin_id and (e.since is null or e.since > u.horizon)) e
        join pgps_internal.event_type t using (type_id)
    ) w
    where o.origin_id = u.origin_id and not w.is_promised;
end
$$;
comment on function pgps_internal.settle_origins() is
'Marks origins for which every filter of what is promised is in force, so that receivers need not look at "since"';

create or replace function pgps_internal.note_route() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The first link is defined before this broker has a row in broker.
    if tg_table_name = 'link' or exists (select from pgps_internal.broker) then
        perform pg_notify('pgps_link', '');
        if tg_table_name = 'event_type' and tg_op = 'INSERT' then
            -- As a new subscription: those to a prefix join the new type, and their filters are in force nowhere yet.
            insert into pgps_internal.unsettled default values;
        end if;
    end if;
    return null;
end
$$;
comment on function pgps_internal.note_route() is
'Trigger after a change of what neighbours should know, or of a link: wakes the sessions that send to them, and the
workers that serve links';

do $$
begin
    if not exists (select from pg_catalog.pg_trigger where tgname = 'pgps_route'
        and tgrelid = 'pgps_internal.subscription'::regclass) then
        create trigger pgps_route after delete
            on pgps_internal.subscription for each statement execute function pgps_internal.note_route();
        create trigger pgps_route after insert
            or delete on pgps_internal.advertisement for each statement execute function pgps_internal.note_route();
        create trigger pgps_route after insert
            or update on pgps_internal.event_type for each statement execute function pgps_internal.note_route();
        create trigger pgps_route after insert or delete or update of enabled, conninfo on pgps_internal.link
        for each statement execute function pgps_internal.note_route();
    end if;
end
$$;
