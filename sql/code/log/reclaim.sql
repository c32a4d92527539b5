-- Reclaim truncates whole segments of logs and ledgers, and never deletes their rows. A segment of a log goes when
-- everything in it is in a batch and every subscription is past that batch. The roster (roster.sql) lists the rooms
-- that have something to keep, to carry over or to reclaim of their own.
-- Locks: access exclusive on one segment, NOWAIT: an open transaction that wrote to it prevents that, an unrelated long
-- one does not; a segment that cannot be locked is left for the next call. Only one session reclaims: share update
-- exclusive on the table installation. Access share, NOWAIT, on the logs of the types that are listed and then looked
-- into, so that nobody drops them in between.
-- Writes: trimmed; by name: segments of logs and ledgers, events kept aside, archives.

create or replace function pgps_internal.has_undelivered(type_id integer) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from pgps_internal.in_no_batch(pgps_internal.last_batch(), pg_current_snapshot()) w
        where w.type_id = has_undelivered.type_id)
        or exists (select from pgps_internal.batch_type b
            where b.type_id = has_undelivered.type_id and b.batch_id > pgps_internal.low_batch(has_undelivered.type_id))
        or exists (select from pgps_internal.failure f where f.type_id = has_undelivered.type_id);
end
$$;
comment on function pgps_internal.has_undelivered(integer) is
'True while events of the type wait for dispatch, for a subscription, or in the exception queue';

create or replace function pgps_internal.as_of(low bigint) returns pgps_internal.batch
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_last pgps_internal.batch := pgps_internal.last_batch();
    v_at pgps_internal.batch;
    v_next pgps_internal.batch;
begin
    if as_of.low >= v_last.batch_id then
        return v_last;
    end if;
    select b.* into v_at from pgps_internal.batch b where b.batch_id <= as_of.low order by b.batch_id desc limit 1;
    select b.* into v_next from pgps_internal.batch b where b.batch_id > as_of.low order by b.batch_id limit 1;
    -- Parts of one large transaction have the same snapshots: between them, the state before the transaction counts.
    -- The same holds when the row of the batch is gone with its segment.
    if v_at.batch_id is null or v_at.snapshot::text = v_next.snapshot::text
        and v_at.upto is not distinct from v_next.upto then
        v_at := v_next;
        v_at.snapshot := v_next.previous;
        v_at.upto := null;
    end if;
    -- The transaction ids of another life of this database mean nothing.
    return case when v_at.incarnation = v_last.incarnation then v_at end;
end
$$;
comment on function pgps_internal.as_of(bigint) is
'The state of dispatch after a batch, for is_dispatched: a transaction that is dispatched as of low is in a batch up to
low. Null when that is unknown, since the batch is from before a restore.';

create or replace function pgps_internal.is_past(type_id integer, segment regclass, low bigint) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_at pgps_internal.batch;
    v_needed boolean;
    v_pending int8multirange;
begin
    if pgps_internal.needed_aside(is_past.type_id, is_past.segment, is_past.low) then
        return false;
    end if;
    -- low is -1 while a subscription waits for archived events, which came back as batch 0 and were dispatched long
    -- ago: only an empty segment is past then.
    if is_past.low < 0 then
        execute format('select not exists (select from %s)', is_past.segment) into v_needed;
        return v_needed;
    end if;
    v_at := pgps_internal.as_of(is_past.low);
    if v_at.batch_id is not null then
        -- The newest event is looked at first: it usually shows that a segment is still needed.
        execute format('select not pgps_internal.is_dispatched(l.xid, l.event_id, $1) from %s l order by l.event_id '
            'desc limit 1', is_past.segment)
        using v_at into v_needed;
        if v_needed is not false then
            return v_needed is null;
        end if;
        execute format('select exists (select from %s l where not pgps_internal.is_dispatched(l.xid, l.event_id, $1))',
            is_past.segment)
        using v_at into v_needed;
        return not v_needed;
    end if;
    select coalesce(range_agg(r), '{}') into v_pending
    from pgps_internal.batch_type b, unnest(b.ids) r where b.type_id = is_past.type_id and b.batch_id > is_past.low;
    execute format('select exists (select from %s l where not pgps_internal.is_dispatched(l.xid, l.event_id, $1) or '
        'l.event_id <@ $2)',
        is_past.segment) using pgps_internal.last_batch(), v_pending into v_needed;
    return not v_needed;
end
$$;
comment on function pgps_internal.is_past(integer, regclass, bigint) is
'True when no event in a segment of a log waits for dispatch or for a subscription';

create or replace function pgps_internal.try_lock(relation regclass, mode text = 'access exclusive') returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := (select format('%I.%I', n.nspname, c.relname) from pg_class c
        join pg_namespace n on n.oid = c.relnamespace where c.oid = try_lock.relation);
begin
    if v_name is null then
        return false;
    end if;
    execute format('lock table only %s in %s mode nowait', v_name, try_lock.mode);
    -- Another one may have got its name meanwhile.
    return to_regclass(v_name) = try_lock.relation;
exception when lock_not_available or undefined_table then
    return false;
end
$$;
comment on function pgps_internal.try_lock(regclass, text) is
'Locks a table, usually a segment that is to be truncated; false when another session uses it, or has dropped it';

create or replace function pgps_internal.hold_type(type_id integer) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from pgps_internal.event_type t where t.type_id = hold_type.type_id
        and pgps_internal.try_lock(t.log, 'access share'));
end
$$;
comment on function pgps_internal.hold_type(integer) is
'Locks the log of an event type, so that nobody drops or alters the type before the transaction ends; false when
somebody is doing so, or has dropped it: what was to be done with it is left for the next time';

create or replace function pgps_internal.reclaim_log(event_type pgps_internal.event_type) returns bigint
language plpgsql
-- Whoever is dropping or changing the type in an open transaction has its log locked, even against a look at its size.
set search_path = pg_catalog, pg_temp set lock_timeout = '100ms'
as $$
declare
    v_slot integer;
    v_current integer := pgps_internal.log_segment(coalesce(pg_sequence_last_value('pgps_internal.event_id_seq'), 0));
    v_segment regclass;
    v_low bigint;
    v_reclaimed bigint := 0;
    v_ids record;
    -- An auditable out queue needs the archive, too: it shows the attributes of events.
    v_audit boolean := exists (select from pgps_internal.queue q
        where q.type_id = (reclaim_log.event_type).type_id and q.kind in ('in', 'out') and q.auditable);
begin
    for v_slot in 0..3 loop
        v_segment := to_regclass(pgps_internal.segment_name((reclaim_log.event_type).name, v_slot));
        continue when v_slot = v_current or coalesce(pg_relation_size(v_segment), 0) = 0;
        exit when not pgps_internal.hold_type((reclaim_log.event_type).type_id);
        v_low := coalesce(v_low, pgps_internal.kept_batch((reclaim_log.event_type).type_id));
        continue when not pgps_internal.is_past((reclaim_log.event_type).type_id, v_segment, v_low);
        continue when not pgps_internal.may_truncate();
        continue when not pgps_internal.try_lock(v_segment);
        -- Looked at again, now that the segment is locked: what was in flight has ended and is visible.
        v_low := pgps_internal.kept_batch((reclaim_log.event_type).type_id);
        continue when not pgps_internal.is_past((reclaim_log.event_type).type_id, v_segment, v_low)
            or not pgps_internal.are_kept(reclaim_log.event_type, v_segment);
        if v_audit then
            perform pgps_internal.archive(reclaim_log.event_type, v_segment);
        end if;
        execute format('select min(l.event_id) as lo, max(l.event_id) as hi from %s l', v_segment) into v_ids;
        insert into pgps_internal.trimmed as t (type_id, event_id)
        select (reclaim_log.event_type).type_id, v_ids.hi where v_ids.hi is not null
        on conflict on constraint trimmed_pkey do update set event_id = greatest(t.event_id, excluded.event_id);
        perform pgps_internal.before_truncate((reclaim_log.event_type).type_id, v_ids.lo, v_ids.hi);
        execute format('truncate only %s', v_segment);
        v_reclaimed := v_reclaimed + 1;
    end loop;
    return v_reclaimed;
end
$$;
comment on function pgps_internal.reclaim_log(pgps_internal.event_type) is
'Truncates the segments of a log that nobody needs; an auditable queue''s events go to its archive first. Errors: 55P03
somebody has the log locked; it is left for the next time.';

create or replace function pgps_internal.logs_use(slot integer) returns boolean
language plpgsql
-- A look at a size waits for who has the segment locked.
set search_path = pg_catalog, pg_temp set lock_timeout = '100ms'
as $$
declare
    v_type pgps_internal.event_type;
    v_segment regclass;
    v_any boolean;
begin
    for v_type in select t.* from pgps_internal.event_type t loop
        v_segment := to_regclass(pgps_internal.segment_name(v_type.name, logs_use.slot));
        if pg_relation_size(v_segment) > 0 then
            if not pgps_internal.try_lock(v_segment, 'access share') then
                return true;
            end if;
            execute format('select exists (select from %s)', v_segment) into v_any;
            if v_any then
                return true;
            end if;
        end if;
    end loop;
    return false;
exception when lock_not_available then
    return true;
end
$$;
comment on function pgps_internal.logs_use(integer) is
'True while the segment of this number has events in any log, or somebody has one of them locked: their statements are
in the same one of the control queue';

create or replace function pgps_internal.reclaim_beside_logs(ledger text, further integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slot integer;
    v_current integer := pgps_internal.log_segment(coalesce(pg_sequence_last_value('pgps_internal.event_id_seq'), 0));
    v_segment regclass;
begin
    for v_slot in 0..3 loop
        v_segment := format('pgps_internal.%I', format('%s_%s', reclaim_beside_logs.ledger, v_slot));
        continue when v_slot = v_current or pg_relation_size(v_segment) = 0 or not pgps_internal.try_lock(v_segment);
        if not exists (select from generate_series(v_slot, v_slot + reclaim_beside_logs.further) n
            where pgps_internal.logs_use(n % 4)) then
            execute format('truncate only %s', v_segment);
        end if;
    end loop;
end
$$;
comment on function pgps_internal.reclaim_beside_logs(text, integer) is
'Truncates the segments of a ledger about events that are in no log any more; further: how many segments behind its own
the events may lie in, too';

create or replace function pgps_internal.control_is_past(segment regclass) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_statement record;
    v_needed boolean;
begin
    execute format('select exists (select from %s c where not pgps_internal.is_dispatched(c.xid, c.hi, $1))',
        control_is_past.segment)
    using pgps_internal.last_batch() into v_needed;
    if v_needed then
        return false;
    end if;
    -- The few statements that began in another segment: some of their events may be there still.
    for v_statement in execute format('select c.lo, c.hi, t.log
        from %s c join pgps_internal.event_type t using (type_id)
        where pgps_internal.log_segment_start(c.lo) < pgps_internal.log_segment_start(c.hi)
            and exists (select from pg_class k where k.oid = t.log)', control_is_past.segment)
    loop
        if not pgps_internal.try_lock(v_statement.log, 'access share') then
            return false;
        end if;
        execute format('select exists (select from %s l where l.event_id >= $1 and l.event_id <= $2)', v_statement.log)
        using v_statement.lo, v_statement.hi into v_needed;
        if v_needed then
            return false;
        end if;
    end loop;
    return true;
end
$$;
comment on function pgps_internal.control_is_past(regclass) is
'True when no statement in a segment of the control queue waits for dispatch, or has events that lie in another
segment of a log; false when somebody has such a log locked';

create or replace function pgps_internal.reclaim_control() returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_slot integer;
    v_segment regclass;
    v_current integer := pgps_internal.log_segment(coalesce(pg_sequence_last_value('pgps_internal.event_id_seq'), 0));
    v_reclaimed bigint := 0;
begin
    -- Segments of the control queue and of the logs are cut at the same event ids, so that each goes with those of its
    -- number.
    for v_slot in 0..3 loop
        v_segment := format('pgps_internal.control_%s', v_slot);
        continue when v_slot = v_current or pg_relation_size(v_segment) = 0 or pgps_internal.logs_use(v_slot);
        continue when not pgps_internal.control_is_past(v_segment) or not pgps_internal.try_lock(v_segment);
        -- Looked at again, now that the segment is locked.
        continue when pgps_internal.logs_use(v_slot);
        continue when not pgps_internal.control_is_past(v_segment);
        execute format('truncate only %s', v_segment);
        v_reclaimed := v_reclaimed + 1;
    end loop;
    return v_reclaimed;
end
$$;
comment on function pgps_internal.reclaim_control() is
'Truncates segments of the control queue whose statements have no event in a log any more';

create or replace function pgps.reclaim(max_segments integer = 1) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
    v_type pgps_internal.event_type;
    v_reclaimed bigint := 0;
    v_low bigint;
    v_newest bigint := (pgps_internal.last_batch()).batch_id;
    v_context text;
begin
    perform pgps_internal.require_read_committed();
    -- One session at a time. The lock is on a table of pgps, since an advisory lock could be held by anybody (decision
    -- 12).
    if not pgps_internal.try_lock('pgps_internal.installation', 'share update exclusive') then
        return 0;
    elsif v_newest is null then
        -- Nothing was ever dispatched here, but rooms may have ledgers that no event comes through.
        perform pgps_internal.sweep();
        return pgps_internal.reclaim_rooms(0, 0);
    end if;
    if exists (select from pgps_internal.backlog_limit l where l.max_backlog is not null) then
        perform pgps_internal.apply_backlog_limits();
    end if;
    for v_type in select t.* from pgps_internal.event_type t order by t.type_id loop
        begin
            v_reclaimed := v_reclaimed + pgps_internal.reclaim_log(v_type);
        exception when others then
            -- A type that somebody is changing, or whose relations were changed behind the back of pgps, must not keep
            -- those of the others.
            get stacked diagnostics v_context = pg_exception_context;
            continue when sqlstate = '55P03';
            if not pgps_internal.may_be_fault_of_type(sqlstate, v_context) then
                raise;
            end if;
            raise warning 'the log of event type "%" could not be reclaimed: %', v_type.name, sqlerrm
            using errcode = sqlstate, hint = format('Mend the cause, then: select pgps.resume_event_type(%L); or: '
                'select pgps.drop_event_type(%1$L, cascade => true)', quote_ident(v_type.name));
        end;
        if v_reclaimed >= reclaim.max_segments then
            return v_reclaimed;
        end if;
    end loop;
    if exists (select from pg_class c
        where c.oid in (select format('pgps_internal.batch_%s', n)::regclass from generate_series(0, 3) n
            where n <> pgps_internal.batch_segment(v_newest)) and pg_relation_size(c.oid) > 0)
            and pgps_internal.may_truncate() then
        v_low := least(pgps_internal.kept_batch(), v_newest - 1);
        v_reclaimed := v_reclaimed + pgps_internal.reclaim_batches(v_low, v_newest);
    end if;
    v_reclaimed := v_reclaimed + pgps_internal.reclaim_control();
    perform pgps_internal.sweep();
    return v_reclaimed + pgps_internal.reclaim_rooms(coalesce(v_low, 0), v_newest);
end
$$;
comment on function pgps.reclaim(integer) is
'Applies the max_backlog of subscriptions that have one (see pgps.alter_subscription), then frees segments that no
subscription, audit or failure needs; returns how many. Never waits: what is in use is left for the next call.
max_segments: stops when at least so many segments of logs were freed. Locks: until the transaction ends, who alters or
drops an event type waits, or sets a policy, and who reads or writes what was freed; other calls of it free nothing. So
call it in a transaction of its own, as workers do. Needs pgps_worker or pgps_admin.';

revoke all on function pgps.reclaim(integer) from public;
grant execute on function pgps.reclaim(integer) to pgps_worker, pgps_admin;
