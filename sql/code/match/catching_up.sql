-- Classes that are new, or were suspended, and are matched with what came meanwhile before they go on: in their owner's
-- lane, or with the dispatcher.
-- Locks: rows of classes and access share on logs, which are not waited for; the row of a lane is held by the caller.
-- Writes: class, subscription.

create or replace function pgps_internal.make_pending(class_id bigint, after_batch bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.set_class_active(make_pending.class_id, false);
    update pgps_internal.class c set is_pending = true, suspended_batch = make_pending.after_batch
        where c.class_id = make_pending.class_id;
    -- See is_unmet: a subscription to a prefix reads nothing before all its classes have caught up.
    perform nextval('pgps_internal.unmet_place_seq')
    where pg_sequence_last_value('pgps_internal.unmet_place_seq'::regclass) is null and exists (
        select from pgps_internal.member m join pgps_internal.subscription s using (subscription_id)
        where m.class_id = make_pending.class_id and s.is_pattern);
    if exists (select from pgps_internal.class c join pgps_internal.signature g using (signature_id)
            where c.class_id = make_pending.class_id and g.in_lane) then
        perform pg_notify('pgps_lanes', '');
    else
        perform pgps_internal.wake_dispatcher();
    end if;
end
$$;
comment on function pgps_internal.make_pending(bigint, bigint) is
'Takes a class out of matching until the dispatcher or its lane has matched it with what came after a batch';

create or replace function pgps_internal.catching_up_text() returns text
language sql immutable
as $$ select 'it catches up with what came meanwhile, and goes on by itself'::text $$;
comment on function pgps_internal.catching_up_text() is
'Why a subscription is suspended whose classes are pending, in last_error';

create or replace function pgps_internal.go_on_caught_up() returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_gone_on bigint[];
begin
    with gone_on as (
        update pgps_internal.subscription s set state = 'active', last_error = null
        where s.subscription_id in (select t.subscription_id from pgps_internal.subscription t
            where t.state = 'suspended' and t.last_error = pgps_internal.catching_up_text()
                and not exists (select from pgps_internal.member m join pgps_internal.class c using (class_id)
                    where m.subscription_id = t.subscription_id and not c.is_active)
                and not exists (select from pgps_internal.joining j
                    where j.subscription_id = t.subscription_id and j.failures < 0)
            for no key update of t skip locked)
        returning s.subscription_id
    )
    select array_agg(g.subscription_id) into v_gone_on from gone_on g;
    perform pgps_internal.wake_members(array(select m.class_id from pgps_internal.member m
        where m.subscription_id = any (v_gone_on)));
    return coalesce(cardinality(v_gone_on), 0);
end
$$;
comment on function pgps_internal.go_on_caught_up() is
'Makes the subscriptions active that somebody had locked when their classes had caught up; returns how many';

drop function if exists pgps_internal.catch_up(pgps_internal.class, bigint, boolean);
create or replace function pgps_internal.catch_up(
    class pgps_internal.class, upto bigint, is_last boolean = true, piece pgps_internal.lane_piece = null
) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_state text;
    v_schema text;
    v_error text;
    v_context text;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = (catch_up.class).type_id;
    begin
        perform pgps_internal.set_class_active((catch_up.class).class_id, true);
        update pgps_internal.class c set is_pending = false where c.class_id = (catch_up.class).class_id;
        perform pgps_internal.match_past((catch_up.class).class_id, v_type, 0, (catch_up.class).suspended_batch,
            catch_up.upto, (catch_up.piece).batches[1].ids);
        if pgps_internal.is_in_part(catch_up.class, catch_up.piece) then
            perform pgps_internal.make_pending((catch_up.class).class_id, (catch_up.class).suspended_batch);
            return true;
        end if;
        perform pgps_internal.share_past((catch_up.class).class_id, (catch_up.class).suspended_batch, catch_up.upto,
            true);
        if not catch_up.is_last then
            perform pgps_internal.make_pending((catch_up.class).class_id, catch_up.upto);
            return true;
        end if;
    exception when others or assert_failure or query_canceled then
        get stacked diagnostics v_state = returned_sqlstate, v_schema = schema_name, v_error = message_text,
            v_context = pg_exception_context;
        if pgps_internal.is_cancelled(v_state, v_context) then
            raise;
        elsif pgps_internal.is_race(v_state, v_schema, v_error) or pgps_internal.is_held_up(v_state, v_context)
                and not exists (select from pgps_internal.signature g
                where g.signature_id = (catch_up.class).signature_id and g.in_lane) then
            return false;
        elsif not pgps_internal.try_class((catch_up.class).class_id) then
            return false;
        end if;
        perform pgps_internal.suspend_class((catch_up.class).class_id, (catch_up.class).suspended_batch,
            format('filter: %s', v_error));
        return true;
    end;
    -- A subscription that another session has locked is not waited for: reclaim makes it active (go_on_caught_up).
    update pgps_internal.subscription s set state = 'active', last_error = null
    where s.subscription_id in (
        select t.subscription_id from pgps_internal.subscription t join pgps_internal.member m using (subscription_id)
        where m.class_id = (catch_up.class).class_id and t.state = 'suspended'
            and not exists (select from pgps_internal.member o join pgps_internal.class c using (class_id)
                where o.subscription_id = t.subscription_id and not c.is_active)
        for no key update of t skip locked);
    perform pgps_internal.wake_members(array[(catch_up.class).class_id]);
    return true;
end
$$;
comment on function pgps_internal.catch_up(pgps_internal.class, bigint, boolean, pgps_internal.lane_piece) is
'Matches a pending class up to a batch and takes it into matching, or keeps it pending unless is_last; when its filter
raises, its subscriptions are suspended (again). False: it stays pending, since the dispatcher waited too long for a
lock, or another session has one of the subscriptions locked';

drop function if exists pgps_internal.catch_up_in_lane(pgps_internal.class, bigint);
create or replace function pgps_internal.catch_up_in_lane(
    lane pgps_internal.lane, class pgps_internal.class, upto bigint
) returns void
language plpgsql
as $$
declare
    -- The time limit of a lane is for one batch, so no more is done at once. Its subscriptions remain suspended until
    -- it is through, so no position passes what is still to come.
    v_most bigint := coalesce((select p.events from pgps_internal.lane_part p
            where p.lane_id = (catch_up_in_lane.lane).lane_id and (catch_up_in_lane.lane).is_slow),
        pgps_internal.setting('max_batch_events')::bigint);
    v_first pgps_internal.batch_type;
    v_part bigint;
begin
    select b.* into v_first from pgps_internal.batch_type b
    where b.type_id = (catch_up_in_lane.class).type_id and b.events > 0
        and b.batch_id > (catch_up_in_lane.class).suspended_batch and b.batch_id <= catch_up_in_lane.upto
    order by b.batch_id limit 1;
    if (catch_up_in_lane.lane).is_slow and v_first.events > v_most then
        perform pgps_internal.catch_up(catch_up_in_lane.class, v_first.batch_id, false,
            pgps_internal.next_piece((catch_up_in_lane.lane).lane_id, array[v_first],
                (catch_up_in_lane.class).class_id));
        return;
    end if;
    v_part := (
        select min(x.batch_id) from (
            select b.batch_id, sum(b.events) over (order by b.batch_id) as events
            from pgps_internal.batch_type b
            where b.type_id = (catch_up_in_lane.class).type_id and b.events > 0
                and b.batch_id >= v_first.batch_id and b.batch_id < catch_up_in_lane.upto) x
        where x.events >= v_most);
    perform pgps_internal.catch_up(catch_up_in_lane.class, coalesce(v_part, catch_up_in_lane.upto), v_part is null);
end
$$;
comment on function pgps_internal.catch_up_in_lane(pgps_internal.lane, pgps_internal.class, bigint) is
'As catch_up, in a lane: about as many events at once as a batch may have, or as a slow lane asks about';

create or replace function pgps_internal.pending_classes() returns bigint[]
language plpgsql
as $$
declare
    v_free pgps_internal.class[];
begin
    -- A newcomer has to wait: the dispatcher has not yet judged for it what came over links. Nobody is waited for who
    -- changes a class, or alters or drops an event type, in a transaction that is open.
    v_free := array(
        select c from pgps_internal.class c left join pgps_internal.signature g using (signature_id)
        where c.is_pending and g.in_lane is not true
            and not exists (select from pgps_internal.unasked u where u.signature_id = g.signature_id)
            and not exists (select from pgps_internal.member m join pgps_internal.newcomer n using (subscription_id)
                where m.class_id = c.class_id and n.until is null)
        order by c.class_id for update of c skip locked);
    return array(
        select c.class_id
        from unnest(v_free) c
        join (select t.type_id, pgps_internal.try_lock(t.log, 'access share') as is_free
            from pgps_internal.event_type t where t.type_id in (select u.type_id from unnest(v_free) u) offset 0) l
            using (type_id)
        where l.is_free order by c.class_id);
end
$$;
comment on function pgps_internal.pending_classes() is
'The pending classes of the dispatcher that can catch up now, locked';

create or replace function pgps_internal.bound_classes(class_id bigint) returns bigint[]
language sql stable
as $$
    with recursive bound(class_id) as (
        select bound_classes.class_id
        union
        select c.class_id from bound b
        join pgps_internal.member m on m.class_id = b.class_id
        join pgps_internal.member n on n.subscription_id = m.subscription_id and n.class_id <> m.class_id
        join pgps_internal.class c on c.class_id = n.class_id and c.is_pending
    )
    select array_agg(b.class_id order by b.class_id) from bound b
$$;
comment on function pgps_internal.bound_classes(bigint) is
'A pending class, and those that are pending, too, and have a subscription in common with it, or with one of these: the
position of a subscription must not pass events that another class of it has still to catch up with';

create or replace function pgps_internal.catch_up_all() returns void
language plpgsql
as $$
declare
    v_upto bigint := coalesce((pgps_internal.last_batch()).batch_id, 0);
    v_free bigint[] := pgps_internal.pending_classes();
    v_done bigint[] := '{}';
    v_bound bigint[];
    v_class bigint;
begin
    -- Most have nothing in common with another one, however many there are.
    select array_agg(f.class_id order by f.class_id) into v_bound from unnest(v_free) f(class_id)
    where exists (select from pgps_internal.member m join pgps_internal.member n using (subscription_id)
        join pgps_internal.class c on c.class_id = n.class_id and c.is_pending
        where m.class_id = f.class_id and n.class_id <> m.class_id);
    perform pgps_internal.catch_up_in_time(c, v_upto) from (select c from pgps_internal.class c
        where c.class_id in (select unnest(v_free)) and c.class_id not in (select unnest(v_bound))
        order by c.class_id offset 0) x(c);
    foreach v_class in array coalesce(v_bound, '{}') loop
        continue when v_class = any (v_done);
        v_bound := pgps_internal.bound_classes(v_class);
        v_done := v_done || v_bound;
        continue when not v_bound <@ v_free;
        begin
            -- All of them, or none.
            if not (select bool_and(pgps_internal.catch_up_in_time(x.c, v_upto)) from (select c
                from pgps_internal.class c where c.class_id = any (v_bound) order by c.class_id) x) then
                raise exception 'held up' using errcode = 'PS001';
            end if;
        exception when sqlstate 'PS001' then
            null;
        end;
    end loop;
end
$$;
comment on function pgps_internal.catch_up_all() is
'Has the dispatcher''s pending classes catch up, before it cuts a batch. Where one is held up by somebody, those that
have a subscription in common with it stay pending, too';
