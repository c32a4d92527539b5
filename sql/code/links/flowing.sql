-- Batches of which nothing is new but their events: all items are the next of their origins, which are settled. They
-- are admitted in two statements, however many items they have; the others, one by one, in admit.sql (decision 86).
-- What runs here is called by pgps.link_begin and pgps.link_take alone, under their settings.
-- Locks: those of receive.sql.
-- Writes: arrival.

create or replace function pgps_internal.look_at_items(
    neighbour pgps_internal.neighbour, items jsonb, out is_flowing boolean, out is_settled boolean,
    out origins integer[]
)
language plpgsql stable
as $$
begin
    -- Asked before origins are read, and in a transaction that has an id: see pgps_internal.origin_of, and
    -- pgps_internal.see_newcomers.
    look_at_items.is_settled := not pgps_internal.is_news();
    select bool_and(i.value ->> 'kind' = 'audit' or i.value ? 'upto'
            and (i.o).parent = (look_at_items.neighbour).neighbour_id
            and (i.o).attachment = (i.value ->> 'attachment')::integer
            and (i.o).rewind_from is null and (i.value ->> 'previous')::bigint <= i.before
                and (i.value ->> 'upto')::bigint > i.before),
        look_at_items.is_settled and bool_and(i.value ? 'upto' and (i.o).is_settled and (i.o).unpromised = '{}'
                and not (i.o).is_renewed)
            and not pgps_internal.awaits_answer((look_at_items.neighbour).neighbour_id),
        array_agg((i.o).origin_id order by i.n)
    into look_at_items.is_flowing, look_at_items.is_settled, look_at_items.origins
    from (
        select i.value, i.n, x.o,
            coalesce(lag((i.value ->> 'upto')::bigint) over (partition by (x.o).origin_id order by i.n),
            x.horizon) as before
        from jsonb_array_elements(look_at_items.items) with ordinality i(value, n)
        left join lateral (select o, pgps_internal.horizon(o.origin_id) as horizon from pgps_internal.origin o
            where o.broker_id = (i.value ->> 'broker')::uuid and o.epoch = (i.value ->> 'epoch')::integer) x on true
    ) i;
    look_at_items.is_flowing := coalesce(look_at_items.is_flowing, false);
    look_at_items.is_settled := look_at_items.is_flowing and look_at_items.is_settled;
end
$$;
comment on function pgps_internal.look_at_items(pgps_internal.neighbour, jsonb) is
'is_flowing: a batch has only items (data, silence) and totals of the audit, and none that admit_item could refuse.
is_settled: and none for which there is anything to do but to note it. origins: that of each item. What is said of the
path to origins stays true while their turns are held';

create or replace function pgps_internal.is_flowing(neighbour pgps_internal.neighbour, items jsonb) returns boolean
language plpgsql stable
as $$
begin
    return (pgps_internal.look_at_items(is_flowing.neighbour, is_flowing.items)).is_flowing;
end
$$;
comment on function pgps_internal.is_flowing(pgps_internal.neighbour, jsonb) is 'See pgps_internal.look_at_items';

create or replace function pgps_internal.admit_flowing(
    neighbour pgps_internal.neighbour, batch jsonb, slices jsonb, origins integer[]
) returns bigint
language plpgsql
as $$
declare
    v_came bigint;
    v_differs boolean;
begin
    with came as materialized (
        select i.item, (admit_flowing.origins)[i.n] as origin_id, coalesce((i.item ->> 'events')::integer, 0) as said,
            i.n, s.ids, s.events, s.types
        from jsonb_array_elements(admit_flowing.batch -> 'items') with ordinality i(item, n)
        cross join lateral pgps_internal.slices_of_item(i.item, admit_flowing.slices) s
    ),
    noted as (
        insert into pgps_internal.arrival (neighbour_id, lseq, mark, origin_id, attachment, upto, horizon, events, lo,
            hi, ids, tallies, hops)
        select (admit_flowing.neighbour).neighbour_id, (c.item ->> 'lseq')::bigint, admit_flowing.batch ->> 'mark',
            c.origin_id, (c.item ->> 'attachment')::integer, (c.item ->> 'upto')::bigint, (c.item ->> 'upto')::bigint,
            c.said, lower(c.ids), upper(c.ids) - 1, nullif(c.ids, '{}'),
            case when c.events > 0 then array[(c.types[1], c.events)::pgps_internal.tally] end,
            nullif(c.item -> 'hops', 'null')
        from came c order by c.n
    )
    select coalesce(sum(c.events), 0), bool_or(c.said <> coalesce(c.events, 0)) into v_came, v_differs from came c;
    if v_differs then
        perform pgps_internal.tally_item(admit_flowing.neighbour, (admit_flowing.origins)[i.n], i.item,
            admit_flowing.slices, s.types[1], s.events)
        from jsonb_array_elements(admit_flowing.batch -> 'items') with ordinality i(item, n)
        cross join lateral pgps_internal.slices_of_item(i.item, admit_flowing.slices) s;
    end if;
    return v_came;
end
$$;
comment on function pgps_internal.admit_flowing(pgps_internal.neighbour, jsonb, jsonb, integer[]) is
'Notes the items of a batch that is settled, of one event type, with origins as pgps_internal.look_at_items gave them,
and what the audit finds; returns how many events came';

create or replace function pgps_internal.take_flowing(
    neighbour pgps_internal.neighbour, batch jsonb, slices jsonb, origins integer[]
) returns jsonb
language plpgsql
as $$
declare
    v_came bigint := pgps_internal.admit_flowing(take_flowing.neighbour, take_flowing.batch, take_flowing.slices,
        take_flowing.origins);
begin
    if v_came <> pgps_internal.count_runs(take_flowing.batch #> '{types,0,runs}') then
        raise exception 'what came from broker "%" cannot go straight into the log', (take_flowing.neighbour).name
        using errcode = '40001', hint = 'Again with staged.';
    end if;
    if v_came > 0 then
        perform pgps_internal.note_slices(take_flowing.neighbour, take_flowing.batch, take_flowing.slices, null, true);
    end if;
    return jsonb_build_object('last', (take_flowing.batch ->> 'upto')::bigint, 'taken', v_came);
end
$$;
comment on function pgps_internal.take_flowing(pgps_internal.neighbour, jsonb, jsonb, integer[]) is
'As pgps_internal.admit_batch, for a batch that is settled and whose events are in the log, in rows with slices';
