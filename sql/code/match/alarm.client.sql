-- In place of alarm.sql where the server has no PL/Python: no part of a statement has a time limit. What takes too long
-- is noticed when it ends.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.set_alarm(seconds double precision) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return false;
end
$$;
comment on function pgps_internal.set_alarm(double precision) is
'False: without PL/Python there are no timers';
