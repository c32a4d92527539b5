-- The handler clause, which decides for which clients an occurrence is: all of them, any one, or the one that raised
-- it.
-- Locks: none.
-- Writes: appointment.

drop function if exists pgps_internal.raiser_of(bigint);
create or replace function pgps_internal.raiser_of(client_id bigint, publisher regrole) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Anybody can set pgps.client: it counts only when the publisher may act as the owner of that client.
    return (select c.name from pgps_internal.client c where c.client_id = raiser_of.client_id
        and pg_has_role(raiser_of.publisher::oid, c.owner::oid, 'usage'));
end
$$;
comment on function pgps_internal.raiser_of(bigint, regrole) is
'The name of the client that raised an event; null when none did, when it is gone, or is none of the publisher''s';

create or replace function pgps_internal.is_for(
    client_id bigint, handler text, xid xid8, hi bigint, raiser bigint, publisher regrole
) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    case is_for.handler
        when 'raiser' then
            -- Anybody can set pgps.client: it counts only when the publisher may act as the owner of that client.
            return is_for.raiser is not distinct from is_for.client_id and exists (select from pgps_internal.client c
                where c.client_id = is_for.client_id and pg_has_role(is_for.publisher::oid, c.owner::oid, 'usage'));
        when 'any' then
            return exists (select from pgps_internal.appointment a
                where a.hi = is_for.hi and a.client_id = is_for.client_id and (a.xid = is_for.xid
                    -- An immediate event shows the transaction of its publisher, not the one that wrote it.
                    or exists (select from pgps_internal.control c where c.xid = a.xid and c.hi = a.hi
                        and c.raiser = is_for.xid)));
        else
            return true;
    end case;
end
$$;
comment on function pgps_internal.is_for(bigint, text, xid8, bigint, bigint, regrole) is
'True when the handler clause of a statement (xid, hi) lets a client have it; raiser: the client that raised it,
publisher: the role that did';

create or replace function pgps_internal.for_client(client_id bigint, messages pgps_internal.message[])
returns pgps_internal.message[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from unnest(for_client.messages) m
            where coalesce(m.handler,
                (select t.handler from pgps_internal.event_type t where t.name = m.event_type)) <> 'all'
                and m.hi is not null) then
        return for_client.messages;
    end if;
    return array(
        with statement as materialized (
            select distinct m.event_type, m.xid, m.hi, m.handler, m.client_id, m.publisher
                from unnest(for_client.messages) m where m.hi is not null
        ),
        mine as (
            select s.event_type, s.xid, s.hi from statement s join pgps_internal.event_type t on t.name = s.event_type
            where pgps_internal.is_for(for_client.client_id, coalesce(s.handler, t.handler), s.xid, s.hi, s.client_id,
                quote_ident(s.publisher)::regrole)
        )
        select (for_client.messages)[u.n]
            from unnest(for_client.messages) with ordinality u(place, event_id, event_type, payload, published_at,
            publisher, xid, origin, attempt, handler, client_id, lo, hi, n)
        where u.hi is null or exists (select from mine i where i.event_type = u.event_type and i.xid = u.xid
            and i.hi = u.hi)
        order by u.n);
end
$$;
comment on function pgps_internal.for_client(bigint, pgps_internal.message[]) is
'Those of the messages that the handler clause lets a client have';

create or replace function pgps_internal.appoint(
    batch_id bigint, event_type pgps_internal.event_type, xids xid8[], ids int8multirange
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_told bigint;
begin
    with wanted as materialized (
        select c.hi, c.lo, c.xid from pgps_internal.control c
        where c.xid = any (appoint.xids) and c.type_id = (appoint.event_type).type_id and c.hi >= lower(appoint.ids)
            and c.lo < upper(appoint.ids)
            and coalesce(c.handler, (appoint.event_type).handler) = 'any'
    ),
    candidate as materialized (
        select k.client_id, pgps_internal.is_reachable(k) as reachable, bool_or(r.mode = 'direct') as direct,
            pgps_internal.visible_carefully(appoint.batch_id, appoint.event_type, k.owner, appoint.ids) as ids
        from pgps_internal.registration_type t
        join pgps_internal.registration r using (registration_id)
        join pgps_internal.client k using (client_id)
        left join pgps_internal.member m on m.subscription_id = r.subscription_id and m.type_id = t.type_id
        where t.type_id = (appoint.event_type).type_id and r.state = 'valid' and exists (select from wanted)
            -- A direct registration is a candidate while its client is connected; a queued one when it had joined
            -- before all of these events were published.
            and (r.mode = 'direct' and pgps_internal.is_reachable(k)
                or m.from_batch < appoint.batch_id and not m.skip && appoint.ids)
        group by k.client_id
    ),
    chosen as (
        -- The hash of client and statement distributes statements evenly without keeping whose turn it is.
        select w.hi, w.lo, w.xid, c.client_id, c.direct from wanted w
        cross join lateral (select c.client_id, c.direct from candidate c where c.ids && int8range(w.lo, w.hi, '[]')
            order by c.reachable desc, hashint8extended(c.client_id, w.hi) limit 1) c
    ),
    noted as (
        insert into pgps_internal.appointment (batch_id, type_id, xid, hi, client_id)
        select appoint.batch_id, (appoint.event_type).type_id, c.xid, c.hi, c.client_id from chosen c
    )
    select count(pg_notify('pgps_carried_' || k.secret,
        concat_ws(' ', (appoint.event_type).type_id, c.lo, c.hi))::text) into v_told
    from (select c.client_id, min(c.lo) as lo, max(c.hi) as hi from chosen c where c.direct group by c.client_id) c
    join pgps_internal.client k on k.client_id = c.client_id and k.secret is not null;
end
$$;
comment on function pgps_internal.appoint(bigint, pgps_internal.event_type, xid8[], int8multirange) is
'Chooses, for each statement of a batch whose handler is "any", one of the clients registered for it, connected ones
first; sends one note to each chosen client that is registered directly';
