-- Features: which rooms take part when events of a type are dispatched. They are noted when something is defined, so
-- that the dispatcher need not ask every room about every batch. What each comes to stands in the roster.
-- Locks: add_feature a row of feature, shared, without waiting; drop_features those that nobody needs, likewise.
-- Writes: feature.

create or replace function pgps_internal.add_feature(type_id integer, name text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- One that is there and stays: drop_features leaves it alone until this transaction has ended. Is it being
    -- dropped just now, there is a new one. Nobody waits here for somebody else's transaction.
    perform from pgps_internal.feature f
    where f.type_id = add_feature.type_id and f.name = add_feature.name limit 1 for share skip locked;
    if not found then
        insert into pgps_internal.feature (type_id, name) values (add_feature.type_id, add_feature.name);
    end if;
end
$$;
comment on function pgps_internal.add_feature(integer, text) is
'Says that a room is to take part when events of a type are dispatched, from the commit of this transaction on';

create or replace function pgps_internal.drop_features() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_feature record;
    v_rows tid[];
begin
    for v_feature in select distinct f.type_id, f.name from pgps_internal.feature f loop
        continue when pgps_internal.needs_feature(v_feature.name, v_feature.type_id);
        -- Who relies on a row has it locked. What they have committed meanwhile, the second look sees.
        v_rows := array(select f.ctid from pgps_internal.feature f
            where f.type_id = v_feature.type_id and f.name = v_feature.name for update skip locked);
        if not pgps_internal.needs_feature(v_feature.name, v_feature.type_id) then
            delete from pgps_internal.feature f where f.ctid = any (v_rows);
        end if;
    end loop;
end
$$;
comment on function pgps_internal.drop_features() is
'Drops the features that nothing defined on their event type needs any more; reclaim does so';

revoke all on all functions in schema pgps_internal from public;
