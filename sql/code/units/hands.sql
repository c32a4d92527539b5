-- What a session has in hand: the units that it sends, and those that it holds.
-- Locks: none.
-- Writes: session_hand.

create or replace function pgps_internal.hand_of(session_id bigint) returns pgps_internal.session_hand
language plpgsql stable
as $$
declare
    v_hand pgps_internal.session_hand;
begin
    select h.* into v_hand from pgps_internal.session_hand h where h.session_id = hand_of.session_id
    order by h.version desc limit 1;
    if not found then
        v_hand := (0, hand_of.session_id, 0, '{}', '{}');
    end if;
    return v_hand;
end
$$;
comment on function pgps_internal.hand_of(bigint) is 'The units that a session sends, and those that it holds';

create or replace function pgps_internal.put_in_hand(
    session_id bigint, sent bigint[] = '{}', held bigint[] = '{}', gone bigint[] = '{}'
) returns void
language plpgsql
as $$
begin
    insert into pgps_internal.session_hand (at_no, session_id, version, sent, held)
    select nextval('pgps_internal.uow_no_seq'), put_in_hand.session_id, coalesce(h.version, 0) + 1,
        array(select n from unnest(h.sent || put_in_hand.sent) n where n <> all (put_in_hand.gone)),
        array(select n from unnest(h.held || put_in_hand.held) n where n <> all (put_in_hand.gone))
    from (values (true)) x left join lateral (select h.* from pgps_internal.session_hand h
        where h.session_id = put_in_hand.session_id order by h.version desc limit 1) h on true;
end
$$;
comment on function pgps_internal.put_in_hand(bigint, bigint[], bigint[], bigint[]) is
'Writes what a session has in hand from now on: more that it sends or holds, less what is gone';
