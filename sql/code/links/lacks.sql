-- Event types that stop coming: somebody on the way has dropped or altered one, or a right is missing. One horizon
-- stands for all types of an origin and goes on, so what is missed is noted, told to children, and recorded as a gap.
-- Locks: those of routes.
-- Writes: activation, lack, origin, rejected.

create or replace function pgps_internal.note_lack(origin_id integer, key text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgps_internal.lack (origin_id, name, after_batch, is_own)
    select note_lack.origin_id, t.name, pgps_internal.horizon(note_lack.origin_id), w.is_own
    from pgps_internal.link_filter f join pgps_internal.event_type t using (type_id)
    cross join lateral (select exists (select from pgps_internal.pushed p where p.key = f.key) as is_own) w
    where f.key = note_lack.key
        and (w.is_own or exists (select from pgps_internal.still_wanted s
            join pgps_internal.attached a on a.neighbour_id = s.neighbour_id and a.origin_id = note_lack.origin_id
            where s.key = f.key))
        and not exists (select from pgps_internal.carried c join pgps_internal.origin o
            on o.origin_id = c.origin_id and o.parent = c.neighbour_id
            where c.origin_id = note_lack.origin_id and c.type_id = f.type_id)
    on conflict on constraint lack_pkey do update set is_own = lack.is_own or excluded.is_own;
end
$$;
comment on function pgps_internal.note_lack(integer, text) is
'A filter is not in force any more for an origin: notes from where on its event type is missed, if somebody wants it and
the parent does not bring it';

create or replace function pgps_internal.least_confirmed(origin_id integer) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- First the ledger is locked in which the next statement reads what was sent (decision 105).
    perform pgps_internal.last_sent(a.neighbour_id) from pgps_internal.attached a
    where a.origin_id = least_confirmed.origin_id and a.is_live;
    return (
        select min(coalesce((select o.upto from pgps_internal.shipment o
            where o.neighbour_id = a.neighbour_id and o.origin_id = a.origin_id and o.upto is not null
                and o.attachment = a.attachment and o.lseq <= p.received_event
            order by o.lseq desc limit 1), a.horizon))
        from pgps_internal.attached a
        join pgps_internal.neighbour n using (neighbour_id)
        cross join lateral pgps_internal.position_of(n.subscription_id) p
        where a.origin_id = least_confirmed.origin_id and a.is_live);
end
$$;
comment on function pgps_internal.least_confirmed(integer) is
'Up to which batch of an origin all children that have attached it have everything for sure; null: there are none';

create or replace function pgps_internal.note_lacks_of_dropped(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- By name, since the type goes: its own subscriptions begin anew, but neighbours behind do not. With it goes what
    -- has come here and is still to be sent to them, or is under way.
    insert into pgps_internal.lack (origin_id, name, after_batch, is_own)
    select a.origin_id, t.name,
        least(pgps_internal.horizon(a.origin_id), pgps_internal.least_confirmed(a.origin_id)), false
    from (select distinct a.origin_id, f.type_id from pgps_internal.activation a
        join pgps_internal.link_filter f using (key) where f.type_id = note_lacks_of_dropped.type_id) a
    join pgps_internal.event_type t using (type_id)
    on conflict on constraint lack_pkey do update set after_batch = least(lack.after_batch, excluded.after_batch);
end
$$;
comment on function pgps_internal.note_lacks_of_dropped(integer) is
'Before an event type is dropped: notes up to where its events came from other brokers, for who is behind this one';

create or replace function pgps_internal.is_type_in_force(origin_id integer, name text) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select exists (select from pgps_internal.event_type t join pgps_internal.link_filter f using (type_id)
        join pgps_internal.activation a using (key)
        where t.name = is_type_in_force.name and a.origin_id = is_type_in_force.origin_id)
$$;
comment on function pgps_internal.is_type_in_force(integer, text) is
'True when some filter of an event type is in force here for an origin';

create or replace function pgps_internal.lacks_to_tell(neighbour_id integer)
returns table (kind text, key text, value jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- A gap that ends where it begins, which a broker of a former release passes over.
    select 'gap', concat(o.origin_id, ' ', l.name),
        jsonb_build_object('broker', o.broker_id, 'epoch', o.epoch, 'attachment', a.attachment, 'type', l.name,
            'after', x.after, 'previous', x.after, 'upto', x.after)
    from pgps_internal.lack l
    join pgps_internal.origin o using (origin_id)
    join pgps_internal.attached a on a.origin_id = l.origin_id and a.neighbour_id = lacks_to_tell.neighbour_id
    cross join lateral (select greatest(l.after_batch, a.horizon) as after) x
    where a.is_live and not pgps_internal.is_type_in_force(l.origin_id, l.name)
$$;
comment on function pgps_internal.lacks_to_tell(integer) is
'What a neighbour should know of event types that do not come here any more, of origins that it has attached here';

create or replace function pgps_internal.hear_lack(neighbour pgps_internal.neighbour, body jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_attachment jsonb := hear_lack.body -> 'attachment';
    v_after bigint := greatest((hear_lack.body ->> 'after')::bigint, 0);
    v_name text := hear_lack.body ->> 'type';
    v_origin integer;
    v_is_own boolean;
begin
    -- It counts of a former parent, too, until the new one has answered, if this broker came further by it than it
    -- says: an item may have come before it.
    select o.origin_id into v_origin from pgps_internal.origin o
    join pgps_internal.told t on t.neighbour_id = (hear_lack.neighbour).neighbour_id and t.kind = 'attach'
        and t.key = o.origin_id::text and t.value -> 'attachment' = v_attachment
    where o.broker_id = (hear_lack.body ->> 'broker')::uuid and o.epoch = (hear_lack.body ->> 'epoch')::integer
        and (to_jsonb(o.attachment) = v_attachment
            or to_jsonb(o.answered) = v_attachment and pgps_internal.horizon(o.origin_id) > v_after);
    -- Filters are in force no more, so that nobody is told so from here; they are asked for until they are again.
    with broken as (
        delete from pgps_internal.activation a using pgps_internal.link_filter f, pgps_internal.event_type t
        where a.origin_id = v_origin and f.key = a.key and t.type_id = f.type_id and t.name = v_name
        returning a.key
    )
    select bool_or(exists (select from pgps_internal.pushed p where p.key = b.key)) into v_is_own from broken b;
    if v_is_own is null then
        return;
    end if;
    if v_is_own then
        -- It will be a gap among the exceptions.
        perform pgps_internal.check_refused((hear_lack.neighbour).role);
    end if;
    insert into pgps_internal.lack (origin_id, name, after_batch, is_own)
    values (v_origin, v_name, v_after, v_is_own)
    on conflict on constraint lack_pkey do update set is_own = lack.is_own or excluded.is_own;
    update pgps_internal.origin o set is_settled = false where o.origin_id = v_origin;
end
$$;
comment on function pgps_internal.hear_lack(pgps_internal.neighbour, jsonb) is
'Handles a parent''s message that events of a type do not come any more by it, behind a batch';

create or replace function pgps_internal.end_lacks() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_recorded bigint;
    v_excused bigint;
begin
    if not exists (select from pgps_internal.lack) then
        return;
    end if;
    -- Over when all filters of the type that its parent was told are in force again.
    with ended as (
        delete from pgps_internal.lack l using pgps_internal.origin o
        where o.origin_id = l.origin_id and pgps_internal.is_type_in_force(l.origin_id, l.name)
            and not exists (select from pgps_internal.told t join pgps_internal.link_filter f using (key)
                join pgps_internal.event_type e using (type_id)
                where t.neighbour_id = o.parent and t.kind = 'sub' and e.name = l.name
                    and not exists (select from pgps_internal.activation a
                        where a.origin_id = l.origin_id and a.key = t.key))
        returning l.*, o.name as broker, o.parent
    ),
    missed as (
        select e.*, x.* from ended e
        cross join lateral (select t.type_id, max(a.since) as upto from pgps_internal.activation a
            join pgps_internal.link_filter f using (key) join pgps_internal.event_type t using (type_id)
            where a.origin_id = e.origin_id and t.name = e.name group by t.type_id) x
        where x.upto > e.after_batch
    ),
    recorded as (
        insert into pgps_internal.rejected (neighbour_id, neighbour, publisher, origin_id, origin_batch, sqlstate,
            error)
        select n.neighbour_id, n.name, n.role, m.origin_id, m.upto, '58030',
            format('batches %s to %s of broker "%s" came without what they had of event type "%s": it was another one, '
                'or there was none, on the way', m.after_batch + 1, m.upto, m.broker, m.name)
        from missed m join pgps_internal.neighbour n on n.neighbour_id = m.parent where m.is_own
        returning 1
    )
    select (select count(*) from recorded), count(pgps_internal.excuse(m.origin_id, m.upto, m.type_id))
    into v_recorded, v_excused from missed m;
    if v_recorded > 0 then
        raise warning 'pgps: events of a type did not come here for a while; see pgps.exceptions';
    end if;
end
$$;
comment on function pgps_internal.end_lacks() is
'Event types that had stopped coming and come again: records what was missed meanwhile as a gap among the exceptions';
