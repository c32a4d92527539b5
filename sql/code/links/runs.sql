-- Runs of events: consecutive events of one statement at the origin, with what they have in common.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.runs(
    neighbour_id integer, after bigint, upto bigint, type_id integer, log regclass
) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_runs jsonb;
    v_sent text := format('sent as materialized (
        select o.lseq, l.event_id, l.xid, case when o.body is null then l.event_id else coalesce(l.pgps_origin_event, '
            'l.event_id) end as place
        from pgps_internal.shipment o, unnest(o.slices) s, unnest(s.ids) w(ids)
        cross join lateral (select x.event_id, x.xid, x.pgps_origin_event from %s x where x.event_id >= lower(w.ids) '
            'and x.event_id < upper(w.ids) offset 0) l
        where o.neighbour_id = $1 and o.lseq > $2 and o.lseq <= $3 and s.type_id = $4)', runs.log);
begin
    v_runs := pgps_internal.plain_runs(runs.neighbour_id, runs.after, runs.upto, runs.type_id);
    if v_runs is not null then
        return v_runs;
    end if;
    -- Common case: each item is of one statement, though others published meanwhile.
    execute format('with %s, one as (select g.lseq, (array_agg(g.xid))[1] as xid, count(*) as xids, sum(g.n)::bigint '
        'as n, min(g.lo) as lo, max(g.hi) as hi
                from (select t.lseq, t.xid, count(*) as n, min(t.event_id) as lo, max(t.event_id) as hi from sent t '
                    'group by t.lseq, t.xid) g group by g.lseq)
        select case when bool_and(o.xids = 1 and c.n = 1) then to_jsonb(array_agg(jsonb_build_object(''lseq'', o.lseq, '
            '''n'', o.n) || c.part order by o.lseq)) end
        from one o cross join lateral (select count(*) as n, (array_agg(pgps_internal.part_of(c)))[1] as part from '
            'pgps_internal.control c
            where c.xid = o.xid and c.type_id = $4 and c.hi >= o.lo and c.lo <= o.hi) c', v_sent)
    using runs.neighbour_id, runs.after, runs.upto, runs.type_id into v_runs;
    if v_runs is not null then
        return v_runs;
    end if;
    execute format('with %s,
        stated as (
            select t.lseq, t.place, c.control, (c.control).hi as hi
            from sent t cross join lateral (%s) c
        ),
        islands as (
            select s.*, row_number() over (order by s.lseq, s.place) - row_number() over (partition by s.lseq, s.hi '
                'order by s.place) as island from stated s
        ),
        grouped as (select i.lseq, min(i.place) as lo, count(*) as n, (array_agg(i.control))[1] as control from '
            'islands i group by i.lseq, i.hi, i.island)
        select to_jsonb(array_agg(jsonb_build_object(''lseq'', g.lseq, ''n'', g.n) || pgps_internal.part_of(g.control) '
            'order by g.lseq, g.lo)) from grouped g', v_sent,
        pgps_internal.statement_of('c as control', '$4', 't.event_id', 't.xid'))
    using runs.neighbour_id, runs.after, runs.upto, runs.type_id into v_runs;
    return coalesce(v_runs, '[]');
end
$$;
comment on function pgps_internal.runs(integer, bigint, bigint, integer, regclass) is
'The events of some items as runs, in the order in which they travel: for each run, of one statement, the number of
events and what the statement''s events have in common';

create or replace function pgps_internal.plain_runs(neighbour_id integer, after bigint, upto bigint, type_id integer)
returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Finds the statements of the batch whose id range overlaps the item's: if there is only one, the log need not be
    -- read. Which transactions are in a batch: see pgps_internal.waiting.
    return (
        select case when bool_and(c.n = 1)
            then to_jsonb(array_agg(jsonb_build_object('lseq', o.lseq, 'n', o.n) || c.part order by o.lseq)) end
        from (select o.lseq, o.batch_id, lower(s.ids) as lo, upper(s.ids) - 1 as hi, pgps_internal.count_ids(s.ids) as n
            from pgps_internal.shipment o, unnest(o.slices) s
            where o.neighbour_id = plain_runs.neighbour_id and o.lseq > plain_runs.after and o.lseq <= plain_runs.upto
                and s.type_id = plain_runs.type_id) o
        left join lateral (select b.previous, b.snapshot, b.upto from pgps_internal.batch b
            where b.batch_id = o.batch_id limit 1) b on true
        left join lateral (select b.upto from pgps_internal.batch b where b.batch_id = o.batch_id - 1 limit 1) p on true
        cross join lateral (
            select case when bool_and((x.c).lo <= o.lo and (x.c).hi >= o.hi) then count(*) else 0 end as n,
                (array_agg(pgps_internal.part_of(x.c)))[1] as part
            from (
                select c from pgps_internal.control c
                where c.xid >= greatest(pg_snapshot_xmax(b.previous), p.upto)
                    and c.xid <= coalesce(b.upto, pg_snapshot_xmax(b.snapshot))
                    and c.type_id = plain_runs.type_id and c.hi >= o.lo and c.lo <= o.hi
                union all
                select c from pgps_internal.control c
                where c.xid = any (array(select pg_snapshot_xip(b.previous))) and c.type_id = plain_runs.type_id
                    and c.hi >= o.lo and c.lo <= o.hi
            ) x(c)
        ) c);
end
$$;
comment on function pgps_internal.plain_runs(integer, bigint, bigint, integer) is
'See pgps_internal.runs; null when an item may be of several statements';

create or replace function pgps_internal.part_of(control pgps_internal.control) returns jsonb
language plpgsql stable
as $$
begin
    return jsonb_build_object('published_at', (part_of.control).published_at) || case when (part_of.control).volatile
        then '{"volatile": true}' else '{}'::jsonb end;
end
$$;
comment on function pgps_internal.part_of(pgps_internal.control) is
'What the events of a statement have in common, as it travels';

create or replace function pgps_internal.runs_with_ids(runs jsonb, type_id integer, lo bigint, ids bigint[])
returns jsonb
language plpgsql stable
as $$
begin
    -- Rows come in the order of the runs, so each run has the next n ids.
    return (
        select coalesce(to_jsonb(array_agg(x.run || jsonb_build_object('lo', x.lo, 'hi', x.hi,
            'type_id', runs_with_ids.type_id,
            'ids', case when x.hi - x.lo + 1 = x.n then int8multirange(int8range(x.lo, x.hi, '[]'))
                else (select range_agg(int8range(u, u, '[]'))
                    from unnest(runs_with_ids.ids[x.before + 1 : x.before + x.n]) u) end))), '[]')
        from (
            select r.run, r.n, r.before, case when runs_with_ids.ids is null then runs_with_ids.lo + r.before
                else runs_with_ids.ids[r.before + 1] end as lo,
                case when runs_with_ids.ids is null then runs_with_ids.lo + r.before + r.n - 1
                    else runs_with_ids.ids[r.before + r.n] end as hi
            from (select r.value as run, (r.value ->> 'n')::integer as n,
                    coalesce(sum((r.value ->> 'n')::integer)
                        over (order by r.n rows between unbounded preceding and 1 preceding), 0)::integer as before
                from jsonb_array_elements(runs_with_ids.runs) with ordinality r(value, n)) r
        ) x);
end
$$;
comment on function pgps_internal.runs_with_ids(jsonb, integer, bigint, bigint[]) is
'Runs with the ids of their events: taken in order from ids or, if that is null, without gaps from lo on';

create or replace function pgps_internal.count_runs(runs jsonb) returns bigint
language plpgsql immutable
as $$ begin return (select coalesce(sum((r.value ->> 'n')::bigint), 0)::bigint
    from jsonb_array_elements(count_runs.runs) r); end $$;
comment on function pgps_internal.count_runs(jsonb) is 'The number of events in runs';
