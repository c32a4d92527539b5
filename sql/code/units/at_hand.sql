-- What a call looks up in the newest segment of the ledgers alone (decision 60). Everything about a unit, or about an
-- entry of a queue, is written with numbers that are not below its own, so when that lies in the segment of the newest
-- number, all of it does. To set up a scan of four segments is most of what a look-up costs; here each segment has a
-- branch with a statement of its own, and only the one that is run is planned.
-- Locks: entry_at_hand: the unit of the first entry that waits; what somebody else has locked is passed over.
-- lock_at_hand: a unit.
-- Writes: nothing.

-- Inlined, so without a search_path. The newest number is read when this is called: what was written before has numbers
-- up to that one.
create or replace function pgps_internal.slot_at_hand(number bigint) returns bigint
language sql volatile
as $$
    select case when slot_at_hand.number / 65536
            = pg_sequence_last_value('pgps_internal.uow_no_seq'::regclass) / 65536
        then slot_at_hand.number / 65536 % 4 end
$$;
comment on function pgps_internal.slot_at_hand(bigint) is
'The place of the segment of the newest number, if this number lies in it; else null: all segments are to be looked in';

-- A statement with {slot} in the names of segments becomes the branches of a CASE of slot_at_hand.
create or replace function pgps_internal.branches_of(statement text) returns text
language sql immutable
as $$
    select string_agg(concat(e'\n        when ' || s || ' then', case when s is null then e'\n        else' end,
        replace(branches_of.statement, '{slot}', coalesce('_' || s, ''))), '' order by s)
    from unnest(array[0, 1, 2, 3, null]) s
$$;
comment on function pgps_internal.branches_of(text) is
'A statement for each segment, and one for all of them, as the branches of a CASE; {slot}: in names of
tables';

do $do$
begin
    execute string_agg(replace($view$
create or replace view pgps_internal.talk_noted{slot} as
select c.conversation_no, c.client_id, c.service_id, c.life_id, c.is_uow and c.broker is null as is_common,
    v.class, v.server, v.service, coalesce(y.version, 0) as version, y.server_id,
    coalesce(y.done_by_server, 0) as done_by_server, coalesce(y.done_by_client, 0) as done_by_client,
    y.ended, coalesce(y.first_commit_at, (select k.committed_at from pgps_internal.unit_commit{slot} k
        where k.conversation_no = c.conversation_no and k.to_server and k.entry_no = k.commit_no
        order by k.commit_no limit 1)) as first_commit_at
from pgps_internal.conversation{slot} c join pgps_internal.service v using (service_id)
left join lateral (select y.* from pgps_internal.conversation_state{slot} y
    where y.conversation_no = c.conversation_no order by y.version desc limit 1) y on true;
comment on view pgps_internal.talk_noted{slot} is
'Conversations with their services, as their newest states say; first_commit_at: the SYNCPOINT of the first unit';
$view$, '{slot}', s), '') from unnest(array['', '_0', '_1', '_2', '_3']) s;
end
$do$;

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.queue_at_hand(
    queue_id bigint, out slot bigint, out low_no bigint, out late bigint[], out entries bigint, out first_no bigint,
    out last_no bigint
) returns record
language plpgsql
as $body$
declare
    v_newest bigint := coalesce(pg_sequence_last_value('pgps_internal.uow_no_seq'::regclass), 0);
    v_start bigint := v_newest / 65536 * 65536;
begin
    case v_newest / 65536 % 4{branches}
    end case;
end
$body$;
$function$, '{branches}', (select string_agg(replace($branch$
        when {slot} then
            -- What waits may have been begun long before it was committed, and what was left behind, too.
            select case when coalesce(e.oldest >= v_start, true) and (v_start = 0 or l.low_no >= v_start - 1
                    and (pg_snapshot_xmin(l.snapshot) >= l.below
                    -- What was running when the mark was made has numbers above those of a mark made before it began.
                    or pg_snapshot_xmin(l.snapshot) >= (select b.below from pgps_internal.queue_low_{slot} b
                        where b.queue_id = queue_at_hand.queue_id and b.low_no >= v_start - 1
                        order by b.low_no limit 1))) then {slot} end,
                coalesce(l.low_no, 0), e.late, e.entries, e.first_no, e.last_no
            into slot, low_no, late, entries, first_no, last_no
            from (values (true)) x
            left join lateral (select q.* from pgps_internal.queue_low_{slot} q
                where q.queue_id = queue_at_hand.queue_id order by q.low_no desc limit 1) l on true
            left join lateral (
                select array_agg(c.entry_no) filter (where c.entry_no <= l.low_no) as late, count(*) as entries,
                    min(c.entry_no) filter (where c.entry_no > coalesce(l.low_no, 0) and coalesce((
                        select s.status from pgps_internal.unit_state_{slot} s where s.unit_no = c.unit_no
                        order by s.version desc limit 1), 'ACCEPTED') in ('ACCEPTED', 'DELIVERED')) as first_no,
                    max(c.entry_no) as last_no, min(least(c.entry_no, c.unit_no, c.conversation_no)) as oldest
                from (
                    (select c.entry_no, c.unit_no, c.conversation_no from pgps_internal.unit_commit_{slot} c
                    where c.queue_id = queue_at_hand.queue_id and c.entry_no > coalesce(l.low_no, 0)
                    order by c.entry_no limit 128)
                    union all
                    select n, n, n from unnest(l.left_behind) n
                    union all
                    select c.entry_no, c.unit_no, c.conversation_no from pgps_internal.unit_commit_{slot} c
                    where c.queue_id = queue_at_hand.queue_id and c.entry_no <= l.low_no
                        and c.xid >= pg_snapshot_xmin(l.snapshot) and c.xid < l.below
                        and not pg_visible_in_snapshot(c.xid, l.snapshot)
                    union all
                    select c.entry_no, c.unit_no, c.conversation_no from pgps_internal.unit_commit_{slot} c
                    where c.queue_id = queue_at_hand.queue_id and c.entry_no < c.commit_no and c.entry_no <= l.low_no
                        and c.xid >= l.below and not pg_visible_in_snapshot(c.xid, l.snapshot)
                ) c) e on true;$branch$, '{slot}', s::text), '')
        from generate_series(0, 3) s));
end
$do$;
comment on function pgps_internal.queue_at_hand(bigint) is
'From where a queue is read in the newest segment: its low mark, the entries below it that may still wait (left behind,
committed late, or at the place of their conversation''s first one), how many entries there are, up to last_no (128
above the mark at most), and the first one above it that is not over; slot null: that cannot be said by the newest
segment';

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.entry_at_hand(
    speaker pgps_internal.speaker, first_no bigint, last_no bigint, late bigint[], slot bigint, queue_id bigint,
    option text, service_ids integer[], passed bigint[]
) returns pgps_internal.unit_commit
language plpgsql
as $body$
declare
    v_entry pgps_internal.unit_commit;
begin
    case entry_at_hand.slot + (case when entry_at_hand.late is null then 0 else 4 end){branches}
    end case;
    return v_entry;
end
$body$;
$function$, '{branches}', (select string_agg(replace(replace(replace($branch$
        when {number} then
            select c.* into v_entry
            from pgps_internal.unit_commit_{slot} c join pgps_internal.unit_{slot} u on u.unit_no = c.unit_no
            left join lateral (select s.status, s.session_id from pgps_internal.unit_state_{slot} s
                where s.unit_no = c.unit_no order by s.version desc limit 1) s on true
            where c.queue_id = entry_at_hand.queue_id and c.entry_no {range}
                -- Most entries are over, which is seen before the unit is looked up.
                and coalesce(s.status, 'ACCEPTED') in ('ACCEPTED', 'DELIVERED')
                and case when pgps_internal.may_receive(u, s.status, s.session_id, speaker)
                        and (entry_at_hand.option = 'any' or u.is_uow = (entry_at_hand.option = 'sync'))
                        and coalesce(u.service_id = any (entry_at_hand.service_ids), true)
                        and u.conversation_no <> all (entry_at_hand.passed)
                    -- Common case, seen cheaply here: it is alone in a conversation bound to nobody.
                    then case when exists (select from pgps_internal.unit_commit_{slot} o
                                where o.conversation_no = c.conversation_no and o.to_server = c.to_server
                                    and o.entry_no = o.commit_no and o.commit_no < c.commit_no)
                            or exists (select from pgps_internal.conversation_state_{slot} t
                                where t.conversation_no = c.conversation_no and t.server_id is not null)
                        then pgps_internal.is_next(c, speaker) else true end end
            order by c.entry_no limit 1
            for update of u skip locked;$branch$, '{range}', case when s < 4
                then '>= entry_at_hand.first_no and c.entry_no <= entry_at_hand.last_no'
                else '= any (entry_at_hand.late)' end), '{number}', s::text), '{slot}', (s % 4)::text), '')
        from generate_series(0, 7) s));
end
$do$;
comment on function pgps_internal.entry_at_hand(
    pgps_internal.speaker, bigint, bigint, bigint[], bigint, bigint, text, integer[], bigint[]) is
'The first entry of a queue that a session may receive, whose unit it locks, where pgps_internal.queue_at_hand has said
that the newest segment (slot) tells: one of those that came late or, where these are null, from first_no up to last_no;
see first_waiting';

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.answer_at_hand(
    conversation_no bigint, speaker pgps_internal.speaker, out is_client boolean, out may_serve boolean,
    out entry pgps_internal.unit_commit
) returns record
language plpgsql volatile
as $body$
declare
    v_look record;
begin
    case pgps_internal.slot_at_hand(answer_at_hand.conversation_no){branches}
    end case;
    is_client := v_look.is_client;
    may_serve := v_look.may_serve;
    entry := v_look.entry;
end
$body$;
$function$, '{branches}', pgps_internal.branches_of($branch$
            select true as is_client, coalesce(y.server_id = speaker.participant_id, false) or exists (
                select from pgps_internal.serving s where s.session_id = speaker.session_id) as may_serve, k.entry
            into v_look
            from pgps_internal.conversation{slot} c
            left join lateral (select y.server_id, y.done_by_client from pgps_internal.conversation_state{slot} y
                where y.conversation_no = c.conversation_no order by y.version desc limit 1) y on true
            left join lateral (select k::pgps_internal.unit_commit as entry from pgps_internal.unit_commit{slot} k
                where k.conversation_no = c.conversation_no and not k.to_server and k.entry_no = k.commit_no
                    and k.commit_no > coalesce(y.done_by_client, 0)
                order by k.commit_no limit 1) k on true
            where c.conversation_no = answer_at_hand.conversation_no and c.client_id = speaker.participant_id
                and c.is_uow and c.broker is null and c.life_id = speaker.life_id
                and exists (select from pgps_internal.service v where v.service_id = c.service_id);$branch$));
end
$do$;
comment on function pgps_internal.answer_at_hand(bigint, pgps_internal.speaker) is
'Whether the speaker is the client of a conversation of this broker with units of work (else null), the entry of the
first unit for it that it has not completed, which is not locked, and whether it may be the server, too';

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.lock_at_hand(unit_no bigint) returns void
language plpgsql volatile
as $body$
begin
    case pgps_internal.slot_at_hand(lock_at_hand.unit_no){branches}
    end case;
end
$body$;
$function$, '{branches}', pgps_internal.branches_of($branch$
            perform from pgps_internal.unit{slot} u where u.unit_no = lock_at_hand.unit_no for update;$branch$));
end
$do$;
comment on function pgps_internal.lock_at_hand(bigint) is 'Locks a unit until the transaction ends';
