-- Where the classes of a subscription begin that its owner's lane asks. The position of a subscription passes what is
-- before it, so all its classes must have been asked up to one batch, and that is where the lane is: a form of filter
-- with which the lane begins later would be read ahead of the others (decision 129).
-- Locks: the row of a lane, until the transaction ends, which delays only its owner.
-- Writes: class, signature.

create or replace function pgps_internal.hold_lane(owner regrole) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_lane pgps_internal.lane;
begin
    select l.* into v_lane from pgps_internal.lane l where l.owner = hold_lane.owner for update;
    perform pgps_internal.disturb_lane(v_lane.lane_id);
    return pgps_internal.lane_position(v_lane.lane_id);
end
$$;
comment on function pgps_internal.hold_lane(regrole) is
'Holds the lane of a role until the transaction ends; returns the batch up to which it has matched, null = there is no
lane';

create or replace function pgps_internal.begin_in_lane(class_id bigint, reached bigint, batch_id bigint) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_signature pgps_internal.signature;
    v_new bigint;
begin
    select g.* into v_signature from pgps_internal.class c join pgps_internal.signature g using (signature_id)
    where c.class_id = begin_in_lane.class_id;
    if greatest(v_signature.from_batch, begin_in_lane.reached) = begin_in_lane.batch_id then
        return begin_in_lane.class_id;
    elsif not exists (select from pgps_internal.class c
        where c.signature_id = v_signature.signature_id and c.class_id <> begin_in_lane.class_id) then
        update pgps_internal.signature g set from_batch = begin_in_lane.batch_id
            where g.signature_id = v_signature.signature_id;
        return begin_in_lane.class_id;
    end if;
    -- The others have been matched up to where their form of filter begins.
    insert into pgps_internal.signature (type_id, owner, shape, tier, parameter_types, key_columns, environment,
        in_lane, from_batch, unread)
    select g.type_id, g.owner, g.shape, g.tier, g.parameter_types, g.key_columns, g.environment, g.in_lane,
        begin_in_lane.batch_id, g.unread
    from pgps_internal.signature g where g.signature_id = v_signature.signature_id returning * into v_signature;
    perform pgps_internal.build_signature(v_signature.signature_id);
    if v_signature.tier <> 'safe' then
        perform pgps_internal.note_names_of_signature(v_signature.signature_id);
    end if;
    insert into pgps_internal.class (type_id, owner, signature_id, constants, is_private)
    select c.type_id, c.owner, v_signature.signature_id, c.constants, c.is_private
    from pgps_internal.class c where c.class_id = begin_in_lane.class_id returning class.class_id into v_new;
    perform pgps_internal.note_member(v_new), pgps_internal.drop_unused_classes(array[begin_in_lane.class_id]);
    return v_new;
end
$$;
comment on function pgps_internal.begin_in_lane(bigint, bigint, bigint) is
'Has a lane ask a class that nobody is a member of yet about what comes after a batch (batch_id). reached: the position
of the lane, which the caller holds. Returns the class, or the one that stands for it since others have the same form of
filter and begin elsewhere';
