-- Filters of neighbours that raise here: a neighbour asks its whole filter itself, so it is sent what this broker
-- cannot decide.
-- Locks: none.
-- Writes: delivery, member, wanted.

create or replace function pgps_internal.forward_unmatched(class pgps_internal.class, event_id bigint, batch_id bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Sending too much is always correct: the neighbour asks its whole filter itself, and has the exception if that
    -- raises there, too.
    if not exists (select from pgps_internal.member m join pgps_internal.neighbour n using (subscription_id)
            where m.class_id = (forward_unmatched.class).class_id) then
        return;
    end if;
    insert into pgps_internal.delivery (batch_id, class_id, type_id, events, event_ids)
    values (forward_unmatched.batch_id, (forward_unmatched.class).class_id, (forward_unmatched.class).type_id, 1,
        array[forward_unmatched.event_id]);
    -- Local subscriptions of the class have an exception for the event instead.
    update pgps_internal.member m set skip = m.skip + int8multirange(int8range(forward_unmatched.event_id,
        forward_unmatched.event_id, '[]'))
    from pgps_internal.subscription s
    where m.class_id = (forward_unmatched.class).class_id and s.subscription_id = m.subscription_id
        and s.kind <> 'link';
end
$$;
comment on function pgps_internal.forward_unmatched(pgps_internal.class, bigint, bigint) is
'An event on which a filter raised goes to the neighbours that have sent that filter';

create or replace function pgps_internal.widen(class pgps_internal.class, after_batch bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_neighbours integer[] := array(select n.neighbour_id from pgps_internal.member m join pgps_internal.neighbour n
        using (subscription_id)
        where m.class_id = (widen.class).class_id and not n.is_blocked);
    v_type pgps_internal.event_type;
    v_class bigint;
begin
    if v_neighbours = '{}' or (widen.class).signature_id is null then
        return;
    end if;
    select t.* into v_type from pgps_internal.event_type t where t.type_id = (widen.class).type_id;
    v_class := pgps_internal.find_class(v_type, (widen.class).owner, null, null, '{}', false, false);
    insert into pgps_internal.member (subscription_id, class_id, type_id, from_batch)
    select n.subscription_id, v_class, v_type.type_id, widen.after_batch from pgps_internal.neighbour n
        where n.neighbour_id = any (v_neighbours)
    on conflict do nothing;
    update pgps_internal.wanted w set class_id = v_class where w.neighbour_id = any (v_neighbours)
        and w.class_id = (widen.class).class_id;
    -- Deliveries for the batch that is being matched, if any: its classes without a filter have been matched already.
    insert into pgps_internal.delivery (batch_id, class_id, type_id, events, ids)
    select b.batch_id, v_class, b.type_id, pgps_internal.count_ids(v.ids), v.ids
    from pgps_internal.batch_type b cross join lateral pgps_internal.visible(v_type, (widen.class).owner, b.ids) v(ids)
    where b.batch_id > widen.after_batch and b.type_id = v_type.type_id and b.events > 0 and not isempty(v.ids)
        and not exists (select from pgps_internal.delivery d where d.batch_id = b.batch_id and d.class_id = v_class);
end
$$;
comment on function pgps_internal.widen(pgps_internal.class, bigint) is
'Neighbours whose filter is broken, or keeps failing, get every event of the type from a batch on, and ask it
themselves';

create or replace function pgps_internal.is_of_neighbour(class pgps_internal.class, only_blocked boolean)
returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from pgps_internal.member m join pgps_internal.neighbour n using (subscription_id)
        where m.class_id = (is_of_neighbour.class).class_id and (n.is_blocked or not is_of_neighbour.only_blocked));
end
$$;
comment on function pgps_internal.is_of_neighbour(pgps_internal.class, boolean) is
'Whether a neighbour has sent the filter of a class. only_blocked: one that a policy has blocked, which waits as other
subscribers do';
