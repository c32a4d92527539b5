-- What auditable queues keep after their segment was reclaimed. Locks: those of INSERT.
-- Writes: batch_type, delivered, discarded, former; by name: the archive and the log of a type, events kept aside.

create or replace function pgps_internal.archive(event_type pgps_internal.event_type, segment regclass) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('insert into pgps_internal.%1$I (event_id, xid, pgps_publisher, pgps_published_at, pgps_origin, '
        'pgps_origin_event, %2$s)
        select l.event_id, l.xid, c.publisher, c.published_at, (select o.name from pgps_internal.origin o where '
            'o.origin_id = c.origin_id),
            l.pgps_origin_event, %3$s from %4$s l
        cross join lateral (%5$s) c
        where not exists (select from pgps_internal.%1$I a where a.event_id = l.event_id)
        order by l.event_id', (archive.event_type).name || '_audit',
            pgps_internal.column_list((archive.event_type).endpoint),
        pgps_internal.column_list((archive.event_type).endpoint, 'l.'), archive.segment,
        pgps_internal.statement_of('c.publisher, c.published_at, c.origin_id', '$1'))
    using (archive.event_type).type_id;
end
$$;
comment on function pgps_internal.archive(pgps_internal.event_type, regclass) is
'Copies a segment of a log whose in or out queue is auditable to the archive of its type';

create or replace function pgps_internal.archived_alone(event_type pgps_internal.event_type, ids int8multirange)
returns int8multirange
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ids int8multirange;
begin
    execute format('select coalesce(range_agg(int8range(a.event_id, a.event_id, ''[]'')), ''{}'') from '
        'pgps_internal.%I a
        where a.event_id <@ $1 and not exists (select from %s l where l.event_id = a.event_id)',
        (archived_alone.event_type).name || '_audit', (archived_alone.event_type).log)
    using archived_alone.ids into v_ids;
    return v_ids;
end
$$;
comment on function pgps_internal.archived_alone(pgps_internal.event_type, int8multirange) is
'Which of these events are in the archive of a type and not in its log';

create or replace function pgps_internal.restore_audited(
    event_type pgps_internal.event_type, from_batch bigint, from_event bigint
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ids int8multirange;
    v_wanted int8multirange;
    v_columns text := pgps_internal.column_list((restore_audited.event_type).endpoint);
begin
    select coalesce(range_agg(r), '{}') into v_wanted
    from pgps_internal.batch_type b
    cross join lateral unnest(case when b.batch_id > restore_audited.from_batch then b.ids
        else b.ids * int8multirange(int8range(restore_audited.from_event, null)) end) r
    where b.type_id = (restore_audited.event_type).type_id and b.batch_id >= restore_audited.from_batch;
    if restore_audited.from_batch = 0 then
        -- Also events whose batches are no longer known: these come in the order of their ids.
        v_wanted := v_wanted + (int8multirange(int8range(restore_audited.from_event, null)) - coalesce((
            select range_agg(r) from pgps_internal.batch_type b, unnest(b.ids) r
                where b.type_id = (restore_audited.event_type).type_id), '{}'));
    end if;
    v_ids := pgps_internal.archived_alone(restore_audited.event_type, v_wanted);
    if not isempty(v_ids) then
        -- Looked at again, with the turn of it: somebody else may be bringing them back.
        perform pgps_internal.hold('a', (restore_audited.event_type).type_id);
        v_ids := pgps_internal.archived_alone(restore_audited.event_type, v_wanted);
    end if;
    if isempty(v_ids) then
        return;
    end if;
    -- Back into the log as batch 0, past the rule of publication: they were published once.
    execute format('insert into %s (event_id, xid, pgps_origin_event, %2$s) select a.event_id, a.xid, '
        'a.pgps_origin_event, %2$s from pgps_internal.%3$I a where a.event_id <@ $1',
        (restore_audited.event_type).log, v_columns, (restore_audited.event_type).name || '_audit') using v_ids;
    execute format('insert into pgps_internal.%I (event_id, xid, pgps_publisher, pgps_published_at, pgps_origin, '
        'pgps_origin_event, %2$s)
        select a.event_id, a.xid, a.pgps_publisher, a.pgps_published_at, a.pgps_origin, a.pgps_origin_event, %2$s '
            'from pgps_internal.%3$I a where a.event_id <@ $1 on conflict do nothing',
        (restore_audited.event_type).name || '_kept', v_columns, (restore_audited.event_type).name || '_audit')
            using v_ids;
    insert into pgps_internal.batch_type (batch_id, type_id, ids, events, total, repeats)
    select 0, (restore_audited.event_type).type_id, n.ids, 0, 0, 0
    from (select v_ids - coalesce(range_agg(r), '{}') as ids from pgps_internal.batch_type b, unnest(b.ids) r
        where b.type_id = (restore_audited.event_type).type_id) n
    where not isempty(n.ids);
end
$$;
comment on function pgps_internal.restore_audited(pgps_internal.event_type, bigint, bigint) is
'Brings archived events back into the log for a subscription that wants to see them again, from an event of a batch on
(from_batch 0: also those whose batch is no longer known)';

create or replace function pgps_internal.retire(subscription pgps_internal.subscription, ended boolean) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (retire.subscription).subscription_id;
begin
    insert into pgps_internal.former (type_id, subscription, class_id, from_batch, skip, upto_batch, upto_event, missed)
    select m.type_id, (retire.subscription).name, m.class_id, m.from_batch, m.skip,
        case when m.takes_batch then coalesce((pgps_internal.last_batch()).batch_id, 0) else p.acked_batch end,
        case when m.takes_batch then 9223372036854775807 else p.acked_event end,
        coalesce((select range_agg(int8range(w.event_id, w.event_id, '[]')) from (
            select s.event_id from pgps_internal.share s where s.subscription_id = v_id and s.type_id = m.type_id
            union all
            select e.event_id from pgps_internal.unshared u
            join pgps_internal.delivery d using (class_id, batch_id, type_id)
            cross join lateral pgps_internal.event_ids(d) e(event_id)
            where u.subscription_id = v_id and u.class_id = m.class_id and e.event_id > u.shared_upto
            union all
            select f.event_id from pgps_internal.failure f where f.subscription_id = v_id and f.type_id = m.type_id
                and f.state <> 'settled'
            union all
            select a.event_id
            from pgps_internal.backlog_gap g
            cross join lateral (
                select d.batch_id, e.event_id from pgps_internal.delivery d cross
                    join lateral pgps_internal.event_ids(d) e(event_id)
                where d.class_id = m.class_id and d.batch_id between g.after_batch and g.upto_batch
                union all
                select d.batch_id, e.event_id from pgps_internal.delivered d cross
                    join lateral unnest(d.event_ids) e(event_id)
                where d.class_id = m.class_id and d.type_id = g.type_id and d.batch_id between g.after_batch
                    and g.upto_batch
            ) a
            where g.subscription_id = v_id and g.type_id = m.type_id and case when g.ids is not null
                then a.event_id <@ g.ids
                else (a.batch_id, a.event_id) > (g.after_batch, g.after_event)
                    and (a.batch_id, a.event_id) <= (g.upto_batch, g.upto_event) end) w), '{}')
    from pgps_internal.member m
    join pgps_internal.queue q on q.type_id = m.type_id and q.kind = 'out' and q.auditable
    cross join pgps_internal.position_of(v_id) p
    where m.subscription_id = v_id;
    insert into pgps_internal.discarded (type_id, subscription, event_id, attempts, sqlstate, error, failed_at, state)
    select f.type_id, (retire.subscription).name, f.event_id, f.attempts, f.sqlstate, f.error, f.failed_at, 'discarded'
    from pgps_internal.failure f
    join pgps_internal.queue q on q.type_id = f.type_id and q.kind = 'exception' and q.auditable
    where retire.ended and f.subscription_id = v_id and f.state = 'failed';
end
$$;
comment on function pgps_internal.retire(pgps_internal.subscription, boolean) is
'Notes, before a subscription loses its position, what auditable queues go on to show of it: what was delivered and, if
it has ended, what failed';

create or replace function pgps_internal.archive_deliveries(segment regclass) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from pgps_internal.queue q where q.kind = 'out' and q.auditable) then
        return;
    end if;
    execute format('insert into pgps_internal.delivered (type_id, batch_id, class_id, event_ids, matched_at)
        select d.type_id, d.batch_id, d.class_id, array(select e.event_id from pgps_internal.event_ids(d) e(event_id)),
            coalesce((select b.created_at from pgps_internal.batch b where b.batch_id = d.batch_id limit 1), '
                'pgps_internal.clock())
        from %s o join pgps_internal.delivery d on d.tableoid = o.tableoid and d.ctid = o.ctid
        join pgps_internal.queue q on q.type_id = d.type_id and q.kind = ''out'' and q.auditable',
            archive_deliveries.segment);
end
$$;
comment on function pgps_internal.archive_deliveries(regclass) is
'Before a segment of the deliveries is truncated: keeps the deliveries of auditable out queues';
