-- Networks: groups of brokers elsewhere, whose spools are reached through their contact points (decision 43). What is
-- spooled for a network waits in a spool of its own, which has no name that anybody could give; each contact point gets
-- all of it (long_haul.sql). This file has their definitions.
-- Locks: catalogue rows; who spools for a network keeps its spool (long_haul.sql); who drops one, the store (see
-- pgps_internal.enter_store); whose contact points are changed, the turn of handing out what waits for the network.
-- Writes: network, network_contact, network_mark, spool, spool_store.

create or replace function pgps_internal.find_network(name text) returns pgps_internal.network
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_network pgps_internal.network;
begin
    select n.* into v_network from pgps_internal.network n where n.name = pgps_internal.fold(find_network.name);
    if not found then
        raise exception 'network "%" does not exist', pgps_internal.fold(find_network.name)
        using errcode = '42704',
            hint = format('See pgps.networks, or create it: select pgps.create_network(%L, ''{host=… dbname=…}''); '
                'without a network, or with "local", a message is for a group of this broker.', find_network.name);
    end if;
    return v_network;
end
$$;
comment on function pgps_internal.find_network(text) is 'The network of that name; 42704 when there is none';

create or replace function pgps_internal.localized(args jsonb) returns jsonb
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Common case: a path finds nothing to change.
    if not args @? '$.messages[*].network ? (@ like_regex "^local$" flag "i" && @ != "local")' then
        return args;
    end if;
    return args || jsonb_build_object('messages', (select to_jsonb(array_agg(
            case when lower(e ->> 'network') = 'local' then e - 'network' else e end order by place))
        from jsonb_array_elements(args -> 'messages') with ordinality m(e, place)));
end
$$;
comment on function pgps_internal.localized(jsonb) is
'Arguments of messages, some of which are for network LOCAL: names are case-folded, so that is this broker';

create or replace function pgps_internal.left_out_line(network_id integer) returns bigint
language sql immutable
as $$ select -4611686018427387904 - left_out_line.network_id $$;
comment on function pgps_internal.left_out_line(integer) is
'The line in network_mark that says what the contact points of a network were handed that were left out';

create or replace function pgps_internal.remember_handed(network_id integer, contacts text[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_line bigint := pgps_internal.left_out_line(remember_handed.network_id);
begin
    -- Who hands something out at this moment is waited for.
    perform pgps_internal.hold_network(remember_handed.network_id);
    insert into pgps_internal.network_mark (line, handed, upto)
    select v_line, max(k.handed), 0
    from pgps_internal.network_contact c cross join lateral pgps_internal.network_mark_of(c.contact_id) k
    where c.network_id = remember_handed.network_id and c.conninfo <> all (remember_handed.contacts)
    having max(k.handed) > coalesce((pgps_internal.network_mark_of(v_line)).handed, 0);
end
$$;
comment on function pgps_internal.remember_handed(integer, text[]) is
'Before all contact points of a network but these are left out: keeps up to which number they were handed messages';

create or replace function pgps_internal.set_contacts(network pgps_internal.network, contacts text[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := (set_contacts.network).name;
begin
    if coalesce(cardinality(set_contacts.contacts), 0) = 0 or array_position(set_contacts.contacts, null) is not null
        or array_ndims(set_contacts.contacts) > 1 then
        raise exception 'network "%" has no contact points', v_name using errcode = '22023',
            hint = 'Give connection strings of libpq, none of them null: ''{host=sif dbname=pgps}''.';
    elsif (select count(distinct c) from unnest(set_contacts.contacts) c) < cardinality(set_contacts.contacts) then
        raise exception 'network "%" has a contact point twice', v_name using errcode = '22023',
            hint = 'Give each connection string once.';
    end if;
    perform pgps_internal.check_conninfo(v_name, c), pgps_internal.warn_of_password(v_name, c)
    from unnest(set_contacts.contacts) c;
    perform pgps_internal.remember_handed((set_contacts.network).network_id, set_contacts.contacts);
    delete from pgps_internal.network_contact k
    where k.network_id = (set_contacts.network).network_id and k.conninfo <> all (set_contacts.contacts);
    insert into pgps_internal.network_contact (network_id, place, conninfo)
    select (set_contacts.network).network_id, c.place, c.conninfo
    from unnest(set_contacts.contacts) with ordinality c(conninfo, place) order by c.place
    on conflict on constraint network_contact_network_id_conninfo_key do update set place = excluded.place;
end
$$;
comment on function pgps_internal.set_contacts(pgps_internal.network, text[]) is
'Makes these the contact points of a network, in this order; those that stay go on where they are. Errors: 22023.';

create or replace function pgps_internal.do_create_network(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.check_name(args ->> 'name', 'network');
    v_network pgps_internal.network;
begin
    perform pgps_internal.require_admin(caller, 'create networks');
    if v_name = 'local' then
        raise exception 'network "local" is this broker' using errcode = '42602', hint = 'Choose another name.';
    end if;
    perform pgps_internal.make_spool_type(), pgps_internal.me();
    insert into pgps_internal.network (name, username, passfile)
    values (v_name, args ->> 'username', args ->> 'passfile')
    on conflict on constraint network_name_key do nothing returning * into v_network;
    if not found then
        raise exception 'network "%" exists already', v_name using errcode = '42710',
            hint = format('Change it with pgps.alter_network(%L, …).', quote_ident(v_name));
    end if;
    perform pgps_internal.set_contacts(v_network, pgps_internal.array_of(args -> 'contacts', 'contacts'));
    -- A name with a control character is refused wherever one is given.
    insert into pgps_internal.spool (network_id, name, owner, type_id, persistent, on_limit)
    values (v_network.network_id, chr(10) || v_name, quote_ident(caller)::regrole, pgps_internal.spool_type(), true,
        'refuse');
    perform pg_notify('pgps_network', '');
end
$$;
comment on function pgps_internal.do_create_network(name, jsonb) is 'See pgps.create_network';

create or replace function pgps_internal.do_alter_network(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_network pgps_internal.network;
begin
    perform pgps_internal.require_admin(caller, 'alter networks');
    -- Who alters it at the same time is waited for: otherwise its contact points would be some of each.
    perform from pgps_internal.network n where n.name = pgps_internal.fold(args ->> 'name') for no key update;
    v_network := pgps_internal.find_network(args ->> 'name');
    if args ->> 'contacts' is not null then
        perform pgps_internal.set_contacts(v_network, pgps_internal.array_of(args -> 'contacts', 'contacts'));
    end if;
    update pgps_internal.network n
    set username = coalesce(args ->> 'username', n.username), passfile = coalesce(args ->> 'passfile', n.passfile)
    where n.network_id = v_network.network_id;
    perform pg_notify('pgps_network', '');
end
$$;
comment on function pgps_internal.do_alter_network(name, jsonb) is 'See pgps.alter_network';

create or replace function pgps_internal.do_drop_network(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_network pgps_internal.network;
    v_waiting bigint;
begin
    -- What waits is counted as of now, also while a slot of the store is copied.
    perform pgps_internal.require_admin(caller, 'drop networks'), pgps_internal.require_read_committed(),
        pgps_internal.enter_store();
    v_network := pgps_internal.find_network(args ->> 'name');
    -- Who is spooling for it is waited for.
    perform from pgps_internal.spool s where s.network_id = v_network.network_id for update;
    v_waiting := pgps_internal.waiting_for(v_network);
    if v_waiting > 0 and not coalesce((args ->> 'cascade')::boolean, false) then
        raise exception '% messages for network "%" have not arrived at all contact points', v_waiting, v_network.name
        using errcode = '2BP01', hint = format('Wait for them, see pgps.networks, or discard them: select '
            'pgps.drop_network(%L, cascade => true)', quote_ident(v_network.name));
    end if;
    update pgps_internal.spool_store t set dropped = t.dropped
        + coalesce((select greatest(s.messages + s.discarded, 1)
            from pgps_internal.spool o cross join lateral pgps_internal.standing_of_spool(o.spool_id) s
            where o.network_id = v_network.network_id), 1);
    delete from pgps_internal.network n where n.network_id = v_network.network_id;
    perform pg_notify('pgps_network', '');
end
$$;
comment on function pgps_internal.do_drop_network(name, jsonb) is 'See pgps.drop_network';

create or replace function pgps_internal.waiting_for(network pgps_internal.network) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_spool pgps_internal.spool;
    v_upto bigint;
begin
    select s.* into v_spool from pgps_internal.spool s where s.network_id = (waiting_for.network).network_id;
    if not found then
        return 0;
    end if;
    v_upto := pgps_internal.arrived_everywhere((waiting_for.network).network_id);
    return pgps_internal.count_live(v_spool, pgps_internal.standing_of_spool(v_spool.spool_id), '{}', v_upto + 1,
            9223372036854775807)
        + (pgps_internal.waiting_in(v_spool.spool_id)).messages;
end
$$;
comment on function pgps_internal.waiting_for(pgps_internal.network) is
'How many messages have not arrived at all contact points of a network, as far as the caller can see';

create or replace function pgps._manager_of(contact bigint) returns integer
language sql stable security definer
begin atomic
    select c.pid from pgps_internal.network_contact c
    where c.contact_id = _manager_of.contact and exists (select from pg_stat_get_activity(c.pid) a
        where format('%s@%s', a.pid, extract(epoch from a.backend_start)) = c.holder);
end;
comment on function pgps._manager_of(bigint) is
'The process that manages the connection to a contact point, null when none does. For the views: whoever reads them may
not see the sessions of others';
grant execute on function pgps._manager_of(bigint) to public;

create or replace function pgps.create_network(
    name text, contacts text[], username name = null, passfile text = null
) returns void
language sql
begin atomic
    select pgps._call('create_network', jsonb_build_object('name', create_network.name, 'contacts',
        create_network.contacts, 'username', create_network.username, 'passfile', create_network.passfile));
end;
comment on function pgps.create_network(text, text[], name, text) is
'Defines a network of other brokers, for pgps.spool(…, network => name). contacts: libpq strings of its contact points,
each a broker of its own (a string may have several hosts, a server and its standbys, which libpq tries in turn). Each
gets every message, in the order of commit, so that whichever fails, the others have what it had; a worker of this
broker manages each connection, another one stands by. username, passfile: for strings without user and passfile. The
role needs pgps_link there, and the privilege spool at the spools that exist there already (pgps.grant_spool); a spool
that does not exist there is made, and is for that role to spool into. Passwords: see pgps.create_link. Needs
pgps_admin. Errors: 42710, 42602/42622 bad name, 22023 no contact points, or not strings of libpq, 42501.';

create or replace function pgps.alter_network(
    name text, contacts text[] = null, username name = null, passfile text = null
) returns void
language sql
begin atomic
    select pgps._call('alter_network', jsonb_build_object('name', alter_network.name, 'contacts',
        alter_network.contacts, 'username', alter_network.username, 'passfile', alter_network.passfile));
end;
comment on function pgps.alter_network(text, text[], name, text) is
'Changes a network; null leaves a property as it is. contacts: those that stay go on where they are, a new one begins
with what is still waiting here, and what waits only for one that is left out is discarded. Needs pgps_admin. Errors:
42704, 22023, 42501.';

create or replace function pgps.drop_network(name text, cascade boolean = false) returns void
language sql
begin atomic
    select pgps._call('drop_network', jsonb_build_object('name', drop_network.name, 'cascade', drop_network.cascade));
end;
comment on function pgps.drop_network(text, boolean) is
'Drops a network. cascade: also when messages have not arrived at all its contact points (otherwise 2BP01); they are
discarded. Waits for transactions that drop a spool or a network. Needs pgps_admin. Errors: 42704, 2BP01, 42501.';

grant execute on function pgps.create_network(text, text[], name, text), pgps.alter_network(text, text[], name, text),
    pgps.drop_network(text, boolean) to public;
