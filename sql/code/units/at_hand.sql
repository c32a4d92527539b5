-- What a call looks up in the newest segment of the ledgers alone (decision 60). Everything about a unit, or about an
-- entry of a queue, is written with numbers that are not below its own, so when that lies in the segment of the newest
-- number, all of it does. To set up a scan of four segments is most of what a look-up costs; here each segment has a
-- branch with a statement of its own, and only the one that is run is planned.
-- Locks: first_at_hand: the unit of the first entry that waits; what somebody else has locked is passed over.
-- Writes: nothing.

-- Views of one segment each, for pgps_internal.at_hand, and one of all of them.
do $do$
begin
    execute string_agg(replace($view$
-- A unit with all that its sender or its receiver needs to know of it: what was noted last, and its conversation.
-- Unlike unit_standing it does not say what nobody has noted.
create or replace view pgps_internal.unit_at_hand{slot} as
select u.unit_no, u.conversation_no, u.service_id, u.to_server, u.is_uow, u.sender_id, u.session_id, u.life_id,
    u.is_persistent, u.ends_at, u.is_relayed, u.their_no, k.commit_no, k.committed_at,
    coalesce(s.version, 0) as version, s.status, s.receiver_id, s.session_id as holder,
    coalesce(s.attempts, 0) as attempts, coalesce(s.messages_given, 0) as messages_given,
    case when n.version is not null then n.user_status else u.user_status end as user_status, c.client_id,
    c.service_id as in_service, v.class, v.server, v.service, y.version as state_version, y.server_id,
    y.done_by_server, y.done_by_client, y.ended, y.first_commit_at
from pgps_internal.unit{slot} u
join pgps_internal.conversation{slot} c on c.conversation_no = u.conversation_no
join pgps_internal.service v on v.service_id = u.service_id
left join lateral (select k.commit_no, k.committed_at from pgps_internal.unit_commit{slot} k
    where k.unit_no = u.unit_no order by k.entry_no limit 1) k on true
left join lateral (select s.* from pgps_internal.unit_state{slot} s
    where s.unit_no = u.unit_no order by s.version desc limit 1) s on true
left join lateral (select n.version, n.user_status from pgps_internal.unit_note{slot} n
    where n.unit_no = u.unit_no order by n.version desc limit 1) n on true
left join lateral (select y.* from pgps_internal.conversation_state{slot} y
    where y.conversation_no = u.conversation_no order by y.version desc limit 1) y on true;
comment on view pgps_internal.unit_at_hand{slot} is
'Units, as what was written of them says, with the newest states of their conversations';
$view$, '{slot}', s), '') from unnest(array['', '_0', '_1', '_2', '_3']) s;
end
$do$;

create or replace function pgps_internal.at_hand(unit_no bigint, conversation_no bigint)
returns pgps_internal.unit_at_hand
language plpgsql volatile
as $$
declare
    v_segment bigint := least(at_hand.unit_no, at_hand.conversation_no) / 65536;
    -- Read now: what was written before the caller locked the unit has numbers up to this one.
    v_is_newest boolean := v_segment = pg_sequence_last_value('pgps_internal.uow_no_seq'::regclass) / 65536;
    v_slot bigint := case when v_is_newest then v_segment % 4 end;
    v_unit pgps_internal.unit_at_hand;
begin
    case v_slot
        when 0 then select l.* into v_unit from pgps_internal.unit_at_hand_0 l where l.unit_no = at_hand.unit_no;
        when 1 then select l.* into v_unit from pgps_internal.unit_at_hand_1 l where l.unit_no = at_hand.unit_no;
        when 2 then select l.* into v_unit from pgps_internal.unit_at_hand_2 l where l.unit_no = at_hand.unit_no;
        when 3 then select l.* into v_unit from pgps_internal.unit_at_hand_3 l where l.unit_no = at_hand.unit_no;
        else select l.* into v_unit from pgps_internal.unit_at_hand l where l.unit_no = at_hand.unit_no;
    end case;
    return v_unit;
end
$$;
comment on function pgps_internal.at_hand(bigint, bigint) is
'All about a unit of a conversation, whichever segments it is in; null when there is none. The caller has locked it.';

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.first_at_hand(
    speaker pgps_internal.speaker, low pgps_internal.queue_low, option text, service_ids integer[], passed bigint[],
    out entry pgps_internal.unit_commit, out is_sure boolean
) returns record
language plpgsql
as $body$
declare
    v_segment bigint := coalesce(pg_sequence_last_value('pgps_internal.uow_no_seq'::regclass), 0) / 65536;
    v_low bigint := (first_at_hand.low).low_no;
    v_queue bigint := (first_at_hand.low).queue_id;
    v_oldest bigint;
begin
    is_sure := v_low >= v_segment * 65536 - 1;
    if not is_sure then
        return;
    end if;
    -- What waits may have been begun long before it was committed.
    case v_segment % 4{branches}
    end case;
end
$body$;
$function$, '{branches}', (select string_agg(replace($branch$
        when {slot} then
            select min(least(c.unit_no, c.conversation_no)) into v_oldest from pgps_internal.unit_commit_{slot} c
            where c.queue_id = v_queue and c.entry_no > v_low
                and coalesce((select s.status from pgps_internal.unit_state_{slot} s where s.unit_no = c.unit_no
                    order by s.version desc limit 1), 'ACCEPTED') in ('ACCEPTED', 'DELIVERED');
            is_sure := coalesce(v_oldest >= v_segment * 65536, true);
            if is_sure and v_oldest is not null then
                select c.* into entry
                from pgps_internal.unit_commit_{slot} c join pgps_internal.unit_{slot} u on u.unit_no = c.unit_no
                left join lateral (select s.status, s.session_id from pgps_internal.unit_state_{slot} s
                    where s.unit_no = c.unit_no order by s.version desc limit 1) s on true
                where c.queue_id = v_queue and c.entry_no > v_low
                    -- Most entries are over, which is seen before the unit is looked up.
                    and coalesce(s.status, 'ACCEPTED') in ('ACCEPTED', 'DELIVERED')
                    and case when pgps_internal.may_receive(u, s.status, s.session_id, speaker)
                            and (first_at_hand.option = 'any' or u.is_uow = (first_at_hand.option = 'sync'))
                            and coalesce(u.service_id = any (first_at_hand.service_ids), true)
                            and u.conversation_no <> all (first_at_hand.passed)
                        -- Common case, seen cheaply here: it is alone in a conversation bound to nobody.
                        then case when exists (select from pgps_internal.unit_commit_{slot} o
                                    where o.conversation_no = c.conversation_no and o.to_server = c.to_server
                                        and o.entry_no = o.commit_no and o.commit_no < c.commit_no)
                                or exists (select from pgps_internal.conversation_state_{slot} t
                                    where t.conversation_no = c.conversation_no and t.server_id is not null)
                            then pgps_internal.is_next(c, speaker) else true end end
                order by c.entry_no limit 1
                for update of u skip locked;
            end if;$branch$, '{slot}', s::text), '') from generate_series(0, 3) s));
end
$do$;
comment on function pgps_internal.first_at_hand(
    pgps_internal.speaker, pgps_internal.queue_low, text, integer[], bigint[]) is
'The first entry above the low mark of a queue that a session may receive, whose unit it locks; see first_waiting.
is_sure: that can be said by the newest segment';

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.answer_at_hand(conversation_no bigint) returns bigint
language plpgsql volatile
as $body$
declare
    v_segment bigint := answer_at_hand.conversation_no / 65536;
    v_is_newest boolean := v_segment = pg_sequence_last_value('pgps_internal.uow_no_seq'::regclass) / 65536;
    v_slot bigint := case when v_is_newest then v_segment % 4 end;
    v_unit bigint;
begin
    case v_slot{branches}
    end case;
    return v_unit;
end
$body$;
$function$, '{branches}', (select string_agg(replace(replace($branch$
        {when}
            select k.unit_no into v_unit from pgps_internal.unit_commit{slot} k
            where k.conversation_no = answer_at_hand.conversation_no and not k.to_server and k.entry_no = k.commit_no
                and k.commit_no > coalesce((select y.done_by_client from pgps_internal.conversation_state{slot} y
                    where y.conversation_no = answer_at_hand.conversation_no order by y.version desc limit 1), 0)
            order by k.commit_no limit 1;$branch$,
        '{when}', coalesce('when ' || s || ' then', 'else')), '{slot}', coalesce('_' || s, '')), '' order by s)
        from unnest(array[0, 1, 2, 3, null]) s));
end
$do$;
comment on function pgps_internal.answer_at_hand(bigint) is
'The first unit for the client of a conversation that it has not completed; null: there is none. Not locked.';
