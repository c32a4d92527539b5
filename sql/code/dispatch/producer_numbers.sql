-- Numbers that producers give to their events, and what is published twice under one of them.
-- Locks: those of dispatch.sql.
-- Writes: producer.

create or replace function pgps_internal.claimed_numbers(type_id integer) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select case when not exists (select from pgps_internal.receipt r where r.type_id = claimed_numbers.type_id)
        then 'null' else format($sql$
        select n.event_id
        -- Whoever only inserts has no receipts, and need not be asked of each event.
        from (select n.* from numbered n where n.producer in (
            select x.producer from (select distinct n.producer from numbered n) x
            cross join lateral (select from pgps_internal.receipt r
                where r.type_id = %1$s and r.producer = x.producer limit 1) r) offset 0) n
        cross join lateral (select r.event_id from pgps_internal.receipt r
            where r.type_id = %1$s and r.producer = n.producer and r.producer_seq = n.number
                and r.publisher = n.publisher limit 1) r
        where r.event_id < 0 and r.event_id <> - n.xid::text::bigint$sql$, claimed_numbers.type_id) end
$$;
comment on function pgps_internal.claimed_numbers(integer) is
'The text, for IN (…), of those of numbered, events with publisher, producer, number and transaction, whose number
another transaction has claimed';

create or replace function pgps_internal.is_number_of_event(
    event_type pgps_internal.event_type, publisher regrole, producer text, number bigint
) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp set enable_seqscan = off
as $$
declare
    v_is_taken boolean;
begin
    -- One statement, since its snapshot tells what has been dispatched, with its numbers in the ledger, from what still
    -- waits, with its numbers in the log.
    execute format($sql$
        select coalesce((select $4 <@ k.taken from pgps_internal.producer k
                where k.type_id = $1 and k.producer = $3 and k.publisher = $2 order by k.batch_id desc limit 1), false)
            or exists (select from pgps_internal.waiting(pgps_internal.last_batch(), pgps_internal.committed_now()) w
                join %s l on l.event_id >= w.lo and l.event_id <= w.hi and l.xid = w.xid
                where w.type_id = $1 and w.publisher = $2 and l._producer = $3 and l._producer_seq = $4)$sql$,
        (is_number_of_event.event_type).log)
    using (is_number_of_event.event_type).type_id, is_number_of_event.publisher, is_number_of_event.producer,
        is_number_of_event.number into v_is_taken;
    return v_is_taken;
end
$$;
comment on function pgps_internal.is_number_of_event(pgps_internal.event_type, regrole, text, bigint) is
'True when a role has published an event with this number of a producer, and the transaction has committed';

create or replace function pgps_internal.drop_repeats(
    batch_id bigint, type_id integer, part_ids int8multirange, xids xid8[], out ids int8multirange, out events bigint
) returns record
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_log regclass := (select t.log from pgps_internal.event_type t where t.type_id = drop_repeats.type_id);
    v_publishers regrole[] := array(select distinct c.publisher from pgps_internal.control c
        where c.xid = any (drop_repeats.xids) and c.type_id = drop_repeats.type_id);
    v_repeats int8multirange;
begin
    execute format($sql$
        with numbered as materialized (
            select l.event_id, l.xid, p.publisher, l._producer as producer, l._producer_seq as number,
                row_number() over (partition by p.publisher, l._producer, l._producer_seq order by l.event_id) as place
            from %s l
            -- Common case: all events have one publisher. Looking up the statement of each event would cost half as
            -- much again.
            cross join lateral (select coalesce($4, (%s)) as publisher) p
            where l.event_id between lower($1) and upper($1) - 1 and l.event_id <@ $1
                and l._producer is not null and l._producer_seq is not null
        ),
        known as materialized (
            -- Plus nothing: so it is unpacked here, and not once more for each event.
            select n.publisher, n.producer, k.taken + '{}' as taken
            from (select distinct n.publisher, n.producer from numbered n) n
            cross join lateral (select k.taken from pgps_internal.producer k
                where k.type_id = $2 and k.producer = n.producer and k.publisher = n.publisher
                    order by k.batch_id desc limit 1) k
        ),
        added as (
            insert into pgps_internal.producer (batch_id, type_id, publisher, producer, taken)
            select $3, $2, n.publisher, n.producer, coalesce(k.taken, '{}') + n.numbers
            from (select n.publisher, n.producer,
                    range_agg(int8range(n.number, nullif(n.number, 9223372036854775807), '[]')) as numbers
                from numbered n group by n.publisher, n.producer) n
            left join known k using (publisher, producer)
        )
        select coalesce(range_agg(int8range(n.event_id, n.event_id, '[]')), '{}')
        from numbered n left join known k using (publisher, producer)
        where n.place > 1 or n.number <@ k.taken or n.event_id in (%s)$sql$, v_log,
        pgps_internal.statement_of('c.publisher', '$2'), pgps_internal.claimed_numbers(drop_repeats.type_id))
    using drop_repeats.part_ids, drop_repeats.type_id, drop_repeats.batch_id,
        case when cardinality(v_publishers) = 1 then v_publishers[1] end into v_repeats;
    drop_repeats.ids := drop_repeats.part_ids - v_repeats;
    drop_repeats.events := (select coalesce(sum(upper(r) - lower(r)), 0) from unnest(drop_repeats.ids) r);
end
$$;
comment on function pgps_internal.drop_repeats(bigint, integer, int8multirange, xid8[]) is
'Drops events whose (producer, number) their publisher has used before, and records the new numbers as one multirange a
producer: contiguous numbers cost nothing, and gaps and any order are handled correctly (a high-water mark would lose
good events)';
