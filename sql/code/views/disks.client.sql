-- In place of disks.sql where the server has no PL/Python: its own functions do not tell what is free on a disk.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.disks()
returns table (place text, total_bytes bigint, free_bytes bigint)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return;
end
$$;
comment on function pgps_internal.disks() is
'No rows: without PL/Python the free space of the server is not known';
