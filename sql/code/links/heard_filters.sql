-- The filters that a neighbour says, and withdraws: when they begin and end to be matched here.
-- Locks: the turn of the role's definitions, those of creating and dropping a class; row exclusive on the parent of the
-- batches (the dispatcher waits), as the last step of the transaction.
-- Writes: attached, member, wanted.

create or replace function pgps_internal.hear_sub(neighbour pgps_internal.neighbour, body jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_key text;
    v_filter pgps_internal.link_filter;
    v_class bigint;
    v_text text := hear_sub.body ->> 'filter';
    v_told bigint := coalesce((hear_sub.body ->> 'told')::bigint, 0);
begin
    select t.* into v_type from pgps_internal.event_type t where t.name = hear_sub.body ->> 'type';
    if not found then
        -- Nothing of such a type can be carried, as both administrators are shown: no attachment waits for it.
        update pgps_internal.attached a set missing = array_remove(a.missing, hear_sub.body ->> 'key')
        where a.neighbour_id = (hear_sub.neighbour).neighbour_id and not a.is_live
            and hear_sub.body ->> 'key' = any (a.missing);
    end if;
    if v_type.type_id is null or (hear_sub.neighbour).direction = 'in'
        or pgps_internal.was_told((hear_sub.neighbour).neighbour_id, 'drain') then
        return;
    end if;
    if v_text is not null and not pgps_internal.travels(v_type,
        pgps_internal.filter_if_parsed(v_text, v_type.name, pgps_internal.attribute_names(v_type)),
            'pg_catalog', hear_sub.body ->> 'collation') then
        v_text := null;
    end if;
    v_key := pgps_internal.intern_filter(v_type, v_text, pgps_internal.clean_types(hear_sub.body -> 'constant_types'),
        hear_sub.body -> 'environment', is_heard => true);
    select f.* into v_filter from pgps_internal.link_filter f where f.key = v_key;
    if not pgps_internal.has_room(v_type, (hear_sub.neighbour).role, v_filter) then
        v_key := pgps_internal.intern_filter(v_type, null, null, hear_sub.body -> 'environment');
        select f.* into v_filter from pgps_internal.link_filter f where f.key = v_key;
    end if;
    perform pgps_internal.hold_owner((hear_sub.neighbour).role::oid);
    v_class := pgps_internal.find_class(v_type, (hear_sub.neighbour).role, v_filter.filter, v_filter.constant_types,
        v_filter.environment, false, false);
    insert into pgps_internal.wanted (neighbour_id, known_as, key, class_id, told, reach)
    values ((hear_sub.neighbour).neighbour_id, hear_sub.body ->> 'key', v_key, v_class, v_told,
        (hear_sub.body ->> 'reach')::integer)
    on conflict on constraint wanted_pkey do update set key = excluded.key, class_id = excluded.class_id,
        told = excluded.told, reach = excluded.reach, gone_batch = null;
    update pgps_internal.attached a set keep = a.keep || v_key,
        missing = array_remove(a.missing, hear_sub.body ->> 'key')
    where a.neighbour_id = (hear_sub.neighbour).neighbour_id and not a.is_live
        and hear_sub.body ->> 'key' = any (a.missing);
end
$$;
comment on function pgps_internal.hear_sub(pgps_internal.neighbour, jsonb) is
'Handles a neighbour''s filter: finds its class, which pgps_internal.begin_filters makes a member of the neighbour''s
subscription behind the last message of the batch. A filter that is not safe, would order text otherwise here, or is of
one form too many, is taken as no filter.';

create or replace function pgps_internal.begin_filters(neighbour pgps_internal.neighbour, began bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_last bigint;
begin
    -- Waits for the dispatcher: a batch that it is cutting now would not be matched with these filters, and it would be
    -- unknown from which batch on they hold. Behind all that takes its time, since it waits in turn from here on.
    lock table only pgps_internal.batch in row exclusive mode;
    v_last := coalesce((pgps_internal.last_batch()).batch_id, 0);
    -- What replaces a filter that was withdrawn in the same batch begins only now.
    update pgps_internal.wanted w set gone_batch = v_last
    where w.neighbour_id = (begin_filters.neighbour).neighbour_id and w.gone_batch between begin_filters.began
        and v_last - 1;
    -- The dispatcher may have given up a form of filter since its class was found.
    update pgps_internal.wanted w
    set class_id = pgps_internal.find_class(t, (begin_filters.neighbour).role, null, null, '{}', false, false)
    from pgps_internal.event_type t, pgps_internal.class c
    left join pgps_internal.signature g using (signature_id)
    where w.neighbour_id = (begin_filters.neighbour).neighbour_id and c.class_id = w.class_id and t.type_id = c.type_id
        and (not c.is_active or g.in_lane
            or exists (select from pgps_internal.unasked u where u.signature_id = c.signature_id))
        and not exists (select from pgps_internal.member m
            where m.subscription_id = (begin_filters.neighbour).subscription_id and m.class_id = c.class_id);
    -- A class that is a member already is matched for long.
    insert into pgps_internal.member (subscription_id, class_id, type_id, from_batch)
    select distinct (begin_filters.neighbour).subscription_id, c.class_id, c.type_id, v_last
    from pgps_internal.wanted w join pgps_internal.class c using (class_id)
    where w.neighbour_id = (begin_filters.neighbour).neighbour_id
    on conflict do nothing;
end
$$;
comment on function pgps_internal.begin_filters(pgps_internal.neighbour, bigint) is
'Has the dispatcher match the filters that a neighbour has said in a batch, from its next one on; began: the last batch
of the dispatcher when the first of them was heard. The last step of the transaction that receives: the dispatcher waits
until it ends';

create or replace function pgps_internal.still_kept(neighbour_id integer, keep text[]) returns text[]
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select array(
        select w.key from pgps_internal.wanted w
        where w.neighbour_id = still_kept.neighbour_id and w.gone_batch is null
            and (w.key = any (still_kept.keep) or exists (
                select from pgps_internal.cover c
                where c.by_key = w.key and c.key = any (still_kept.keep) and not exists (
                    select from pgps_internal.wanted n
                    where n.neighbour_id = still_kept.neighbour_id and n.key = c.key and n.gone_batch is null)))
        order by w.key)
$$;
comment on function pgps_internal.still_kept(integer, text[]) is
'Of the filters that an attachment is to keep, those that the neighbour has not withdrawn; in place of the others those
that cover them';

create or replace function pgps_internal.hear_unsub(neighbour pgps_internal.neighbour, key text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    update pgps_internal.wanted w set gone_batch = coalesce((pgps_internal.last_batch()).batch_id, 0)
    where w.neighbour_id = (hear_unsub.neighbour).neighbour_id and w.known_as = hear_unsub.key;
    -- Attachments do not wait for it any more: if nobody else wants it, it never comes into force. But they wait for a
    -- filter that covers it, and was told in its place, often for another origin: the neighbour has had the events of
    -- the narrower one up to its horizon, and takes an answer for all that follow.
    update pgps_internal.attached a set missing = array_remove(a.missing, hear_unsub.key),
        keep = pgps_internal.still_kept(a.neighbour_id, a.keep || case when hear_unsub.key = any (a.missing)
            then array(select w.key from pgps_internal.wanted w
                where w.neighbour_id = a.neighbour_id and w.known_as = hear_unsub.key) end)
    where a.neighbour_id = (hear_unsub.neighbour).neighbour_id and not a.is_live;
end
$$;
comment on function pgps_internal.hear_unsub(pgps_internal.neighbour, text) is
'Handles a filter that a neighbour withdraws: it is dropped only when what was dispatched until now is packed, since the
filter that replaces it may have come too late for that';

create or replace function pgps_internal.drop_gone(neighbour pgps_internal.neighbour, packed bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id integer := (drop_gone.neighbour).neighbour_id;
    v_subscription bigint := (drop_gone.neighbour).subscription_id;
    v_classes bigint[];
begin
    with gone as (
        delete from pgps_internal.wanted w where w.neighbour_id = v_id and w.gone_batch <= drop_gone.packed
        returning w.class_id
    )
    select array_agg(distinct g.class_id) into v_classes from gone g;
    v_classes := array(select c from unnest(v_classes) c
        except select w.class_id from pgps_internal.wanted w where w.neighbour_id = v_id);
    if v_classes = '{}' then
        return;
    end if;
    perform pgps_internal.hold_owner((drop_gone.neighbour).role::oid);
    perform pgps_internal.forget_recounts(v_id, array(select distinct c.type_id from pgps_internal.class c
        where c.class_id = any (v_classes)));
    with over as (
        delete from pgps_internal.member m using pgps_internal.class c
        where m.subscription_id = v_subscription and c.class_id = m.class_id
            and (m.class_id = any (v_classes)
                -- Also classes that pgps_internal.widen has replaced: what they matched is packed by now.
                or (not c.is_active or exists (select from pgps_internal.signature g
                    where g.signature_id = c.signature_id and g.in_lane and g.from_batch <= drop_gone.packed))
                and not exists (select from pgps_internal.wanted w
                    where w.neighbour_id = v_id and w.class_id = m.class_id))
        returning m.class_id
    )
    select array_agg(o.class_id) into v_classes from over o;
    perform pgps_internal.drop_unused_classes(v_classes);
end
$$;
comment on function pgps_internal.drop_gone(pgps_internal.neighbour, bigint) is
'Drops filters that a neighbour has withdrawn, when all that was dispatched before is packed';
