-- The horizon when paths change: what a new child lacks is sent from the log here or, when it is not there, fetched
-- from the parent first. Rules 2 to 4 in docs/internals/links.md.
-- Locks: those of routes.
-- Writes: attached, delivery, shipment.

create or replace function pgps_internal.trimmed_upto(origin pgps_internal.origin, types integer[]) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- For other origins the activation of a filter says from which batch on everything is here; see
    -- pgps_internal.note_trimmed.
    if not (trimmed_upto.origin).is_self then
        return 0;
    end if;
    -- Batches of another epoch do not belong to this origin, so nothing of it is missing with them.
    return (select case when x.upto > (trimmed_upto.origin).from_batch
        then least(x.upto, coalesce((trimmed_upto.origin).to_batch, x.upto)) else 0 end
        from (select greatest(coalesce((select min(b.batch_id) from pgps_internal.batch b), 1) - 1,
            (select max(b.batch_id)
            from pgps_internal.batch_type b join pgps_internal.trimmed t using (type_id)
            where b.type_id = any (trimmed_upto.types) and lower(b.ids) <= t.event_id)) as upto) x);
end
$$;
comment on function pgps_internal.trimmed_upto(pgps_internal.origin, integer[]) is
'Up to which batch of its own this broker may have truncated events of these types; 0 for other origins';

create or replace function pgps_internal.go_live(neighbour pgps_internal.neighbour) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_attached pgps_internal.attached;
    v_origin pgps_internal.origin;
begin
    perform pgps_internal.send_back(go_live.neighbour);
    if (go_live.neighbour).is_draining
        and not exists (select from pgps_internal.wanted w where w.neighbour_id = (go_live.neighbour).neighbour_id) then
        return;
    end if;
    -- A filter that ends before the origin is not waited for: nobody passes it on.
    update pgps_internal.attached a set keep = k.kept
    from pgps_internal.attached b
    cross join lateral (select coalesce(array_agg(k) filter (where k.is_far), '{}') as kept from (
        select k, coalesce(bool_or(pgps_internal.goes_as_far(w.reach - 1, pgps_internal.links_to(b.origin_id))), true)
            as is_far
        from unnest(b.keep) k
        left join pgps_internal.wanted w on w.neighbour_id = b.neighbour_id and w.key = k group by k) k) k
    where b.neighbour_id = (go_live.neighbour).neighbour_id and not b.is_live and a.neighbour_id = b.neighbour_id
        and a.origin_id = b.origin_id and cardinality(k.kept) < cardinality(b.keep);
    for v_attached in
        select a.* from pgps_internal.attached a
        where a.neighbour_id = (go_live.neighbour).neighbour_id and not a.is_live and cardinality(a.missing) = 0
            order by a.origin_id
    loop
        select o.* into v_origin from pgps_internal.origin o where o.origin_id = v_attached.origin_id;
        -- Until it is live, the neighbour gets nothing of what is dispatched; and one that keeps nothing never does.
        perform pgps_internal.recount_anew(v_attached.origin_id, v_attached.neighbour_id);
        if cardinality(v_attached.keep) = 0 then
            -- The child has no filter in force, so it can miss nothing: it is served from now on.
            update pgps_internal.attached a set is_live = true
            where a.neighbour_id = v_attached.neighbour_id and a.origin_id = v_attached.origin_id
                and a.attachment = v_attached.attachment;
        elsif v_origin.is_self or not exists (
                select from unnest(v_attached.keep) k
                join pgps_internal.link_filter f on f.key = k
                left join pgps_internal.activation c on c.origin_id = v_attached.origin_id and c.key = k
                where (c.since is null or c.since > v_attached.horizon)
                    and (v_origin.parent is null or pgps_internal.may_carry(v_origin.parent, f.type_id))) then
            perform pgps_internal.catch_up(go_live.neighbour, v_attached, v_origin);
        elsif v_origin.rewind_from is null then
            perform pgps_internal.rewind(v_origin);
        end if;
    end loop;
end
$$;
comment on function pgps_internal.go_live(pgps_internal.neighbour) is
'Rule 4 of the horizon: answers attachments of a neighbour that can be answered now, and begins a rewind for the
others';

create or replace function pgps_internal.wanted_ids(
    neighbour pgps_internal.neighbour, type_id integer, ids int8multirange
) returns int8multirange
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_class pgps_internal.class;
    v_signature pgps_internal.signature;
    v_visible int8multirange;
    v_wanted int8multirange := '{}';
    v_state text;
    v_context text;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = wanted_ids.type_id;
    v_visible := pgps_internal.visible(v_type, (wanted_ids.neighbour).role, wanted_ids.ids);
    if isempty(v_visible) then
        return v_wanted;
    end if;
    for v_class in
        select c.* from pgps_internal.member m join pgps_internal.class c using (class_id)
        where m.subscription_id = (wanted_ids.neighbour).subscription_id and m.type_id = wanted_ids.type_id
    loop
        if v_class.signature_id is null then
            return v_visible;
        end if;
        -- Asked by the matcher's own code, over the log. Batch 0 marks the deliveries, which are taken out again below.
        select g.* into v_signature from pgps_internal.signature g where g.signature_id = v_class.signature_id;
        begin
            perform pgps_internal.match_signature(0, v_signature, v_visible,
                int8range(v_class.class_id, v_class.class_id, '[]'));
        exception when others or assert_failure or query_canceled then
            get stacked diagnostics v_state = returned_sqlstate, v_context = pg_exception_context;
            if pgps_internal.is_cancelled(v_state, v_context) then
                raise;
            end if;
            -- The filter raised: everything visible is sent, since the neighbour asks its whole filter itself.
            return v_visible;
        end;
        with found as (
            delete from pgps_internal.delivery d where d.batch_id = 0 and d.class_id = v_class.class_id
                returning d.event_ids, d.ids
        )
        select v_wanted + coalesce(range_agg(r), '{}') into v_wanted
        from found f cross join lateral (select unnest(f.ids) union all select int8range(e, e, '[]')
            from unnest(f.event_ids) e) u(r);
    end loop;
    return v_wanted;
end
$$;
comment on function pgps_internal.wanted_ids(pgps_internal.neighbour, integer, int8multirange) is
'Those of some events in a log that a neighbour''s filters want';

create or replace function pgps_internal.open_arrivals(
    origin_id integer, after bigint, packed bigint, out first_open bigint, out last_done bigint
) language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- Arrivals whose events are still to be packed must be sent behind the answer, so it ends before the first of
    -- them. Nothing else is waited for: events that were refused here, or repeat a producer number, are in no
    -- batch.
    with open as materialized (
        select b.ids from pgps_internal.batch_type b where b.batch_id > open_arrivals.packed
        union all
        select int8multirange(int8range(w.lo, w.hi, '[]'))
            from pgps_internal.in_no_batch(pgps_internal.last_batch(), pg_current_snapshot()) w
        where w.origin_id = open_arrivals.origin_id
    )
    select min(a.upto) filter (where a.is_open), max(a.upto) filter (where not a.is_open)
    from (select a.upto, exists (select from open o where o.ids && a.ids) as is_open
        from pgps_internal.arrival a where a.origin_id = open_arrivals.origin_id and a.upto > open_arrivals.after
            and a.ids is not null) a
$$;
comment on function pgps_internal.open_arrivals(integer, bigint, bigint) is
'Of the items of an origin behind a place: the first with events that are still to be packed, and the last without';

create or replace function pgps_internal.ship_history(
    neighbour pgps_internal.neighbour, attached pgps_internal.attached, origin pgps_internal.origin, types integer[],
    after bigint, upto bigint, packed bigint
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_last bigint := pgps_internal.last_sent((ship_history.neighbour).neighbour_id);
    v_origin pgps_internal.origin := ship_history.origin;
    v_attachment integer := (ship_history.attached).attachment;
    v_after bigint := ship_history.after;
    v_types integer[] := ship_history.types;
begin
    with had as materialized (
        select b.batch_id as upto, b.batch_id, b.type_id, b.ids
        from pgps_internal.published_between(greatest(v_after, v_origin.from_batch),
            least(ship_history.packed, v_origin.to_batch), v_types) b
        where v_origin.is_self
        union all
        select a.upto, b.batch_id, b.type_id, b.ids * a.ids from pgps_internal.arrival a
        join pgps_internal.batch_type b on b.batch_id <= ship_history.packed and b.type_id = any (v_types)
        where not v_origin.is_self and a.origin_id = v_origin.origin_id and a.upto > v_after and b.ids && a.ids
    ),
    own as materialized (
        select h.* from had h where not isempty(h.ids)
    ),
    wanted as materialized (
        select t.type_id, pgps_internal.wanted_ids(ship_history.neighbour, t.type_id, t.ids) as ids
        from (select o.type_id, range_agg(r) as ids from own o, unnest(o.ids) r group by o.type_id) t
    ),
    slices as (
        select o.upto, min(o.batch_id) as batch_id, o.type_id, range_agg(r) as ids
        from own o join wanted w using (type_id) cross join lateral unnest(o.ids * w.ids) r group by o.upto, o.type_id
    ),
    items as (
        select s.upto, min(s.batch_id) as batch_id, sum(pgps_internal.count_ids(s.ids)) as events,
            array_agg((s.type_id, s.ids)::pgps_internal.slice order by s.type_id) as slices
        from slices s group by s.upto
    )
    insert into pgps_internal.shipment (neighbour_id, lseq, kind, origin_id, attachment, previous, upto, batch_id,
        events, slices, body)
    select (ship_history.neighbour).neighbour_id, v_last + row_number() over (order by x.place, x.kind), x.kind,
        x.origin_id, x.attachment, x.previous, x.upto, x.batch_id, x.events, x.slices, x.body
    from (
        select 'data' as kind, i.upto as place, v_origin.origin_id, v_attachment as attachment,
            coalesce(lag(i.upto) over (order by i.upto), v_after) as previous, i.upto, i.batch_id, i.events, i.slices,
            '{"mixed": true}'::jsonb as body
        from items i
        union all
        select 'gap', g.upto, null, null, null, null, null, 0, null, pgps_internal.gap_body(g, v_attachment, v_after)
        from pgps_internal.gap g
        where g.origin_id = v_origin.origin_id and g.upto > v_after and g.after_batch < ship_history.upto
    ) x;
end
$$;
comment on function pgps_internal.ship_history(
    pgps_internal.neighbour, pgps_internal.attached, pgps_internal.origin, integer[], bigint, bigint, bigint
) is
'Sends what a child wants of the log of an origin behind a place (after), as far as it is packed, and the gaps before
upto';

create or replace function pgps_internal.catch_up(
    neighbour pgps_internal.neighbour, attached pgps_internal.attached, origin pgps_internal.origin
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id integer := (catch_up.neighbour).neighbour_id;
    v_from bigint := (catch_up.attached).horizon;
    v_packed bigint := (pgps_internal.position_of((catch_up.neighbour).subscription_id)).received_batch;
    v_types integer[] := array(select distinct m.type_id from pgps_internal.member m
        where m.subscription_id = (catch_up.neighbour).subscription_id);
    v_trimmed bigint := pgps_internal.trimmed_upto(catch_up.origin, v_types);
    v_reached bigint;
    v_open bigint;
    v_done bigint;
begin
    v_reached := case when (catch_up.origin).is_self and (catch_up.origin).to_batch is null then v_packed
        else pgps_internal.reached((catch_up.origin).origin_id) end;
    if not (catch_up.origin).is_self then
        select a.first_open, a.last_done into v_open, v_done
        from pgps_internal.open_arrivals((catch_up.origin).origin_id, v_from, v_packed) a;
        if v_open <= v_done then
            return;
        end if;
        v_reached := least(v_reached, v_open - 1);
    end if;
    update pgps_internal.attached a set is_live = true
    where a.neighbour_id = v_id and a.origin_id = (catch_up.origin).origin_id
        and a.attachment = (catch_up.attached).attachment;
    if v_trimmed > v_from then
        insert into pgps_internal.shipment (neighbour_id, lseq, kind, body)
        values (v_id, pgps_internal.last_sent(v_id) + 1, 'gap',
            jsonb_build_object('broker', (catch_up.origin).broker_id, 'epoch', (catch_up.origin).epoch,
            'attachment', (catch_up.attached).attachment, 'after', v_from, 'previous', v_from, 'upto', v_trimmed));
        v_from := v_trimmed;
    end if;
    perform pgps_internal.ship_history(catch_up.neighbour, catch_up.attached, catch_up.origin, v_types, v_from,
        v_reached, v_packed);
    -- Also when nothing matched, because the child waits for an answer.
    insert into pgps_internal.shipment (neighbour_id, lseq, kind, origin_id, attachment, previous, upto)
    select v_id, pgps_internal.last_sent(v_id) + 1, 'silence', (catch_up.origin).origin_id,
        (catch_up.attached).attachment,
        greatest(x.sent, v_from), greatest(x.sent, v_from, v_reached)
    from (select pgps_internal.sent(v_id, (catch_up.origin).origin_id, (catch_up.attached).attachment) as sent) x;
end
$$;
comment on function pgps_internal.catch_up(pgps_internal.neighbour, pgps_internal.attached, pgps_internal.origin) is
'Answers an attachment: sends a gap if history was trimmed, then the log behind the child''s horizon; from then on the
child gets what is dispatched';
