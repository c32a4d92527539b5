-- Admitting the items of a batch: whether each is the next of its origin, and which subscriptions skip its events since
-- their filters came into force later.
-- Locks: those of receive.sql.
-- Writes: arrival, origin, to_skip.

-- A change of an origin's row needs the turn of routes; see pgps_internal.admit_batch.
create or replace function pgps_internal.attach_again(origin pgps_internal.origin) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.hold_routes();
    update pgps_internal.origin o set attachment = o.attachment + 1 where o.origin_id = (attach_again.origin).origin_id;
    perform pg_notify('pgps_link', '');
end
$$;
comment on function pgps_internal.attach_again(pgps_internal.origin) is
'Asks the parent for an origin once more, from the horizon, since an item is missing';

create or replace function pgps_internal.note_answer(origin pgps_internal.origin) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.hold_routes();
    update pgps_internal.origin o set answered = (note_answer.origin).attachment
    where o.origin_id = (note_answer.origin).origin_id;
    perform pg_notify('pgps_link', '');
end
$$;
comment on function pgps_internal.note_answer(pgps_internal.origin) is
'Notes that the parent for an origin has answered. An item that is here already is an answer, too: the new parent may
have nothing newer, and the old one is kept until this answer';

create or replace function pgps_internal.move_rewind(origin pgps_internal.origin, upto bigint, horizon bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- It ends at the present horizon: items that were being received when it began may have been committed since.
    if move_rewind.upto >= move_rewind.horizon then
        perform pgps_internal.hold_routes();
        perform pgps_internal.end_rewind(move_rewind.origin);
    elsif (move_rewind.origin).rewind_from < move_rewind.upto then
        perform pgps_internal.hold_routes();
        update pgps_internal.origin o set rewind_from = move_rewind.upto
        where o.origin_id = (move_rewind.origin).origin_id;
    end if;
end
$$;
comment on function pgps_internal.move_rewind(pgps_internal.origin, bigint, bigint) is
'Notes how far a rewind has come with an item, and ends it at the horizon';

create or replace function pgps_internal.slices_of_item(item jsonb, slices jsonb)
returns table (ids int8multirange, events bigint, types integer[])
language sql stable rows 1
as $$
    select coalesce(range_agg(r), '{}'), sum(upper(r) - lower(r)),
        array_agg(distinct (s.value ->> 'type_id')::integer)
    from jsonb_array_elements(slices_of_item.slices) s, unnest((s.value ->> 'ids')::int8multirange) r
    where s.value -> 'lseq' = slices_of_item.item -> 'lseq'
$$;
comment on function pgps_internal.slices_of_item(jsonb, jsonb) is
'The events of an item: their ids, how many, and of which event types';

create or replace function pgps_internal.slices_by_item(
    neighbour pgps_internal.neighbour, items jsonb, slices jsonb
) returns jsonb
language sql volatile
as $$
    -- Chosen once: a batch has hundreds of items, each with slices of its own.
    select coalesce(jsonb_object_agg(s.lseq, to_jsonb(s.slices)), '{}')
    from (select s.value ->> 'lseq' as lseq, array_agg(s.value order by s.n) as slices
        from jsonb_array_elements(pgps_internal.with_held(slices_by_item.neighbour, slices_by_item.items,
            slices_by_item.slices)) with ordinality s(value, n) group by 1) s
$$;
comment on function pgps_internal.slices_by_item(pgps_internal.neighbour, jsonb, jsonb) is
'The slices of a batch by the number of their item (lseq), with what is held already of those that are fetched again';

create or replace function pgps_internal.admit_item(
    neighbour pgps_internal.neighbour, item jsonb, slices jsonb, mark text
) returns int8multirange
language plpgsql
as $$
declare
    v_origin pgps_internal.origin;
    v_horizon bigint;
    v_place bigint;
    v_upto bigint := (admit_item.item ->> 'upto')::bigint;
    v_ids int8multirange := '{}';
    v_had int8multirange := '{}';
    v_came bigint;
    v_types integer[];
    v_tallies pgps_internal.tally[];
begin
    v_origin := pgps_internal.origin_of(admit_item.item);
    v_horizon := pgps_internal.horizon(v_origin.origin_id);
    v_place := coalesce(v_origin.rewind_from, v_horizon);
    if v_origin.parent is distinct from (admit_item.neighbour).neighbour_id
        or v_origin.attachment <> (admit_item.item ->> 'attachment')::integer then
        return '{}';
    elsif pgps_internal.is_set_back(admit_item.neighbour, v_origin, admit_item.item, v_horizon) then
        return '{}';
    elsif (admit_item.item ->> 'previous')::bigint > v_place then
        perform pgps_internal.attach_again(v_origin);
        return '{}';
    end if;
    if v_origin.answered is distinct from v_origin.attachment then
        perform pgps_internal.note_answer(v_origin);
    end if;
    if v_upto > v_place then
        select s.* into v_ids, v_came, v_types from pgps_internal.slices_of_item(admit_item.item, admit_item.slices) s;
        v_tallies := pgps_internal.tally_item(admit_item.neighbour, v_origin.origin_id, admit_item.item,
            admit_item.slices, case when cardinality(v_types) = 1 then v_types[1] end, v_came);
        if v_upto <= v_horizon then
            v_had := pgps_internal.admit_rewound(admit_item.neighbour, v_origin, admit_item.item, admit_item.slices,
                admit_item.mark);
        else
            insert into pgps_internal.arrival (neighbour_id, lseq, mark, origin_id, attachment, upto, horizon, events,
                lo, hi, ids, tallies, hops)
            values ((admit_item.neighbour).neighbour_id, (admit_item.item ->> 'lseq')::bigint, admit_item.mark,
                v_origin.origin_id, v_origin.attachment, v_upto, v_upto,
                coalesce((admit_item.item ->> 'events')::integer, 0), lower(v_ids), upper(v_ids) - 1, nullif(v_ids,
                '{}'), nullif(v_tallies, '{}'), nullif(admit_item.item -> 'hops', 'null'));
            if not isempty(v_ids) and not (v_origin.is_settled and not v_origin.unpromised && v_types) then
                perform pgps_internal.skip_early(v_origin.origin_id, v_upto, v_ids, v_types);
            end if;
            if v_origin.is_renewed and not isempty(v_ids) then
                perform pgps_internal.skip_known(v_origin, admit_item.item, admit_item.slices);
            end if;
        end if;
    end if;
    if v_origin.rewind_from is not null then
        perform pgps_internal.move_rewind(v_origin, v_upto, v_horizon);
    end if;
    return v_ids - v_had;
end
$$;
comment on function pgps_internal.admit_item(pgps_internal.neighbour, jsonb, jsonb, text) is
'Applies rules 2 to 4 of the horizon to one item, whose slices are given: returns the ids of its events that are to be
published here';

create or replace function pgps_internal.in_other_epochs(origin pgps_internal.origin, item jsonb)
returns setof pgps_internal.arrival
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- A batch is the same in two epochs when it has the same number, and was cut at the same time. Only rows that are
    -- as new as it are read: horizons of an origin never go back. Events that were fetched for children are not meant.
    select a.* from pgps_internal.origin o join pgps_internal.arrival a using (origin_id)
    where o.broker_id = (in_other_epochs.origin).broker_id and o.epoch <> (in_other_epochs.origin).epoch
        and a.arrival_id > coalesce((select b.arrival_id from pgps_internal.arrival b where b.origin_id = o.origin_id
            and b.horizon < (in_other_epochs.item ->> 'upto')::bigint order by b.arrival_id desc limit 1), 0)
        and a.upto = (in_other_epochs.item ->> 'upto')::bigint and a.horizon = a.upto and a.ids is not null
        and (a.hops #>> '{0,at}')::timestamptz = (in_other_epochs.item #>> '{hops,0,at}')::timestamptz
$$;
comment on function pgps_internal.in_other_epochs(pgps_internal.origin, jsonb) is
'Where the batch of an item has been received in other epochs of its broker';

create or replace function pgps_internal.skip_known(origin pgps_internal.origin, item jsonb, slices jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_had pgps_internal.arrival;
    v_type pgps_internal.event_type;
    v_slice jsonb;
    v_staged text;
    v_known int8multirange;
    v_is_gone boolean;
begin
    -- A broker that was put back publishes on before anybody notices. What it sends in the former epoch, some
    -- neighbours take and others cannot, so that the new epoch begins before it.
    for v_had in select * from pgps_internal.in_other_epochs(skip_known.origin, skip_known.item) loop
        for v_slice in select s.value from jsonb_array_elements(skip_known.slices) s
            where s.value -> 'lseq' = skip_known.item -> 'lseq' loop
            select t.* into v_type from pgps_internal.event_type t
                where t.type_id = (v_slice ->> 'type_id')::integer;
            -- What came with this batch lies in the log already, or in the staging table; so does what came in the
            -- other epoch, if it came with the same batch.
            v_is_gone := pgps_internal.is_truncated(v_type.type_id, v_had.ids);
            v_staged := case when pgps_internal.temporary(format('pgps_stage_%s', v_type.type_id)) is not null then
                format(' union all select s.pgps_id, s.pgps_event from pg_temp.pgps_stage_%s s '
                    'where s.pgps_id <@ w.ids', v_type.type_id) else '' end;
            execute format('with there as (
                    select w.is_new, e.event_id, e.origin_event
                    from (select true, r from unnest($1) r union all select false, r from unnest($2) r) w(is_new, ids)
                    cross join lateral (select l.event_id, l.pgps_origin_event from %1$s l
                        where l.event_id >= lower(w.ids) and l.event_id < upper(w.ids) %2$s) e(event_id, origin_event))
                select range_agg(int8range(c.event_id, c.event_id, ''[]'')) from there c
                where c.is_new and exists (select from there h where not h.is_new
                    and h.origin_event = c.origin_event)',
                v_type.log, v_staged)
            using (v_slice ->> 'ids')::int8multirange, v_had.ids into v_known;
            -- When something of it is truncated, nobody can say of an event that it came; but whose filter was in force
            -- then, has had all that it wants of the batch.
            v_known := case when v_is_gone then (v_slice ->> 'ids')::int8multirange else v_known end;
            continue when v_known is null;
            -- But not for those whose filter was not in force yet in that epoch.
            insert into pgps_internal.to_skip (type_id, ids, subscription_ids)
            select v_type.type_id, v_known, array_agg(distinct m.subscription_id)
            from pgps_internal.member m join pgps_internal.subscription s using (subscription_id)
            where m.type_id = v_type.type_id and s.kind <> 'link'
                and not exists (select from pgps_internal.early e where e.origin_id = v_had.origin_id
                    and e.subscription_id = m.subscription_id and e.class_id = m.class_id
                    and coalesce(case when v_is_gone then e.had_since else least(e.since, e.had_since) end,
                        v_had.upto) >= v_had.upto)
            having count(*) > 0;
        end loop;
    end loop;
end
$$;
comment on function pgps_internal.skip_known(pgps_internal.origin, jsonb, jsonb) is
'Subscriptions skip events of an item that they have had in another epoch of its broker; children get them in this one,
and do the same';
