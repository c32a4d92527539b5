-- The audit at the receiver: compares what came with the totals that its origin states. See audit.sql.
-- Locks: the turns of the origins it is about; totals are in rows that only sessions which receive them change.
-- Writes: audit_hop, audit_point, audited.

create or replace function pgps_internal.came(origin_id integer, after bigint, upto bigint, behind bigint)
returns table (type_id integer, events bigint, places numeric, sampled bigint, ids int8multirange)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with item as materialized (
        -- An item may have come in two parts: what this broker wanted, and what it fetched again for its children.
        select y.type_id, a.upto, sum(y.events)::bigint as events,
            pgps_internal.is_sampled(a.upto, sum(y.events)::bigint) as is_sampled
        from pgps_internal.arrival a cross join unnest(a.tallies) y
        where a.origin_id = came.origin_id and a.arrival_id > came.behind and a.upto > came.after
            and a.upto <= came.upto
        group by y.type_id, a.upto
    )
    select i.type_id, sum(i.events)::bigint, sum(i.events * pgps_internal.place_hash(i.upto)),
        coalesce(sum(i.events) filter (where i.is_sampled), 0)::bigint,
        coalesce((select range_agg(r) from item x join pgps_internal.arrival a on a.origin_id = came.origin_id
            and a.upto = x.upto, unnest(a.ids) r
            where x.type_id = i.type_id and x.is_sampled and a.arrival_id > came.behind and a.tallies is not null),
                '{}')
    from item i group by i.type_id
$$;
comment on function pgps_internal.came(integer, bigint, bigint, bigint) is
'What came of some batches of an origin, in rows of the ledger of arrivals behind a given one, by event type; the
columns mean what they mean in pgps_internal.own_events';

create or replace function pgps_internal.is_newest_epoch(origin_id integer) returns boolean
language plpgsql stable
as $$
begin
    return not exists (select from pgps_internal.origin o join pgps_internal.origin n using (broker_id)
        where o.origin_id = is_newest_epoch.origin_id and n.epoch > o.epoch
            and not exists (select from pgps_internal.own_words() w where w.origin_id = n.origin_id and w.is_denied));
end
$$;
comment on function pgps_internal.is_newest_epoch(integer) is
'False for an origin whose broker was restored since, and publishes in a later epoch';

create or replace function pgps_internal.hear_audit(neighbour pgps_internal.neighbour, body jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_origin integer := (pgps_internal.answered_origin(hear_audit.neighbour, hear_audit.body)).origin_id;
    v_upto bigint := (hear_audit.body ->> 'batch')::bigint;
    v_last pgps_internal.audited;
    v_is_known boolean;
    v_one record;
begin
    select a.* into v_last from pgps_internal.audited a where a.origin_id = v_origin;
    if v_origin is null or v_upto < v_last.batch_id or not pgps_internal.setting('audit')::boolean then
        return;
    end if;
    -- Not compared: items that came before this broker counted, batches in a known gap, and a former epoch: a broker
    -- that was put back, and has not noticed yet, counts other events under numbers that were used before.
    v_is_known := v_last.origin_id is not null and pgps_internal.is_newest_epoch(v_origin)
        and not exists (select from pgps_internal.arrival a
            where a.origin_id = v_origin and a.arrival_id > v_last.arrival_id and a.upto > v_last.batch_id
                and a.upto <= v_upto
                and a.tallies is null and a.ids is not null and a.attachment <> -1)
        and not exists (select from pgps_internal.gap g where g.origin_id = v_origin and g.after_batch < v_upto
            and g.upto > v_last.batch_id);
    for v_one in
        select t as event_type, e.value as said, p as point, c.events, c.places, c.sampled, c.ids, t.type_id is not null
            and v_is_known
            and p.type_id is not null
                -- A total that has not changed is not stated again, to the same attachment.
                and (e.key is not null or p.attachment = (hear_audit.body ->> 'attachment')::integer)
                and coalesce(greatest(p.since, p.here_since, (e.value ->> 'since')::bigint, f.since) <= v_last.batch_id
                and f.since is not null, false) as is_compared
        from pgps_internal.event_type t
        left join jsonb_each(hear_audit.body -> 'types') e on e.key = t.name
        left join pgps_internal.audit_point p on p.origin_id = v_origin and p.type_id = t.type_id
        left join pgps_internal.came(v_origin, v_last.batch_id, v_upto, v_last.arrival_id) c on c.type_id = t.type_id
        left join (select f.type_id, min(a.since) as since from pgps_internal.activation a
            join pgps_internal.link_filter f using (key)
            where a.origin_id = v_origin and f.filter is null group by f.type_id) f on f.type_id = t.type_id
        where pgps_internal.audits(t) and (e.key is not null or p.type_id is not null and c.type_id is not null)
    loop
        perform pgps_internal.compare_point((hear_audit.neighbour).name, v_one.event_type, v_origin, v_one.point,
            case when jsonb_typeof(v_one.said) = 'object' or v_one.said is null
                then coalesce(v_one.said, pgps_internal.point_said(v_one.point)) end,
            v_last.batch_id, v_upto, coalesce(v_one.events, 0), coalesce(v_one.places, 0), v_one.sampled, v_one.ids,
            v_one.is_compared);
    end loop;
    perform pgps_internal.note_stated(v_origin, v_upto, hear_audit.body);
    insert into pgps_internal.audited as a (origin_id, batch_id, audited_at, arrival_id)
    values (v_origin, v_upto, pgps_internal.clock(), coalesce(
        (select min(i.arrival_id) - 1 from pgps_internal.arrival i
            where i.origin_id = v_origin and i.arrival_id > coalesce(v_last.arrival_id, 0) and i.upto > v_upto),
        (select max(i.arrival_id) from pgps_internal.arrival i where i.origin_id = v_origin), 0))
    on conflict on constraint audited_pkey do update set batch_id = excluded.batch_id, arrival_id = excluded.arrival_id,
        audited_at = pgps_internal.clock();
end
$$;
comment on function pgps_internal.hear_audit(pgps_internal.neighbour, jsonb) is
'Handles the totals of an origin, sent by the parent for it: compares them with what came, for event types of which
every event is wanted';

create or replace function pgps_internal.note_stated(origin_id integer, upto bigint, body jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_attachment integer := (note_stated.body ->> 'attachment')::integer;
begin
    update pgps_internal.audit_point p set attachment = v_attachment from pgps_internal.event_type t
    where p.origin_id = note_stated.origin_id and t.type_id = p.type_id and note_stated.body -> 'types' ? t.name;
    -- A total that this parent has not stated for this attachment, or of a type of which nobody here wants all events,
    -- is of an older batch by now. When it is stated again, the comparison begins there, here and at children, even if
    -- the filter is in force from an older batch on.
    update pgps_internal.audit_point p set since = note_stated.upto + 1
    where p.origin_id = note_stated.origin_id and p.since <= note_stated.upto
        and not exists (select from pgps_internal.event_type t
            where t.type_id = p.type_id and note_stated.body -> 'types' ? t.name)
        and (p.attachment is distinct from v_attachment
            or not exists (select from pgps_internal.activation a join pgps_internal.link_filter f using (key)
                where a.origin_id = note_stated.origin_id and f.type_id = p.type_id and f.filter is null));
end
$$;
comment on function pgps_internal.note_stated(integer, bigint, jsonb) is
'Notes which totals a parent has stated, and which ones cannot be compared with what it states later';

create or replace function pgps_internal.point_said(point pgps_internal.audit_point) returns jsonb
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object('events', (point_said.point).events, 'places', (point_said.point).places, 'contents',
        (point_said.point).contents,
        'shape', (point_said.point).shape, 'contents_since', (point_said.point).contents_since, 'since',
            (point_said.point).since)
$$;
comment on function pgps_internal.point_said(pgps_internal.audit_point) is
'The total that an origin stated last, as it travels: a total that has not changed is not sent again';

create or replace function pgps_internal.compare_point(
    neighbour text, event_type pgps_internal.event_type, origin_id integer, point pgps_internal.audit_point, said jsonb,
    after bigint, upto bigint,
    events bigint, places numeric, sampled bigint, ids int8multirange, is_compared boolean
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type integer := (compare_point.event_type).type_id;
    v_there bigint := (compare_point.said ->> 'events')::bigint - (compare_point.point).events;
    v_places numeric := mod((compare_point.said ->> 'places')::numeric - (compare_point.point).places
        + 1152921504606846976, 1152921504606846976);
    v_found record;
    v_known bigint := compare_point.upto;
begin
    if compare_point.said is null then
        -- A broker on the path cannot state the total any more.
        delete from pgps_internal.audit_point p where p.origin_id = compare_point.origin_id and p.type_id = v_type;
        return;
    elsif compare_point.is_compared then
        if v_there <> compare_point.events or v_places <> mod(compare_point.places, 1152921504606846976) then
            perform pgps_internal.note_difference('end', case when v_there <> compare_point.events then 'count'
                else 'places' end,
                compare_point.neighbour, compare_point.origin_id, v_type, compare_point.after, compare_point.upto,
                v_there, compare_point.events);
        elsif compare_point.sampled > 0
            and compare_point.said ->> 'shape' = pgps_internal.shape_of(compare_point.event_type) then
            select c.* into v_found from pgps_internal.contents(compare_point.event_type, compare_point.ids) c;
            if v_found.events <> compare_point.sampled
                and not pgps_internal.is_truncated(v_type, compare_point.ids) then
                perform pgps_internal.note_difference('here', 'count', compare_point.neighbour, compare_point.origin_id,
                    v_type, compare_point.after,
                    compare_point.upto, compare_point.sampled, v_found.events);
            elsif v_found.events = compare_point.sampled
                and (compare_point.point).shape = compare_point.said ->> 'shape'
                    and (compare_point.said ->> 'contents_since')::bigint <= compare_point.after
                    and v_found.digest
                        <> ((compare_point.said ->> 'contents')::bigint # (compare_point.point).contents) then
                perform pgps_internal.note_difference('end', 'contents', compare_point.neighbour,
                    compare_point.origin_id, v_type,
                    compare_point.after, compare_point.upto, v_there, compare_point.events);
            end if;
        end if;
    end if;
    insert into pgps_internal.audit_point as p (origin_id, type_id, events, places, contents, shape, since,
        contents_since)
    values (compare_point.origin_id, v_type, (compare_point.said ->> 'events')::bigint,
        (compare_point.said ->> 'places')::numeric,
        (compare_point.said ->> 'contents')::bigint, compare_point.said ->> 'shape',
            (compare_point.said ->> 'since')::bigint,
        (compare_point.said ->> 'contents_since')::bigint)
    on conflict on constraint audit_point_pkey do update
    set events = excluded.events, places = excluded.places, contents = excluded.contents, shape = excluded.shape,
        since = greatest(p.since, excluded.since), contents_since = excluded.contents_since,
        there = p.there + case when compare_point.is_compared then v_there else 0 end,
        here = p.here + case when compare_point.is_compared then compare_point.events else 0 end,
        compared = p.compared + compare_point.is_compared::integer;
end
$$;
comment on function pgps_internal.compare_point(text, pgps_internal.event_type, integer, pgps_internal.audit_point,
    jsonb, bigint, bigint, bigint, numeric, bigint,
    int8multirange, boolean) is
'Compares what came of a type between two batches of an origin with the total that the origin states, and keeps that
total. said: null when it is not known any more';

create or replace function pgps_internal.carry_over_audit(segment regclass) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('insert into pgps_internal.audit_hop as h (neighbour_id, origin_id, type_id, events)
        select a.neighbour_id, a.origin_id, y.type_id, sum(y.events)
        from %s a cross join unnest(a.tallies) y join pgps_internal.neighbour n using (neighbour_id) join '
            'pgps_internal.event_type t on t.type_id = y.type_id
        group by a.neighbour_id, a.origin_id, y.type_id
        on conflict on constraint audit_hop_pkey do update set events = h.events + excluded.events',
            carry_over_audit.segment);
    -- Rows that go before they were compared, because no total came for long, cannot be compared any more.
    execute format('update pgps_internal.audit_point p set here_since = greatest(p.here_since, x.upto)
        from (select a.origin_id, y.type_id, max(a.upto) as upto from %s a cross join unnest(a.tallies) y group by '
            'a.origin_id, y.type_id) x
        join pgps_internal.audited d on d.origin_id = x.origin_id and x.upto > d.batch_id
        where p.origin_id = x.origin_id and p.type_id = x.type_id', carry_over_audit.segment);
end
$$;
comment on function pgps_internal.carry_over_audit(regclass) is
'Before a segment of the ledger of arrivals is truncated: adds its counts to audit_hop';
