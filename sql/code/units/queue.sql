-- The queues of services and participants: entries in the order of their SYNCPOINTs, which are read from a low mark on.
-- Nothing is deleted from a queue: when a reader has passed enough entries that are over or held by somebody, it writes
-- a new mark, with the held ones among those that it passed. An entry below the mark may become visible later, since
-- its transaction was running: the mark has the snapshot in which it was made, and such transactions are asked for.
-- Locks: none.
-- Writes: queue_low.

create or replace function pgps_internal.low_of(queue_id bigint) returns pgps_internal.queue_low
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_low pgps_internal.queue_low;
begin
    select l.* into v_low from pgps_internal.queue_low l where l.queue_id = low_of.queue_id
    order by l.low_no desc, l.at_no desc limit 1;
    if not found then
        v_low := (0, low_of.queue_id, 0, pg_current_snapshot(), '3'::xid8, '{}');
    end if;
    return v_low;
end
$$;
comment on function pgps_internal.low_of(bigint) is 'From where a queue is read';

create or replace function pgps_internal.entries_below(low pgps_internal.queue_low)
returns setof pgps_internal.unit_commit
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if entries_below.low.low_no = 0 then
        return;
    end if;
    return query
    select c.* from pgps_internal.unit_commit c
    where c.queue_id = entries_below.low.queue_id and c.entry_no = any (entries_below.low.left_behind)
    union
    select c.* from pgps_internal.unit_commit c
    where c.queue_id = entries_below.low.queue_id and c.entry_no <= entries_below.low.low_no
        and c.xid = any (array(select pg_snapshot_xip(entries_below.low.snapshot)))
    union
    -- Running transactions that the snapshot does not name: their ids are not older than its end.
    select c.* from pgps_internal.unit_commit c
    where c.queue_id = entries_below.low.queue_id and c.entry_no <= entries_below.low.low_no
        and c.xid >= pg_snapshot_xmax(entries_below.low.snapshot) and c.xid < entries_below.low.below
    order by 3;
end
$$;
comment on function pgps_internal.entries_below(pgps_internal.queue_low) is
'The entries below the low mark of a queue that may still wait';

create or replace function pgps_internal.look_at_entry(
    entry pgps_internal.unit_commit, is_over boolean, out stands text, out standing pgps_internal.unit_standing
) returns record
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if look_at_entry.is_over or look_at_entry.entry.queue_id % 2 = 0
        and exists (select from pgps_internal.conversation_state s
        where s.conversation_no = look_at_entry.entry.conversation_no and s.server_id is not null) then
        -- The queue of a service, and it is bound: its server has an entry of it in a queue of its own.
        stands := 'over';
        return;
    end if;
    standing := pgps_internal.how_stands(look_at_entry.entry.unit_no);
    stands := case when standing.unit_no is null or not standing.is_active then 'over'
        when standing.status = 'DELIVERED' then 'held' when standing.is_held_back then 'blocked'
        when standing.is_uow then 'sync' else 'msg' end;
end
$$;
comment on function pgps_internal.look_at_entry(pgps_internal.unit_commit, boolean) is
'How an entry of a queue stands: over (or bound to a server), held by somebody, blocked until hot is set, or it waits:
sync for a unit of work, msg for a message that belongs to none';

create or replace function pgps_internal.peek_queue(
    speaker pgps_internal.speaker, queue_id bigint, option text, service_ids integer[], passed bigint[],
    out entry pgps_internal.unit_commit, out standing pgps_internal.unit_standing
) returns record
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_low pgps_internal.queue_low := pgps_internal.low_of(peek_queue.queue_id);
    -- Taken before anything is read: what is not visible in it is asked for again.
    v_snapshot pg_snapshot := pg_current_snapshot();
    v_entry pgps_internal.unit_commit;
    v_passed bigint[] := peek_queue.passed;
    v_left bigint[] := '{}';
    v_reached bigint := v_low.low_no;
    v_is_clear boolean := true;
    v_read integer := 0;
    v_look record;
    v_row record;
begin
    for v_row in
        -- Most entries that are passed are over, which the newest state alone tells.
        select e as entry, (select s.status from pgps_internal.unit_state s where s.unit_no = e.unit_no
            order by s.version desc limit 1) in ('PROCESSED', 'CANCELLED', 'DELETED') as is_over
        from (
            select e.* from pgps_internal.entries_below(v_low) e
            union all
            select c.* from (select c.* from pgps_internal.unit_commit c
                where c.queue_id = peek_queue.queue_id and c.entry_no > v_low.low_no
                order by c.entry_no) c) e
    loop
        v_entry := v_row.entry;
        v_look := pgps_internal.look_at_entry(v_entry, v_row.is_over);
        if v_entry.entry_no <= v_low.low_no then
            v_left := v_left || case when v_look.stands <> 'over' then v_entry.entry_no end;
        elsif v_is_clear and v_look.stands in ('over', 'held') and v_entry.entry_no <= (peek_queue.speaker).seen_no then
            v_read := v_read + 1;
            v_reached := v_entry.entry_no;
            v_left := v_left || case when v_look.stands = 'held' then v_entry.entry_no end;
        else
            v_is_clear := false;
        end if;
        continue when v_look.stands = 'over' or v_entry.conversation_no = any (v_passed);
        if v_look.stands in ('held', 'blocked') or v_look.stands <> peek_queue.option and peek_queue.option <> 'any'
            or not coalesce((v_look.standing).service_id = any (peek_queue.service_ids), true) then
            -- Later units of that conversation wait for this one.
            v_passed := v_passed || v_entry.conversation_no;
            continue;
        end if;
        entry := v_entry;
        standing := v_look.standing;
        exit;
    end loop;
    if v_read >= 16 then
        perform pgps_internal.advance_queue(peek_queue.speaker, peek_queue.queue_id, v_reached, v_snapshot,
            array_remove(v_left, null));
    end if;
end
$$;
comment on function pgps_internal.peek_queue(pgps_internal.speaker, bigint, text, integer[], bigint[]) is
'The first entry of a queue that a session may receive, not locked; null when there is none. passed: conversations that
do not count. service_ids null: all services.';

create or replace function pgps_internal.advance_queue(
    speaker pgps_internal.speaker, queue_id bigint, low_no bigint, snapshot pg_snapshot, left_behind bigint[]
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Every entry up to seen_no was numbered before this transaction got its id, by a transaction that had one already:
    -- so all of them have older ids than this one.
    insert into pgps_internal.queue_low (at_no, queue_id, low_no, snapshot, below, left_behind)
    values (nextval('pgps_internal.uow_no_seq'), advance_queue.queue_id, advance_queue.low_no,
        advance_queue.snapshot, pg_current_xact_id(), advance_queue.left_behind);
end
$$;
comment on function pgps_internal.advance_queue(pgps_internal.speaker, bigint, bigint, pg_snapshot, bigint[]) is
'Writes the low mark of a queue; low_no: at most the speaker''s seen_no';
