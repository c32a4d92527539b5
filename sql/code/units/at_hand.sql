-- What a call looks up in the newest segment of the ledgers alone (decision 60). Everything about a unit, or about an
-- entry of a queue, is written with numbers that are not below its own, so when that lies in the segment of the newest
-- number, all of it does. To set up a scan of four segments is most of what a look-up costs; here each segment has a
-- branch with a statement of its own, and only the one that is run is planned.
-- Locks: entry_at_hand: the unit of the first entry that waits; what somebody else has locked is passed over.
-- answer_at_hand: a unit.
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
create or replace function pgps_internal.mark_at_hand(
    queue_id bigint, out slot bigint, out low_no bigint, out late bigint[], out first_no bigint
) returns record
language plpgsql
as $body$
declare
    v_newest bigint := coalesce(pg_sequence_last_value('pgps_internal.uow_no_seq'::regclass), 0);
    v_start bigint := v_newest / 65536 * 65536;
    v_low record; v_xmin xid8; v_oldest bigint;
begin
    case v_newest / 65536 % 4{branches}
    end case;
    -- A mark of this segment, as are the numbers of what was running when it was made, and nothing older waits.
    if not v_low.has_older and coalesce(v_oldest >= v_start, true)
        and coalesce(v_low.low_no >= v_start - 1, v_start = 0) then
        slot := v_newest / 65536 % 4;
    end if;
    low_no := coalesce(v_low.low_no, 0);
    first_no := v_low.first_no;
end
$body$;
$function$, '{branches}', (select string_agg(replace($branch$
        when {slot} then
            select l.low_no, l.snapshot, l.below, l.left_behind, (
                select c.entry_no from pgps_internal.unit_commit_{slot} c
                where c.queue_id = mark_at_hand.queue_id and c.entry_no > coalesce(l.low_no, 0)
                    and coalesce((select s.status from pgps_internal.unit_state_{slot} s where s.unit_no = c.unit_no
                        order by s.version desc limit 1), 'ACCEPTED') in ('ACCEPTED', 'DELIVERED')
                order by c.entry_no limit 1) as first_no, exists (
                select from pgps_internal.unit_commit_{slot} c where c.queue_id = mark_at_hand.queue_id
                    and c.entry_no > coalesce(l.low_no, 0)
                    and least(c.conversation_no, c.entry_no) / 65536 < c.at_no / 65536) as has_older, (
                select b.below from pgps_internal.queue_low_{slot} b where b.queue_id = mark_at_hand.queue_id
                    and b.low_no >= v_start - 1 order by b.low_no limit 1) as first_below
            into v_low
            from (values (true)) x left join lateral (select l.* from pgps_internal.queue_low_{slot} l
                where l.queue_id = mark_at_hand.queue_id order by l.low_no desc limit 1) l on true;
            v_xmin := pg_snapshot_xmin(v_low.snapshot);
            if v_low.left_behind <> '{}' or v_xmin < v_low.below
                or pg_sequence_last_value('pgps_internal.units_placed_seq'::regclass) is not null then
                select array_agg(c.entry_no), min(least(c.entry_no, c.conversation_no)) into late, v_oldest from (
                    select n as entry_no, n as conversation_no from unnest(v_low.left_behind) n
                    union all
                    select c.entry_no, c.conversation_no from pgps_internal.unit_commit_{slot} c
                    where c.queue_id = mark_at_hand.queue_id and c.entry_no <= v_low.low_no and c.xid >= v_xmin
                        and c.xid < v_low.below and not pg_visible_in_snapshot(c.xid, v_low.snapshot)
                    union all
                    select c.entry_no, c.conversation_no from pgps_internal.unit_commit_{slot} c
                    where c.queue_id = mark_at_hand.queue_id and c.entry_no < c.commit_no and c.xid >= v_low.below
                        and c.entry_no <= v_low.low_no and not pg_visible_in_snapshot(c.xid, v_low.snapshot)) c;
                if v_start > 0 and v_xmin < v_low.below and v_xmin < v_low.first_below then
                    v_oldest := 0;
                end if;
            end if;$branch$, '{slot}', s::text), '')
        from generate_series(0, 3) s));
end
$do$;
comment on function pgps_internal.mark_at_hand(bigint) is
'From where a queue is read in the newest segment: its low mark, and the entries below it that may still wait (left
behind, committed late, or at the place of their conversation''s first one), null: none, and the first one above it that
is not over; slot null: that cannot be said by the newest segment';

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.entry_at_hand(
    speaker pgps_internal.speaker, first_no bigint, late bigint[], slot bigint, queue_id bigint, option text,
    service_ids integer[], passed bigint[]
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
            from pgps_internal.unit_commit_{slot} c
            left join lateral (select s.status, s.session_id from pgps_internal.unit_state_{slot} s
                where s.unit_no = c.unit_no order by s.version desc limit 1) s on true
            join pgps_internal.unit_{slot} u on u.unit_no = c.unit_no
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
                then '>= entry_at_hand.first_no' else '= any (entry_at_hand.late)' end), '{number}', s::text),
            '{slot}', (s % 4)::text), '')
        from generate_series(0, 7) s));
end
$do$;
comment on function pgps_internal.entry_at_hand(
    pgps_internal.speaker, bigint, bigint[], bigint, bigint, text, integer[], bigint[]) is
'The first entry of a queue that a session may receive, whose unit it locks, where pgps_internal.mark_at_hand has said
that the newest segment (slot) tells: one of those that came late or, where these are null, one from first_no on; see
first_waiting';

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.answer_at_hand(caller name, conversation_no bigint) returns record
language plpgsql volatile
as $body$
declare
    v_start bigint := coalesce(pg_sequence_last_value('pgps_internal.uow_no_seq'::regclass), 0) / 65536 * 65536;
    v_session bigint := pgps_internal.my_session();
    v_look record;
begin
    case pgps_internal.slot_at_hand(answer_at_hand.conversation_no){branches}
        else select null::bigint as session_id into v_look;
    end case;
    return v_look;
end
$body$;
$function$, '{branches}', (select string_agg(replace($branch$
        when {slot} then
            select h.session_id, h.participant_id, h.role, h.token, m.life_id, h.version as hand, h.sent, h.held,
                k.unit_no, k.entry, coalesce(y.server_id = h.participant_id, false) or exists (
                    select from pgps_internal.serving v where v.session_id = h.session_id) as may_serve
            into v_look
            from (select n.* from pgps_internal.session_hand_{slot} n where n.session_id = v_session
                order by n.version desc limit 1) h
            cross join pgps_internal.broker_life_mark m
            cross join pgps_internal.conversation_{slot} c
            left join lateral (select y.server_id, y.done_by_client from pgps_internal.conversation_state_{slot} y
                where y.conversation_no = c.conversation_no order by y.version desc limit 1) y on true
            left join lateral (select k.unit_no, k::pgps_internal.unit_commit as entry
                from pgps_internal.unit_commit_{slot} k
                where k.conversation_no = c.conversation_no and not k.to_server and k.entry_no = k.commit_no
                    and k.commit_no > coalesce(y.done_by_client, 0)
                order by k.commit_no limit 1) k on true
            where h.at_no >= v_start and h.life_id = m.life_id
                and pg_get_userbyid(h.role::oid) = answer_at_hand.caller
                and current_setting('transaction_isolation') like 'read %committed'
                and c.conversation_no = answer_at_hand.conversation_no and c.client_id = h.participant_id
                and c.is_uow and c.broker is null and c.life_id = m.life_id
                and exists (select from pgps_internal.service v where v.service_id = c.service_id);
            if v_look.unit_no is not null then
                perform from pgps_internal.unit_{slot} u where u.unit_no = v_look.unit_no for update;
            end if;$branch$,
        '{slot}', s::text), '')
        from generate_series(0, 3) s));
end
$do$;
comment on function pgps_internal.answer_at_hand(name, bigint) is
'The session of this backend, which speaks for the client of a conversation of this broker with units of work, with what
it has in hand, the first unit for the client that it has not completed, which it locks, and its
entry, and whether the client may be the server, too. session_id null: it is not so, or the newest segment does not
tell.';
