-- Sharing out: which session of a worker detects what. Each has a seat; composite events go to seats by their number,
-- and where there are few, their partition keys are divided into as many shares as there are seats. A share has a
-- position of its own and is locked by who takes a step of it, so that seats need not be agreed upon: sessions that
-- count them differently for a moment do nothing twice (decision 58).
-- Locks: shares of composite events that are divided anew, where nobody else has them.
-- Writes: composite_share, composite_step, detecting.

create or replace function pgps_internal.seat_here(out seat integer, out seats integer)
language sql stable
as $$
    -- Who came first sits first, so that a newcomer moves nobody. A session that has not come yet is not counted.
    with here as materialized (
        select d.pid, d.started_at from pgps_internal.detecting d
        where exists (select from pg_stat_get_activity(d.pid) a where a.backend_start = d.started_at)
    )
    select case when m.pid is null then 0 else (select count(*) from here h
            where (h.started_at, h.pid) < (m.started_at, m.pid))::integer end,
        case when m.pid is null then 1 else (select count(*) from here)::integer end
    from (values (1)) one left join here m on m.pid = pg_backend_pid()
$$;
comment on function pgps_internal.seat_here() is
'Which of the sessions that detect this one is, from 0, and how many there are; the only one when it is none of them';

create or replace function pgps_internal.take_seat(out seat integer, out seats integer)
language plpgsql
as $$
begin
    -- Common case: nobody else has ever come. Whether sessions are still there is asked of all processes of the server.
    if (select count(*) = 1 and bool_and(d.pid = pg_backend_pid()) from pgps_internal.detecting d) then
        seat := 0;
        seats := 1;
        return;
    end if;
    if not exists (select from pgps_internal.detecting d join pg_stat_get_activity(d.pid) a
            on a.backend_start = d.started_at where d.pid = pg_backend_pid()) then
        -- Sessions that have ended: another one that comes at the same moment may do it.
        delete from pgps_internal.detecting d where d.pid in (select o.pid from pgps_internal.detecting o
            where not exists (select from pg_stat_get_activity(o.pid) a where a.backend_start = o.started_at)
            for update skip locked);
        insert into pgps_internal.detecting as d (pid, started_at)
        select a.pid, a.backend_start from pg_stat_get_activity(pg_backend_pid()) a
        on conflict on constraint detecting_pkey do update set started_at = excluded.started_at;
    end if;
    select h.seat, h.seats into seat, seats from pgps_internal.seat_here() h;
end
$$;
comment on function pgps_internal.take_seat() is
'As seat_here, for a session that detects from now on until it ends';

create or replace function pgps_internal.share_out(seats integer) returns void
language plpgsql
as $$
begin
    perform pgps_internal.divide(w.composite_id, w.shares)
    from (
        select c.composite_id, case when c.partition_by is not null and c.time_basis = 'arrival'
                -- Where there are many, each seat has enough of them, and each step has a price.
                and (select count(*) from pgps_internal.composite) <= 16 * share_out.seats
                and not exists (select from pgps_internal.composite_part p where p.composite_id = c.composite_id)
                and not exists (select from pgps_internal.hosted_part p where p.composite_id = c.composite_id)
            then share_out.seats else 1 end as shares
        from pgps_internal.composite c where c.enabled) w
    join pgps_internal.composite_share h on h.composite_id = w.composite_id and h.share = 0
    where h.shares <> w.shares;
end
$$;
comment on function pgps_internal.share_out(integer) is
'Divides the keys of composite events anew that are divided for another number of sessions';

create or replace function pgps_internal.may_divide(composite pgps_internal.composite) returns boolean
language sql stable
as $$
    -- All shares are where the furthest one is: they have the same events behind them, and no timer between them. None
    -- is in the middle of a batch.
    select count(s.row_id) in (0, count(*)) and not coalesce(bool_or(s.ordering ? 'taken'), false) and not exists (
            select from pgps_internal.composite_leaf l join pgps_internal.member m using (subscription_id)
            join pgps_internal.delivery d on d.class_id = m.class_id
                and d.batch_id > greatest(min(s.batch_id), m.from_batch) and d.batch_id <= max(s.batch_id)
            where l.composite_id = (may_divide.composite).composite_id)
        and (count(distinct f.frontier) < 2 or not exists (
            select from pgps_internal.composite_key k where k.state_id = (may_divide.composite).state_id
                and k.due >= min(f.frontier) and k.due < max(f.frontier)))
    from pgps_internal.composite_share h
    left join pgps_internal.step_now s on s.composite_id = h.composite_id and s.share = h.share
    cross join lateral (select coalesce((s.ordering ->> 'frontier')::bigint, -4611686018427387904) as frontier) f
    where h.composite_id = (may_divide.composite).composite_id
$$;
comment on function pgps_internal.may_divide(pgps_internal.composite) is
'True when all shares of a composite event have taken the same of its history, as far as it matters';

create or replace function pgps_internal.divide(composite_id bigint, shares integer) returns void
language plpgsql
as $$
declare
    v_held bigint;
    v_composite pgps_internal.composite;
begin
    -- Who takes a step, alters or drops it comes first; it is divided by one of the next calls.
    select count(*) into v_held from (select from pgps_internal.composite_share h
        where h.composite_id = divide.composite_id order by h.share for no key update skip locked) h;
    select c.* into v_composite from pgps_internal.composite c where c.composite_id = divide.composite_id
        and v_held = (select count(*) from pgps_internal.composite_share h where h.composite_id = c.composite_id)
        and v_held <> divide.shares;
    if not found or not pgps_internal.may_divide(v_composite) then
        return;
    end if;
    insert into pgps_internal.composite_step (composite_id, share, state_id, batch_id, ordering, heard, idle_at, open,
        keys, detected, late, given_up, stepped_at)
    select divide.composite_id, n, v_composite.state_id, s.batch_id, s.ordering, null, null,
        -- Totals are told of all shares together.
        case n when 0 then s.open else 0 end, case n when 0 then s.keys else 0 end,
        case n when 0 then s.detected else 0 end, case n when 0 then s.late else 0 end,
        case n when 0 then s.given_up else 0 end, s.stepped_at
    from generate_series(0, divide.shares - 1) n
    cross join (
        select max(s.batch_id) as batch_id,
            (array_agg(s.ordering order by (s.ordering ->> 'frontier')::bigint desc nulls last))[1] as ordering,
            sum(s.open) as open, sum(s.keys) as keys, sum(s.detected) as detected, sum(s.late) as late,
            sum(s.given_up) as given_up, max(s.stepped_at) as stepped_at
        from pgps_internal.step_now s where s.composite_id = divide.composite_id) s
    where s.batch_id is not null;
    delete from pgps_internal.composite_share h
    where h.composite_id = divide.composite_id and h.share >= divide.shares;
    insert into pgps_internal.composite_share as h (composite_id, share, shares)
    select divide.composite_id, n, divide.shares from generate_series(0, divide.shares - 1) n
    on conflict on constraint composite_share_pkey do update set shares = excluded.shares;
    perform pg_notify('pgps_composite', '');
end
$$;
comment on function pgps_internal.divide(bigint, integer) is
'Divides the keys of a composite event into so many shares, unless another session has one of them or they are not
equally far';
