-- What a neighbour should know. What it was told is kept, and differences are sent.
-- Locks: the turn of routes, one change of them at a time, until the transaction ends.
-- Writes: activation, foreign_type, origin, shipment, told.

create or replace function pgps_internal.definition_of(event_type pgps_internal.event_type) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- "made" (the type's id) tells a type from an earlier one of the same name.
    return (select jsonb_build_object('made', (definition_of.event_type).type_id, 'visibility',
        (definition_of.event_type).visibility, 'reliability', (definition_of.event_type).reliability,
        'persistent', (definition_of.event_type).persistent, 'handler', (definition_of.event_type).handler,
        'attributes', (select coalesce(
            to_jsonb(array_agg(jsonb_build_object('name', a.name, 'type', a.type) order by a.place)), '[]')
            from pgps_internal.attributes_of((definition_of.event_type).endpoint) with ordinality a(name, type,
                not_null, default_value, place))));
end
$$;
comment on function pgps_internal.definition_of(pgps_internal.event_type) is
'The schema of an event type, as it travels';

create or replace function pgps_internal.reach_to_tell(told jsonb, reach integer, enough integer) returns jsonb
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object('reach', case
        when (reach_to_tell.told ->> 'reach')::integer between reach_to_tell.enough and reach_to_tell.reach
        then (reach_to_tell.told ->> 'reach')::integer else reach_to_tell.reach end)
$$;
comment on function pgps_internal.reach_to_tell(jsonb, integer, integer) is
'How far a filter may travel, as a part of what is told of it: as told before, if that is enough for the way to any
broker and not too much, since a subscription nearer by would otherwise tell all brokers behind once more';

create or replace function pgps_internal.first_told(neighbour_id integer, type_id integer) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A new number each time that it is told, so that what is said of it from before it was withdrawn is ignored; and
    -- of which type it is, which may be dropped and created anew.
    return jsonb_build_object('told', pgps_internal.last_sent(first_told.neighbour_id) + 1, 'made', first_told.type_id);
end
$$;
comment on function pgps_internal.first_told(integer, integer) is
'What is noted of a filter, of an event type, that a neighbour is told for the first time or once more';

drop function if exists pgps_internal.should_know(pgps_internal.neighbour);
create or replace function pgps_internal.should_know(
    neighbour pgps_internal.neighbour, interests pgps_internal.interest[]
) returns table (kind text, key text, value jsonb)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_id integer := (should_know.neighbour).neighbour_id;
    v_enough integer := pgps_internal.farthest() / 2;
begin
    if (should_know.neighbour).is_draining then
        return query select d.* from pgps_internal.last_words(v_id) d;
        return;
    end if;
    return query
    with ads as materialized (
        select o.broker_id, o.epoch, o.name, a.* from pgps_internal.ads_for(should_know.neighbour) a
            join pgps_internal.origin o using (origin_id)
        where (should_know.neighbour).direction <> 'in'
    ),
    filters as materialized (
        select f.* from pgps_internal.link_filters_for(should_know.neighbour, should_know.interests) f
            where (should_know.neighbour).direction <> 'out'
    )
    select 'type', t.name, pgps_internal.definition_of(t) from pgps_internal.event_type t
    where t.name in (select unnest(a.types) from ads a) or t.type_id in (select f.type_id from filters f)
    union all
    select 'ad', a.origin_id::text,
        jsonb_build_object('broker', a.broker_id, 'epoch', a.epoch, 'name', a.name, 'path', a.path, 'cost', a.cost,
            'types', a.types)
        || pgps_internal.more_of_ad(should_know.neighbour, a.cost, a.is_draining, a.is_open)
    from ads a
    union all
    select 'sub', f.key, coalesce(t.value, pgps_internal.first_told(v_id, f.type_id))
        || pgps_internal.reach_to_tell(t.value, f.reach, v_enough)
    from filters f
    left join pgps_internal.told t on t.neighbour_id = v_id and t.kind = 'sub' and t.key = f.key
        and not t.value ? 'is_stale'
    union all
    select 'attach', o.origin_id::text,
        jsonb_build_object('broker', o.broker_id, 'epoch', o.epoch, 'attachment', o.attachment)
    from pgps_internal.origin o where o.parent = v_id and exists (select from unnest(should_know.interests) i
        where i.origin_id = o.origin_id and i.neighbour_id is distinct from v_id)
    union all
    -- Origins and filters of the neighbour that are in force here.
    select 'active', concat(a.origin_id, ' ', w.known_as),
        jsonb_strip_nulls(jsonb_build_object('broker', o.broker_id, 'epoch', o.epoch, 'attachment', a.attachment, 'key',
            w.known_as, 'told', nullif(w.told, 0)))
    from pgps_internal.attached a
    join pgps_internal.origin o using (origin_id)
    join pgps_internal.wanted w using (neighbour_id)
    where a.neighbour_id = v_id and a.is_live and w.gone_batch is null and (o.is_self
        or exists (select from pgps_internal.activation c where c.origin_id = a.origin_id and c.key = w.key))
    union all select g.* from pgps_internal.lacks_to_tell(v_id) g
    union all
    select l.* from pgps_internal.lows(v_id) l where (should_know.neighbour).direction <> 'out'
    union all select r.* from pgps_internal.tells(should_know.neighbour) r;
end
$$;
comment on function pgps_internal.should_know(pgps_internal.neighbour, pgps_internal.interest[]) is
'All that a neighbour should know: types, advertisements, filters, for which origins it is the parent, which of its own
filters are in force, and from which batch on somebody here may ask for an origin''s events again';

create or replace function pgps_internal.compare_types(neighbour pgps_internal.neighbour) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    update pgps_internal.foreign_type f set difference = pgps_internal.difference(t, f.definition,
        (compare_types.neighbour).name)
    from pgps_internal.event_type t
    where f.neighbour_id = (compare_types.neighbour).neighbour_id and t.name = f.name and f.difference is not null
        and f.difference is distinct from pgps_internal.difference(t, f.definition, (compare_types.neighbour).name);
end
$$;
comment on function pgps_internal.compare_types(pgps_internal.neighbour) is
'Compares event types that differed from a neighbour''s again: one may have been created or altered here since the
neighbour told of it';

create or replace function pgps_internal.note_breaks(neighbour_id integer, news jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_broken bigint;
begin
    -- For a filter that nobody wants any more the break begins here: if somebody wants it again before the next
    -- refresh, it does not count as in force since before. A filter that is still wanted, and is withdrawn only because
    -- the parent has lost its path, goes on from the horizon when there is a path again.
    with broken as (
        delete from pgps_internal.activation a using pgps_internal.origin o
        where o.origin_id = a.origin_id and o.parent = note_breaks.neighbour_id
            and a.key in (select w.key from jsonb_to_recordset(note_breaks.news) w(key text, message text)
                where w.message = 'unsub')
            and not exists (select from pgps_internal.told t join pgps_internal.cover c on c.by_key = t.key
                where t.neighbour_id = note_breaks.neighbour_id and t.kind = 'sub' and c.key = a.key
                    and pgps_internal.goes_as_far((t.value ->> 'reach')::integer, pgps_internal.links_to(o.origin_id)))
            and (exists (select from pgps_internal.offer f
                    where f.origin_id = a.origin_id and f.neighbour_id = o.parent)
                or not exists (select from pgps_internal.pushed p where p.key = a.key)
                    and not exists (select from pgps_internal.still_wanted w where w.key = a.key))
        returning a.origin_id, a.key
    )
    select count(pgps_internal.answer_again(b.origin_id, b.key)) into v_broken from broken b;
    -- A rewind brings what matches the filters that the parent has been told when it is asked, and nothing else.
    update pgps_internal.origin o set rewind_keep = array(
        select k from unnest(o.rewind_keep) k
        where pgps_internal.is_told(note_breaks.neighbour_id, k, pgps_internal.links_to(o.origin_id)))
    where o.rewind_from is not null and o.parent = note_breaks.neighbour_id
        and exists (select from jsonb_to_recordset(note_breaks.news) w(key text, message text)
            where w.message = 'unsub' or w.message = 'attach' and w.key = o.origin_id::text);
end
$$;
comment on function pgps_internal.note_breaks(integer, jsonb) is
'When filters are withdrawn from a neighbour, or it is asked again: notes which are not in force without a break any
more, for origins of which the neighbour is the parent';

drop function if exists pgps_internal.is_told(integer, text);
create or replace function pgps_internal.is_told(neighbour_id integer, key text, links integer = null) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select exists (select from pgps_internal.told t
        where t.neighbour_id = is_told.neighbour_id and t.kind = 'sub' and (t.key = is_told.key
            or exists (select from pgps_internal.cover c where c.key = is_told.key and c.by_key = t.key))
        and pgps_internal.goes_as_far((t.value ->> 'reach')::integer, is_told.links))
$$;
comment on function pgps_internal.is_told(integer, text, integer) is
'True when a neighbour has been told a filter, or one that covers it, which travels over as many links as an origin is
away; null: any';

create or replace function pgps_internal.refresh(neighbour pgps_internal.neighbour) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id integer := (refresh.neighbour).neighbour_id;
    -- Found once: it is by far the most work of all that is done here.
    v_interests pgps_internal.interest[];
    v_known pgps_internal.told[];
    v_news jsonb;
begin
    perform pgps_internal.hold_routes();
    perform pgps_internal.compare_types(refresh.neighbour);
    perform pgps_internal.choose_parents();
    perform pgps_internal.push_filters();
    perform pgps_internal.tell_of_own_made_anew(refresh.neighbour);
    v_interests := pgps_internal.all_interests();
    perform pgps_internal.end_lacks();
    if pgps_internal.activate(v_interests) then
        v_interests := pgps_internal.all_interests();
    end if;
    perform pgps_internal.settle_origins();
    perform pgps_internal.go_live(refresh.neighbour);
    select array_agg((v_id, s.kind, s.key, s.value)::pgps_internal.told) into v_known
        from pgps_internal.should_know(refresh.neighbour, v_interests) s;
    select to_jsonb(array_agg(jsonb_build_object('kind', coalesce(s.kind, t.kind), 'key', coalesce(s.key, t.key),
        'value', coalesce(s.value, t.value),
        'message', case when s.kind is not null then s.kind else case t.kind when 'ad' then 'unad' when 'sub'
            then 'unsub' when 'part' then 'unpart' else 'detach' end end)))
    into v_news
    from unnest(v_known) s
    full join (select * from pgps_internal.told t where t.neighbour_id = v_id) t on t.kind = s.kind and t.key = s.key
    where s.value is distinct from t.value
        and (s.kind is not null or not pgps_internal.is_held(refresh.neighbour, v_interests, t.kind, t.key));
    delete from pgps_internal.told t
    where t.neighbour_id = v_id
        and (t.kind in ('active', 'parted', 'gap')
            and not exists (select from unnest(v_known) s where s.kind = t.kind and s.key = t.key)
        or (t.kind, t.key) in (select w.kind, w.key from jsonb_to_recordset(v_news) w(kind text, key text)));
    insert into pgps_internal.told (neighbour_id, kind, key, value)
    select v_id, w.kind, w.key, w.value
        from jsonb_to_recordset(v_news) w(kind text, key text, value jsonb, message text) where w.message = w.kind;
    perform pgps_internal.note_breaks(v_id, v_news);
    insert into pgps_internal.shipment (neighbour_id, lseq, kind, body)
    select v_id, (select pgps_internal.last_sent(v_id)) + row_number() over (order by array_position(
            array['type', 'ad', 'unsub', 'sub', 'unpart', 'part', 'parted', 'attach', 'low', 'gap', 'active', 'detach',
                'unad', 'drain', 'drained'], w.message),
            -- What goes farther comes first: the neighbour must not let go what covers it before it knows it.
            case when w.message = 'sub' then - (w.value ->> 'reach')::integer end, w.key),
        w.message, pgps_internal.tell(w.message, w.key, w.value, v_id)
    from jsonb_to_recordset(v_news) w(kind text, key text, value jsonb, message text);
end
$$;
comment on function pgps_internal.refresh(pgps_internal.neighbour) is
'Puts the difference between what a neighbour should know and what it was told into the ledger of shipments; called by
the session that sends to it';

drop function if exists pgps_internal.is_held(pgps_internal.neighbour, text, text);
create or replace function pgps_internal.is_held(
    neighbour pgps_internal.neighbour, interests pgps_internal.interest[], kind text, key text
) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    case is_held.kind
        when 'type', 'active', 'parted', 'low', 'gap', 'drain', 'drained' then
            -- Harmless when stale, so it is never withdrawn.
            return true;
        when 'ad' then
            return (is_held.neighbour).is_draining;
        when 'sub' then
            return (is_held.neighbour).is_draining or pgps_internal.is_awaited(is_held.neighbour, is_held.key);
        when 'attach' then
            -- The old parent is let go when the new one has answered; it is not asked where nobody wants anything of
            -- the origin any more.
            return exists (
                select from pgps_internal.origin o
                where o.origin_id = is_held.key::integer and o.parent <> (is_held.neighbour).neighbour_id
                    and exists (select from unnest(is_held.interests) i where i.origin_id = o.origin_id)
                    and o.answered is distinct from o.attachment);
        else
            return false;
    end case;
end
$$;
comment on function pgps_internal.is_held(pgps_internal.neighbour, pgps_internal.interest[], text, text) is
'True while something that a neighbour was told, and need not know any more, is not withdrawn, because what replaces it
is not in place yet';

create or replace function pgps_internal.is_awaited(neighbour pgps_internal.neighbour, key text) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select from pgps_internal.link_filters_for(is_awaited.neighbour, pgps_internal.all_interests()) f
        join pgps_internal.interest i on i.key = f.key
        join pgps_internal.origin o on o.origin_id = i.origin_id and o.parent = (is_awaited.neighbour).neighbour_id
        left join pgps_internal.activation a on a.origin_id = i.origin_id and a.key = i.key
        where a.is_confirmed is not true and exists (select from pgps_internal.cover c
            where c.key = f.key and c.by_key = is_awaited.key or c.key = is_awaited.key and c.by_key = f.key)
            -- Of an origin that it does not reach it brings nothing, and the parent may wait until it is withdrawn.
            and exists (select from pgps_internal.told t
                where t.neighbour_id = (is_awaited.neighbour).neighbour_id and t.kind = 'sub' and t.key = is_awaited.key
                    and pgps_internal.goes_as_far((t.value ->> 'reach')::integer, pgps_internal.links_to(o.origin_id))))
$$;
comment on function pgps_internal.is_awaited(pgps_internal.neighbour, text) is
'True while a filter that this one covers, or that covers it, is to replace it, and the parent has not said that it is
in force for an origin that this one reaches';

create or replace function pgps_internal.tell(kind text, key text, value jsonb, neighbour_id integer) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_filter pgps_internal.link_filter;
    v_origin pgps_internal.origin;
begin
    case tell.kind
        when 'type' then
            return tell.value || jsonb_build_object('name', tell.key);
        when 'sub' then
            select f.* into v_filter from pgps_internal.link_filter f where f.key = tell.key;
            return tell.value - 'made' || jsonb_build_object('key', tell.key, 'filter', v_filter.filter,
                'constant_types',
                v_filter.constant_types,
                'environment', v_filter.environment, 'type',
                    (select t.name from pgps_internal.event_type t where t.type_id = v_filter.type_id),
                'collation', pgps_internal.do_link_identity(current_user, '{}') ->> 'collation');
        when 'unsub' then
            return jsonb_build_object('key', tell.key);
        when 'attach' then
            select o.* into v_origin from pgps_internal.origin o where o.origin_id = tell.key::integer;
            return tell.value || jsonb_build_object('horizon',
                least(v_origin.rewind_from, pgps_internal.horizon(v_origin.origin_id)),
                'reached', pgps_internal.horizon(v_origin.origin_id),
                -- So that who does not know a type waits for none of its filters.
                'types', (select coalesce(to_jsonb(array_agg(k)), '[]') from (
                    select e.name, array_agg(t.key) as keys from pgps_internal.told t
                    join pgps_internal.link_filter f using (key) join pgps_internal.event_type e using (type_id)
                    where t.neighbour_id = tell.neighbour_id and t.kind = 'sub' group by e.name) k),
                'keep', array(
                    -- A filter that was told stands for those that it covers. One that is stale went with an event type
                    -- that the neighbour made anew: it would wait for ever to be told that one, and need not, since
                    -- what replaces it has been told.
                    select t.key from pgps_internal.told t
                    where t.neighbour_id = tell.neighbour_id and t.kind = 'sub'
                        and pgps_internal.goes_as_far((t.value ->> 'reach')::integer,
                            pgps_internal.links_to(v_origin.origin_id))
                        and not t.value ? 'is_stale' and exists (
                        select from (select a.key from pgps_internal.activation a where a.origin_id = v_origin.origin_id
                            union select unnest(v_origin.rewind_keep)) k
                        where k.key = t.key
                            or exists (select from pgps_internal.cover c where c.key = k.key and c.by_key = t.key))));
        when 'active' then
            -- What is matched from now on is complete; what was received or matched before may not be.
            return tell.value || jsonb_build_object('since',
                greatest(pgps_internal.reached(split_part(tell.key, ' ', 1)::integer),
                (select a.since from pgps_internal.activation a join pgps_internal.wanted w on w.key = a.key
                    where a.origin_id = split_part(tell.key, ' ', 1)::integer and w.neighbour_id = tell.neighbour_id
                        and w.known_as = substr(tell.key, strpos(tell.key, ' ') + 1))));
        else
            return tell.value;
    end case;
end
$$;
comment on function pgps_internal.tell(text, text, jsonb, integer) is
'The text of a message about something a neighbour should know';
