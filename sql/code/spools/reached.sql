-- How far a contact point is, and whether this broker has sent that: numbers alone do not tell, since a broker that was
-- put back to an older state gives the same ones again. So with the number goes what its message was, its mark, as with
-- the items of a link (../links/positions.sql). What a contact point has of a former life of this broker it keeps.
-- Locks: at a contact point the turn of an origin, until the transaction ends.
-- Writes: network_mark, network_origin.

create or replace function pgps_internal.mark_of_spooled(spool_id integer, seqn bigint) returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select format('%s:%s:%s', (select b.epoch from pgps_internal.broker b), m.id,
            extract(epoch from m.spooled_at))
        from pgps_internal.spool_message m
        where m.spool_id = mark_of_spooled.spool_id and m.seqn = mark_of_spooled.seqn limit 1);
end
$$;
comment on function pgps_internal.mark_of_spooled(integer, bigint) is
'What the message under a number of a spool is: the epoch of this broker, its id, and when it was spooled; null when it
is stored no more. The caller keeps the slots';

create or replace function pgps_internal.is_same_message(mark text, other text) returns boolean
language sql immutable
set search_path = pg_catalog, pg_temp
as $$ select coalesce(substring(mark from ':.*') = substring(other from ':.*'), false) $$;
comment on function pgps_internal.is_same_message(text, text) is
'Whether two marks are of one message, in whatever epoch it was sent; false when one of them is null';

create or replace function pgps_internal.is_sent(
    spool pgps_internal.spool, mark pgps_internal.network_mark, seqn bigint, reached text
) returns boolean
language plpgsql
as $$
begin
    return pgps_internal.is_same_message(is_sent.reached,
            pgps_internal.mark_of_spooled((is_sent.spool).spool_id, is_sent.seqn))
        -- It may have expired since, and be stored no more.
        or (is_sent.mark).handed = is_sent.seqn
            and pgps_internal.is_same_message(is_sent.reached, (is_sent.mark).mark);
end
$$;
comment on function pgps_internal.is_sent(pgps_internal.spool, pgps_internal.network_mark, bigint, text) is
'Whether a contact point, which says that it has a message (reached: its mark) under a number, has that from this spool.
mark: of its line';

create or replace function pgps_internal.check_claim(
    contact pgps_internal.network_contact, mark pgps_internal.network_mark, state pgps_internal.spool_state, upto bigint
) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_handed bigint;
begin
    -- A contact point that is known under a new connection string, too, may have what it was handed under another one.
    if coalesce((check_claim.mark).handed, 0) = 0 then
        v_handed := coalesce((check_claim.state).last_seqn, 0);
    else
        select max(k.handed) into v_handed
        from pgps_internal.network_contact c cross join lateral pgps_internal.network_mark_of(c.contact_id) k
        where c.network_id = (check_claim.contact).network_id;
    end if;
    if check_claim.upto > v_handed then
        perform pgps_internal.refuse_claim(check_claim.contact, check_claim.upto,
            format('was handed nothing behind %s', v_handed));
    end if;
end
$$;
comment on function pgps_internal.check_claim(pgps_internal.network_contact, pgps_internal.network_mark,
    pgps_internal.spool_state, bigint) is
'Raises 55000 when a contact point says that it has what it was never handed: what waits would be discarded for that';

create or replace function pgps_internal.refuse_claim(contact pgps_internal.network_contact, upto bigint, but text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'contact point % has everything up to number %, as it says, and %', (refuse_claim.contact).place,
        refuse_claim.upto, refuse_claim.but
    using errcode = '55000', hint = 'If this broker was put back to an older state: select '
        'pgps.resume_links(''restored''). If not, leave that contact point out: pgps.alter_network(name, contacts).';
end
$$;
comment on function pgps_internal.refuse_claim(pgps_internal.network_contact, bigint, text) is
'Raises 55000 for a contact point that has something else than it was sent, and says what to do';

create or replace function pgps_internal.check_reached(reached jsonb) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if not coalesce(jsonb_typeof(check_reached.reached) = 'object'
        and coalesce(jsonb_typeof(check_reached.reached -> 'upto'), 'null') in ('number', 'null'), false) then
        raise exception 'a contact point does not say so how far it is: %', left(check_reached.reached::text, 100)
        using errcode = '22023', hint = 'Pass what pgps.network_reached(batch) returned there.';
    end if;
end
$$;
comment on function pgps_internal.check_reached(jsonb) is
'Raises 22023 unless that is what pgps.network_reached returns; whoever is at the other end may say anything';

create or replace function pgps_internal.begin_behind(
    contact pgps_internal.network_contact, spool pgps_internal.spool, mark pgps_internal.network_mark,
    state pgps_internal.spool_state, reached jsonb
) returns bigint
language plpgsql
as $$
declare
    v_noted bigint := coalesce((begin_behind.mark).upto, 0);
    v_upto bigint;
    v_said text := begin_behind.reached ->> 'mark';
begin
    perform pgps_internal.check_reached(begin_behind.reached);
    v_upto := (begin_behind.reached ->> 'upto')::bigint;
    if v_upto is null then
        return v_noted;
    elsif v_upto <= v_noted then
        -- Where that contact point was put back, it gets again what has not been discarded here.
        return greatest(v_upto, least(v_noted, coalesce((begin_behind.state).replay_pointer, 0)));
    elsif v_said is null then
        perform pgps_internal.check_claim(begin_behind.contact, begin_behind.mark, begin_behind.state, v_upto);
        return v_upto;
    elsif v_upto <= (begin_behind.state).last_seqn
        and (pgps_internal.is_sent(begin_behind.spool, begin_behind.mark, v_upto, v_said)
            -- Nothing waits for it that it might lose by that, as when it was known under another connection string.
            or pgps_internal.count_live(begin_behind.spool, begin_behind.state, '{}', v_noted + 1, v_upto, true) = 0)
    then
        return v_upto;
    elsif split_part(v_said, ':', 1) = (select b.epoch::text from pgps_internal.broker b) then
        perform pgps_internal.refuse_claim(begin_behind.contact, v_upto, 'another message has that number here');
    end if;
    -- This broker was put back, and has been resumed since. What its former life has sent, too, the contact point
    -- knows by the marks of the messages (known.sql).
    return v_noted;
end
$$;
comment on function pgps_internal.begin_behind(pgps_internal.network_contact, pgps_internal.spool,
    pgps_internal.network_mark, pgps_internal.spool_state, jsonb) is
'Behind which number a contact point is sent what comes next. reached: what pgps.network_reached returned there. Errors:
55000 it has what was never sent by this broker in its present epoch, 22023.';

create or replace function pgps_internal.leave_to_original(batch_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgps_internal.network_mark (line, handed, upto)
    select c.contact_id, t.last_seqn, t.last_seqn
    from pgps_internal.network_contact c join pgps_internal.spool s using (network_id)
    cross join lateral (select t.last_seqn from pgps_internal.spool_state t
        where t.spool_id = s.spool_id and t.batch_id <= leave_to_original.batch_id
        order by t.batch_id desc limit 1) t
    where t.last_seqn > coalesce((pgps_internal.network_mark_of(c.contact_id)).upto, 0);
end
$$;
comment on function pgps_internal.leave_to_original(bigint) is
'What waited for networks when a database was copied, up to a batch, the original sends, and not the copy';

create or replace function pgps_internal.are_marks(marks jsonb, messages jsonb) returns boolean
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select case when coalesce(are_marks.marks, 'null') = 'null' then true
        when jsonb_typeof(are_marks.marks) = 'array' and jsonb_typeof(are_marks.messages) = 'array'
        then jsonb_array_length(are_marks.marks) = jsonb_array_length(are_marks.messages)
            and (select coalesce(bool_and(m ~ '^[0-9]{1,18}:' and octet_length(m) <= 100), true)
                from jsonb_array_elements_text(are_marks.marks) m)
        else false end
$$;
comment on function pgps_internal.are_marks(jsonb, jsonb) is
'Whether these may be the marks of the messages of a batch, one for each; a broker of an older release sends none';

create or replace function pgps_internal.check_batch_of_network(args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if (pgps_internal.me()).state = 'restored' then
        raise exception 'broker "%" was restored from a backup, or copied', pgps_internal.broker_name()
        using errcode = '55000', hint = 'Say which, over there: select pgps.resume_links(''restored''), or ''clone''.';
    end if;
    if not coalesce(jsonb_typeof(args -> 'messages') in ('array', 'null') and args ->> 'broker' ~ '^[0-9a-f-]{36}$'
            and args ? 'name' and args ? 'network' and (select bool_and(jsonb_typeof(args -> field) = 'number')
                from unnest('{network_id,epoch,after,upto}'::text[]) field), false)
        or coalesce(jsonb_typeof(args -> 'from'), 'null') not in ('number', 'null')
        or not pgps_internal.are_marks(args -> 'marks', args -> 'messages')
        or octet_length(args ->> 'mark') > 200 then
        raise exception 'this is no batch of a network''s messages: %', left(args::text, 100)
        using errcode = '22023', hint = 'Pass what pgps.network_next(contact, upto) returned at the other broker.';
    end if;
end
$$;
comment on function pgps_internal.check_batch_of_network(jsonb) is
'Raises when a contact point can take nothing: 55000 this broker was restored, 22023 that is no batch';

create or replace function pgps_internal.do_network_reached(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_origin pgps_internal.network_origin;
    v_mark pgps_internal.network_mark;
begin
    perform pgps_internal.require_link_role(caller, 'spool for networks'), pgps_internal.require_read_committed();
    perform pgps_internal.check_batch_of_network(args);
    v_origin := pgps_internal.hold_origin(caller, args);
    -- From now on nothing of its former epochs is taken, however late it comes.
    update pgps_internal.network_origin o set epoch = (args ->> 'epoch')::integer, name = args ->> 'name'
    where o.origin_id = v_origin.origin_id and o.epoch < (args ->> 'epoch')::integer;
    v_mark := pgps_internal.network_mark_of(-v_origin.origin_id);
    return jsonb_build_object('upto', v_mark.upto, 'mark', v_mark.mark);
end
$$;
comment on function pgps_internal.do_network_reached(name, jsonb) is 'See pgps.network_reached';

create or replace function pgps.network_reached(batch jsonb) returns jsonb
language sql
begin atomic
    select pgps._call('network_reached', network_reached.batch);
end;
comment on function pgps.network_reached(jsonb) is
'How far this contact point is with the messages of the broker whose pgps.network_next returned batch, for
pgps.network_next there: upto, and the mark of that message; nulls when it has none. Batches of earlier epochs of that
broker are refused from now on. Needs what pgps.network_take needs. Errors: 42501, 54000 more networks of one role than
link_networks, 55000 this broker was restored, or that one was and is not resumed, 22023 no such batch, 25001.';

revoke all on function pgps.network_reached(jsonb) from public;
grant execute on function pgps.network_reached(jsonb) to pgps_link, pgps_worker, pgps_admin;
