-- Sending to a neighbour: deliveries of its subscription become numbered items, read as binary COPY.
-- Locks: the turn of sending (shared), and those of routes.
-- Writes: shipment.

create or replace function pgps_internal.require_sender() returns pgps_internal.neighbour
language plpgsql stable
as $$ begin return pgps_internal.linked('send'); end $$;
comment on function pgps_internal.require_sender() is 'The neighbour this session sends to';

create or replace function pgps_internal.sent(neighbour_id integer, origin_id integer, attachment integer)
returns bigint
language plpgsql stable
as $$
begin
    return coalesce((select case when o.attachment = sent.attachment then o.upto end from pgps_internal.shipment o
        where o.neighbour_id = sent.neighbour_id and o.origin_id = sent.origin_id and o.upto is not null
            order by o.lseq desc limit 1), 0);
end
$$;
comment on function pgps_internal.sent(integer, integer, integer) is
'Up to which batch of an origin a neighbour has been told everything, in its present attachment';

create or replace function pgps_internal.count_ids(ids int8multirange) returns bigint
language plpgsql immutable
as $$
begin
    -- Not in SQL, like everything that runs for each batch: an SQL function that cannot be inlined is planned at each
    -- call.
    return (select coalesce(sum(upper(r) - lower(r)), 0)::bigint from unnest(count_ids.ids) r);
end
$$;
comment on function pgps_internal.count_ids(int8multirange) is 'How many ids are in ranges';

create or replace function pgps_internal.gap_body(gap pgps_internal.gap, attachment integer, sent bigint) returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object('broker', o.broker_id, 'epoch', o.epoch, 'attachment', gap_body.attachment,
        'after', greatest((gap_body.gap).after_batch, gap_body.sent), 'previous', gap_body.sent, 'upto',
            (gap_body.gap).upto)
    from pgps_internal.origin o where o.origin_id = (gap_body.gap).origin_id
$$;
comment on function pgps_internal.gap_body(pgps_internal.gap, integer, bigint) is
'The text of a message about trimmed history';

create or replace function pgps_internal.be_silent(neighbour pgps_internal.neighbour, packed bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id integer := (be_silent.neighbour).neighbour_id;
begin
    -- A draining link without filters: nothing was matched for it, so nothing is known to be silent.
    if (be_silent.neighbour).is_draining
        and not exists (select from pgps_internal.wanted w where w.neighbour_id = v_id) then
        return;
    end if;
    -- Silence is said only of what has been matched and packed, and only when nothing received waits for dispatch. This
    -- is asked in the statement that says how far: a statement of its own could miss a batch that the next one sees,
    -- and what is in it would never be sent.
    with quiet as materialized (
        select x.* from (select a.origin_id, a.attachment, pgps_internal.sent(v_id, a.origin_id, a.attachment) as sent,
                -- As pgps_internal.reached has it, which may see more than this statement.
                case when not o.is_self then coalesce((select i.horizon from pgps_internal.arrival i
                        where i.origin_id = a.origin_id order by i.arrival_id desc limit 1), 0)
                    when o.to_batch is not null then 9223372036854775807
                    else coalesce((pgps_internal.last_batch()).batch_id, 0) end as upto
            from pgps_internal.attached a join pgps_internal.origin o using (origin_id)
            where a.neighbour_id = v_id and a.is_live) x
        where x.upto > x.sent and be_silent.packed = coalesce((pgps_internal.last_batch()).batch_id, 0)
            and not exists (select from pgps_internal.in_no_batch(pgps_internal.last_batch(), pg_current_snapshot()) w
                where w.origin_id is not null)
    )
    insert into pgps_internal.shipment (neighbour_id, lseq, kind, origin_id, attachment, previous, upto, body)
    select v_id, (select pgps_internal.last_sent(v_id)) + row_number() over (order by s.place, s.missing nulls last),
        s.kind, s.origin_id, s.attachment, s.previous, s.upto, s.body
    from (
        select 'silence' as kind, q.origin_id as place, null::bigint as missing, q.origin_id, q.attachment,
            q.sent as previous, q.upto, null::jsonb as body
        from quiet q
        union all
        -- A gap in what is here is told as a gap, not as silence.
        select 'gap', q.origin_id, g.upto, null, null, null, null, pgps_internal.gap_body(g, q.attachment, q.sent)
        from quiet q join pgps_internal.gap g on g.origin_id = q.origin_id and g.upto > q.sent and g.upto <= q.upto
    ) s;
end
$$;
comment on function pgps_internal.be_silent(pgps_internal.neighbour, bigint) is
'Tells a neighbour up to where nothing matched, so that its horizon moves on while nothing comes (rule 3)';

create or replace function pgps_internal.shipments_after(
    neighbour_id integer, after bigint, max_events integer, out items pgps_internal.shipment[], out events bigint
)
language plpgsql stable
as $$
begin
    select array_agg(x.s order by (x.s).lseq), sum((x.s).events) into items, events
    from (select h as s from pgps_internal.shipment h where h.neighbour_id = shipments_after.neighbour_id
        and h.lseq > shipments_after.after order by h.lseq limit 1000) x;
    if events > shipments_after.max_events then
        select array_agg(x.s order by (x.s).lseq), sum((x.s).events) into items, events
        from (select h as s, sum(h.events) over (order by h.lseq) - h.events as before from unnest(items) h) x
        where x.before < shipments_after.max_events;
    end if;
end
$$;
comment on function pgps_internal.shipments_after(integer, bigint, integer) is
'The next items for a neighbour, at most 1000, until they have so many events; and how many those are';

create or replace function pgps_internal.tell_changes(neighbour pgps_internal.neighbour, packed bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if (tell_changes.neighbour).is_draining then
        -- Before its filters are dropped: the neighbour may have attached to this path once more before it said
        -- "drain".
        perform pgps_internal.go_live(tell_changes.neighbour);
        perform pgps_internal.end_filters(tell_changes.neighbour);
    end if;
    perform pgps_internal.drop_gone(tell_changes.neighbour, tell_changes.packed);
    perform pgps_internal.refresh(tell_changes.neighbour);
    perform pgps_internal.be_silent(tell_changes.neighbour, tell_changes.packed);
    perform pgps_internal.tell_audit(tell_changes.neighbour, tell_changes.packed);
    perform pgps_internal.tell_recounts(tell_changes.neighbour, tell_changes.packed);
end
$$;
comment on function pgps_internal.tell_changes(pgps_internal.neighbour, bigint) is
'Puts into the items for a neighbour what has changed: filters that are gone, routes, silence, and what the audit says.
packed: the last batch whose events are among the items. The caller holds the turn of routes.';

create or replace function pgps_internal.do_link_next(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_neighbour pgps_internal.neighbour;
    v_at pgps_internal.position;
    v_after bigint := (args ->> 'after')::bigint;
    v_packed bigint;
    v_last bigint;
    v_events bigint;
    v_items jsonb;
    v_rows pgps_internal.shipment[];
    v_upto bigint;
    v_types jsonb;
begin
    -- Before the neighbour is read: whoever ends an epoch waits for this session, which must not send in its name
    -- afterwards.
    perform pgps_internal.hold_sending(alone => false);
    if (args ->> 'refresh')::boolean then
        -- Taken before anything is read, above all how far is packed. So a route that goes meanwhile is withdrawn
        -- behind all that came by it, a filter that is heard meanwhile begins behind what is packed, and a neighbour
        -- that begins to drain is told no silence.
        perform pgps_internal.hold_routes();
    end if;
    v_neighbour := pgps_internal.require_sender();
    v_at := pgps_internal.position_of(v_neighbour.subscription_id);
    v_last := pgps_internal.last_sent(v_neighbour.neighbour_id);
    v_packed := pgps_internal.asked_for(v_neighbour.subscription_id,
        coalesce((pgps_internal.last_batch()).batch_id, 0));
    if v_after > v_last and not args ? 'mark' then
        raise exception 'broker "%" confirms %, and the last sent is %', v_neighbour.name, v_after, v_last
        using errcode = '55000', hint = 'The link is opened again and goes on from there.';
    elsif args ? 'mark' then
        perform pgps_internal.check_position(v_neighbour, v_at, v_after, args ->> 'mark');
    end if;
    if v_packed > v_at.received_batch then
        perform pgps_internal.pack(v_neighbour, v_at, v_packed, v_last);
    end if;
    perform pgps_internal.acknowledge_sent(v_neighbour, v_at, coalesce((args ->> 'confirmed')::bigint, v_after),
        v_packed);
    if (args ->> 'refresh')::boolean then
        perform pgps_internal.tell_changes(v_neighbour, v_packed);
    end if;
    select s.items, s.events into v_rows, v_events
    from pgps_internal.shipments_after(v_neighbour.neighbour_id, v_after, (args ->> 'max_events')::integer) s;
    select to_jsonb(array_agg(pgps_internal.item(h, v_neighbour) order by h.lseq)) into v_items from unnest(v_rows) h;
    v_upto := v_rows[cardinality(v_rows)].lseq;
    if v_upto is null or v_events = 0 then
        v_types := '[]';
    elsif v_events <= (args ->> 'with_rows')::bigint then
        v_types := pgps_internal.small_parts(v_rows);
    end if;
    return jsonb_build_object('after', v_after, 'upto', coalesce(v_upto, v_after), 'items', v_items, 'mark',
        pgps_internal.mark(v_rows[cardinality(v_rows)]),
        'types', coalesce(v_types, pgps_internal.parts(v_neighbour, v_after, v_upto)))
        || case when v_neighbour.is_draining then jsonb_build_object('drained', pgps_internal.is_drained(v_neighbour))
            else '{}' end;
end
$$;
comment on function pgps_internal.do_link_next(name, jsonb) is 'See pgps.link_next';

create or replace function pgps_internal.item(shipment pgps_internal.shipment, neighbour pgps_internal.neighbour)
returns jsonb
language plpgsql stable
as $$
declare
    v_item jsonb := jsonb_build_object('lseq', (item.shipment).lseq, 'kind', (item.shipment).kind);
    v_batch bigint := (item.shipment).batch_id;
    v_from record;
    v_hops jsonb := '[]';
begin
    if (item.shipment).upto is null then
        return v_item || jsonb_build_object('body', (item.shipment).body);
    end if;
    select o.*, (select b.created_at from pgps_internal.batch b where b.batch_id = v_batch
        and pgps_internal.batch_segment(b.batch_id) = pgps_internal.batch_segment(v_batch) limit 1) as at
    into v_from from pgps_internal.origin o where o.origin_id = (item.shipment).origin_id;
    if (item.shipment).events = 0 then
        v_hops := null;
    elsif not v_from.is_self then
        v_hops := coalesce((select i.hops from pgps_internal.arrival i where i.origin_id = v_from.origin_id
            and i.upto = (item.shipment).upto
            order by i.arrival_id desc limit 1), v_hops);
    end if;
    return v_item || jsonb_build_object('broker', v_from.broker_id, 'epoch', v_from.epoch, 'attachment',
        (item.shipment).attachment,
        'previous', (item.shipment).previous, 'upto', (item.shipment).upto, 'events', (item.shipment).events,
        'hops', v_hops || jsonb_build_array(jsonb_build_object('broker', pgps_internal.broker_name(),
            'at', v_from.at)));
end
$$;
comment on function pgps_internal.item(pgps_internal.shipment, pgps_internal.neighbour) is
'A row of the ledger of shipments as it travels; hops: which brokers its events were at, and when they were dispatched
there';

create or replace function pgps_internal.parts(neighbour pgps_internal.neighbour, after bigint, upto bigint)
returns jsonb
language plpgsql stable
as $$
declare
    v_types jsonb := '[]';
    v_type record;
    v_runs jsonb;
    v_rewound boolean := parts.upto > parts.after
        and exists (select from pgps_internal.shipment o where o.neighbour_id = (parts.neighbour).neighbour_id
        and o.lseq > parts.after and o.lseq <= parts.upto and o.body is not null and o.upto is not null);
begin
    if parts.upto = parts.after then
        return v_types;
    end if;
    for v_type in
        select t.*, count(*) over () as types
        from (select distinct s.type_id from pgps_internal.shipment o, unnest(o.slices) s
            where o.neighbour_id = (parts.neighbour).neighbour_id and o.lseq > parts.after and o.lseq <= parts.upto) x
        join pgps_internal.event_type t using (type_id) order by t.type_id
    loop
        v_runs := pgps_internal.runs((parts.neighbour).neighbour_id, parts.after, parts.upto, v_type.type_id,
            v_type.log);
        v_types := v_types || jsonb_build_array(jsonb_build_object('name', v_type.name, 'runs', v_runs, 'ordered',
            v_type.types > 1,
            'attributes', pgps_internal.wire_columns(v_type.endpoint)) || case when v_rewound then '{"rewound": true}'
                else '{}'::jsonb end);
    end loop;
    return v_types;
end
$$;
comment on function pgps_internal.parts(pgps_internal.neighbour, bigint, bigint) is
'Describes the rows of some items, type by type: columns as they travel, and runs of events of one statement at the
origin';

create or replace function pgps_internal.wire_columns(endpoint regclass) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Binary forms of types that are not built in may hold object ids, which mean nothing elsewhere: these travel as
    -- text.
    return (
        select coalesce(to_jsonb(array_agg(jsonb_build_object('name', a.attname,
            'type', format_type(a.atttypid, a.atttypmod), 'as_text', a.atttypid >= 16384)
            order by a.attname)), '[]')
        from pg_attribute a
        where a.attrelid = wire_columns.endpoint and a.attnum > 0 and not a.attisdropped
            and a.attname not in ('_producer', '_producer_seq'));
end
$$;
comment on function pgps_internal.wire_columns(regclass) is 'The attributes of an event type as they travel, by name';

drop function if exists pgps.link_next(bigint, integer, boolean, text, bigint);

create or replace function pgps.link_next(
    after bigint, max_events integer, refresh boolean = false, mark text = null, confirmed bigint = null,
    with_rows integer = 0
) returns jsonb
language sql
begin atomic
    select pgps._call('link_next',
        jsonb_build_object('after', link_next.after, 'max_events', link_next.max_events, 'refresh', link_next.refresh,
        'with_rows', link_next.with_rows)
        || case when link_next.mark is not null then jsonb_build_object('mark', link_next.mark) else '{}' end
        || case when link_next.confirmed is not null then jsonb_build_object('confirmed', link_next.confirmed)
            else '{}' end);
end;
comment on function pgps.link_next(bigint, integer, boolean, text, bigint, integer) is
'What is to be sent to the neighbour of this session next. after: the last number the neighbour has, or is being sent.
confirmed: the last number that it has committed, null = after. max_events: about how many events. refresh: look also
for what the neighbour should know, and how far nothing matched. mark: at the start, the check value that goes with
after. with_rows: a batch of at most so many events contains them, for pgps.link_take, if their type allows. Returns
after, upto, mark, items (messages, and data of one batch of one origin each), types (what pgps.link_rows gives for
them), and for a link that is being dropped drained (this side has nothing more to do). Needs pgps.link_open. Errors:
55000 not open, blocked, or one of the two was restored.';

revoke all on function pgps.link_next(bigint, integer, boolean, text, bigint, integer) from public;
grant execute on function pgps.link_next(bigint, integer, boolean, text, bigint, integer) to pgps_link, pgps_worker,
    pgps_admin;
