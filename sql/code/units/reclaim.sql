-- Reclaim of the ledgers of units of work. What of a segment is still needed, of units that are under way or whose
-- status is kept, and of conversations that may go on, is written again with new numbers when it is little; then the
-- segment is truncated. With much in it, it is left until less of it is needed.
-- Locks: access exclusive on one segment, NOWAIT; see log/reclaim.sql.
-- Writes: service_dropped, participant, participant_session, participant_session_end, queue_low, serving, unit_count,
-- unit_told; by name: segments of the ledgers of units of work.

-- What is needed is asked for all rows of a segment at once. Asked one by one, each of them looked up the lives of the
-- broker and, anew, which sessions live: 5 ms for each exchange, under the lock.
do $$
declare
    v_former regprocedure;
begin
    for v_former in select p.oid from pg_proc p where p.pronamespace = 'pgps_internal'::regnamespace
        and p.proname in ('is_place_needed', 'is_conversation_needed', 'is_unit_needed') loop
        execute format('drop function %s', v_former);
    end loop;
end
$$;

create or replace function pgps_internal.needed_units(asked text) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select format('select u.unit_no from (%s) a(unit_no) join pgps_internal.unit_standing u on u.unit_no = a.unit_no '
        'where u.is_known', needed_units.asked)
$$;
comment on function pgps_internal.needed_units(text) is
'The query for those of some units (asked, a query for their numbers, each once) that are under way, or whose status is
kept';

create or replace function pgps_internal.needed_conversations(asked text) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select format($query$
        with facts as materialized (
            -- One that was not ended may go on for as long as a unit of work may take.
            select c.conversation_no, c.client_id, s.server_id, coalesce(v.service_id is not null and s.ended is null
                and greatest(c.began_at, s.noted_at, (select max(m.committed_at) from pgps_internal.unit_commit m
                        where m.conversation_no = c.conversation_no and m.entry_no = m.commit_no))
                    > t.now - greatest(t.lifetime, v.lifetime), false) as may_go_on
            from (%s) a(conversation_no)
            join pgps_internal.conversation c on c.conversation_no = a.conversation_no
            cross join (select pgps_internal.clock() as now, pgps_internal.setting('uow_lifetime')::interval as lifetime
                offset 0) t
            left join pgps_internal.service v on v.service_id = c.service_id
            left join lateral (select s.* from pgps_internal.conversation_state s
                where s.conversation_no = c.conversation_no order by s.version desc limit 1) s on true
        ),
        others as materialized (
            select f.conversation_no, f.client_id, f.server_id from facts f where not f.may_go_on
        ),
        -- What is being sent in one is in the hand of its client or server, whose newest session alone may live.
        speakers as materialized (
            select p.participant_id, max(p.session_id) as session_id from pgps_internal.participant_session p
            where p.participant_id in (select o.client_id from others o union all select o.server_id from others o)
            group by p.participant_id
        ),
        units as materialized (
            select c.unit_no, c.conversation_no from others o
            join pgps_internal.unit_commit c on c.conversation_no = o.conversation_no and c.entry_no = c.commit_no
            union
            select u.unit_no, u.conversation_no from speakers p
            cross join lateral unnest((pgps_internal.hand_of(p.session_id)).sent) h(unit_no)
            join pgps_internal.unit u on u.unit_no = h.unit_no
            join others o on o.conversation_no = u.conversation_no
        )
        select f.conversation_no from facts f where f.may_go_on
        union
        select u.conversation_no from units u where u.unit_no in (%s)$query$, needed_conversations.asked,
        pgps_internal.needed_units('select distinct n.unit_no from units n'))
$$;
comment on function pgps_internal.needed_conversations(text) is
'The query for those of some conversations (asked, a query for their numbers, each once) that may go on, or have units
that are needed';

create or replace function pgps_internal.needed_commits(segment regclass) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- The SYNCPOINT of a conversation's first unit is needed while the conversation may go on and is bound to nobody:
    -- it is as old as that one, whatever has become of it.
    select format($query$
        with needed as materialized (
            %2$s
        ),
        places as materialized (
            select o.conversation_no, o.commit_no from %1$s o
            where o.to_server and o.entry_no = o.commit_no
                and not exists (select from needed n where n.unit_no = o.unit_no)
                and not exists (select from pgps_internal.unit_commit c
                    where c.conversation_no = o.conversation_no and c.to_server and c.entry_no = c.commit_no
                        and c.commit_no < o.commit_no)
                and (select s.server_id from pgps_internal.conversation_state s
                    where s.conversation_no = o.conversation_no order by s.version desc limit 1) is null
        ),
        placed as materialized (
            %3$s
        )
        select o.* from %1$s o where o.unit_no in (select n.unit_no from needed n)
            or (o.conversation_no, o.commit_no) in (select p.conversation_no, p.commit_no
                from places p join placed using (conversation_no)) and o.to_server and o.entry_no = o.commit_no
        $query$, needed_commits.segment,
        pgps_internal.needed_units(format('select distinct o.unit_no from %s o', needed_commits.segment)),
        pgps_internal.needed_conversations('select distinct p.conversation_no from places p'))
$$;
comment on function pgps_internal.needed_commits(regclass) is
'The query for the rows of a segment of unit_commit that are still needed, for their units or for their places';

create or replace function pgps_internal.needed_rows(ledger text, segment regclass) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    -- Of what a row is, in the ledgers of which only the newest version counts.
    v_of text := case needed_rows.ledger when 'session_hand' then 'session_id'
        when 'conversation_state' then 'conversation_no' when 'unit_state' then 'unit_no'
        when 'unit_note' then 'unit_no' end;
    v_newest text := case when v_of is null then 'true' else format('not exists (select from pgps_internal.%s n '
        'where n.%s = o.%2$s and n.version > o.version)', needed_rows.ledger, v_of) end;
    v_key text := coalesce(v_of, case needed_rows.ledger when 'conversation' then 'conversation_no' else 'unit_no' end);
    v_asked text := format('select distinct o.%s from %s o where %s', v_key, needed_rows.segment, v_newest);
begin
    case needed_rows.ledger
        when 'queue_low' then
            return format('select o.* from %s o where not exists (select from pgps_internal.queue_low n '
                'where n.queue_id = o.queue_id and (n.low_no, n.at_no) > (o.low_no, o.at_no))', needed_rows.segment);
        when 'unit_commit' then
            return pgps_internal.needed_commits(needed_rows.segment);
        else
            return format('with needed as materialized (%s) select o.* from %s o join needed on needed.%s = o.%3$s '
                'where %s', case v_key
                    when 'unit_no' then pgps_internal.needed_units(v_asked)
                    when 'conversation_no' then pgps_internal.needed_conversations(v_asked)
                    else format('select a.session_id from (%s) a where pgps._session_lives(a.session_id)', v_asked) end,
                needed_rows.segment, v_key, v_newest);
    end case;
end
$$;
comment on function pgps_internal.needed_rows(text, regclass) is
'The query for the rows of a segment of a ledger of units of work that are still needed';

create or replace function pgps_internal.reclaim_unit_segment(ledger text, segment regclass) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp set jit = off
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
set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
    v_key text := case is_unit_segment_used.ledger when 'conversation_state' then 'conversation_no' else 'unit_no' end;
    v_used boolean;
begin
    execute format('with asked as materialized (select distinct o.%1$s from %2$s o '
            'where exists (select from pgps_internal.%3$s u where u.%1$s = o.%1$s)) '
        'select exists (select a.%1$s from asked a except (%4$s))', v_key, is_unit_segment_used.segment,
        case v_key when 'unit_no' then 'unit' else 'conversation' end,
        case v_key when 'unit_no' then pgps_internal.needed_units('table asked')
            else pgps_internal.needed_conversations('table asked') end) into v_used;
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
