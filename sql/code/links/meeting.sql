-- Two brokers meet: a session that sends to or receives from a neighbour, who may have it, and what is refused.
-- Locks: the turns of neighbours and of sending, the rows of neighbour and link_session.
-- Writes: broker, link, link_session, neighbour, subscription.

create or replace function pgps_internal.check_peer(peer jsonb, me pgps_internal.broker) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_restored text := case when (check_peer.me).state <> 'active' then pgps_internal.broker_name()
        when check_peer.peer ->> 'state' <> 'active' then coalesce(check_peer.peer ->> 'name', '') end;
    v_is_put_back boolean;
begin
    if coalesce(check_peer.peer ->> 'broker', '') !~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then
        raise exception 'invalid id of a broker "%"', left(coalesce(check_peer.peer ->> 'broker', 'null'), 100)
        using errcode = '22023', hint = 'Give what pgps.link_identity() says there.';
    elsif coalesce(check_peer.peer ->> 'epoch', '') !~ '^\d{1,9}$' then
        raise exception 'invalid epoch of a broker "%"', left(coalesce(check_peer.peer ->> 'epoch', 'null'), 100)
        using errcode = '22023', hint = 'Give what pgps.link_identity() says there.';
    elsif coalesce(check_peer.peer ->> 'name', '') = '' or octet_length(check_peer.peer ->> 'name') > 63
        or check_peer.peer ->> 'name' ~ '[[:cntrl:]]' then
        raise exception 'invalid name of a broker "%"', left(coalesce(check_peer.peer ->> 'name', 'null'), 100)
        using errcode = '22023', hint = 'A name has 1 to 63 bytes and no control characters.';
    elsif v_restored is not null then
        -- In the same database the files of the server were put back, and there is no other one that lives on.
        v_is_put_back := case when (check_peer.me).state <> 'active'
            then pgps_internal.is_this_database((check_peer.me).incarnation)
            else coalesce((check_peer.peer ->> 'is_put_back')::boolean, false) end;
        raise exception 'broker "%" was restored%', v_restored, case when v_is_put_back then '' else ' or cloned' end
        using errcode = '55000', hint = case
            when v_is_put_back then format('On broker "%s": select pgps.resume_links(''restored'')', v_restored)
            else 'On it: select pgps.resume_links(''restored'') if the original is gone, '
                'pgps.resume_links(''clone'') if it lives on.' end;
    elsif (check_peer.peer ->> 'broker')::uuid = (check_peer.me).broker_id then
        raise exception 'the link leads to this broker itself' using errcode = '22023',
            hint = 'Change conninfo with pgps.alter_link; if the other one is a copy of this database: '
                'pgps.resume_links(''clone'') there.';
    elsif check_peer.peer ->> 'protocol' is distinct from '1' then
        raise exception 'broker "%" has pgps % with link protocol %, this one protocol 1', check_peer.peer ->> 'name',
            check_peer.peer ->> 'version',
            check_peer.peer ->> 'protocol' using errcode = '0A000', hint = 'Upgrade the older one: pgps upgrade DSN';
    end if;
end
$$;
comment on function pgps_internal.check_peer(jsonb, pgps_internal.broker) is
'Raises when two brokers cannot be linked: 22023 no id, epoch or name of a broker, or the same one, 55000
restored or cloned, 0A000 another protocol';

create or replace function pgps_internal.served_link(caller name, name text) returns pgps_internal.link
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_link pgps_internal.link;
begin
    perform pgps_internal.require_worker(served_link.caller, 'serve links');
    select l.* into v_link from pgps_internal.link l where l.name = served_link.name and l.enabled;
    if not found then
        raise exception 'link "%" was paused or dropped', served_link.name using errcode = '55000',
            hint = 'See pgps.links.';
    end if;
    return v_link;
end
$$;
comment on function pgps_internal.served_link(name, text) is
'The link that a worker of this broker serves; 42501 when the caller is none, 55000 when the link is not enabled any
more';

create or replace function pgps_internal.put_behind(neighbour pgps_internal.neighbour, link pgps_internal.link)
returns pgps_internal.neighbour
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_neighbour pgps_internal.neighbour;
begin
    if (put_behind.neighbour).link_id is not null then
        raise exception 'link "%" leads to broker "%", and so does link "%"', (put_behind.link).name,
            (put_behind.neighbour).name,
            (select l.name from pgps_internal.link l where l.link_id = (put_behind.neighbour).link_id)
        using errcode = '42710', hint = 'Drop one of them: pgps.drop_link(name).';
    end if;
    update pgps_internal.neighbour n
    set link_id = (put_behind.link).link_id, direction = (put_behind.link).direction, role = (put_behind.link).role
    where n.neighbour_id = (put_behind.neighbour).neighbour_id returning * into v_neighbour;
    update pgps_internal.subscription s set owner = (put_behind.link).role
    where s.subscription_id = v_neighbour.subscription_id;
    return v_neighbour;
end
$$;
comment on function pgps_internal.put_behind(pgps_internal.neighbour, pgps_internal.link) is
'Notes that a neighbour, which had made the link itself, is at the end of a link of this broker, with its direction and
role. Errors: 42710 it is at the end of another one.';

create or replace function pgps_internal.enter_neighbour(
    peer jsonb, role regrole, link pgps_internal.link, before pgps_internal.neighbour
) returns pgps_internal.neighbour
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_neighbour pgps_internal.neighbour;
begin
    if (enter_neighbour.link).link_id is null then
        perform pgps_internal.check_neighbours(enter_neighbour.role);
    end if;
    v_neighbour := pgps_internal.make_neighbour(enter_neighbour.peer, enter_neighbour.role,
        (enter_neighbour.link).link_id, coalesce((enter_neighbour.link).direction, 'both'));
    update pgps_internal.neighbour n set is_draining = true,
        is_dropped_here = coalesce((enter_neighbour.before).is_dropped_here, false)
            or coalesce((enter_neighbour.link).is_dropped, false)
    where n.neighbour_id = v_neighbour.neighbour_id
        and ((enter_neighbour.before).is_draining or (enter_neighbour.link).is_dropped);
    update pgps_internal.link l set is_known = false
        where l.link_id = (enter_neighbour.link).link_id and l.is_known;
    return v_neighbour;
end
$$;
comment on function pgps_internal.enter_neighbour(jsonb, regrole, pgps_internal.link, pgps_internal.neighbour) is
'Enters a broker that is met for the first time in its epoch; before: what it was in an earlier one. It begins to drain
when it did so before, or its link is dropped.';

create or replace function pgps_internal.require_speaker(caller name, neighbour pgps_internal.neighbour) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if not pg_has_role(caller, (require_speaker.neighbour).role::oid, 'usage')
        and not pg_has_role(caller, 'pgps_admin', 'usage') then
        raise exception 'role "%" does not speak for broker "%"', caller, (require_speaker.neighbour).name
        using errcode = '42501', hint = format('That is role %s; if it is another now, drop the link on both sides '
            'first.', (require_speaker.neighbour).role);
    end if;
end
$$;
comment on function pgps_internal.require_speaker(name, pgps_internal.neighbour) is
'Raises 42501 unless a role may speak for a broker that is known; an administrator may for all';

create or replace function pgps_internal.meet(caller name, args jsonb) returns pgps_internal.neighbour
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_peer jsonb := args -> 'peer';
    v_link pgps_internal.link;
    v_neighbour pgps_internal.neighbour;
    v_before pgps_internal.neighbour;
    v_attached pgps_internal.attached[];
    -- An administrator's own rights, above all a superuser's, are not given to a neighbour.
    v_role regrole := case when pg_has_role(caller, 'pgps_admin', 'usage') then 'pgps_neighbour'
        else quote_ident(caller) end::regrole;
begin
    perform pgps_internal.check_peer(v_peer, pgps_internal.me());
    if args ->> 'link' is not null then
        v_link := pgps_internal.served_link(caller, args ->> 'link');
        v_role := v_link.role;
    end if;
    -- Of two sessions that meet the same broker at once, the second finds what the first has entered.
    perform pgps_internal.hold_neighbours();
    if exists (select from pgps_internal.neighbour n where n.broker_id = (v_peer ->> 'broker')::uuid
        and (n.epoch < (v_peer ->> 'epoch')::integer or v_peer ->> 'past' is not null)) then
        perform pgps_internal.hold_routes();
    end if;
    select n.* into v_neighbour from pgps_internal.neighbour n
        where n.broker_id = (v_peer ->> 'broker')::uuid for update;
    -- Checked before the epoch, because what follows may forget the neighbour of an earlier epoch.
    perform pgps_internal.require_speaker(caller, v_neighbour) where v_link.link_id is null;
    if v_neighbour.epoch < (v_peer ->> 'epoch')::integer or pgps_internal.is_made_anew(v_neighbour, v_peer) then
        -- It was restored and resumed, or has dropped the link and made it anew: numbering begins anew in both
        -- directions.
        v_attached := array(select a from pgps_internal.attached a where a.neighbour_id = v_neighbour.neighbour_id);
        perform pgps_internal.forget_neighbour(v_neighbour.neighbour_id);
        v_link.link_id := coalesce(v_link.link_id, v_neighbour.link_id);
        v_before := v_neighbour;
        v_neighbour := null;
    elsif v_neighbour.epoch > (v_peer ->> 'epoch')::integer then
        raise exception 'broker "%" is in epoch %, and was in % before', v_peer ->> 'name', v_peer ->> 'epoch',
            v_neighbour.epoch using errcode = '55000',
            hint = 'It is an older copy. On it: select pgps.resume_links(''clone'').';
    end if;
    if v_neighbour.neighbour_id is null and (v_peer ->> 'draining')::boolean then
        return null;
    elsif v_neighbour.neighbour_id is null then
        v_neighbour := pgps_internal.enter_neighbour(v_peer, v_role, v_link, v_before);
        perform pgps_internal.hold_for(v_neighbour.neighbour_id, v_attached);
        return v_neighbour;
    elsif v_link.link_id is not null and v_neighbour.link_id is distinct from v_link.link_id then
        v_neighbour := pgps_internal.put_behind(v_neighbour, v_link);
    end if;
    update pgps_internal.neighbour n set name = v_peer ->> 'name' where n.neighbour_id = v_neighbour.neighbour_id
        and n.name <> v_peer ->> 'name';
    return v_neighbour;
end
$$;
comment on function pgps_internal.meet(name, jsonb) is
'The neighbour that a session speaks for, entered if new: with the role of the link when a worker of this broker
connects it, otherwise with the role that first spoke for it. Null when the peer is dropping the link and this broker
does not know it any more. Errors: those of check_peer, 42710 a second link to it, 42501 another role''s, 55000 an older
epoch.';

create or replace function pgps_internal.do_link_open(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_neighbour pgps_internal.neighbour;
    v_taken boolean;
    v_last pgps_internal.arrival;
begin
    perform pgps_internal.require_link_role(caller, 'link brokers');
    if args ->> 'duty' is null or args ->> 'duty' not in ('send', 'receive', 'look') then
        raise exception 'invalid duty "%"', args ->> 'duty' using errcode = '22023',
            hint = 'Use send, receive or look.';
    end if;
    v_neighbour := pgps_internal.meet(caller, args);
    update pgps_internal.neighbour n set is_audited = x.audits, is_recounted = x.recounts
    from (select coalesce((args #>> '{peer,audits}')::boolean, false) as audits,
        coalesce((args #>> '{peer,recounts}')::boolean, false) as recounts) x
    where n.neighbour_id = v_neighbour.neighbour_id
        and (n.is_audited, n.is_recounted) is distinct from (x.audits, x.recounts);
    perform pgps_internal.meets_neighbour(v_neighbour.neighbour_id, args -> 'peer');
    if v_neighbour.neighbour_id is null then
        return '{"gone": true}';
    elsif args ->> 'duty' = 'look' then
        return jsonb_build_object('neighbour', v_neighbour.neighbour_id, 'name', v_neighbour.name, 'taken', false,
            'last', 0, 'mark', '',
            'channel', format('pgps_%s', v_neighbour.subscription_id));
    end if;
    delete from pgps_internal.link_session s where s.holder = pgps_internal.holder()
        or s.neighbour_id = v_neighbour.neighbour_id and s.duty = args ->> 'duty'
            and not pgps_internal.is_alive(s.holder);
    insert into pgps_internal.link_session (neighbour_id, duty, holder, caller)
    values (v_neighbour.neighbour_id, args ->> 'duty', pgps_internal.holder(), caller) on conflict do nothing;
    v_taken := not found;
    select i.* into v_last from pgps_internal.arrival i where i.neighbour_id = v_neighbour.neighbour_id
        order by i.lseq desc limit 1;
    return jsonb_build_object('neighbour', v_neighbour.neighbour_id, 'name', v_neighbour.name, 'taken', v_taken, 'last',
        coalesce(v_last.lseq, 0),
        'mark', v_last.mark, 'channel', format('pgps_%s', v_neighbour.subscription_id));
end
$$;
comment on function pgps_internal.do_link_open(name, jsonb) is 'See pgps.link_open';

create or replace function pgps.link_open(peer jsonb, duty text, link text = null) returns jsonb
language sql
begin atomic
    select pgps._call('link_open',
        jsonb_build_object('peer', link_open.peer, 'duty', link_open.duty, 'link', link_open.link));
end;
comment on function pgps.link_open(jsonb, text, text) is
'Makes this session the one that sends to, or receives from, a neighbour, until it ends. peer: what pgps.link_identity()
says there, with past what pgps.link_past(…) says there of this broker: if that has dropped the link as it is known
here, this side begins anew, too. duty: send, receive, or look (only whether it may). link: the link''s name when this
broker defined it; needs pgps_worker then, else pgps_link and to be the role that first spoke for that broker. Returns
neighbour, name, taken (true: another session has that duty), last and mark (what was received last), channel (to LISTEN
on); only gone (true) when peer says draining and this broker has dropped the link already. Errors: 42501, 22023 the
broker itself, or no broker, 42710 a second link to it, 54000 more brokers under one role than link_neighbours, 55000
restored or cloned, 0A000 another protocol.';

create or replace function pgps_internal.told_text(said text, most integer) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    -- Also what turns the direction of a line around, or is not seen.
    select case when length(s.said) > told_text.most then left(s.said, told_text.most - 1) || '…' else s.said end
    from (select regexp_replace(left(told_text.said, 10 * told_text.most),
        '[\u0001-\u001f\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]+', ' ', 'g')
        as said) s
$$;
comment on function pgps_internal.told_text(text, integer) is
'What another broker has said, as it is kept to be shown: at most so many characters, none of which controls a
terminal';

create or replace function pgps_internal.do_link_refused(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id integer;
    -- A worker or an administrator of this broker. If a neighbour says so, only its own link stays down.
    v_is_own boolean := pg_has_role(caller, 'pgps_worker', 'usage') or pg_has_role(caller, 'pgps_admin', 'usage');
    v_is_me boolean;
begin
    -- Never beside pgps.resume_links: what was noticed of the former epoch does not hold for the present one, and would
    -- block for good the links that were just resumed. Nor beside a session that sends: what it sends belongs to the
    -- former life, whose end is noted here.
    perform pgps_internal.hold_sending(alone => true);
    perform pgps_internal.hold_routes();
    v_id := (select s.neighbour_id from pgps_internal.link_session s where s.holder = pgps_internal.holder() limit 1);
    v_is_me := exists (select from pgps_internal.broker b
        where args ->> 'detail' = pgps_internal.restored_one(b.broker_id, b.epoch));
    if v_id is null then
        raise exception 'this session has not opened a link' using errcode = '55000',
            hint = 'First: select pgps.link_open(peer, duty)';
    end if;
    -- The value of the first notice is kept: if the server is started again before an administrator resumes, batches of
    -- the present life would count as former ones.
    update pgps_internal.neighbour n
    set refusal = pgps_internal.told_text(args ->> 'error', 300),
        refusal_hint = pgps_internal.told_text(args ->> 'hint', 300),
        refused_by = case when not v_is_own then caller end,
        claimed_at = case when v_is_me and v_is_own then coalesce(n.claimed_at, pgps_internal.clock())
            when not v_is_own then n.claimed_at end,
        former_batch = case when v_is_me then coalesce(n.former_batch,
            pgps_internal.last_of_former_life((pgps_internal.position_of(n.subscription_id)).received_batch)) end
    where n.neighbour_id = v_id;
    if v_is_me and v_is_own then
        update pgps_internal.broker b set state = 'restored' where b.state <> 'restored';
        delete from pgps_internal.link_session s where s.holder <> pgps_internal.holder();
    end if;
end
$$;
comment on function pgps_internal.do_link_refused(name, jsonb) is 'See pgps.link_refused';

create or replace function pgps.link_refused(error text, hint text, detail text = null) returns void
language sql
begin atomic
    select pgps._call('link_refused',
        jsonb_build_object('error', link_refused.error, 'hint', link_refused.hint, 'detail', link_refused.detail));
end;
comment on function pgps.link_refused(text, text, text) is
'Records at this broker why the link that this session has opened cannot carry events: link_next, here or at the
neighbour, refused the position of what was received last. The link is blocked in pgps.links until link_next finds
nothing wrong. error, hint, detail: as that call raised them. When the detail names this broker in its present epoch as
the one that was restored, and a worker of this broker says so, all its links stay down until pgps.resume_links, or
until every link over which that was said is dropped with cascade. Of error and hint 300 characters are kept, without
control characters. Locks: changes of routes wait until the transaction ends. Needs pgps.link_open. Errors: 55000.';

create or replace function pgps_internal.linked(duty text) returns pgps_internal.neighbour
language plpgsql stable
as $$
declare
    v_neighbour pgps_internal.neighbour;
begin
    select n.* into v_neighbour from pgps_internal.link_session s join pgps_internal.neighbour n using (neighbour_id)
    where s.holder = pgps_internal.holder() and s.duty = linked.duty;
    if not found then
        raise exception 'this session has not opened a link' using errcode = '55000',
            hint = 'First: select pgps.link_open(peer, duty)';
    elsif v_neighbour.is_blocked then
        raise exception 'the link to broker "%" is blocked: %', v_neighbour.name, v_neighbour.last_error
            using errcode = '55000',
            hint = 'See pgps.links.';
    end if;
    return v_neighbour;
end
$$;
comment on function pgps_internal.linked(text) is
'The neighbour that this session has opened a link to; 55000 when none, or blocked';

revoke all on function pgps.link_open(jsonb, text, text), pgps.link_refused(text, text, text) from public;
grant execute on function pgps.link_open(jsonb, text, text), pgps.link_refused(text, text, text) to pgps_link,
    pgps_worker, pgps_admin;
