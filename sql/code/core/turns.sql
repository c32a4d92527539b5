-- Taking turns: the one place that knows what to lock so that two sessions do not do the same thing at once. These are
-- rows and tables of this schema, which nobody else can lock; never advisory locks, which every role could hold
-- (decision 12). All are held until the transaction ends. Locking a row assigns a transaction id and writes WAL:
-- whoever may find nothing to do checks first, takes the turn when there is something, and checks again.
-- Locks, in the order in which one transaction takes them: turn_of_neighbours, turn_of_sending, and rows: clients,
-- subscriptions in the order of their ids, origins likewise; turn_of_routes, which a receiver needs for what a
-- neighbour says; and roles.
-- Writes: subscription_turn, turn.

create or replace function pgps_internal.hold(kind "char", id bigint) returns void
language plpgsql
as $$
begin
    perform from pgps_internal.turn t where t.kind = hold.kind and t.id = hold.id for update;
    if not found then
        -- There is no row yet. If another session inserts it at the same moment, the insert waits for that session.
        insert into pgps_internal.turn (kind, id) values (hold.kind, hold.id) on conflict do nothing;
        perform from pgps_internal.turn t where t.kind = hold.kind and t.id = hold.id for update;
    end if;
end
$$;
comment on function pgps_internal.hold("char", bigint) is
'Takes the turn of one thing of a kind; waits for the transaction that has it';

drop function if exists pgps_internal.hold_subscription(bigint);
create or replace function pgps_internal.hold_subscription(subscription_id bigint, name text) returns void
language plpgsql
as $$
begin
    perform from pgps_internal.subscription_turn t
        where t.subscription_id = hold_subscription.subscription_id for update;
    if not found then
        raise exception 'subscription "%" does not exist any more', hold_subscription.name
        using errcode = '42704', hint = 'It was dropped just now; see pgps.subscriptions.';
    end if;
end
$$;
comment on function pgps_internal.hold_subscription(bigint, text) is
'Takes the turn of the one consumer of a subscription; waits for the transaction that has it. Errors: 42704.';

create or replace function pgps_internal.require_subscription(subscription pgps_internal.subscription) returns void
language plpgsql
as $$
declare
    v_owner regrole := (select s.owner from pgps_internal.subscription s
        where s.subscription_id = (require_subscription.subscription).subscription_id);
begin
    if v_owner is null then
        raise exception 'subscription "%" does not exist any more', (require_subscription.subscription).name
        using errcode = '42704', hint = 'It was dropped just now; see pgps.subscriptions.';
    elsif v_owner <> (require_subscription.subscription).owner then
        raise exception 'subscription "%" has been given to another role just now',
            (require_subscription.subscription).name
        using errcode = '42501', hint = 'Try again, with the rights of its new owner.';
    end if;
end
$$;
comment on function pgps_internal.require_subscription(pgps_internal.subscription) is
'After the turn of a subscription, or its row, has been waited for: raises 42704 when it has been dropped since it was
looked up, and 42501 when it has another owner, for whom the caller''s rights were not checked';

drop function if exists pgps_internal.hold_unmoved(bigint, bigint);
create or replace function pgps_internal.hold_unmoved(subscription_id bigint, position_id bigint, name text)
returns boolean
language plpgsql
as $$
declare
    v_newest bigint;
begin
    perform from pgps_internal.subscription_turn t where t.subscription_id = hold_unmoved.subscription_id for update;
    if not found then
        perform pgps_internal.hold_subscription(hold_unmoved.subscription_id, hold_unmoved.name);
    end if;
    -- Common case: nobody ever failed, which a sequence tells, or nobody has, which the size of the table tells.
    if pg_sequence_last_value('pgps_internal.failure_place_seq'::regclass) is not null
            and pg_relation_size('pgps_internal.failure'::regclass) > 0 then
        if exists (select from pgps_internal.failure f where f.subscription_id = hold_unmoved.subscription_id) then
            return false;
        end if;
    end if;
    -- Positions of a subscription are numbered while its turn is held: a newer one has a higher number than the one
    -- that was read. Common case: no subscription has a newer one, or the newest is in the same segment, so that only
    -- one segment is scanned.
    v_newest := pg_sequence_last_value('pgps_internal.position_id_seq'::regclass);
    if v_newest = hold_unmoved.position_id then
        return true;
    elsif pgps_internal.position_segment_start(v_newest)
            = pgps_internal.position_segment_start(hold_unmoved.position_id) then
        return not exists (select from pgps_internal.position p
            where p.subscription_id = hold_unmoved.subscription_id and p.position_id > hold_unmoved.position_id
                and pgps_internal.position_segment(p.position_id) = pgps_internal.position_segment(v_newest));
    end if;
    return not exists (select from pgps_internal.position p
        where p.subscription_id = hold_unmoved.subscription_id and p.position_id > hold_unmoved.position_id);
end
$$;
comment on function pgps_internal.hold_unmoved(bigint, bigint, text) is
'As hold_subscription; true when the subscription is still at this position and has no failures, so that the events that
were found there are still the next ones';

create or replace function pgps_internal.hold_subscriptions(subscription_ids bigint[]) returns void
language plpgsql
as $$
begin
    -- Locked in the order of their ids, so that two sessions that want the same ones cannot deadlock.
    perform from pgps_internal.subscription_turn t where t.subscription_id = any (hold_subscriptions.subscription_ids)
    order by t.subscription_id for update;
end
$$;
comment on function pgps_internal.hold_subscriptions(bigint[]) is
'As hold_subscription, for several; those that are gone are left out';

create or replace function pgps_internal.try_subscription(subscription_id bigint) returns boolean
language plpgsql
as $$
begin
    perform from pgps_internal.subscription_turn t
        where t.subscription_id = try_subscription.subscription_id for update skip locked;
    return found;
end
$$;
comment on function pgps_internal.try_subscription(bigint) is
'Takes the turn of a subscription; false when another transaction has it, or the subscription is gone';

create or replace function pgps_internal.hold_owner(role oid) returns void
language plpgsql
as $$
begin
    perform from pgps_internal.turn t where t.kind = 'o' and t.id = hold_owner.role::bigint for update;
    if not found then
        perform pgps_internal.hold('o', hold_owner.role::bigint);
    end if;
end
$$;
comment on function pgps_internal.hold_owner(oid) is
'Takes the turn of a role''s definitions: its subscriptions share classes, signatures and generated functions';

create or replace function pgps_internal.hold_client(client_id bigint) returns void
language plpgsql
as $$
begin
    perform pgps_internal.hold('c', hold_client.client_id);
end
$$;
comment on function pgps_internal.hold_client(bigint) is 'Takes the turn of changing a client''s state';

create or replace function pgps_internal.hold_origins(origin_ids integer[]) returns void
language plpgsql
as $$
begin
    perform pgps_internal.hold('r', o.id)
        from (select distinct i as id from unnest(hold_origins.origin_ids) i order by 1 offset 0) o;
end
$$;
comment on function pgps_internal.hold_origins(integer[]) is
'Takes the turn of receiving from each of these origins, in the order of their ids';

create or replace function pgps_internal.hold_routes() returns void
language plpgsql
as $$
begin
    lock table only pgps_internal.turn_of_routes in exclusive mode;
end
$$;
comment on function pgps_internal.hold_routes() is 'Takes the turn of changing routes';

create or replace function pgps_internal.hold_neighbours() returns void
language plpgsql
as $$
begin
    lock table only pgps_internal.turn_of_neighbours in exclusive mode;
end
$$;
comment on function pgps_internal.hold_neighbours() is 'Takes the turn of recording another broker as a neighbour';

create or replace function pgps_internal.hold_sending(alone boolean) returns void
language plpgsql
as $$
begin
    -- LOCK TABLE is written out for each, because it takes no parameters, and EXECUTE would parse it for each batch.
    if hold_sending.alone then
        lock table only pgps_internal.turn_of_sending in exclusive mode;
    else
        lock table only pgps_internal.turn_of_sending in row exclusive mode;
    end if;
end
$$;
comment on function pgps_internal.hold_sending(boolean) is
'Takes the turn of sending to neighbours: beside others who do the same, or alone, which waits for them and makes them
wait until the transaction ends';

create or replace function pgps_internal.note_turns() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if tg_op = 'INSERT' then
        insert into pgps_internal.subscription_turn (subscription_id) select a.subscription_id from added a
            on conflict do nothing;
    else
        -- A consumer that has the turn must not block whoever drops its subscription: its row is skipped and stays,
        -- unused.
        delete from pgps_internal.subscription_turn t using (
            select t.subscription_id from pgps_internal.subscription_turn t
            where t.subscription_id in (select r.subscription_id from removed r) for update skip locked) free
        where t.subscription_id = free.subscription_id;
    end if;
    return null;
end
$$;
comment on function pgps_internal.note_turns() is
'Trigger: after subscriptions were made or dropped, adds or deletes their rows in the table of turns';

do $$
begin
    if not exists (select from pg_trigger t where t.tgrelid = 'pgps_internal.subscription'::regclass
        and t.tgname = 'pgps_turn_added') then
        create trigger pgps_turn_added after insert on pgps_internal.subscription referencing new table as added
        for each statement execute function pgps_internal.note_turns();
        create trigger pgps_turn_removed after delete on pgps_internal.subscription referencing old table as removed
        for each statement execute function pgps_internal.note_turns();
    end if;
end
$$;
