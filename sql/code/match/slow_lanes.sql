-- Lanes are quick or slow: a quick one whose filters take too long becomes slow, and a slow one that exceeds the
-- setting lane_timeout again and again has its subscriptions suspended. run_lanes.sql runs both.
-- Locks: the row of a lane; access share on logs, and rows of subscriptions and classes, which are not waited for.
-- Writes: asked_again, class, joining, lane, lane_part, setting, subscription.

insert into pgps_internal.setting (name, value, kind, description) values
    ('lane_timeout', '5 seconds', 'interval',
        'What takes longer in a lane is asked about fewer events at once; a filter that takes longer for a hundred of '
        'them has failed, and three times in a row suspend it')
on conflict (name) do nothing;

create or replace function pgps_internal.lane_mark(lane_id bigint) returns bigint
language sql immutable
begin atomic
    -- The offset keeps lanes apart from signatures, whose ids replace this mark while they are matched.
    select (1::bigint << 50) + lane_mark.lane_id;
end;
comment on function pgps_internal.lane_mark(bigint) is
'What a session notes that matches a lane, and no signature of it';

create or replace function pgps_internal.mark_lane(slot integer, lane_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if mark_lane.slot is not null then
        perform setval(format('pgps_internal.lane_mark_%s', mark_lane.slot)::regclass,
            coalesce(pgps_internal.lane_mark(mark_lane.lane_id), 0));
    end if;
end
$$;
comment on function pgps_internal.mark_lane(integer, bigint) is
'Notes which lane a session is matching, at once and whether or not the transaction commits; lane_id: null = none';

create or replace function pgps_internal.free_classes(signature_id bigint) returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_free bigint[];
begin
    -- Whoever drops the event type has them, and waits for the log, which a slow lane has locked.
    v_free := array(select s.subscription_id from pgps_internal.subscription s
        where s.subscription_id in (select m.subscription_id from pgps_internal.class c
            join pgps_internal.member m using (class_id) where c.signature_id = free_classes.signature_id)
        order by s.subscription_id for no key update skip locked);
    return array(select c.class_id from pgps_internal.class c
        where c.signature_id = free_classes.signature_id and c.is_active
            and not exists (select from pgps_internal.member m
                where m.class_id = c.class_id and m.subscription_id <> all (v_free))
        order by c.class_id for no key update skip locked);
end
$$;
comment on function pgps_internal.free_classes(bigint) is
'The active classes of a signature that nobody is changing or dropping, nor one of their subscriptions; all are locked';

drop function if exists pgps_internal.note_quick_lane(pgps_internal.lane);
create or replace function pgps_internal.note_quick_lane(lane pgps_internal.lane, is_whole boolean) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if not (note_quick_lane.lane).is_slow then
        return;
    end if;
    -- The filters have got through this batch: their failures are counted from zero.
    update pgps_internal.class c set failures = 0
    where c.class_id in (
        select f.class_id from pgps_internal.class f join pgps_internal.signature g using (signature_id)
        where g.in_lane and g.owner = (note_quick_lane.lane).owner and f.is_active and f.failures > 0
        for no key update of f skip locked);
    if note_quick_lane.is_whole and (note_quick_lane.lane).slow_until < pgps_internal.clock()
        and clock_timestamp() - statement_timestamp() < interval '0.25 seconds' then
        update pgps_internal.lane l set is_slow = false, last_error = null
            where l.lane_id = (note_quick_lane.lane).lane_id;
        delete from pgps_internal.lane_part p where p.lane_id = (note_quick_lane.lane).lane_id;
    end if;
end
$$;
comment on function pgps_internal.note_quick_lane(pgps_internal.lane, boolean) is
'Notes that a slow lane got through; when that was quick for a whole batch, the lane is matched together with the other
quick ones from now on';

create or replace function pgps_internal.note_slow_lane(
    lane pgps_internal.lane, signature_id bigint, strikes integer, "limit" interval
) returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_failures integer := pgps_internal.setting('filter_failures')::integer;
    v_error text := format('takes longer than %s s', trim_scale(extract(epoch from note_slow_lane."limit")));
    v_names text;
    v_classes bigint[];
    v_again integer := case when (note_slow_lane.lane).failed_at > pgps_internal.clock() - interval '1 hour'
        then (note_slow_lane.lane).offences else 0 end + 1;
begin
    -- Slow for longer each time: a lane that is quick and slow by turns would otherwise delay the others each time.
    update pgps_internal.lane l set is_slow = true, offences = v_again, failed_at = pgps_internal.clock(),
        last_error = 'a filter ' || v_error,
        slow_until = pgps_internal.clock() + least(power(2, least(v_again, 12)), 3600) * interval '1 second'
    where l.lane_id = (note_slow_lane.lane).lane_id;
    perform pg_notify('pgps_lanes', '');
    if not (note_slow_lane.lane).is_slow then
        return format('the filters of role %s are slow: a filter %s', (note_slow_lane.lane).owner, v_error);
    -- Not when its session had to be ended: whoever swallows a cancellation does so for one event, too.
    elsif note_slow_lane.strikes < 3 and pgps_internal.ask_about_fewer(note_slow_lane.lane) then
        return format('the filters of role %s take longer than %s s for a batch: they are asked about fewer events at '
            'once', (note_slow_lane.lane).owner, trim_scale(extract(epoch from note_slow_lane."limit")));
    elsif note_slow_lane.signature_id is null then
        return pgps_internal.note_slow_joining(note_slow_lane.lane, note_slow_lane.strikes, v_error);
    end if;
    v_classes := pgps_internal.free_classes(note_slow_lane.signature_id);
    update pgps_internal.class c set failures = c.failures + note_slow_lane.strikes * (v_failures + 2) / 3,
        last_error = v_error
    where c.class_id = any (v_classes);
    -- A form of filter that came from the dispatcher was asked there up to where it begins.
    perform pgps_internal.suspend_class(c.class_id,
        greatest(g.from_batch, pgps_internal.lane_position((note_slow_lane.lane).lane_id)),
        format('filter: %s', v_error))
    from pgps_internal.class c join pgps_internal.signature g using (signature_id)
    where c.class_id = any (v_classes) and c.failures >= v_failures;
    select string_agg(s.name, ', ' order by s.name) into v_names
    from pgps_internal.class c join pgps_internal.member m using (class_id) join pgps_internal.subscription s
        using (subscription_id)
    where c.signature_id = note_slow_lane.signature_id and not c.is_active and s.state = 'suspended';
    return case when v_names is not null then format('suspended %s: the filter %s', v_names, v_error)
        else format('a filter of role %s %s', (note_slow_lane.lane).owner, v_error) end;
end
$$;
comment on function pgps_internal.note_slow_lane(pgps_internal.lane, bigint, integer, interval) is
'Notes that a filter has taken too long: a quick lane becomes a slow one; in a slow one three strikes suspend the
subscriptions of the filter. Returns the message to report. signature_id: null = it was one that joins an event type,
catches up or is asked again';

create or replace function pgps_internal.note_broken_lane(lane pgps_internal.lane, sqlstate text, error text)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    update pgps_internal.lane l set is_slow = true, failed_at = pgps_internal.clock(),
        slow_until = pgps_internal.clock() + interval '10 seconds',
        last_error = format('%s (%s)', note_broken_lane.error, note_broken_lane.sqlstate)
    where l.lane_id = (note_broken_lane.lane).lane_id;
    return format('the filters of role %s cannot be asked: %s (%s)', (note_broken_lane.lane).owner,
        note_broken_lane.error, note_broken_lane.sqlstate);
end
$$;
comment on function pgps_internal.note_broken_lane(pgps_internal.lane, text, text) is
'Notes that a lane failed, and not in a filter: it is tried again among the slow ones. Returns the message to report';

create or replace function pgps_internal.held_type(lane pgps_internal.lane, most integer) returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        with wanted as materialized (
            select b.type_id from unnest(pgps_internal.lane_rows(held_type.lane,
                pgps_internal.lane_position((held_type.lane).lane_id), held_type.most)) b
            union
            (select j.type_id from pgps_internal.joining j join pgps_internal.subscription s using (subscription_id)
            where s.owner = (held_type.lane).owner and j.failures < 3
            order by j.from_batch, j.type_id, j.subscription_id limit 1)
            union
            select c.type_id from pgps_internal.class c join pgps_internal.signature g using (signature_id)
            where c.is_pending and g.in_lane and c.owner = (held_type.lane).owner
            union
            select m.type_id from pgps_internal.asked_again a join pgps_internal.member m using (subscription_id)
            where a.owner = (held_type.lane).owner
        )
        select t.name from wanted w join pgps_internal.event_type t using (type_id)
        where not pgps_internal.try_lock(t.log, 'access share') limit 1);
end
$$;
comment on function pgps_internal.held_type(pgps_internal.lane, integer) is
'An event type that a lane has to read next, for about so many rows (most), and that somebody is changing or dropping in
a transaction that is open; null when there is none. Locks the others, access share';

create or replace function pgps_internal.note_held_lane(lane pgps_internal.lane, event_type text) returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_error text := pgps_internal.held_text(note_held_lane.event_type);
begin
    -- Among the slow ones, where it is looked whether the type is free before anything else, and nobody waits.
    update pgps_internal.lane l set is_slow = true, last_error = v_error,
        slow_until = greatest(l.slow_until, pgps_internal.clock())
    where l.lane_id = (note_held_lane.lane).lane_id;
    return format('the filters of role %s wait: %s', (note_held_lane.lane).owner, v_error);
end
$$;
comment on function pgps_internal.note_held_lane(pgps_internal.lane, text) is
'Notes that a lane waits for who changes an event type; it is the fault of none of its filters. Returns the message to
report';

create or replace function pgps_internal.note_slow_joining(lane pgps_internal.lane, strikes integer, error text)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_joining pgps_internal.joining;
    v_class bigint;
    v_name text;
begin
    select j.* into v_joining from pgps_internal.joining j join pgps_internal.subscription s using (subscription_id)
    where s.owner = (note_slow_joining.lane).owner and j.failures < 3 order by j.from_batch, j.type_id,
        j.subscription_id limit 1;
    if not found then
        -- Otherwise it was one that was catching up: its subscriptions are suspended.
        select c.class_id into v_class from pgps_internal.class c join pgps_internal.signature g using (signature_id)
        where c.is_pending and g.in_lane and c.owner = (note_slow_joining.lane).owner order by c.class_id limit 1;
        if not found then
            -- Or one that was asked again about an event, which stays in the exception queue.
            delete from pgps_internal.asked_again a
                where (a.subscription_id, a.event_id) = (select b.subscription_id, b.event_id
                from pgps_internal.asked_again b where b.owner = (note_slow_joining.lane).owner
                    order by b.subscription_id, b.event_id limit 1);
            return format('a filter of role %s %s', (note_slow_joining.lane).owner, note_slow_joining.error);
        end if;
        update pgps_internal.class c set is_pending = false, last_error = note_slow_joining.error
            where c.class_id = v_class;
        update pgps_internal.subscription s set state = 'suspended',
            last_error = format('filter: %s', note_slow_joining.error)
        from pgps_internal.member m where m.class_id = v_class and s.subscription_id = m.subscription_id
            and s.kind <> 'link';
        return format('a filter of role %s %s', (note_slow_joining.lane).owner, note_slow_joining.error);
    end if;
    update pgps_internal.joining j set failures = greatest(j.failures, 0) + note_slow_joining.strikes
    where j.subscription_id = v_joining.subscription_id and j.type_id = v_joining.type_id returning * into v_joining;
    select t.name into v_name from pgps_internal.event_type t where t.type_id = v_joining.type_id;
    update pgps_internal.subscription s set last_error = format('event type "%s": the filter %s', v_name,
        note_slow_joining.error),
        state = case when v_joining.failures >= 3 then 'suspended' else s.state end
    where s.subscription_id = v_joining.subscription_id;
    return format('a filter of role %s %s: it does not join event type "%s"', (note_slow_joining.lane).owner,
        note_slow_joining.error, v_name);
end
$$;
comment on function pgps_internal.note_slow_joining(pgps_internal.lane, integer, text) is
'Notes that a filter has taken too long while it joined an event type, where three strikes suspend its subscription,
while it caught up, where one does, or while it was asked again. Returns the message to report';
