-- The long haul: what is spooled for a network gets numbers in a spool of its own where a batch is cut, as everywhere.
-- A worker reads it from there behind what a contact point has, and lets the contact point take it: that writes the
-- messages into its log and the number it has reached in one transaction, so a message arrives exactly once whatever
-- dies. They are discarded here when all contact points have them.
-- Locks: the turn of a network, so that what is read to be sent cannot be cancelled any more; at a contact point the
-- turn of an origin; of the spool of a network for which something is spooled, the row, for key share. Until the
-- transaction ends.
-- Writes: network_contact, network_mark.

create or replace function pgps_internal.network_mark_of(line bigint) returns pgps_internal.network_mark
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_mark pgps_internal.network_mark;
begin
    select m.* into v_mark from pgps_internal.network_mark m where m.line = network_mark_of.line
        order by m.mark_id desc limit 1;
    return v_mark;
end
$$;
comment on function pgps_internal.network_mark_of(bigint) is 'How far a line is; null before the first message';

create or replace function pgps_internal.carry_over_networks(segment regclass) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('insert into pgps_internal.network_mark (line, handed, upto, marked_at, mark)
        select o.line, o.handed, o.upto, o.marked_at, o.mark from %s o
        where not exists (select from pgps_internal.network_mark n where n.line = o.line and n.mark_id > o.mark_id)
            and (o.line < 0 or exists (select from pgps_internal.network_contact c where c.contact_id = o.line))
        order by o.mark_id', carry_over_networks.segment);
end
$$;
comment on function pgps_internal.carry_over_networks(regclass) is
'Before a segment of network_mark is truncated: writes the newest row of each line again';

create or replace function pgps_internal.hold_network(network_id integer) returns void
language plpgsql
as $$
begin
    perform pgps_internal.hold('n', hold_network.network_id);
end
$$;
comment on function pgps_internal.hold_network(integer) is
'Takes the turn of handing out what waits for a network, or of cancelling some of it';

create or replace function pgps_internal.outbox_of(caller name, spool text, network text) returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_network pgps_internal.network := pgps_internal.find_network(outbox_of.network);
    v_name text := pgps_internal.check_name(outbox_of.spool, 'spool');
    v_outbox integer;
begin
    -- Whoever may spool here may spool there. Without a spool of that name here nobody could have been granted it.
    if exists (select from pgps_internal.spool s where s.name = v_name and s.network_id is null) then
        perform pgps_internal.find_spool(caller, outbox_of.spool, 'spool');
    elsif not pg_has_role(caller, 'pgps_admin', 'usage') then
        raise exception 'role "%" may not spool into spool "%" of network "%"', caller, v_name, v_network.name
        using errcode = '42501', hint = format('Ask an administrator for: select pgps.create_spool(%1$L), and '
            'pgps.grant_spool(%1$L, ''spool'', %2$L): the rights at the spool of that name here count.',
            quote_ident(v_name), caller);
    end if;
    -- Whoever drops the network waits for this transaction, and then sees what waits.
    select s.spool_id into v_outbox from pgps_internal.spool s where s.network_id = v_network.network_id for key share;
    if not found then
        if exists (select from pgps_internal.network n where n.network_id = v_network.network_id) then
            raise exception 'network "%" has no spool in which messages could wait', v_network.name
            using errcode = '42704', hint = format('Drop it, and create it again: select pgps.drop_network(%L)',
                quote_ident(v_network.name));
        end if;
        -- It was dropped just now, and may have been made again.
        return pgps_internal.outbox_of(outbox_of.caller, outbox_of.spool, outbox_of.network);
    end if;
    return v_outbox;
end
$$;
comment on function pgps_internal.outbox_of(name, text, text) is
'The spool in which messages wait for a network, after a check whether the caller may spool there; it is kept until the
transaction ends. Errors: 42704 no such network, 42501.';

create or replace function pgps_internal.do_serve_networks(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.require_worker(caller, 'serve networks');
    return (select coalesce(to_jsonb(array_agg(jsonb_build_object('contact', c.contact_id, 'network', n.name,
            'conninfo', c.conninfo, 'username', n.username, 'passfile', n.passfile,
            'channel', 'pgps_spool_' || s.spool_id) order by n.name, c.place)), '[]')
        from pgps_internal.network_contact c join pgps_internal.network n using (network_id)
        join pgps_internal.spool s using (network_id));
end
$$;
comment on function pgps_internal.do_serve_networks(name, jsonb) is 'See pgps.serve_networks';

create or replace function pgps_internal.do_network_open(caller name, args jsonb) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_holder text := pgps_internal.holder();
begin
    perform pgps_internal.require_worker(caller, 'serve networks');
    if (pgps_internal.me()).state = 'restored' then
        raise exception 'this broker was restored from a backup, or copied' using errcode = '55000',
            hint = 'Say which: select pgps.resume_links(''restored''), or ''clone''.';
    end if;
    update pgps_internal.network_contact c set holder = v_holder, pid = pg_backend_pid()
    where c.contact_id = (args ->> 'contact')::bigint and (c.holder is null or c.holder = v_holder
        or not exists (select from pg_stat_get_activity(c.pid) a
            where format('%s@%s', a.pid, extract(epoch from a.backend_start)) = c.holder));
    return found;
end
$$;
comment on function pgps_internal.do_network_open(name, jsonb) is 'See pgps.network_open';

create or replace function pgps_internal.do_note_contact(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.require_worker(caller, 'serve networks');
    update pgps_internal.network_contact c set state = args ->> 'state', last_error = args ->> 'error',
        hint = args ->> 'hint', changed_at = pgps_internal.clock()
    where c.contact_id = (args ->> 'contact')::bigint
        and (c.state, c.last_error, c.hint) is distinct from (args ->> 'state', args ->> 'error', args ->> 'hint');
end
$$;
comment on function pgps_internal.do_note_contact(name, jsonb) is 'See pgps.note_contact';

create or replace function pgps_internal.read_outbox(
    spool pgps_internal.spool, state pgps_internal.spool_state, after_seqn bigint, max_messages integer,
    out upto bigint, out messages jsonb, out marks jsonb
) returns record
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- As many as fit into 4 MB, one at least.
    execute 'select max(o.seqn), to_jsonb(array_agg(o.message || jsonb_build_object(''entry'', o.entry, ''keys'',
            o.keys, ''keywords'', o.keywords, ''expires'', o.expires, ''sender'', o.sender, ''spooler'', o.spooler,
            ''spooled_at'', o.spooled_at) order by o.seqn)),
            to_jsonb(array_agg(format(''%s:%s'', o.id, extract(epoch from o.spooled_at)) order by o.seqn))
        from (select m.*, sum(m.bytes) over (order by m.seqn) - m.bytes as before
            from (select m.* ' || pgps_internal.live_text(read_outbox.spool, '{}', true,
                ' order by m.seqn limit $5') || ') m) o
        where o.before < 4194304'
    using (read_outbox.spool).spool_id, read_outbox.after_seqn + 1, (read_outbox.state).last_seqn,
        (read_outbox.state).emptied, read_outbox.max_messages
    into upto, messages, marks;
end
$$;
comment on function pgps_internal.read_outbox(pgps_internal.spool, pgps_internal.spool_state, bigint, integer) is
'The next messages for a network after a number, the number of the last of them, and of each what tells it from all
others (see pgps_internal.mark_of_spooled); nulls when there is nothing';

create or replace function pgps_internal.managed(contact bigint) returns pgps_internal.network_contact
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_contact pgps_internal.network_contact;
begin
    select c.* into v_contact from pgps_internal.network_contact c where c.contact_id = managed.contact;
    if v_contact.holder is distinct from pgps_internal.holder() then
        raise exception 'contact point % is not managed by this session', managed.contact
        using errcode = '55000', hint = 'Begin with pgps.network_open.';
    end if;
    return v_contact;
end
$$;
comment on function pgps_internal.managed(bigint) is
'The contact point of which this session is the manager. Errors: 55000 it is not, or there is none';

create or replace function pgps_internal.do_network_next(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_contact pgps_internal.network_contact;
    v_network pgps_internal.network;
    v_spool pgps_internal.spool;
    v_state pgps_internal.spool_state;
    v_me pgps_internal.broker := pgps_internal.me();
    v_mark pgps_internal.network_mark;
    v_after bigint := (args ->> 'upto')::bigint;
    v_upto bigint;
    v_messages jsonb;
    v_marks jsonb;
    v_said text;
begin
    perform pgps_internal.require_worker(caller, 'serve networks'), pgps_internal.require_read_committed();
    v_contact := pgps_internal.managed((args ->> 'contact')::bigint);
    perform pgps_internal.enter_store();
    select n.* into v_network from pgps_internal.network n where n.network_id = v_contact.network_id;
    select s.* into v_spool from pgps_internal.spool s where s.network_id = v_network.network_id;
    v_mark := pgps_internal.network_mark_of(v_contact.contact_id);
    v_state := pgps_internal.standing_of_spool(v_spool.spool_id);
    if args ->> 'reached' is not null then
        v_after := pgps_internal.begin_behind(v_contact, v_spool, v_mark, v_state, args -> 'reached');
    else
        v_after := coalesce(v_after, v_mark.upto, 0);
        perform pgps_internal.check_claim(v_contact, v_mark, v_state, v_after);
    end if;
    if v_state.last_seqn > v_after and v_state.messages > 0
        and coalesce(args ->> 'upto', args ->> 'reached') is not null then
        perform pgps_internal.hold_network(v_network.network_id);
        -- It may have been left out while this waited, and nobody would know what it was handed.
        v_contact := pgps_internal.managed(v_contact.contact_id);
        v_state := pgps_internal.standing_of_spool(v_spool.spool_id);
        select r.upto, r.messages, r.marks into v_upto, v_messages, v_marks
        from pgps_internal.read_outbox(v_spool, v_state, v_after, (args ->> 'max_messages')::integer) r;
        v_said := pgps_internal.mark_of_spooled(v_spool.spool_id, v_upto);
    end if;
    if v_after is distinct from v_mark.upto or v_upto > v_mark.handed then
        insert into pgps_internal.network_mark (line, handed, upto, mark)
        values (v_contact.contact_id, greatest(v_mark.handed, v_upto, v_after), v_after,
            case when v_upto >= coalesce(v_mark.handed, 0) then v_said else v_mark.mark end);
    end if;
    perform pgps_internal.forget_arrived(caller, v_spool, v_state, v_upto is null);
    return jsonb_build_object('broker', v_me.broker_id, 'epoch', v_me.epoch, 'name', pgps_internal.broker_name(),
        'network', v_network.name, 'network_id', v_network.network_id, 'after', v_after,
        'upto', coalesce(v_upto, v_after), 'messages', v_messages, 'mark', v_said,
        'marks', v_marks, 'from', args -> 'reached' -> 'upto');
end
$$;
comment on function pgps_internal.do_network_next(name, jsonb) is 'See pgps.network_next';

create or replace function pgps_internal.arrived_everywhere(network_id integer) returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(min(coalesce(k.upto, 0)), 0)
    from pgps_internal.network_contact c left join lateral pgps_internal.network_mark_of(c.contact_id) k on true
    where c.network_id = arrived_everywhere.network_id
$$;
comment on function pgps_internal.arrived_everywhere(integer) is
'Up to which number the messages for a network have arrived at all its contact points';

create or replace function pgps_internal.forget_arrived(
    caller name, spool pgps_internal.spool, state pgps_internal.spool_state, is_idle boolean
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_arrived bigint := pgps_internal.arrived_everywhere((forget_arrived.spool).network_id);
    v_asked bigint;
begin
    if v_arrived <= coalesce((forget_arrived.state).replay_pointer, 0) then
        return;
    end if;
    -- Asking makes a batch: a thousand messages are worth it, or the end of work.
    v_asked := coalesce(greatest((forget_arrived.state).replay_pointer,
        pgps_internal.asked_pointer((forget_arrived.spool).spool_id)), 0);
    if v_arrived - v_asked >= 1000 or v_arrived > v_asked and forget_arrived.is_idle then
        perform pgps_internal.ask_spool(caller, spool, 'r', v_arrived), pgps_internal.ask_spool(caller, spool, 'd',
            null, '{}');
    end if;
end
$$;
comment on function pgps_internal.forget_arrived(name, pgps_internal.spool, pgps_internal.spool_state, boolean) is
'Asks for what has arrived at all contact points of a network to be discarded, now and then';

create or replace function pgps_internal.do_network_take(caller name, args jsonb) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_origin pgps_internal.network_origin;
    v_upto bigint;
    v_messages jsonb;
begin
    perform pgps_internal.require_link_role(caller, 'spool for networks'), pgps_internal.require_read_committed();
    perform pgps_internal.check_batch_of_network(args);
    v_origin := pgps_internal.enter_origin(caller, args);
    v_upto := (pgps_internal.network_mark_of(-v_origin.origin_id)).upto;
    if v_upto <> (args ->> 'after')::bigint or (args ->> 'upto')::bigint <= v_upto then
        return v_upto;
    end if;
    v_messages := pgps_internal.unknown_of_batch(v_origin.origin_id, args);
    perform pgps_internal.check_arrived(args -> 'messages');
    perform pgps_internal.spool_arrived(caller, v_messages) where v_messages <> '[]';
    perform pgps_internal.remember_batch(v_origin.origin_id, args);
    insert into pgps_internal.network_mark (line, handed, upto, mark)
    values (-v_origin.origin_id, (args ->> 'upto')::bigint, (args ->> 'upto')::bigint, args ->> 'mark');
    return (args ->> 'upto')::bigint;
end
$$;
comment on function pgps_internal.do_network_take(name, jsonb) is 'See pgps.network_take';

create or replace function pgps.serve_networks() returns jsonb
language sql
begin atomic
    select pgps._call('serve_networks', '{}');
end;
comment on function pgps.serve_networks() is
'The contact points that a worker of this broker has to serve: contact, network, conninfo, username, passfile, and the
channel that tells of new messages. Needs pgps_worker or pgps_admin. Errors: 42501.';

create or replace function pgps.network_open(contact bigint) returns boolean
language sql
begin atomic
    select pgps._call('network_open', jsonb_build_object('contact', network_open.contact))::boolean;
end;
comment on function pgps.network_open(bigint) is
'Makes this session the manager of the connection to a contact point, until it ends; false while another session is, or
when there is no such contact point. Needs pgps_worker or pgps_admin. Errors: 42501, 55000 this broker was restored.';

drop function if exists pgps.network_next(bigint, bigint, integer);
create or replace function pgps.network_next(
    contact bigint, upto bigint = null, max_messages integer = 1000, reached jsonb = null
) returns jsonb
language sql
begin atomic
    select pgps._call('network_next', jsonb_build_object('contact', network_next.contact, 'upto', network_next.upto,
        'max_messages', network_next.max_messages, 'reached', network_next.reached));
end;
comment on function pgps.network_next(bigint, bigint, integer, jsonb) is
'Notes that a contact point has everything up to the number upto, and returns what comes next, for pgps.network_take
there; without upto: up to which number it had everything, and no messages. reached: where a connection begins, what
pgps.network_reached returned there, in place of upto. Needs pgps_worker or pgps_admin. Errors: 42501, 55000 this
session is not the manager, or the contact point has what it was never handed, 22023 nothing that it can say, 25001.';

create or replace function pgps.network_take(batch jsonb) returns bigint
language sql
begin atomic
    select pgps._call('network_take', network_take.batch)::bigint;
end;
comment on function pgps.network_take(jsonb) is
'Spools at a contact point what pgps.network_next returned, once; returns up to which number it has everything of that
broker. Needs pgps_link, pgps_worker or pgps_admin, to be the role that first spoke for that broker or a member of it,
and the privilege spool at the spools (a spool that is made gives it to the role; workers and administrators need none).
Errors: 42501, 54000 more networks or spools of one role than link_networks or link_spools, 55000 this broker was
restored, 22023 no such batch, 25001.';

create or replace function pgps.note_contact(contact bigint, state text, error text = null, hint text = null)
returns void
language sql
begin atomic
    select pgps._call('note_contact', jsonb_build_object('contact', note_contact.contact, 'state', note_contact.state,
        'error', note_contact.error, 'hint', note_contact.hint));
end;
comment on function pgps.note_contact(bigint, text, text, text) is
'Records how the connection to a contact point is, for pgps.networks. Needs pgps_worker or pgps_admin. Errors: 42501.';

revoke all on function pgps.serve_networks(), pgps.network_open(bigint),
    pgps.network_next(bigint, bigint, integer, jsonb), pgps.network_take(jsonb),
    pgps.note_contact(bigint, text, text, text) from public;
grant execute on function pgps.serve_networks(), pgps.network_open(bigint),
    pgps.network_next(bigint, bigint, integer, jsonb), pgps.note_contact(bigint, text, text, text)
    to pgps_worker, pgps_admin;
grant execute on function pgps.network_take(jsonb) to pgps_link, pgps_worker, pgps_admin;
