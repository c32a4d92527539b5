-- How many large events go into one answer of pgps_queue.<type>_receive: a client has all of it in memory at once.
-- Called by receive_rows.sql.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.rows_that_fit(event_type pgps_internal.event_type, runs pgps_internal.run[])
returns integer
language plpgsql stable
as $$
declare
    v_first bigint;
    v_fit integer;
    v_all integer;
begin
    -- Little that is stored out of line may be 255 times as much.
    if greatest(pgps_internal.toast_bytes((rows_that_fit.event_type).name, rows_that_fit.runs[1].lo),
            pgps_internal.toast_bytes((rows_that_fit.event_type).name,
                rows_that_fit.runs[cardinality(rows_that_fit.runs)].hi)) < 4000000 then
        return null;
    end if;
    select min(x.bytes) filter (where x.place = 1), count(*) filter (where x.upto <= pgps_internal.most_bytes()),
        count(*)
    into v_first, v_fit, v_all
    from (
        select e.place, b.bytes, sum(coalesce(b.bytes, 0)) over (order by e.place) as upto
        from (select row_number() over (order by r.place, i.id) as place, i.id
            from unnest(rows_that_fit.runs) with ordinality r(batch_id, lo, hi, xid, published_at, publisher, origin,
                received_batch, received_event, places, first_event, last_event, broker, publishers_xid, place),
                generate_series(r.lo, r.hi) i(id)) e
        left join pgps_internal.event_bytes((rows_that_fit.event_type).type_id,
            array(select generate_series(r.lo, r.hi) from unnest(rows_that_fit.runs) r)) b on b.event_id = e.id) x;
    return case when v_first > 1000000000 then 0 when v_fit < v_all then greatest(v_fit, 1) end;
end
$$;
comment on function pgps_internal.rows_that_fit(pgps_internal.event_type, pgps_internal.run[]) is
'How many of these events, from the first on, go into one answer; null: all. 0: the first may be too large for a row';
