-- What reclaim deletes row by row: events kept for subscriptions that need them no more, and rows about things that are
-- over.
-- Locks: the rows that are deleted; access share, NOWAIT, on the logs of types.
-- Writes: delivered, discarded, former, receipt; by name: segments of logs and ledgers, events kept aside, archives.

create or replace function pgps_internal.reclaim_kept(event_type pgps_internal.event_type) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_kept regclass := to_regclass(format('pgps_internal.%I', (reclaim_kept.event_type).name || '_kept'));
    v_shared bigint[];
begin
    if coalesce(pg_relation_size(v_kept), 0) = 0
        or not pgps_internal.hold_type((reclaim_kept.event_type).type_id) then
        return;
    end if;
    -- The subscriptions whose consumers share the type: share has no index by event alone, so it is searched
    -- subscription by subscription.
    v_shared := array(select m.subscription_id from pgps_internal.member m
        where m.type_id = (reclaim_kept.event_type).type_id and m.takes_batch);
    execute format('delete from %1$s k where not exists (select from pgps_internal.failure f where f.type_id = $1 and '
        'f.event_id = k.event_id)
        and not exists (select from pgps_internal.discarded d where d.type_id = $1 and d.event_id = k.event_id)
        and not exists (select from %2$s l where l.event_id = k.event_id)
        and ($2 = ''{}'' or not exists (select from pgps_internal.share s where s.subscription_id = any ($2) and '
            's.event_id = k.event_id))',
        v_kept, (reclaim_kept.event_type).log)
    using (reclaim_kept.event_type).type_id, v_shared;
end
$$;
comment on function pgps_internal.reclaim_kept(pgps_internal.event_type) is
'Deletes events that were kept aside for failures, shares and discarded ones, when none of these is left';

create or replace function pgps_internal.sweep_orphans(relation text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A dispatch writes such rows while their subscription is being dropped. Subscriptions are found one by one through
    -- the index, since there is a row for each event that waits.
    execute format('with recursive has (id) as (
            (select r.subscription_id from pgps_internal.%1$I r order by r.subscription_id limit 1)
            union all
            select (select r.subscription_id from pgps_internal.%1$I r where r.subscription_id > h.id order by '
                'r.subscription_id limit 1)
            from has h where h.id is not null)
        delete from pgps_internal.%1$I r using has h
        where r.subscription_id = h.id and not exists (select from pgps_internal.subscription s where '
            's.subscription_id = h.id)',
        sweep_orphans.relation);
end
$$;
comment on function pgps_internal.sweep_orphans(text) is 'Deletes the rows of subscriptions that are gone';

create or replace function pgps_internal.reclaim_rows_of(event_type pgps_internal.event_type) returns void
language plpgsql
-- Whoever is dropping or changing the type in an open transaction has its relations locked.
set search_path = pg_catalog, pg_temp set lock_timeout = '100ms'
as $$
declare
    v_retention interval;
    v_stage regclass;
begin
    perform pgps_internal.reclaim_kept(reclaim_rows_of.event_type);
    -- The archive is kept for the longer retention of its queues; if one of them has none, for ever.
    select case when bool_and(q.retention is not null) then max(q.retention) end into v_retention
    from pgps_internal.queue q
    where q.type_id = (reclaim_rows_of.event_type).type_id and q.kind in ('in', 'out') and q.auditable;
    if v_retention is not null and pgps_internal.hold_type((reclaim_rows_of.event_type).type_id) then
        execute format('delete from pgps_internal.%I a where a.pgps_published_at < pgps_internal.clock() - $1',
            (reclaim_rows_of.event_type).name || '_audit') using v_retention;
    end if;
    delete from pgps_internal.delivered d using pgps_internal.queue q
    where q.type_id = (reclaim_rows_of.event_type).type_id and q.kind = 'out' and d.type_id = q.type_id
        and d.matched_at < pgps_internal.clock() - q.retention;
    delete from pgps_internal.former f using pgps_internal.queue q
    where q.type_id = (reclaim_rows_of.event_type).type_id and q.kind = 'out' and f.type_id = q.type_id
        and (not q.auditable or f.ended_at < pgps_internal.clock() - q.retention);
    delete from pgps_internal.discarded d using pgps_internal.queue q
    where q.type_id = (reclaim_rows_of.event_type).type_id and q.kind = 'exception' and d.type_id = q.type_id
        and d.settled_at < pgps_internal.clock() - q.retention;
    v_stage := to_regclass(format('pgps_stage.%I', (reclaim_rows_of.event_type).name));
    if v_stage is not null and pg_relation_size(v_stage) > 1048576 and pgps_internal.try_lock(v_stage) then
        execute format('truncate %s', v_stage);
    end if;
    if (reclaim_rows_of.event_type).dedupe_retention is not null then
        delete from pgps_internal.receipt r where r.type_id = (reclaim_rows_of.event_type).type_id
            and r.published_at < pgps_internal.clock() - (reclaim_rows_of.event_type).dedupe_retention;
    end if;
end
$$;
comment on function pgps_internal.reclaim_rows_of(pgps_internal.event_type) is
'Deletes what lies beside the log of a type and is not needed any more: settled failures'' events, archives past
retention. Errors: 55P03 somebody has it locked.';

create or replace function pgps_internal.reclaim_rows() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
begin
    perform pgps_internal.sweep_orphans('share'), pgps_internal.sweep_orphans('failure');
    -- Few rows, so they are deleted: events kept aside for failures that are settled, archives past their retention.
    for v_type in select t.* from pgps_internal.event_type t loop
        begin
            perform pgps_internal.reclaim_rows_of(v_type);
        exception when lock_not_available then
            -- Left for the next time, so that the other types do not wait.
            null;
        end;
    end loop;
end
$$;
comment on function pgps_internal.reclaim_rows() is
'Deletes what lies beside the logs and is not needed any more: settled failures'' events, archives past retention';
