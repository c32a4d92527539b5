-- A link that one side has dropped at once, and made anew: the other side still has all that it knew of it. What was
-- dropped is noted, up to where it had come, and said when the two meet again. Who finds there what it has itself
-- begins anew, too. A broker that was put back to a state before all that knows nothing of it, and is recognised.
-- Locks: none.
-- Writes: attached, former_link.

create or replace function pgps_internal.last_ends(neighbour_id integer) returns jsonb
language sql
set search_path = pg_catalog, pg_temp
as $$
    select jsonb_strip_nulls(jsonb_build_object('sent', (s.shipment).lseq, 'sent_mark', pgps_internal.mark(s.shipment),
        'received', a.lseq, 'received_mark', a.mark))
    from (select) one
    left join lateral (select h as shipment from pgps_internal.shipment h
        where h.neighbour_id = last_ends.neighbour_id order by h.lseq desc limit 1) s on true
    left join lateral (select i.lseq, i.mark from pgps_internal.arrival i
        where i.neighbour_id = last_ends.neighbour_id order by i.lseq desc limit 1) a on true
$$;
comment on function pgps_internal.last_ends(integer) is
'The number that was sent to a neighbour last, and the one received from it, each with its mark, as far as the ledgers
have them';

create or replace function pgps_internal.link_ends(neighbour pgps_internal.neighbour) returns jsonb
language sql
set search_path = pg_catalog, pg_temp
as $$
    -- Before anything is confirmed, what is sent is no older than the neighbour's row.
    select jsonb_build_object('confirmed', p.received_event, 'confirmed_mark', coalesce(pgps_internal.mark(c),
            extract(epoch from (link_ends.neighbour).created_at)::text), 'sent', 0, 'received', 0)
        || pgps_internal.last_ends((link_ends.neighbour).neighbour_id)
    from pgps_internal.position_of((link_ends.neighbour).subscription_id) p
    left join pgps_internal.shipment c on c.neighbour_id = (link_ends.neighbour).neighbour_id
        and c.lseq = p.received_event
$$;
comment on function pgps_internal.link_ends(pgps_internal.neighbour) is
'Up to where a link has come: the numbers that were sent last, confirmed last and received last, each with its mark';

create or replace function pgps_internal.furthest_ends(former pgps_internal.former_link) returns jsonb
language sql
set search_path = pg_catalog, pg_temp
as $$
    -- Of a neighbour that is forgotten reclaim leaves not the last rows in the ledgers, but those that say how far an
    -- origin has come.
    select (furthest_ends.former).ends
        || case when (l.ends ->> 'sent')::bigint > ((furthest_ends.former).ends ->> 'sent')::bigint
            then l.ends - '{received, received_mark}'::text[] else '{}' end
        || case when (l.ends ->> 'received')::bigint > ((furthest_ends.former).ends ->> 'received')::bigint
            then l.ends - '{sent, sent_mark}'::text[] else '{}' end
    from pgps_internal.last_ends((furthest_ends.former).neighbour_id) l(ends)
$$;
comment on function pgps_internal.furthest_ends(pgps_internal.former_link) is
'Up to where a link had come that was dropped: sessions that were in the middle of something then have come further than
was noted';

create or replace function pgps_internal.has_begun(ends jsonb) returns boolean
language sql immutable
set search_path = pg_catalog, pg_temp
as $$ select (has_begun.ends ->> 'received')::bigint > 0 or (has_begun.ends ->> 'confirmed')::bigint > 0 $$;
comment on function pgps_internal.has_begun(jsonb) is
'Whether the other side of a link is known to have it, since something came from there or was confirmed';

create or replace function pgps_internal.note_former_link(neighbour pgps_internal.neighbour) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ends jsonb := pgps_internal.link_ends(note_former_link.neighbour);
begin
    if pgps_internal.has_begun(v_ends) then
        delete from pgps_internal.former_link f where f.broker_id = (note_former_link.neighbour).broker_id;
    elsif (v_ends ->> 'sent')::bigint = 0 and not exists (select from pgps_internal.link_session s
            where s.neighbour_id = (note_former_link.neighbour).neighbour_id) then
        return;
    end if;
    insert into pgps_internal.former_link (broker_id, neighbour_id, ends)
    values ((note_former_link.neighbour).broker_id, (note_former_link.neighbour).neighbour_id, v_ends);
    -- Some may have been dropped before the other side had heard of them, and nobody knows of which it has. But nobody
    -- makes a link so often in vain.
    delete from pgps_internal.former_link f where f.broker_id = (note_former_link.neighbour).broker_id
        and f.former_id < (select min(l.former_id) from (select x.former_id from pgps_internal.former_link x
            where x.broker_id = f.broker_id order by x.former_id desc limit 10) l);
end
$$;
comment on function pgps_internal.note_former_link(pgps_internal.neighbour) is
'Before a neighbour is forgotten: notes up to where the link to it has come, in place of those before, if the neighbour
knows this one';

create or replace function pgps_internal.do_link_past(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_broker uuid := (args ->> 'broker')::uuid;
    v_now jsonb;
    v_before jsonb;
begin
    perform pgps_internal.require_link_role(caller, 'link brokers');
    select pgps_internal.link_ends(n) into v_now from pgps_internal.neighbour n where n.broker_id = v_broker;
    select to_jsonb(array_agg(pgps_internal.furthest_ends(f) order by f.former_id desc)) into v_before
    from pgps_internal.former_link f where f.broker_id = v_broker;
    if v_before is null or pgps_internal.has_begun(v_now) then
        return null;
    end if;
    return jsonb_build_object('now', v_now, 'before', v_before);
end
$$;
comment on function pgps_internal.do_link_past(name, jsonb) is 'See pgps.link_past';

create or replace function pgps.link_past(broker uuid) returns jsonb
language sql
begin atomic
    select pgps._call('link_past', jsonb_build_object('broker', link_past.broker));
end;
comment on function pgps.link_past(uuid) is
'For a link''s handshake, when pgps.link_identity() says that this broker remembers: up to where the links to a broker
had come that were dropped here, and which it may still have. Null when there are none; else before, and now, how far
the present one is. Whoever opens the link passes that on to that broker, as past of this one''s identity, see
pgps.link_open. Needs pgps_link, pgps_worker or pgps_admin. Errors: 42501.';

create or replace function pgps_internal.is_that_link(ends jsonb, neighbour pgps_internal.neighbour) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_own jsonb := pgps_internal.link_ends(is_that_link.neighbour);
    v_last bigint := (v_own ->> 'received')::bigint;
    v_theirs bigint := (is_that_link.ends ->> 'received')::bigint;
begin
    -- Marks are the times at which something was numbered: what lies between the two ends is of the same link.
    return v_last between (is_that_link.ends ->> 'confirmed')::bigint and (is_that_link.ends ->> 'sent')::bigint
        and (v_last = 0 or (v_own ->> 'received_mark')::numeric
            between (is_that_link.ends ->> 'confirmed_mark')::numeric and (is_that_link.ends ->> 'sent_mark')::numeric)
        and v_theirs >= (v_own ->> 'confirmed')::bigint
        and (v_theirs = 0 or exists (select from pgps_internal.shipment s
            where s.neighbour_id = (is_that_link.neighbour).neighbour_id and s.lseq = v_theirs
                and pgps_internal.mark(s) = is_that_link.ends ->> 'received_mark'));
end
$$;
comment on function pgps_internal.is_that_link(jsonb, pgps_internal.neighbour) is
'Whether the link that the other side says had come so far is the one that is known here: what was received of it was
sent there, and what was received there was sent here';

create or replace function pgps_internal.require_still_known(neighbour pgps_internal.neighbour, ends jsonb)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_theirs bigint := (require_still_known.ends ->> 'received')::bigint;
begin
    -- Not of a link before this one, of which this side has nothing any more.
    if v_theirs > pgps_internal.last_sent((require_still_known.neighbour).neighbour_id)
        and (require_still_known.ends ->> 'received_mark')::numeric
            >= extract(epoch from (require_still_known.neighbour).created_at) then
        raise exception 'broker "%" has received % from broker "%", which was never sent: broker "%" was restored',
            (require_still_known.neighbour).name, v_theirs, pgps_internal.broker_name(), pgps_internal.broker_name()
        using errcode = '55000', hint = format('On broker "%s": select pgps.resume_links(''restored'')',
            pgps_internal.broker_name());
    end if;
end
$$;
comment on function pgps_internal.require_still_known(pgps_internal.neighbour, jsonb) is
'Raises 55000 when the other side has dropped the link, and had received more of it than this one knows: this one was
restored';

create or replace function pgps_internal.is_made_anew(neighbour pgps_internal.neighbour, peer jsonb) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_past jsonb := nullif(is_made_anew.peer -> 'past', 'null');
    v_own jsonb;
begin
    if v_past is null or (is_made_anew.neighbour).neighbour_id is null
        or (is_made_anew.neighbour).epoch <> (is_made_anew.peer ->> 'epoch')::integer then
        return false;
    end if;
    v_own := pgps_internal.link_ends(is_made_anew.neighbour);
    -- Where nothing has come to and fro, there is nothing to begin anew.
    if not pgps_internal.has_begun(v_own)
        or pgps_internal.is_that_link(nullif(v_past -> 'now', 'null'), is_made_anew.neighbour) then
        return false;
    elsif exists (select from jsonb_array_elements(v_past -> 'before') b
            where pgps_internal.is_that_link(b.value, is_made_anew.neighbour)) then
        return true;
    end if;
    perform pgps_internal.require_still_known(is_made_anew.neighbour, v_past #> '{before,0}');
    return false;
end
$$;
comment on function pgps_internal.is_made_anew(pgps_internal.neighbour, jsonb) is
'Whether a neighbour has dropped the link as it is known here, and made it anew, by what it says of its past. Errors:
55000 this broker was restored.';

create or replace function pgps_internal.hold_for(neighbour_id integer, attached pgps_internal.attached[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Under a number that nobody gives, and waiting for a filter that nobody has: never answered, but what is kept for
    -- it is kept.
    insert into pgps_internal.attached (neighbour_id, origin_id, attachment, horizon, keep, missing, low)
    select hold_for.neighbour_id, a.origin_id, -1, a.horizon, '{}', '{*}', a.low from unnest(hold_for.attached) a;
end
$$;
comment on function pgps_internal.hold_for(integer, pgps_internal.attached[]) is
'Until a neighbour with which this broker begins anew has said which origins it attaches here (pgps_internal.hear_low),
keeps what has not come to it of those that it had attached';

revoke all on function pgps.link_past(uuid) from public;
grant execute on function pgps.link_past(uuid) to pgps_link, pgps_worker, pgps_admin;
