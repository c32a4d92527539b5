-- How far a neighbour has what was sent to it: the numbers that it confirms, and whether both sides agree about them.
-- Locks: none.
-- Writes: neighbour.

create or replace function pgps_internal.acknowledge_sent(
    neighbour pgps_internal.neighbour, at pgps_internal.position, confirmed bigint, packed bigint
) returns void
language plpgsql
as $$
declare
    v_batch bigint := (acknowledge_sent.at).acked_batch;
    v_events bigint := 0;
    v_open bigint;
begin
    if acknowledge_sent.confirmed <= (acknowledge_sent.at).received_event
            and acknowledge_sent.packed = (acknowledge_sent.at).received_batch then
        return;
    end if;
    -- The neighbour needs nothing more up to the batch before the first item that is still under way.
    select coalesce(sum(o.events) filter (where o.lseq > (acknowledge_sent.at).received_event
            and o.lseq <= acknowledge_sent.confirmed), 0),
        min(o.batch_id) filter (where o.lseq > acknowledge_sent.confirmed) - 1
    into v_events, v_open
    from pgps_internal.shipment o
    where o.neighbour_id = (acknowledge_sent.neighbour).neighbour_id
        and o.lseq > least((acknowledge_sent.at).received_event, acknowledge_sent.confirmed);
    perform pgps_internal.move((acknowledge_sent.neighbour).subscription_id,
        greatest(v_batch, coalesce(v_open, acknowledge_sent.packed)), 9223372036854775807, acknowledge_sent.packed,
        greatest(acknowledge_sent.confirmed, (acknowledge_sent.at).received_event),
        (acknowledge_sent.at).acked_total + v_events);
end
$$;
comment on function pgps_internal.acknowledge_sent(pgps_internal.neighbour, pgps_internal.position, bigint, bigint) is
'Moves the position of a neighbour: packed up to a batch, confirmed up to a number (kept as received_event); reclaim may
have what is confirmed';

create or replace function pgps_internal.mark(shipment pgps_internal.shipment) returns text
language plpgsql immutable
as $$ begin return extract(epoch from (mark.shipment).created_at)::text; end $$;
comment on function pgps_internal.mark(pgps_internal.shipment) is
'The check value of a shipment''s number: a restored broker gives the same number at another time';

create or replace function pgps_internal.restored_one(broker_id uuid, epoch integer) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$ select format('The restored one is %s in epoch %s.', restored_one.broker_id, restored_one.epoch) $$;
comment on function pgps_internal.restored_one(uuid, integer) is
'The detail of an error: which broker was restored, and in which epoch of it that was noticed';

create or replace function pgps_internal.check_position(
    neighbour pgps_internal.neighbour, at pgps_internal.position, after bigint, mark text
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_row pgps_internal.shipment;
begin
    select o.* into v_row from pgps_internal.shipment o where o.neighbour_id = (check_position.neighbour).neighbour_id
        and o.lseq = check_position.after;
    if check_position.after < (check_position.at).received_event then
        raise exception 'broker "%" has received up to % and confirmed % before: it was restored',
            (check_position.neighbour).name,
            check_position.after, (check_position.at).received_event using errcode = '55000',
            detail = pgps_internal.restored_one((check_position.neighbour).broker_id, (check_position.neighbour).epoch),
            hint = format('On broker "%s": select pgps.resume_links(''restored'')', (check_position.neighbour).name);
    elsif check_position.after > 0
        and (v_row.lseq is null or pgps_internal.mark(v_row) is distinct from check_position.mark) then
        raise exception 'broker "%" has received % from broker "%", which was never sent: broker "%" was restored',
            (check_position.neighbour).name,
            check_position.after, pgps_internal.broker_name(), pgps_internal.broker_name() using errcode = '55000',
            detail = (select pgps_internal.restored_one(b.broker_id, b.epoch) from pgps_internal.broker b),
            hint = format('On broker "%s": select pgps.resume_links(''restored'')', pgps_internal.broker_name());
    elsif (check_position.neighbour).refusal is not null then
        update pgps_internal.neighbour n
        set refusal = null, refusal_hint = null, refused_by = null, claimed_at = null, former_batch = null
        where n.neighbour_id = (check_position.neighbour).neighbour_id;
    end if;
end
$$;
comment on function pgps_internal.check_position(pgps_internal.neighbour, pgps_internal.position, bigint, text) is
'Raises 55000 when what the neighbour has received is not what was sent: one of the two was restored from an older
state';
