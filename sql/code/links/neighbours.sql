-- Brokers at the other end of a link: the role and the subscription that stand for each here.
-- Locks: the turn of routes; access share on logs of types on which a right is lent.
-- Writes: broker, lent, neighbour, subscription.

create or replace function pgps_internal.is_alive(holder text) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select exists (select from pg_stat_get_activity(split_part(is_alive.holder, '@', 1)::integer) a
        where extract(epoch from a.backend_start)::text = split_part(is_alive.holder, '@', 2))
$$;
comment on function pgps_internal.is_alive(text) is
'True while the session that pgps_internal.holder() names so is alive';

create or replace function pgps_internal.is_up(neighbour_id integer) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select count(*) = 2 from pgps_internal.link_session s where s.neighbour_id = is_up.neighbour_id
        and pgps_internal.is_alive(s.holder)
$$;
comment on function pgps_internal.is_up(integer) is
'True while one session sends to a neighbour and one receives from it: it can be reached';

create or replace function pgps_internal.lend(event_type pgps_internal.event_type) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if pg_has_role((lend.event_type).owner::oid, 'pgps_admin', 'usage') and (
            exists (select from pgps_internal.link l where l.role = 'pgps_neighbour'::regrole)
            or exists (select from pgps_internal.neighbour n where n.role = 'pgps_neighbour'::regrole)) then
        insert into pgps_internal.lent (type_id) values ((lend.event_type).type_id) on conflict do nothing;
        if found then
            perform pgps_internal.stay_in(array[(lend.event_type).type_id]);
            execute format('grant insert, select on %s to pgps_neighbour', (lend.event_type).endpoint);
        end if;
    end if;
end
$$;
comment on function pgps_internal.lend(pgps_internal.event_type) is
'Grants pgps_neighbour, while a link or neighbour has that role, insert and select on an event type of an administrator;
once for each type, so that a revoke lasts';

create or replace function pgps_internal.make_neighbour(peer jsonb, role regrole, link_id integer, direction text)
returns pgps_internal.neighbour
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_neighbour pgps_internal.neighbour;
    v_subscription bigint;
    v_id integer := nextval('pgps_internal.neighbour_neighbour_id_seq');
begin
    -- The name has a *, so that no user can give it. The subscription is a pattern, so that it outlives event types; no
    -- type has its prefix.
    insert into pgps_internal.subscription (name, owner, event_type, is_pattern, environment, kind, scope, priority,
        max_attempts, handler)
    values (format('link*%s', v_id), make_neighbour.role, e'\x01*', true, '{}', 'link', 'local', 0, 1, 'all')
    returning subscription_id into v_subscription;
    insert into pgps_internal.neighbour (neighbour_id, broker_id, epoch, name, role, link_id, direction,
        subscription_id) overriding system value
    values (v_id, (make_neighbour.peer ->> 'broker')::uuid, (make_neighbour.peer ->> 'epoch')::integer,
        make_neighbour.peer ->> 'name',
        make_neighbour.role, make_neighbour.link_id, make_neighbour.direction, v_subscription)
    returning * into v_neighbour;
    perform pgps_internal.lend(t) from pgps_internal.event_type t;
    perform pgps_internal.move(v_subscription, b.batch_id, 9223372036854775807, b.batch_id, 0)
    from (select coalesce((pgps_internal.last_batch()).batch_id, 0) as batch_id) b;
    return v_neighbour;
end
$$;
comment on function pgps_internal.make_neighbour(jsonb, regrole, integer, text) is
'Enters a broker that is met for the first time: the role that stands for it here, and a subscription whose members are
its filters';

create or replace function pgps_internal.forget_neighbour(neighbour_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription bigint;
    v_claimed_at timestamptz;
begin
    -- The other side may know more of the link than that it is gone here.
    perform pgps_internal.note_former_link(n) from pgps_internal.neighbour n
    where n.neighbour_id = forget_neighbour.neighbour_id;
    delete from pgps_internal.neighbour n where n.neighbour_id = forget_neighbour.neighbour_id
        returning n.subscription_id, n.claimed_at into v_subscription, v_claimed_at;
    perform pgps_internal.drop_subscription(v_subscription);
    if v_claimed_at is not null then
        -- Whoever forgets those who say that this broker was restored does not believe it. What this broker finds out
        -- by itself is not stored (pgps_internal.me).
        update pgps_internal.broker b set state = 'active'
        where b.state = 'restored' and not exists (select from pgps_internal.neighbour n
            where n.claimed_at is not null);
    end if;
    perform pg_notify('pgps_link', '');
end
$$;
comment on function pgps_internal.forget_neighbour(integer) is
'Forgets all about a neighbour: what it wanted and offered, what waits for it, and its word that this broker was
restored';

-- Everybody has this privilege. It makes this database depend on the role, which would otherwise go when pgps is
-- dropped in another database.
grant usage on schema pgps to pgps_neighbour;
