-- What a session has in hand: the units that it sends, and those that it holds.
-- Locks: none.
-- Writes: session_hand.

-- In PL/pgSQL, since a function in SQL that has a query within is not inlined, but planned in each call.
create or replace function pgps_internal.without(numbers bigint[], gone bigint[]) returns bigint[]
language plpgsql immutable
as $$
begin
    if without.numbers && without.gone then
        return array(select n from unnest(without.numbers) n where n <> all (without.gone));
    end if;
    return without.numbers;
end
$$;
comment on function pgps_internal.without(bigint[], bigint[]) is 'Numbers less those that are gone, in the same order';

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.hand_of(session_id bigint) returns pgps_internal.session_hand
language plpgsql volatile
as $body$
declare
    v_hand pgps_internal.session_hand;
begin
    -- The newest version has the newest number, so the two newest segments are looked in. Where they have none, there
    -- may still be rows of older segments in the same places.
    case pg_sequence_last_value('pgps_internal.uow_no_seq'::regclass) / 65536 % 4{branches}
        else null;
    end case;
    if v_hand.version is null or v_hand.at_no / 65536
            < pg_sequence_last_value('pgps_internal.uow_no_seq'::regclass) / 65536 - 1 then
        select h.* into v_hand from pgps_internal.session_hand h where h.session_id = hand_of.session_id
        order by h.version desc limit 1;
    end if;
    if v_hand.version is null then
        v_hand := (0, hand_of.session_id, 0, '{}', '{}');
    end if;
    return v_hand;
end
$body$;
$function$, '{branches}', (select string_agg(replace(replace($branch$
        when {slot} then
            select h.* into v_hand from (
                (select h.* from pgps_internal.session_hand_{slot} h where h.session_id = hand_of.session_id
                    order by h.version desc limit 1)
                union all
                (select h.* from pgps_internal.session_hand_{before} h where h.session_id = hand_of.session_id
                    order by h.version desc limit 1)) h
            order by h.version desc limit 1;$branch$, '{slot}', s::text), '{before}', ((s + 3) % 4)::text), '')
        from generate_series(0, 3) s));
end
$do$;
comment on function pgps_internal.hand_of(bigint) is 'The units that a session sends, and those that it holds';

create or replace function pgps_internal.with_hand(speaker pgps_internal.speaker) returns pgps_internal.speaker
language plpgsql volatile
as $$
declare
    v_speaker pgps_internal.speaker := with_hand.speaker;
    v_hand pgps_internal.session_hand;
begin
    if v_speaker.hand is null then
        v_hand := pgps_internal.hand_of(v_speaker.session_id);
        v_speaker.hand := v_hand.version;
        v_speaker.sent := v_hand.sent;
        v_speaker.held := v_hand.held;
    end if;
    return v_speaker;
end
$$;
comment on function pgps_internal.with_hand(pgps_internal.speaker) is
'The speaker with what its session has in hand, looked up unless that was done';

create or replace function pgps_internal.put_in_hand(
    speaker pgps_internal.speaker, sent bigint[] = '{}', held bigint[] = '{}', gone bigint[] = '{}'
) returns void
language plpgsql
as $$
begin
    -- Without its life where a session that belongs to no backend is through with a unit: then the commit is refused
    -- when the session has ended meanwhile (in_time.sql). Its life is not looked up here.
    insert into pgps_internal.session_hand (at_no, session_id, version, sent, held, participant_id, role, token,
        life_id)
    values (nextval('pgps_internal.uow_no_seq'), put_in_hand.speaker.session_id, put_in_hand.speaker.hand + 1,
        pgps_internal.without(put_in_hand.speaker.sent || put_in_hand.sent, put_in_hand.gone),
        pgps_internal.without(put_in_hand.speaker.held || put_in_hand.held, put_in_hand.gone),
        put_in_hand.speaker.participant_id, put_in_hand.speaker.role, put_in_hand.speaker.token,
        case when put_in_hand.gone = '{}' or put_in_hand.speaker.session_id = pgps_internal.my_session()
            then put_in_hand.speaker.life_id end);
end
$$;
comment on function pgps_internal.put_in_hand(pgps_internal.speaker, bigint[], bigint[], bigint[]) is
'Writes what a session has in hand from now on: more that it sends or holds, less what is gone; once in each call';

do $do$
begin
    execute replace($function$
create or replace function pgps_internal.own_hand(caller name) returns pgps_internal.session_hand
language plpgsql
as $body$
declare
    v_newest bigint := coalesce(pg_sequence_last_value('pgps_internal.uow_no_seq'::regclass), 0);
    v_session bigint := pgps_internal.my_session();
    v_hand pgps_internal.session_hand;
begin
    case v_newest / 65536 % 4{branches}
    end case;
    return v_hand;
end
$body$;
$function$, '{branches}', (select string_agg(replace($branch$
        when {slot} then
            select h.* into v_hand
            from (select n.* from pgps_internal.session_hand_{slot} n where n.session_id = v_session
                order by n.version desc limit 1) h
            cross join pgps_internal.broker_life_mark m
            where h.at_no >= v_newest / 65536 * 65536 and h.life_id = m.life_id
                and pg_get_userbyid(h.role::oid) = own_hand.caller
                and current_setting('transaction_isolation') like 'read %committed';$branch$, '{slot}', s::text), '')
        from generate_series(0, 3) s));
end
$do$;
comment on function pgps_internal.own_hand(name) is
'What the session of this backend has in hand, and for whom it speaks, where the newest segment tells that (see
speak_with_hand) in this life of the broker; null: it is to be looked up. The session of a backend lives until it logs
off there, and what is known of a unit that it has in hand nobody else changes.';

create or replace function pgps_internal.first_settled(session_id bigint, in_hand bigint[]) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_hand pgps_internal.session_hand := pgps_internal.hand_of(first_settled.session_id);
begin
    return (pgps_internal.without(v_hand.sent || v_hand.held, first_settled.in_hand))[1];
end
$$;
comment on function pgps_internal.first_settled(bigint, bigint[]) is
'On the loopback connection: a unit that others see in the hand of a session, and that is not among these; null: none';

create or replace function pgps_internal.settled_here(session_id bigint, in_hand bigint[]) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgps_internal.over_loopback_once(format('select pgps_internal.first_settled(%s, %L)',
        settled_here.session_id, settled_here.in_hand::text));
end
$$;
comment on function pgps_internal.settled_here(bigint, bigint[]) is
'A unit that a session, which has these in hand now, was through with in this transaction, while others still see it in
its hand; null: none';

create or replace function pgps_internal.hand_from(speaker pgps_internal.speaker) returns pgps_internal.session_hand
language plpgsql immutable
as $$
begin
    return (0, hand_from.speaker.session_id, hand_from.speaker.hand, hand_from.speaker.sent, hand_from.speaker.held,
        hand_from.speaker.participant_id, hand_from.speaker.role, hand_from.speaker.token, hand_from.speaker.life_id,
        null, null)::pgps_internal.session_hand;
end
$$;
comment on function pgps_internal.hand_from(pgps_internal.speaker) is
'What a speaker has in hand, as own_hand returns it';
