-- Reclaim of the ledgers of clients: the newest row of each kind is carried over, replies stay until they are
-- completed. Locks: see log/reclaim.sql.
-- Writes: client_checkpoint, client_mark, reply, reply_mark, request.

create or replace function pgps_internal.reclaim_clients(low_batch bigint, newest_batch bigint) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ledger record;
    v_low bigint;
    v_newest bigint;
    v_reclaimed bigint;
begin
    v_reclaimed := pgps_internal.reclaim_ledger('appointment', reclaim_clients.low_batch, reclaim_clients.newest_batch);
    for v_ledger in values ('client_mark'), ('client_checkpoint'), ('reply_mark') loop
        v_newest := coalesce(pg_sequence_last_value(format('pgps_internal.%I', v_ledger.column1
            || '_id_seq')::regclass), 0);
        if v_newest >= pgps_internal.segment_size(v_ledger.column1) then
            v_reclaimed := v_reclaimed + pgps_internal.reclaim_ledger(v_ledger.column1, v_newest, v_newest);
        end if;
    end loop;
    v_newest := coalesce(pg_sequence_last_value('pgps_internal.request_no_seq'), 0);
    if v_newest < pgps_internal.segment_size('reply_rows') then
        return v_reclaimed;
    end if;
    -- Requests up to v_low are needed no more: every client has completed the replies to its own.
    select coalesce(min(n.request_no) - 1, v_newest) into v_low
    from pgps_internal.client_turn t
    left join lateral (select m.committed from pgps_internal.reply_mark m where m.client_id = t.client_id
        order by m.mark_id desc limit 1) m on true
    cross join lateral (select r.request_no from pgps_internal.request r
        where r.client_id = t.client_id and r.request_id > coalesce(m.committed, 0) order by r.request_id limit 1) n;
    v_reclaimed := v_reclaimed + pgps_internal.reclaim_ledger('reply_rows', v_low, v_newest);
    for v_ledger in values ('request_attempt'), ('reply'), ('request') loop
        v_reclaimed := v_reclaimed + pgps_internal.reclaim_ledger(v_ledger.column1, v_low, v_newest);
    end loop;
    return v_reclaimed;
end
$$;
comment on function pgps_internal.reclaim_clients(bigint, bigint) is
'Truncates the segments of clients'' ledgers that no client needs any more; returns how many';

create or replace function pgps_internal.carry_over_marks(segment regclass) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A mark that is kept gets a later number here. So those that are newer than it for its client or its registration
    -- are written again behind it: they stay the newest.
    execute format('insert into pgps_internal.client_mark (client_id, registration_id, batch_id, type_id, '
        'xid, lo, hi, first_event, last_event, tuples, attempt, completed)
        with kept as materialized (
            select o.mark_id, o.client_id, o.registration_id from %s o join pgps_internal.client c using (client_id)
            where o.completed and not exists (select from pgps_internal.client_mark n
                    where n.client_id = o.client_id and n.completed and n.mark_id > o.mark_id)
                or exists (select from pgps_internal.registration r where r.registration_id = o.registration_id)
                    and not exists (select from pgps_internal.client_mark n where n.registration_id = '
                        'o.registration_id and n.completed >= o.completed and n.mark_id > o.mark_id)
        ),
        of_client as materialized (
            select k.mark_id, k.registration_id from kept k
            union
            select n.mark_id, n.registration_id from (select distinct k.client_id from kept k) d
            cross join lateral (select x.mark_id, x.registration_id from pgps_internal.client_mark x
                where x.client_id = d.client_id and x.completed order by x.mark_id desc limit 1) n
        ),
        again as (
            select k.mark_id from of_client k
            union
            select n.mark_id from (select distinct k.registration_id from of_client k) d
            cross join lateral (select x.mark_id from pgps_internal.client_mark x
                where x.registration_id = d.registration_id order by x.mark_id desc limit 1) n
        )
        select m.client_id, m.registration_id, m.batch_id, m.type_id, m.xid, m.lo, m.hi, m.first_event, '
            'm.last_event, m.tuples, m.attempt, m.completed
        from again a join pgps_internal.client_mark m using (mark_id)
        order by m.mark_id', carry_over_marks.segment);
end
$$;
comment on function pgps_internal.carry_over_marks(regclass) is
'Before a segment of marks is truncated: writes those again that are still the newest of their client or registration';

drop function if exists pgps_internal.carry_over_clients(text, regclass, bigint);
create or replace function pgps_internal.carry_over_clients(ledger text, segment regclass) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    case carry_over_clients.ledger
        when 'client_mark' then
            perform pgps_internal.carry_over_marks(carry_over_clients.segment);
        when 'client_checkpoint' then
            execute format('insert into pgps_internal.client_checkpoint (client_id, kind, bytes, data)
                select o.client_id, o.kind, o.bytes, o.data from %s o join pgps_internal.client c using (client_id)
                where not exists (select from pgps_internal.client_checkpoint n
                    where n.client_id = o.client_id and n.kind = o.kind and n.checkpoint_id > o.checkpoint_id)',
                        carry_over_clients.segment);
        when 'reply_mark' then
            execute format('insert into pgps_internal.reply_mark (client_id, received, committed)
                select o.client_id, o.received, o.committed from %s o join pgps_internal.client c using (client_id)
                where not exists (select from pgps_internal.reply_mark n where n.client_id = o.client_id and '
                    'n.mark_id > o.mark_id)',
                carry_over_clients.segment);
        when 'request' then
            execute format('insert into pgps_internal.request (request_no, client_id, request_id, role, environment, '
                'sent_at)
                select nextval(''pgps_internal.request_no_seq''), o.client_id, o.request_id, o.role, o.environment, '
                    'o.sent_at
                from %s o join pgps_internal.client c using (client_id)
                where not exists (select from pgps_internal.request n where n.client_id = o.client_id and '
                    'n.request_id > o.request_id)',
                carry_over_clients.segment);
        when 'reply' then
            execute format('insert into pgps_internal.reply (request_no, client_id, request_id, status, columns, '
                'row_count, sqlstate, error, detail, hint, attempts, replied_at)
                select nextval(''pgps_internal.request_no_seq''), o.client_id, o.request_id, o.status, o.columns, '
                    'o.row_count, o.sqlstate, o.error, o.detail, o.hint, o.attempts, o.replied_at
                from %s o join pgps_internal.client c using (client_id)
                where not exists (select from pgps_internal.reply n where n.client_id = o.client_id and n.request_id '
                    '> o.request_id)',
                carry_over_clients.segment);
        else
            null;
    end case;
end
$$;
comment on function pgps_internal.carry_over_clients(text, regclass) is
'Before a segment of a client ledger is truncated: writes those of its rows again that are still the newest of their
kind. Requests and replies get numbers of their own, under which no rows of another reply are found';
