-- What a neighbour says between the items: schemas, advertisements, attachments, and filters (heard_filters.sql). Each
-- message arrives once, in order.
-- Locks: the turn of routes, until the transaction ends; those of creating an event type or a class.
-- Writes: activation, arrival, attached, gap, lack, neighbour, offer, origin, rejected.

create or replace function pgps_internal.hear(neighbour pgps_internal.neighbour, kind text, body jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- One message at a time: it is read and written in several statements, here and by the sessions that answer it.
    perform pgps_internal.hold_routes();
    case hear.kind
        when 'type' then perform pgps_internal.hear_type(hear.neighbour, hear.body);
        when 'ad' then perform pgps_internal.hear_ad(hear.neighbour, hear.body);
        when 'unad' then
            delete from pgps_internal.offer f using pgps_internal.origin o
            where f.neighbour_id = (hear.neighbour).neighbour_id and o.origin_id = f.origin_id
                and o.broker_id = (hear.body ->> 'broker')::uuid and o.epoch = (hear.body ->> 'epoch')::integer;
        when 'sub' then perform pgps_internal.hear_sub(hear.neighbour, hear.body);
        when 'unsub' then perform pgps_internal.hear_unsub(hear.neighbour, hear.body ->> 'key');
        when 'attach' then perform pgps_internal.hear_attach(hear.neighbour, hear.body);
        when 'detach' then
            delete from pgps_internal.attached a using pgps_internal.origin o
            where a.neighbour_id = (hear.neighbour).neighbour_id and o.origin_id = a.origin_id
                and a.attachment = (hear.body ->> 'attachment')::integer
                and o.broker_id = (hear.body ->> 'broker')::uuid and o.epoch = (hear.body ->> 'epoch')::integer;
        when 'active' then perform pgps_internal.hear_active(hear.neighbour, hear.body);
        when 'gap' then perform pgps_internal.hear_gap(hear.neighbour, hear.body);
        when 'low' then perform pgps_internal.hear_low(hear.neighbour, hear.body);
        when 'drain' then perform pgps_internal.hear_drain(hear.neighbour);
        when 'drained' then
            update pgps_internal.neighbour n set has_sent_all = true
                where n.neighbour_id = (hear.neighbour).neighbour_id;
        else
            if not pgps_internal.hears(hear.neighbour, hear.kind, hear.body) then
                raise exception 'broker "%" says "%", which this one does not understand', (hear.neighbour).name,
                    hear.kind using errcode = '0A000', hint = 'Upgrade the older broker: pgps upgrade DSN';
            end if;
    end case;
end
$$;
comment on function pgps_internal.hear(pgps_internal.neighbour, text, jsonb) is 'Acts on one message of a neighbour';

create or replace function pgps_internal.hear_ad(neighbour pgps_internal.neighbour, body jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_me pgps_internal.broker := pgps_internal.me();
    v_path uuid[] := array(select jsonb_array_elements_text(hear_ad.body -> 'path')::uuid);
    v_types text[] := array(select distinct t from jsonb_array_elements_text(hear_ad.body -> 'types') t order by t);
    v_withheld text[] := case when cardinality(v_path) = 1 then pgps_internal.said_to_withhold(hear_ad.body) end;
    v_origin integer;
    v_before text[];
begin
    if (hear_ad.neighbour).direction = 'out' then
        return;
    end if;
    -- The path must lead from this neighbour to the origin, without repeats, and each hop costs one.
    if v_path[1] is distinct from (hear_ad.neighbour).broker_id
        or v_path[cardinality(v_path)] is distinct from (hear_ad.body ->> 'broker')::uuid
            or (hear_ad.body ->> 'cost')::integer is distinct from cardinality(v_path) - 1
            or (select count(distinct p) from unnest(v_path) p) <> cardinality(v_path) then
        raise exception 'broker "%" advertises a path that is none from it to the origin', (hear_ad.neighbour).name
        using errcode = '22023', hint = 'It is damaged, or not what it says: drop the link, or mend that broker.';
    end if;
    v_origin := pgps_internal.find_origin((hear_ad.body ->> 'broker')::uuid, (hear_ad.body ->> 'epoch')::integer,
        hear_ad.body ->> 'name', hear_ad.neighbour);
    if v_me.broker_id = any (v_path) or (hear_ad.body ->> 'broker')::uuid = v_me.broker_id
        and (hear_ad.body ->> 'epoch')::integer >= v_me.epoch then
        delete from pgps_internal.offer f where f.neighbour_id = (hear_ad.neighbour).neighbour_id
            and f.origin_id = v_origin;
        return;
    end if;
    perform pgps_internal.check_advertised(hear_ad.neighbour, v_origin, cardinality(v_types));
    -- A new offer may give filters a path to this origin that they lacked, and they have to come into force.
    -- How an origin is called that is a neighbour, too, it says itself: subscribers go by the name.
    update pgps_internal.origin o set is_settled = false, name = case
        when (hear_ad.body ->> 'broker')::uuid <> (hear_ad.neighbour).broker_id and exists (
            select from pgps_internal.neighbour n where n.broker_id = (hear_ad.body ->> 'broker')::uuid) then o.name
        else hear_ad.body ->> 'name' end
    where o.origin_id = v_origin;
    v_before := (select f.types from pgps_internal.offer f
        where f.neighbour_id = (hear_ad.neighbour).neighbour_id and f.origin_id = v_origin);
    insert into pgps_internal.offer as f (neighbour_id, origin_id, path, cost, types, is_draining, is_open, withheld,
        said)
    values ((hear_ad.neighbour).neighbour_id, v_origin, v_path, (hear_ad.body ->> 'cost')::integer + 1,
        v_types, coalesce((hear_ad.body ->> 'is_draining')::boolean, false),
        coalesce((hear_ad.body ->> 'is_open')::boolean, false), v_withheld,
        case when v_withheld is not null then v_withheld || array(
            select pgps_internal.veiled((hear_ad.neighbour).broker_id, t) from unnest(v_types) t) else '{}' end)
    on conflict on constraint offer_pkey do update
    set path = excluded.path, cost = excluded.cost, types = excluded.types, is_draining = excluded.is_draining,
        is_open = excluded.is_open, withheld = excluded.withheld,
        said = pgps_internal.ever_said(f.said, excluded.said);
    if not v_before <@ v_types then
        -- At once, before it says how far it has come without them: if another path brings them, nothing is missed.
        perform pgps_internal.choose_parents();
    end if;
end
$$;
comment on function pgps_internal.hear_ad(pgps_internal.neighbour, jsonb) is
'Handles an advertisement: which event types an origin publishes, and the path to it. A path through this broker itself
is no offer.';

create or replace function pgps_internal.hear_attach(neighbour pgps_internal.neighbour, body jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_unknown text[] := array(select t.name from jsonb_to_recordset(hear_attach.body -> 'types') t(name text)
        where not exists (select from pgps_internal.event_type e where e.name = t.name));
    v_origin integer := pgps_internal.find_origin((hear_attach.body ->> 'broker')::uuid,
        (hear_attach.body ->> 'epoch')::integer, '?', hear_attach.neighbour);
begin
    -- A filter to keep that is not known here, or is being withdrawn, is waited for: without it the answer would look
    -- complete. But not one of a type that there is not here: nothing of it can come by this broker, which says so.
    insert into pgps_internal.lack (origin_id, name, after_batch, is_own)
    select v_origin, u, (hear_attach.body ->> 'horizon')::bigint, false from unnest(v_unknown) u
    where exists (select from pgps_internal.offer f where f.origin_id = v_origin and u = any (f.types))
    on conflict on constraint lack_pkey do update set after_batch = least(lack.after_batch, excluded.after_batch);
    insert into pgps_internal.attached as a (neighbour_id, origin_id, attachment, horizon, keep, missing, low, back_to)
    values ((hear_attach.neighbour).neighbour_id, v_origin,
        (hear_attach.body ->> 'attachment')::integer, (hear_attach.body ->> 'horizon')::bigint,
        array(select w.key from pgps_internal.wanted w where w.neighbour_id = (hear_attach.neighbour).neighbour_id
            and w.gone_batch is null
            and hear_attach.body -> 'keep' ? w.known_as),
        array(select k from jsonb_array_elements_text(hear_attach.body -> 'keep') k
            except select w.known_as from pgps_internal.wanted w
            where w.neighbour_id = (hear_attach.neighbour).neighbour_id and w.gone_batch is null
            except select unnest(t.keys) from jsonb_to_recordset(hear_attach.body -> 'types') t(name text, keys text[])
            where t.name = any (v_unknown)),
        (hear_attach.body ->> 'horizon')::bigint,
        case when pgps_internal.is_too_far(v_origin, greatest((hear_attach.body ->> 'horizon')::bigint,
            (hear_attach.body ->> 'reached')::bigint)) then coalesce((pgps_internal.last_batch()).batch_id, 0) end)
    on conflict on constraint attached_pkey do update
    set attachment = excluded.attachment, horizon = excluded.horizon, keep = excluded.keep, missing = excluded.missing,
        is_live = false, low = excluded.low, back_to = excluded.back_to;
end
$$;
comment on function pgps_internal.hear_attach(pgps_internal.neighbour, jsonb) is
'Handles an attachment: a neighbour makes this broker its parent for an origin; see rule 2 of the horizon';

create or replace function pgps_internal.hear_active(neighbour pgps_internal.neighbour, body jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgps_internal.activation as a (origin_id, key, since, is_confirmed)
    select o.origin_id, f.key, greatest((hear_active.body ->> 'since')::bigint, pgps_internal.horizon(o.origin_id)),
        true
    from pgps_internal.origin o, pgps_internal.link_filter f
    where o.broker_id = (hear_active.body ->> 'broker')::uuid and o.epoch = (hear_active.body ->> 'epoch')::integer
        and o.parent = (hear_active.neighbour).neighbour_id
            and o.attachment = (hear_active.body ->> 'attachment')::integer
        and f.key = hear_active.body ->> 'key'
        -- Only for the filter as it was told last, not for one that was withdrawn in between.
        and exists (select from pgps_internal.told t
            where t.neighbour_id = (hear_active.neighbour).neighbour_id and t.kind = 'sub' and t.key = f.key
                and coalesce(hear_active.body -> 'told', t.value -> 'told') is not distinct from t.value -> 'told')
    on conflict on constraint activation_pkey do update set is_confirmed = true;
end
$$;
comment on function pgps_internal.hear_active(pgps_internal.neighbour, jsonb) is
'The parent for an origin says that a filter is in force from a batch on; ignored from another neighbour, or for an
older attachment';

create or replace function pgps_internal.answered_origin(neighbour pgps_internal.neighbour, body jsonb)
returns pgps_internal.origin
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select o from pgps_internal.origin o
    where o.broker_id = (answered_origin.body ->> 'broker')::uuid
        and o.epoch = (answered_origin.body ->> 'epoch')::integer
        and o.parent = (answered_origin.neighbour).neighbour_id
        and o.attachment = (answered_origin.body ->> 'attachment')::integer
$$;
comment on function pgps_internal.answered_origin(pgps_internal.neighbour, jsonb) is
'The origin that a message is about, if it answers what this broker has asked its parent last; else null';

create or replace function pgps_internal.hear_gap(neighbour pgps_internal.neighbour, body jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_origin pgps_internal.origin := pgps_internal.answered_origin(hear_gap.neighbour, hear_gap.body);
    v_upto bigint := (hear_gap.body ->> 'upto')::bigint;
    v_after bigint;
    v_horizon bigint;
begin
    if hear_gap.body ? 'type' then
        perform pgps_internal.hear_lack(hear_gap.neighbour, hear_gap.body);
        return;
    end if;
    v_horizon := pgps_internal.horizon(v_origin.origin_id);
    v_after := greatest((hear_gap.body ->> 'after')::bigint, coalesce(v_origin.rewind_from, v_horizon));
    if v_origin.origin_id is null or v_upto <= v_after then
        return;
    elsif (hear_gap.body ->> 'previous')::bigint > coalesce(v_origin.rewind_from, v_horizon) then
        -- What lies before the gap did not come: attach again from the horizon, as with an item.
        update pgps_internal.origin o set attachment = o.attachment + 1 where o.origin_id = v_origin.origin_id;
        return;
    end if;
    insert into pgps_internal.gap (origin_id, after_batch, upto) values (v_origin.origin_id, v_after, v_upto)
        on conflict do nothing;
    perform pgps_internal.excuse(v_origin.origin_id, v_upto);
    update pgps_internal.origin o set rewind_from = v_upto where o.origin_id = v_origin.origin_id
        and o.rewind_from < v_upto;
    if v_origin.rewind_from is not null and v_upto >= v_horizon then
        perform pgps_internal.end_rewind(v_origin);
    end if;
    if v_upto <= v_horizon then
        -- The events are missing for the children that a rewind was begun for, and not here.
        return;
    end if;
    insert into pgps_internal.rejected (neighbour_id, neighbour, publisher, origin_id, origin_batch, sqlstate, error)
    values ((hear_gap.neighbour).neighbour_id, (hear_gap.neighbour).name, (hear_gap.neighbour).role, v_origin.origin_id,
        v_upto, '58030',
        format('batches %s to %s of broker "%s" were trimmed before they came here', greatest(v_after, v_horizon) + 1,
            v_upto, v_origin.name));
    perform pgps_internal.check_refused((hear_gap.neighbour).role);
    insert into pgps_internal.arrival (neighbour_id, lseq, mark, origin_id, attachment, upto, horizon)
    select (hear_gap.neighbour).neighbour_id, coalesce(a.lseq, 0), coalesce(a.mark, ''), v_origin.origin_id,
        v_origin.attachment, v_upto, v_upto
    from (select) one
    left join lateral (select a.lseq, a.mark from pgps_internal.arrival a
        where a.neighbour_id = (hear_gap.neighbour).neighbour_id order by a.lseq desc limit 1) a on true;
    raise warning 'pgps: events of a broker were trimmed before they came here; see pgps.exceptions';
end
$$;
comment on function pgps_internal.hear_gap(pgps_internal.neighbour, jsonb) is
'Handles history that nobody has any more: an explicit gap among the exceptions, which children are told of in turn';
