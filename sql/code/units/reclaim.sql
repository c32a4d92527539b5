-- Reclaim of the ledgers of units of work. What of a segment is still needed, of units that are under way or whose
-- status is kept, and of conversations that may go on, is written again with new numbers when it is little; then the
-- segment is truncated. With much in it, it is left until less of it is needed.
-- Locks: access exclusive on one segment, NOWAIT; see log/reclaim.sql.
-- Writes: service_dropped, participant, participant_session, participant_session_end, queue_low, serving, unit_count,
-- unit_told; by name: segments of the ledgers of units of work.

create or replace function pgps_internal.is_unit_needed(unit_no bigint) returns boolean
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select exists (select from pgps_internal.unit_standing u
        where u.unit_no = is_unit_needed.unit_no and u.is_known)
$$;
comment on function pgps_internal.is_unit_needed(bigint) is 'True while a unit is under way, or its status is kept';

create or replace function pgps_internal.is_conversation_needed(conversation_no bigint) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_conversation pgps_internal.conversation;
    v_state pgps_internal.conversation_state := pgps_internal.state_of(is_conversation_needed.conversation_no);
begin
    select c.* into v_conversation from pgps_internal.conversation c
    where c.conversation_no = is_conversation_needed.conversation_no;
    -- One that was not ended may go on for as long as a unit of work may take.
    return (exists (select from pgps_internal.service s where s.service_id = v_conversation.service_id)
            and v_state.ended is null and greatest(v_conversation.began_at, v_state.noted_at,
                (select max(c.committed_at) from pgps_internal.unit_commit c
                    where c.conversation_no = v_conversation.conversation_no))
                > pgps_internal.clock() - greatest(pgps_internal.setting('uow_lifetime')::interval,
                    (select s.lifetime from pgps_internal.service s where s.service_id = v_conversation.service_id))
            or exists (select from pgps_internal.unit_commit c
                where c.conversation_no = v_conversation.conversation_no
                    and pgps_internal.is_unit_needed(c.unit_no))
            -- What is being sent in it is in the hand of its client or server, whose newest session alone may live.
            or exists (select from unnest(array[v_conversation.client_id, v_state.server_id]) p(participant_id)
                cross join lateral (select s.session_id from pgps_internal.participant_session s
                    where s.participant_id = p.participant_id order by s.session_id desc limit 1) s
                cross join lateral unnest((pgps_internal.hand_of(s.session_id)).sent) h(unit_no)
                join pgps_internal.unit u on u.unit_no = h.unit_no
                where u.conversation_no = v_conversation.conversation_no
                    and pgps_internal.is_unit_needed(u.unit_no)));
end
$$;
comment on function pgps_internal.is_conversation_needed(bigint) is
'True while a conversation may go on, or has units that are needed';

create or replace function pgps_internal.is_place_needed(commit pgps_internal.unit_commit) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_commit pgps_internal.unit_commit := is_place_needed.commit;
begin
    return v_commit.to_server and v_commit.entry_no = v_commit.commit_no
        and (pgps_internal.state_of(v_commit.conversation_no)).server_id is null
        and not exists (select from pgps_internal.unit_commit c
            where c.conversation_no = v_commit.conversation_no and c.to_server and c.entry_no = c.commit_no
                and c.commit_no < v_commit.commit_no)
        and pgps_internal.is_conversation_needed(v_commit.conversation_no);
end
$$;
comment on function pgps_internal.is_place_needed(pgps_internal.unit_commit) is
'True for the SYNCPOINT of a conversation''s first unit while the conversation may go on and is bound to nobody: it is
as old as that one, whatever has become of it';

create or replace function pgps_internal.needed_rows(ledger text, segment regclass) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select format('select o.* from %s o where %s', needed_rows.segment, case needed_rows.ledger
        when 'conversation' then 'pgps_internal.is_conversation_needed(o.conversation_no)'
        when 'conversation_state' then 'not exists (select from pgps_internal.conversation_state n '
            'where n.conversation_no = o.conversation_no and n.version > o.version) '
            'and pgps_internal.is_conversation_needed(o.conversation_no)'
        when 'unit_state' then 'not exists (select from pgps_internal.unit_state n where n.unit_no = o.unit_no '
            'and n.version > o.version) and pgps_internal.is_unit_needed(o.unit_no)'
        when 'unit_note' then 'not exists (select from pgps_internal.unit_note n where n.unit_no = o.unit_no '
            'and n.version > o.version) and pgps_internal.is_unit_needed(o.unit_no)'
        when 'session_hand' then 'not exists (select from pgps_internal.session_hand n '
            'where n.session_id = o.session_id and n.version > o.version) '
            'and pgps._session_lives(o.session_id)'
        when 'queue_low' then 'not exists (select from pgps_internal.queue_low n where n.queue_id = o.queue_id '
            'and (n.low_no, n.at_no) > (o.low_no, o.at_no))'
        when 'unit_commit' then '(pgps_internal.is_unit_needed(o.unit_no) '
            'or pgps_internal.is_place_needed(o::pgps_internal.unit_commit))'
        else 'pgps_internal.is_unit_needed(o.unit_no)' end)
$$;
comment on function pgps_internal.needed_rows(text, regclass) is
'The query for the rows of a segment of a ledger of units of work that are still needed';

create or replace function pgps_internal.reclaim_unit_segment(ledger text, segment regclass) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_needed bigint;
    v_rows bigint;
    v_top bigint;
    v_columns text := (select string_agg(quote_ident(a.attname), ', ' order by a.attnum) from pg_attribute a
        where a.attrelid = reclaim_unit_segment.segment and a.attnum > 1 and not a.attisdropped);
    v_query text := pgps_internal.needed_rows(reclaim_unit_segment.ledger, reclaim_unit_segment.segment);
begin
    -- Looked at without the lock first, up to an eighth of what a segment may have.
    execute format('select count(*) from (%s limit 8193) o', v_query) into v_needed;
    if v_needed > 8192 or not pgps_internal.try_lock(reclaim_unit_segment.segment) then
        return false;
    end if;
    execute format('select max(o.at_no) from %s o', reclaim_unit_segment.segment) into v_top;
    begin
        execute format('insert into pgps_internal.%1$I (at_no, %2$s) select nextval(''pgps_internal.uow_no_seq''), '
            '%2$s from (%3$s limit 16384) o', reclaim_unit_segment.ledger, v_columns, v_query);
        get diagnostics v_rows = row_count;
        perform pgps_internal.require_top(reclaim_unit_segment.segment, 'at_no', v_top);
        if v_rows = 16384 then
            raise exception 'segment % is needed', reclaim_unit_segment.segment using errcode = '55P03',
                hint = 'Call pgps.reclaim() again later.';
        end if;
        -- Looked at while the old rows are there: see in_time.sql.
        set constraints pgps_internal.pgps_in_time, pgps_internal.pgps_living immediate;
        execute format('truncate only %s', reclaim_unit_segment.segment);
    exception when lock_not_available then
        return false;
    end;
    return true;
end
$$;
comment on function pgps_internal.reclaim_unit_segment(text, regclass) is
'Truncates a segment of a ledger of units of work, after writing again what is needed of it; false when that is too
much,
or the segment is in use';

create or replace function pgps_internal.reclaim_units() returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_newest bigint := coalesce(pg_sequence_last_value('pgps_internal.uow_no_seq'::regclass), 0);
    v_size bigint := pgps_internal.segment_size('unit');
    v_ledger text;
    v_slot integer;
    v_segment regclass;
    v_reclaimed bigint := 0;
begin
    -- States go after what they are states of: a unit whose states are gone would look as if it waited.
    foreach v_ledger in array array['queue_low', 'session_hand', 'unit_message', 'unit_commit', 'unit', 'conversation',
        'unit_note', 'unit_state', 'conversation_state'] loop
        for v_slot in 0..3 loop
            v_segment := format('pgps_internal.%s_%s', v_ledger, v_slot);
            -- The newest segment, and the one before it, which transactions that run may still write to.
            continue when v_slot in (v_newest / v_size % 4, (v_newest / v_size + 3) % 4)
                or pg_relation_size(v_segment) = 0;
            continue when v_ledger in ('unit_note', 'unit_state', 'conversation_state')
                and pgps_internal.is_unit_segment_used(v_ledger, v_segment);
            v_reclaimed := v_reclaimed + pgps_internal.reclaim_unit_segment(v_ledger, v_segment)::integer;
        end loop;
    end loop;
    return v_reclaimed;
end
$$;
comment on function pgps_internal.reclaim_units() is
'Truncates the segments of the ledgers of units of work of which little is needed; returns how many';

create or replace function pgps_internal.is_unit_segment_used(ledger text, segment regclass) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_used boolean;
begin
    execute format('select exists (select from %s o where exists (select from pgps_internal.%s u where u.%3$s = o.%3$s)
        and not %4$s)', is_unit_segment_used.segment,
        case is_unit_segment_used.ledger when 'conversation_state' then 'conversation' else 'unit' end,
        case is_unit_segment_used.ledger when 'conversation_state' then 'conversation_no' else 'unit_no' end,
        case is_unit_segment_used.ledger
            when 'conversation_state' then 'pgps_internal.is_conversation_needed(o.conversation_no)'
            else 'pgps_internal.is_unit_needed(o.unit_no)' end) into v_used;
    return v_used;
end
$$;
comment on function pgps_internal.is_unit_segment_used(text, regclass) is
'True when a segment has states of units, or conversations, that are over but still in their own segments: without their
states these would look as if they waited';

create or replace function pgps_internal.forget_service(service_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
-- LOCK TABLE, which could fail at once, takes no sequence.
set lock_timeout = '50ms'
as $$
begin
    execute format('drop sequence pgps_internal.units_begun_%1$s, pgps_internal.units_ended_%1$s',
        forget_service.service_id);
    delete from pgps_internal.service_dropped d where d.service_id = forget_service.service_id;
exception when lock_not_available then
    -- A transaction that has sent to it is still open: the next time.
    return;
end
$$;
comment on function pgps_internal.forget_service(integer) is
'Drops what is left of a service that was dropped, once nothing of its units of work is, unless somebody uses it';

create or replace function pgps_internal.sweep_participants() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Those of the last segment are kept: a count at which no transaction was open that is open now may be among them.
    delete from pgps_internal.unit_count c where c.at_no < (select max(n.at_no) from pgps_internal.unit_count n
        where n.service_id = c.service_id)
        and c.at_no < (select max(n.at_no) from pgps_internal.unit_count n) - pgps_internal.segment_size('unit');
    delete from pgps_internal.unit_told t
    where not exists (select from pgps_internal.unit u where u.unit_no = t.unit_no);
    -- Few rows: one for each logon. They are kept for a day, and for as long as a unit is that the session had in hand
    -- when it ended, since what has become of that one depends on when it did.
    delete from pgps_internal.serving s
    where s.since < pgps_internal.clock() - interval '1 day' and not pgps._session_lives(s.session_id);
    delete from pgps_internal.participant_session s
    where s.began_at < pgps_internal.clock() - interval '1 day' and not pgps._session_lives(s.session_id)
        and not exists (select from pgps_internal.unit u
            where u.sender_id = s.participant_id and u.session_id = s.session_id
                and not exists (select from pgps_internal.unit_commit c where c.unit_no = u.unit_no))
        and not exists (select from pgps_internal.unit_state t
            where t.session_id = s.session_id and t.status = 'DELIVERED');
    delete from pgps_internal.participant_session_end e
    where e.ended_at < pgps_internal.clock() - interval '1 day'
        and not exists (select from pgps_internal.participant_session s where s.session_id = e.session_id);
    perform pgps_internal.forget_service(d.service_id) from pgps_internal.service_dropped d
    where d.dropped_at < pgps_internal.clock() - interval '1 day'
        and not exists (select from pgps_internal.unit u where u.service_id = d.service_id);
    delete from pgps_internal.participant p
    where p.token is null
        and not exists (select from pgps_internal.participant_session s where s.participant_id = p.participant_id)
        and not exists (select from pgps_internal.unit u where u.sender_id = p.participant_id)
        and not exists (select from pgps_internal.conversation c where c.client_id = p.participant_id);
end
$$;
comment on function pgps_internal.sweep_participants() is
'Deletes sessions that ended long ago, and participants without a token of which nothing is left';

create or replace function pgps_internal.forget_queue_marks() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- They name transactions of another life; queues are read from their beginnings again.
    truncate pgps_internal.queue_low;
end
$$;
comment on function pgps_internal.forget_queue_marks() is 'Drops the low marks of all queues of units of work';
