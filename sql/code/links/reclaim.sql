-- Reclaim for links: shipments that are confirmed, arrivals whose events are in no log any more, and neighbours whose
-- link never came up.
-- Locks: see log/reclaim.sql; NOWAIT, the turns of neighbours and of routes.
-- Writes: activation, arrival, shipment.

create or replace function pgps_internal.lowest_event() returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_event bigint;
    v_lowest bigint;
begin
    for v_type in select t.* from pgps_internal.event_type t loop
        if not pgps_internal.try_lock(v_type.log, 'access share') then
            continue when not exists (select from pg_class c where c.oid = v_type.log);
            return 0;
        end if;
        execute format('select min(l.event_id) from %s l', v_type.log) into v_event;
        v_lowest := least(v_lowest, v_event);
    end loop;
    return v_lowest;
end
$$;
comment on function pgps_internal.lowest_event() is
'The lowest event id in any log; null when all are empty, 0 when somebody has one of them locked. The others are locked
until the transaction ends.';

create or replace function pgps_internal.stop_answering() returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return not exists (select from pgps_internal.broker)
        or pgps_internal.try_lock('pgps_internal.turn_of_routes', 'exclusive');
end
$$;
comment on function pgps_internal.stop_answering() is
'Takes the turn of routes if there are links, so that no neighbour asks or is answered until the transaction ends. False
when another session has it';

create or replace function pgps_internal.note_trimmed(type_id integer, ids int8multirange) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Events of other origins are kept by their origin, not here. After truncation a filter is in force here without a
    -- break only from behind the truncated events: a child that asks for more is answered after a rewind, and not with
    -- what happens to be left.
    -- What subscriptions here have had, they have had (had_since).
    update pgps_internal.activation a set had_since = coalesce(a.had_since, a.since), since = x.upto
    from pgps_internal.link_filter f, (
        select w.origin_id, max(w.upto) as upto from pgps_internal.arrival w
        where w.hi >= lower(note_trimmed.ids) and w.lo < upper(note_trimmed.ids) and w.ids && note_trimmed.ids
        group by w.origin_id
    ) x
    where f.key = a.key and f.type_id = note_trimmed.type_id and a.origin_id = x.origin_id and a.since < x.upto;
end
$$;
comment on function pgps_internal.note_trimmed(integer, int8multirange) is
'Before events of a type with these ids, or the batches that list them, are truncated: moves "since" of the type''s
filters behind them. The caller has the turn of routes.';

create or replace function pgps_internal.note_trimmed_batches(segment regclass) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- These ids alone: among them are those of transactions that have committed later, and whose events are still to be
    -- dispatched. Subscriptions that are made meanwhile are judged by "since" then.
    execute format('select pgps_internal.note_trimmed(x.type_id, x.ids)
        from (select b.type_id, range_agg(b.ids) as ids from %s b where not isempty(b.ids) group by b.type_id) x',
        note_trimmed_batches.segment);
end
$$;
comment on function pgps_internal.note_trimmed_batches(regclass) is
'As pgps_internal.note_trimmed, for a segment of the ledger of batches and types';

create or replace function pgps_internal.kept_for_answers(type_id integer) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_sent bigint;
begin
    -- What is under way to a neighbour, also what it asked for again from batches that its position has passed.
    select min(s.batch_id) - 1 into v_sent
    from pgps_internal.neighbour n
    cross join lateral pgps_internal.position_seen(n.subscription_id) p
    join pgps_internal.shipment s on s.neighbour_id = n.neighbour_id and s.lseq > p.received_event
    where s.batch_id is not null
        and (kept_for_answers.type_id is null
            or exists (select from unnest(s.slices) i where i.type_id = kept_for_answers.type_id));
    -- What is fetched again for a neighbour that waits for its answer is held by no position, because nobody else gets
    -- it.
    if exists (select from pgps_internal.attached a join pgps_internal.origin o using (origin_id) cross
        join lateral unnest(a.keep) k
            join pgps_internal.link_filter f on f.key = k
            where not a.is_live and not o.is_self
                and (kept_for_answers.type_id is null or f.type_id = kept_for_answers.type_id)) then
        v_sent := least(v_sent, coalesce(pgps_internal.newest_before(
            pgps_internal.clock() - pgps_internal.setting('link_retention')::interval), 0));
    end if;
    return v_sent;
end
$$;
comment on function pgps_internal.kept_for_answers(integer) is
'The batch behind which batches (with events of a type) are under way to a neighbour, or may be part of an answer that
one waits for, as long as the setting link_retention allows; null: none are';

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
    perform pgps_internal.forget_idle_neighbours();
    -- A statement of its own, because one that reads a ledger keeps it from being truncated until it ends.
    if v_newest >= pgps_internal.segment_size('shipment') then
        select min(s.shipment_id) - 1 into v_low from pgps_internal.neighbour n
        cross join lateral pgps_internal.position_seen(n.subscription_id) p
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

create or replace function pgps_internal.idle_neighbours() returns setof integer
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- Nothing was ever sent to it or received from it, so nobody needs its numbers, and no live session could begin to.
    -- But if it has begun anew, something is held for it (pgps_internal.hold_for).
    select n.neighbour_id from pgps_internal.neighbour n
    where n.link_id is null and not exists (select from pgps_internal.link_session s
            where s.neighbour_id = n.neighbour_id and pgps_internal.is_alive(s.holder))
        and pgps_internal.last_sent(n.neighbour_id) = 0 and pgps_internal.last_received(n.neighbour_id) = 0
        and not exists (select from pgps_internal.attached a where a.neighbour_id = n.neighbour_id)
$$;
comment on function pgps_internal.idle_neighbours() is
'Brokers that began to open a link to here, and left before it was up';

create or replace function pgps_internal.forget_idle_neighbours() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A link that is dropped before it was up goes at once where it was defined, and nobody tells this broker.
    if exists (select from pgps_internal.idle_neighbours())
        and pgps_internal.try_lock('pgps_internal.turn_of_neighbours', 'exclusive')
            and pgps_internal.try_lock('pgps_internal.turn_of_routes', 'exclusive') then
        perform pgps_internal.forget_neighbour(n) from pgps_internal.idle_neighbours() n;
    end if;
end
$$;
comment on function pgps_internal.forget_idle_neighbours() is
'Forgets brokers that have left before their link was up; one that comes again is entered anew';

create or replace function pgps_internal.carry_over_links(ledger text, segment regclass) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The newest row of each neighbour, and of each origin; of shipments also the one confirmed last.
    if carry_over_links.ledger = 'shipment' then
        execute format('insert into pgps_internal.shipment (neighbour_id, lseq, kind, origin_id, attachment, '
            'previous, upto, created_at)
            select o.neighbour_id, o.lseq, ''carried'', o.origin_id, o.attachment, o.previous, o.upto, o.created_at
            from %1$s o join pgps_internal.neighbour n using (neighbour_id)
            where not exists (select from pgps_internal.shipment x where x.neighbour_id = o.neighbour_id and x.lseq > '
                'o.lseq)
                or o.upto is not null and not exists (select from pgps_internal.shipment x
                    where x.neighbour_id = o.neighbour_id and x.origin_id = o.origin_id and x.upto is not null and '
                        'x.lseq > o.lseq)
                or o.lseq = (pgps_internal.position_of(n.subscription_id)).received_event', carry_over_links.segment);
    else
        perform pgps_internal.carry_over_audit(carry_over_links.segment);
        -- The newest row of an origin says how far this broker is. The last row of a neighbour by which the origin came
        -- formerly gets a later number here, so it says no more of the origin: that would put the horizon back.
        execute format('insert into pgps_internal.arrival (neighbour_id, lseq, mark, origin_id, attachment, upto, '
            'horizon, received_at)
            select o.neighbour_id, o.lseq, o.mark, case when w.of_origin then o.origin_id end,
                case when w.of_origin then o.attachment end, case when w.of_origin then o.upto end,
                case when w.of_origin then o.horizon end, o.received_at
            from %1$s o cross join lateral (
                select o.origin_id is not null and not exists (select from pgps_internal.arrival x
                    where x.origin_id = o.origin_id and x.arrival_id > o.arrival_id) as of_origin) w
            where w.of_origin or exists (select from pgps_internal.neighbour n where n.neighbour_id = o.neighbour_id)
                and not exists (select from pgps_internal.arrival x
                    where x.neighbour_id = o.neighbour_id and x.lseq > o.lseq)
            order by o.arrival_id', carry_over_links.segment);
    end if;
end
$$;
comment on function pgps_internal.carry_over_links(text, regclass) is
'Before a segment of a link''s ledger is truncated: writes rows again that are still the newest of their kind';
