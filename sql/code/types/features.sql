-- Features: which rooms take part when events of a type are dispatched. They are recorded when something is defined, so
-- that the dispatcher need not ask every room about every batch. What each feature causes is in the roster
-- (roster.sql).
-- Locks: add_feature locks a row of feature for share, drop_features those that nobody needs for update; neither waits.
-- Writes: feature.

create or replace function pgps_internal.add_feature(type_id integer, name text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A row that is locked here stays: drop_features skips it until this transaction has ended. If the row is being
    -- dropped at this moment, a new one is inserted. Nobody waits here for another transaction.
    perform from pgps_internal.feature f
    where f.type_id = add_feature.type_id and f.name = add_feature.name limit 1 for share skip locked;
    if not found then
        insert into pgps_internal.feature (type_id, name) values (add_feature.type_id, add_feature.name);
    end if;
end
$$;
comment on function pgps_internal.add_feature(integer, text) is
'Lets a room take part when events of a type are dispatched, from the commit of this transaction on';

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
        -- Whoever relies on a row has it locked, so it is skipped. The second check sees what they have committed
        -- meanwhile.
        v_rows := array(select f.ctid from pgps_internal.feature f
            where f.type_id = v_feature.type_id and f.name = v_feature.name for update skip locked);
        if not pgps_internal.needs_feature(v_feature.name, v_feature.type_id) then
            delete from pgps_internal.feature f where f.ctid = any (v_rows);
        end if;
    end loop;
end
$$;
comment on function pgps_internal.drop_features() is
'Drops the features that nothing defined on their event type needs any more; called by reclaim';
