-- Reclaim of the ledgers of links: what is confirmed, and what was received of events that are in no log any more. Locks: see reclaim.sql.
-- Writes: arrival, shipment.

create or replace function pgps_internal.lowest_event() returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_event bigint;
    v_lowest bigint;
begin
    for v_type in select t.* from pgps_internal.event_type t loop
        execute format('select min(l.event_id) from %s l', v_type.log) into v_event;
        v_lowest := least(v_lowest, v_event);
    end loop;
    return v_lowest;
end
$$;
comment on function pgps_internal.lowest_event() is 'The lowest event id in any log; null when all are empty';

create or replace function pgps_internal.reclaim_links() returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_newest bigint := coalesce(pg_sequence_last_value('pgps_internal.shipment_id_seq'), 0);
    v_low bigint;
    v_lowest bigint;
    v_reclaimed bigint := 0;
begin
    -- Looked up first: a statement that reads a ledger keeps it from being truncated until it ends.
    if v_newest >= pgps_internal.segment_size('shipment') then
        select min(s.shipment_id) - 1 into v_low from pgps_internal.neighbour n
        cross join lateral pgps_internal.position_of(n.subscription_id) p
        join pgps_internal.shipment s on s.neighbour_id = n.neighbour_id and s.lseq > p.received_event;
        v_reclaimed := pgps_internal.reclaim_ledger('shipment', coalesce(v_low, v_newest), v_newest);
    end if;
    v_newest := coalesce(pg_sequence_last_value('pgps_internal.arrival_id_seq'), 0);
    if v_newest >= pgps_internal.segment_size('arrival') then
        v_lowest := pgps_internal.lowest_event();
        select min(a.arrival_id) - 1 into v_low from pgps_internal.arrival a where a.hi >= v_lowest;
        v_reclaimed := v_reclaimed + pgps_internal.reclaim_ledger('arrival', coalesce(v_low, v_newest), v_newest);
    end if;
    return v_reclaimed;
end
$$;
comment on function pgps_internal.reclaim_links() is 'Truncates segments of the ledgers of links that nobody needs';

create or replace function pgps_internal.carry_over_links(ledger text, segment regclass) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The newest of each neighbour, and of each origin.
    if carry_over_links.ledger = 'shipment' then
        execute format('insert into pgps_internal.shipment (neighbour_id, lseq, kind, origin_id, attachment, previous, upto, created_at)
            select o.neighbour_id, o.lseq, ''carried'', o.origin_id, o.attachment, o.previous, o.upto, o.created_at
            from %1$s o join pgps_internal.neighbour n using (neighbour_id)
            where not exists (select from pgps_internal.shipment x where x.neighbour_id = o.neighbour_id and x.lseq > o.lseq)
                or o.upto is not null and not exists (select from pgps_internal.shipment x
                    where x.neighbour_id = o.neighbour_id and x.origin_id = o.origin_id and x.upto is not null and x.lseq > o.lseq)
                or o.lseq = (pgps_internal.position_of(n.subscription_id)).received_event', carry_over_links.segment);
    else
        execute format('insert into pgps_internal.arrival (neighbour_id, lseq, mark, origin_id, attachment, upto, horizon, received_at)
            select o.neighbour_id, o.lseq, o.mark, o.origin_id, o.attachment, o.upto, o.horizon, o.received_at from %1$s o
            where not exists (select from pgps_internal.arrival x where x.neighbour_id = o.neighbour_id and x.lseq > o.lseq)
                or o.origin_id is not null and not exists (select from pgps_internal.arrival x where x.origin_id = o.origin_id and x.arrival_id > o.arrival_id)
            order by o.arrival_id', carry_over_links.segment);
    end if;
end
$$;
comment on function pgps_internal.carry_over_links(text, regclass) is 'Before a segment of a link''s ledger is truncated: writes anew what is still the newest of its kind';

revoke all on all functions in schema pgps_internal from public;
