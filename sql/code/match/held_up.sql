-- Who holds up the dispatcher: what the filters of a role over the event alone take is measured, and what takes too
-- much is asked in the role's lane from then on, where nobody else waits for it (decision 108); how it comes there:
-- apart.sql.
-- Locks: those of apart.sql.
-- Writes: held_up, setting.

insert into pgps_internal.setting (name, value, kind, description) values
    ('dispatch_filter_timeout', '3 seconds', 'interval',
        'How long the dispatcher asks one form of filter about one batch, and a millisecond more for each event; and '
        'how much more than usual all of one role may take within a minute. Usual are 10 ms a batch of an event type, '
        '1 ms a form, 0.2 ms an event, and 0.05 ms a class that gets something')
on conflict (name) do nothing;

create or replace function pgps_internal.is_apart(owner regrole) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from pgps_internal.held_up h
        where h.owner = is_apart.owner::oid and h.apart_until > pgps_internal.clock());
end
$$;
comment on function pgps_internal.is_apart(regrole) is
'True for a role whose filters have held up the dispatcher lately: it asks no further ones of it';

drop function if exists pgps_internal.weigh(bigint, integer, bigint, pgps_internal.signature[], timestamptz,
    timestamptz[]);
create or replace function pgps_internal.weigh(
    batch_id bigint, type_id integer, events bigint, signatures pgps_internal.signature[], took interval[]
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.note_excess(r.owner, r.excess, r.slowest, weigh.batch_id) from (
        with took as (
            select g.owner, g.signature_id, t.took
            from unnest(weigh.took) with ordinality t(took, place)
            cross join lateral (select (weigh.signatures[t.place]).owner, (weigh.signatures[t.place]).signature_id) g
        ),
        found as (
            select c.owner, count(*) as deliveries
            from pgps_internal.delivery d join pgps_internal.class c using (class_id)
            where d.batch_id = weigh.batch_id and d.type_id = weigh.type_id and c.signature_id is not null
            group by c.owner
        )
        select t.owner, (array_agg(t.signature_id order by t.took desc))[1] as slowest,
            sum(t.took) - pgps_internal.usual_time(weigh.events, count(*), coalesce(max(f.deliveries), 0)) as excess
        from took t left join found f using (owner) group by t.owner) r
    where r.excess > '0';
end
$$;
comment on function pgps_internal.weigh(bigint, integer, bigint, pgps_internal.signature[], interval[]) is
'After a batch of a type took long to match: notes what each role''s filters took more than is usual. took: for how long
each of the signatures was asked';

create or replace function pgps_internal.usual_time(events bigint, forms bigint, deliveries bigint) returns interval
language sql immutable
-- No SET clause, so that it is put in its place.
return interval '10 ms' + forms * interval '1 ms' + events * interval '0.2 ms' + deliveries * interval '0.05 ms';
comment on function pgps_internal.usual_time(bigint, bigint, bigint) is
'What the filters of a role may take of the dispatcher''s time for a batch of a type without being noted';

create or replace function pgps_internal.note_excess(
    owner regrole, excess interval, signature_id bigint, after_batch bigint
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := pgps_internal.clock();
    v_spent interval;
begin
    insert into pgps_internal.held_up as h (owner, since, spent) values (note_excess.owner, v_now, note_excess.excess)
    on conflict on constraint held_up_pkey do update
    set since = case when h.since < v_now - interval '1 minute' then v_now else h.since end,
        spent = excluded.spent + case when h.since < v_now - interval '1 minute' then '0' else h.spent end
    returning h.spent into v_spent;
    if v_spent > pgps_internal.setting('dispatch_filter_timeout')::interval then
        perform pgps_internal.set_apart(note_excess.owner, note_excess.signature_id, note_excess.after_batch,
            format('has held up the dispatcher for %s s too long within a minute',
            trim_scale(round(extract(epoch from v_spent), 1))));
    end if;
end
$$;
comment on function pgps_internal.note_excess(regrole, interval, bigint, bigint) is
'Notes that a role''s filters took more time than is usual; when that comes to too much within a minute, the one that
took most is asked by the dispatcher no more after a batch';

create or replace function pgps_internal.set_apart(
    owner regrole, signature_id bigint, after_batch bigint, error text
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := pgps_internal.clock();
    v_again boolean := pgps_internal.is_apart(set_apart.owner);
begin
    -- Twice as long each time, so that somebody who comes again and again holds others up ever less.
    insert into pgps_internal.held_up as h (owner, since, spent, offences, apart_until)
    values (set_apart.owner, v_now, '0', 1, v_now + interval '1 hour')
    on conflict on constraint held_up_pkey do update set since = v_now, spent = '0',
        offences = case when h.apart_until > v_now - interval '1 day' then h.offences else 0 end + 1,
        apart_until = v_now + least(power(2, case when h.apart_until > v_now - interval '1 day'
            then least(h.offences, 5) else 0 end), 24) * interval '1 hour';
    -- Of other event types, which may not have been matched in this batch yet, in the next sweep (settle_apart).
    perform pgps_internal.put_into_lane(g, set_apart.after_batch, set_apart.error) from pgps_internal.signature g
    where not g.in_lane and not exists (select from pgps_internal.unasked u where u.signature_id = g.signature_id)
        and (g.signature_id = set_apart.signature_id or v_again and g.owner = set_apart.owner
        and g.type_id = (select x.type_id from pgps_internal.signature x
            where x.signature_id = set_apart.signature_id)
        and not pgps_internal.is_bound(g.signature_id));
end
$$;
comment on function pgps_internal.set_apart(regrole, bigint, bigint, text) is
'Has a filter that holds up the dispatcher asked in the lane of its role, after a batch; when that happens again soon,
all filters of the role';

create or replace function pgps_internal.set_cut_apart() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (select m.last_value & ((1::bigint << 40) - 1) from pgps_internal.matching_seq m);
begin
    perform setval('pgps_internal.matching_seq', 0);
    perform pgps_internal.set_apart(g.owner, g.signature_id, coalesce((pgps_internal.last_batch()).batch_id, 0),
        'was cancelled, since the dispatcher waited for it')
    from pgps_internal.signature g where g.signature_id = v_id;
end
$$;
comment on function pgps_internal.set_cut_apart() is
'Has the form of filter that was being asked last asked in the lane of its role; the caller has the dispatcher''s lock';

create or replace function pgps_internal.catch_up_in_time(class pgps_internal.class, upto bigint) returns boolean
language plpgsql
as $$
declare
    v_entered timestamptz := clock_timestamp();
    v_done boolean;
begin
    if (catch_up_in_time.class).signature_id is not null then
        perform setval('pgps_internal.matching_since_seq', (1000 * date_part('epoch', v_entered))::bigint
                + coalesce((select sum(b.events) from pgps_internal.batch_type b
                    where b.type_id = (catch_up_in_time.class).type_id
                        and b.batch_id > (catch_up_in_time.class).suspended_batch), 0)::bigint),
            setval('pgps_internal.matching_seq',
                (pg_backend_pid()::bigint << 40) + (catch_up_in_time.class).signature_id);
    end if;
    v_done := pgps_internal.catch_up(catch_up_in_time.class, catch_up_in_time.upto);
    perform setval('pgps_internal.matching_seq', 0);
    return v_done;
end
$$;
comment on function pgps_internal.catch_up_in_time(pgps_internal.class, bigint) is
'As catch_up, in the dispatcher; noted, so that it is cut short when the filter takes too long';

create or replace function pgps.cut_filter() returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_found bigint := (select m.last_value from pgps_internal.matching_seq m);
    -- Without the bit that says that it was cut short.
    v_mark bigint := v_found & ((1::bigint << 62) - 1);
    v_limit numeric := extract(epoch from pgps_internal.setting('dispatch_filter_timeout')::interval);
    v_entered timestamptz := clock_timestamp();
begin
    -- The time is set before the mark: if the mark is the same afterwards, the time is its own, or of a later batch. A
    -- mark may be left of a session that has ended or was cancelled: who waits for the lock of the dispatchers, or has
    -- it, is one that lives.
    if v_mark = 0
        or (select u.last_value from pgps_internal.matching_since_seq u) / 1000.0 + v_limit
            > extract(epoch from v_entered)
        or v_found <> (select m.last_value from pgps_internal.matching_seq m)
        or not exists (select from pg_locks l where l.pid = v_mark >> 40 and l.granted
            and l.relation = 'pgps_internal.batch'::regclass and l.mode = 'ShareRowExclusiveLock') then
        return false;
    end if;
    -- Whoever dispatches next knows by this which filter it was, also when that is not the session that is cancelled.
    perform setval('pgps_internal.matching_seq', (1::bigint << 62) + v_mark);
    return pg_cancel_backend((v_mark >> 40)::integer);
end
$$;
comment on function pgps.cut_filter() is
'Cancels a dispatch that has asked one form of filter for longer than the setting dispatch_filter_timeout says; true
when it did. Its session then calls pgps.blame; whoever dispatches before does the same. Needs
pgps_worker or pgps_admin.';

revoke all on function pgps.cut_filter() from public;
grant execute on function pgps.cut_filter() to pgps_worker, pgps_admin;
