-- What outlives its segment in the ledgers of dispatch: the numbers of producers, and the totals of event types.
-- Locks: see log/reclaim.sql.
-- Writes: batch_type, producer.

create or replace function pgps_internal.carry_over_producers(segment regclass, newest bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('insert into pgps_internal.producer (batch_id, type_id, publisher, producer, taken, seen_at)
        select distinct on (o.type_id, o.publisher, o.producer) %s, o.type_id, o.publisher, o.producer, o.taken, '
            'o.seen_at
        from %s o join pgps_internal.event_type t using (type_id)
        where (t.dedupe_retention is null or o.seen_at > pgps_internal.clock() - t.dedupe_retention)
            and not exists (select from pgps_internal.producer n
                where n.type_id = o.type_id and n.publisher = o.publisher and n.producer = o.producer and n.batch_id '
                    '> o.batch_id
                    and n.tableoid <> %s::oid)
        order by o.type_id, o.publisher, o.producer, o.batch_id desc',
        carry_over_producers.newest, carry_over_producers.segment, carry_over_producers.segment::oid);
end
$$;
comment on function pgps_internal.carry_over_producers(regclass, bigint) is
'Before a segment of producers'' numbers is truncated: writes the newest row of each producer again, under the number of
the newest batch';

create or replace function pgps_internal.carry_over_totals(segment regclass, newest bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('insert into pgps_internal.batch_type (batch_id, type_id, ids, events, total, repeats)
        select distinct on (o.type_id) %s, o.type_id, ''{}'', 0, o.total, o.repeats
        from %s o join pgps_internal.event_type t using (type_id)
        where not exists (select from pgps_internal.batch_type n
            where n.type_id = o.type_id and n.batch_id > o.batch_id and n.tableoid <> %s::oid)
        order by o.type_id, o.batch_id desc', carry_over_totals.newest, carry_over_totals.segment,
            carry_over_totals.segment::oid);
end
$$;
comment on function pgps_internal.carry_over_totals(regclass, bigint) is
'Before a segment of what batches have of event types is truncated: writes the totals of each type again, under the
number of the newest batch';
