-- The queues of services and participants: entries in the order of their SYNCPOINTs, which are read from a low mark on.
-- Nothing is deleted from a queue: when a reader has passed enough entries that are over or held by somebody, it writes
-- a new mark, with the held ones among those that it passed. An entry below the mark may become visible later, since
-- its transaction was running: the mark has the snapshot in which it was made, and such transactions are asked for.
-- The queue of a service has the units of a new conversation at the place of its first one (entry_no < commit_no), so
-- they may come below the mark at any time: these rows are few, and have an index of their own.
-- Locks: the unit of the first entry that waits; what somebody else has locked is passed over.
-- Writes: queue_low.

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.low_of(queue_id bigint) returns pgps_internal.queue_low
language plpgsql volatile
as $body$
declare
    v_low pgps_internal.queue_low;
begin
    -- Any mark will do; the newest ones, which have passed most, are in the newest segment.
    case pg_sequence_last_value('pgps_internal.uow_no_seq'::regclass) / 65536 % 4{branches}
        else null;
    end case;
    if v_low.low_no is null then
        select l.* into v_low from pgps_internal.queue_low l where l.queue_id = low_of.queue_id
        order by l.low_no desc, l.at_no desc limit 1;
    end if;
    if v_low.low_no is null then
        v_low := (0, low_of.queue_id, 0, pg_current_snapshot(), '3'::xid8, '{}');
    end if;
    return v_low;
end
$body$;
$function$, '{branches}', (select string_agg(replace($branch$
        when {slot} then
            select l.* into v_low from pgps_internal.queue_low_{slot} l where l.queue_id = low_of.queue_id
            order by l.low_no desc limit 1;$branch$, '{slot}', s::text), '')
        from generate_series(0, 3) s));
end
$do$;
comment on function pgps_internal.low_of(bigint) is 'From where a queue is read';

create or replace function pgps_internal.look_at_entry(
    entry pgps_internal.unit_commit, is_over boolean, speaker pgps_internal.speaker,
    out stands text, out standing pgps_internal.unit_standing
) returns record
language plpgsql volatile
as $$
begin
    if look_at_entry.is_over or look_at_entry.entry.queue_id % 2 = 0
        and exists (select from pgps_internal.conversation_state s
        where s.conversation_no = look_at_entry.entry.conversation_no and s.server_id is not null) then
        -- The queue of a service, and it is bound: its server has an entry of it in a queue of its own.
        stands := 'over';
        return;
    end if;
    standing := pgps_internal.how_stands(look_at_entry.entry.unit_no, look_at_entry.speaker);
    stands := case when standing.unit_no is null or not standing.is_active then 'over'
        when standing.status = 'DELIVERED' then 'held' when standing.is_held_back then 'blocked'
        when standing.is_uow then 'sync' else 'msg' end;
end
$$;
comment on function pgps_internal.look_at_entry(pgps_internal.unit_commit, boolean, pgps_internal.speaker) is
'How an entry of a queue stands: over (or bound to a server), held by somebody, blocked until hot is set, or it waits:
sync for a unit of work, msg for a message that belongs to none';

create or replace function pgps_internal.late_entries(low pgps_internal.queue_low) returns bigint[]
language plpgsql volatile
as $$
declare
    v_next xid8 := pg_snapshot_xmax(late_entries.low.snapshot);
    v_running xid8[];
    v_late bigint[] := late_entries.low.left_behind;
begin
    if late_entries.low.low_no = 0 then
        return v_late;
    end if;
    v_late := v_late || array(
        select c.entry_no from pgps_internal.unit_commit c
        where c.queue_id = late_entries.low.queue_id and c.entry_no < c.commit_no
            and c.entry_no <= late_entries.low.low_no and c.xid >= pg_snapshot_xmin(late_entries.low.snapshot)
            and not pg_visible_in_snapshot(c.xid, late_entries.low.snapshot));
    -- No transaction was running that is older than the next one.
    if pg_snapshot_xmin(late_entries.low.snapshot) = v_next and v_next >= late_entries.low.below then
        return v_late;
    end if;
    v_running := array(select pg_snapshot_xip(late_entries.low.snapshot));
    -- Running transactions that the snapshot does not name have ids that are not older than its end.
    return v_late || array(
        select c.entry_no from pgps_internal.unit_commit c
        where c.queue_id = late_entries.low.queue_id and c.entry_no <= late_entries.low.low_no
            and c.xid = any (v_running)
        union all
        select c.entry_no from pgps_internal.unit_commit c
        where c.queue_id = late_entries.low.queue_id and c.entry_no <= late_entries.low.low_no
            and c.xid >= v_next and c.xid < late_entries.low.below);
end
$$;
comment on function pgps_internal.late_entries(pgps_internal.queue_low) is
'The entries below the low mark of a queue that may still wait: those left behind, those of transactions that were
running when it was made, and those that have got the place of their conversation''s first unit since';

create or replace function pgps_internal.waits(unit_no bigint, speaker pgps_internal.speaker) returns boolean
language plpgsql volatile
as $$
declare
    v_standing pgps_internal.unit_standing := pgps_internal.how_stands(waits.unit_no, waits.speaker);
begin
    return coalesce(v_standing.status = 'ACCEPTED' and not v_standing.is_held_back, false);
end
$$;
comment on function pgps_internal.waits(bigint, pgps_internal.speaker) is
'True when a unit that was committed may be given out now';

-- Inlined, so without a search_path. CASE keeps functions from being called where it is plain to see.
create or replace function pgps_internal.may_receive(
    unit pgps_internal.unit, status text, session_id bigint, speaker pgps_internal.speaker
) returns boolean
language sql volatile
as $$
    select case
        when may_receive.status in ('PROCESSED', 'CANCELLED', 'DELETED') then false
        when (may_receive.unit).life_id <> (may_receive.speaker).life_id
            or (may_receive.unit).ends_at <= pgps_internal.clock()
            then pgps_internal.waits((may_receive.unit).unit_no, may_receive.speaker)
        when may_receive.status is null or may_receive.status = 'ACCEPTED' then true
        else may_receive.status = 'DELIVERED' and not pgps._session_lives(may_receive.session_id) end
$$;
comment on function pgps_internal.may_receive(pgps_internal.unit, text, bigint, pgps_internal.speaker) is
'True when a unit that was committed may be given out now; status, session_id: of its newest state, null: it has none';

create or replace function pgps_internal.first_anywhere(
    speaker pgps_internal.speaker, queue_id bigint, option text, service_ids integer[], passed bigint[]
) returns pgps_internal.unit_commit
language plpgsql
as $$
declare
    v_low pgps_internal.queue_low := pgps_internal.low_of(first_anywhere.queue_id);
    v_late bigint[] := pgps_internal.late_entries(v_low);
    v_entry pgps_internal.unit_commit;
begin
    if v_late <> '{}' then
        select c.* into v_entry
        from pgps_internal.unit_commit c join pgps_internal.unit u on u.unit_no = c.unit_no
        left join lateral (select s.status, s.session_id from pgps_internal.unit_state s where s.unit_no = c.unit_no
            order by s.version desc limit 1) s on true
        where c.queue_id = first_anywhere.queue_id and c.entry_no = any (v_late)
            and case when pgps_internal.may_receive(u, s.status, s.session_id, first_anywhere.speaker)
                    and (first_anywhere.option = 'any' or u.is_uow = (first_anywhere.option = 'sync'))
                    and coalesce(u.service_id = any (first_anywhere.service_ids), true)
                    and u.conversation_no <> all (first_anywhere.passed)
                then pgps_internal.is_next(c, first_anywhere.speaker) end
        order by c.entry_no limit 1
        for update of u skip locked;
    end if;
    if v_entry.entry_no is null then
        select c.* into v_entry
        from pgps_internal.unit_commit c join pgps_internal.unit u on u.unit_no = c.unit_no
        left join lateral (select s.status, s.session_id from pgps_internal.unit_state s where s.unit_no = c.unit_no
            order by s.version desc limit 1) s on true
        where c.queue_id = first_anywhere.queue_id and c.entry_no > v_low.low_no
            and case when pgps_internal.may_receive(u, s.status, s.session_id, first_anywhere.speaker)
                    and (first_anywhere.option = 'any' or u.is_uow = (first_anywhere.option = 'sync'))
                    and coalesce(u.service_id = any (first_anywhere.service_ids), true)
                    and u.conversation_no <> all (first_anywhere.passed)
                then pgps_internal.is_next(c, first_anywhere.speaker) end
        order by c.entry_no limit 1
        for update of u skip locked;
    end if;
    -- Some ten units later, the queue is read to move its mark.
    if v_entry.entry_no > v_low.low_no + 128 and (first_anywhere.speaker).seen_no is not null then
        perform pgps_internal.peek_queue(first_anywhere.speaker, first_anywhere.queue_id, first_anywhere.option,
            first_anywhere.service_ids, first_anywhere.passed);
    end if;
    return v_entry;
end
$$;
comment on function pgps_internal.first_anywhere(pgps_internal.speaker, bigint, text, integer[], bigint[]) is
'As first_waiting, where the newest segment does not tell: looks in all of them';

create or replace function pgps_internal.first_waiting(
    speaker pgps_internal.speaker, queue_id bigint, option text, service_ids integer[], passed bigint[]
) returns pgps_internal.unit_commit
language plpgsql
as $$
declare
    v_look record := pgps_internal.mark_at_hand(first_waiting.queue_id);
    v_entry pgps_internal.unit_commit;
begin
    if v_look.slot is null then
        return pgps_internal.first_anywhere(first_waiting.speaker, first_waiting.queue_id, first_waiting.option,
            first_waiting.service_ids, first_waiting.passed);
    elsif v_look.late is not null then
        v_entry := pgps_internal.entry_at_hand(first_waiting.speaker, null, v_look.late, v_look.slot,
            first_waiting.queue_id, first_waiting.option, first_waiting.service_ids, first_waiting.passed);
    end if;
    if v_entry.entry_no is null and v_look.first_no is not null then
        v_entry := pgps_internal.entry_at_hand(first_waiting.speaker, v_look.first_no, null, v_look.slot,
            first_waiting.queue_id, first_waiting.option, first_waiting.service_ids, first_waiting.passed);
    end if;
    -- Each look goes through the entries above the mark, so one that writes anyway moves it: some ten units later.
    if v_entry.entry_no > v_look.low_no + 96 and (first_waiting.speaker).seen_no is not null then
        if not pgps_internal.pass_over(first_waiting.speaker, v_entry, v_look.slot)
            and v_entry.entry_no > v_look.low_no + 320 then
            perform pgps_internal.peek_queue(first_waiting.speaker, first_waiting.queue_id, first_waiting.option,
                first_waiting.service_ids, first_waiting.passed);
        end if;
    end if;
    return v_entry;
end
$$;
comment on function pgps_internal.first_waiting(pgps_internal.speaker, bigint, text, integer[], bigint[]) is
'The first entry of a queue that a session may receive, whose unit it locks; null when there is none. The caller looks
at it again, now that it is locked. passed: conversations that do not count. service_ids null: all services.';

create or replace function pgps_internal.peek_queue(
    speaker pgps_internal.speaker, queue_id bigint, option text, service_ids integer[], passed bigint[],
    out entry pgps_internal.unit_commit, out standing pgps_internal.unit_standing
) returns record
language plpgsql
as $$
declare
    -- Taken before anything is read: what is not visible in it is asked for again.
    v_snapshot pg_snapshot := pg_current_snapshot();
    v_low pgps_internal.queue_low := pgps_internal.low_of(peek_queue.queue_id);
    v_late bigint[] := pgps_internal.late_entries(v_low);
    v_entry pgps_internal.unit_commit;
    v_passed bigint[] := peek_queue.passed;
    v_left bigint[] := '{}';
    v_reached bigint := v_low.low_no;
    v_is_clear boolean := true;
    v_read integer := 0;
    v_look record; v_row record;
begin
    for v_row in
        -- Most entries that are passed are over, which the newest state alone tells.
        select e as entry, (select s.status from pgps_internal.unit_state s where s.unit_no = e.unit_no
            order by s.version desc limit 1) in ('PROCESSED', 'CANCELLED', 'DELETED') as is_over
        from (
            (select l.* from pgps_internal.unit_commit l where l.queue_id = peek_queue.queue_id
                and l.entry_no = any (v_late) order by l.entry_no, l.commit_no)
            union all
            (select c.* from pgps_internal.unit_commit c where c.queue_id = peek_queue.queue_id
                and c.entry_no > v_low.low_no order by c.entry_no, c.commit_no)) e
    loop
        v_entry := v_row.entry;
        v_look := pgps_internal.look_at_entry(v_entry, v_row.is_over, peek_queue.speaker);
        if v_entry.entry_no <= v_low.low_no then
            v_left := v_left || case when v_look.stands <> 'over' then v_entry.entry_no end;
        elsif v_is_clear and v_look.stands in ('over', 'held') and v_entry.entry_no <= (peek_queue.speaker).seen_no then
            v_read := v_read + 1;
            v_reached := v_entry.entry_no;
            v_left := v_left || case when v_look.stands = 'held' then v_entry.entry_no end;
        else
            v_is_clear := false; -- It may be at the place of one that was passed.
            v_left := v_left || case when v_entry.entry_no = v_reached then v_reached end;
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
    -- In a queue of which little happens, one entry is worth a mark when it is far from the last one.
    if v_read >= 8 or v_read > 0 and v_reached - v_low.low_no > 4096 then
        perform pgps_internal.advance_queue(peek_queue.speaker, peek_queue.queue_id, v_reached, v_snapshot,
            array_remove(v_left, null));
    end if;
end
$$;
comment on function pgps_internal.peek_queue(pgps_internal.speaker, bigint, text, integer[], bigint[]) is
'The first entry of a queue that a session may receive, not locked; null when there is none. passed: conversations that
do not count. service_ids null: all services.';

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.pass_over(
    speaker pgps_internal.speaker, entry pgps_internal.unit_commit, slot bigint
) returns boolean
language plpgsql
as $body$
declare
    v_queue bigint := pass_over.entry.queue_id;
    v_mark pgps_internal.queue_low := pgps_internal.low_of(pass_over.entry.queue_id);
    v_low bigint := v_mark.low_no;
    v_last bigint := least(speaker.seen_no, pass_over.entry.entry_no - 1);
begin
    case pass_over.slot{branches}
    end case;
    return found;
end
$body$;
$function$, '{branches}', (select string_agg(replace($branch$
        when {slot} then
            -- The mark has the snapshot in which it is read what is over.
            insert into pgps_internal.queue_low (at_no, queue_id, low_no, snapshot, below, left_behind)
            select nextval('pgps_internal.uow_no_seq'), v_queue, r.low_no, pg_current_snapshot(),
                pg_current_xact_id(), coalesce(r.left_behind, '{}')
            from (select max(e.entry_no) filter (where e.is_clear and e.entry_no > v_low) as low_no,
                    count(*) filter (where e.is_clear and e.entry_no > v_low) as passed,
                    array_agg(e.entry_no) filter (where e.entry_no <= v_low and not e.is_over) as left_behind
                from (select l.entry_no, l.is_over,
                        bool_and(l.is_over or l.entry_no <= v_low) over (order by l.entry_no) as is_clear
                    from (select c.entry_no, coalesce((select s.status from pgps_internal.unit_state_{slot} s
                                where s.unit_no = c.unit_no order by s.version desc limit 1)
                                in ('PROCESSED', 'CANCELLED', 'DELETED'), false)
                            or c.queue_id % 2 = 0 and exists (select from pgps_internal.conversation_state_{slot} s
                                where s.conversation_no = c.conversation_no and s.server_id is not null) as is_over
                        from (
                            select c.* from pgps_internal.unit_commit_{slot} c where c.queue_id = v_queue
                                and c.entry_no > v_low and c.entry_no <= v_last
                            union all
                            select c.* from pgps_internal.unit_commit_{slot} c where c.queue_id = v_queue
                                and c.entry_no = any (v_mark.left_behind)
                            union all
                            select c.* from pgps_internal.unit_commit_{slot} c where c.queue_id = v_queue
                                and c.entry_no <= v_low and c.xid >= pg_snapshot_xmin(v_mark.snapshot)
                                and c.xid < v_mark.below
                                and not pg_visible_in_snapshot(c.xid, v_mark.snapshot)
                            union all
                            select c.* from pgps_internal.unit_commit_{slot} c where c.queue_id = v_queue
                                and c.entry_no < c.commit_no and c.entry_no <= v_low and c.xid >= v_mark.below
                                and not pg_visible_in_snapshot(c.xid, v_mark.snapshot)) c) l) e) r
            where r.passed >= 6;$branch$, '{slot}', s::text), '') from generate_series(0, 3) s));
end
$do$;
comment on function pgps_internal.pass_over(
    pgps_internal.speaker, pgps_internal.unit_commit, bigint) is
'Moves the low mark of a queue, of which the newest segment (slot) tells, over the entries before one, as far as they
are over; of those below it, those remain left behind that are not over. False when it would pass fewer than six: then
nothing is written. pgps_internal.peek_queue passes those that are held, too.';

create or replace function pgps_internal.advance_queue(
    speaker pgps_internal.speaker, queue_id bigint, low_no bigint, snapshot pg_snapshot, left_behind bigint[]
) returns void
language plpgsql
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
