-- A unit of work that is over before the transaction of its SYNCPOINT is committed is TIMEOUT: others may have seen it,
-- and acted on it. So the lifetime is looked at once more before the commit, which is refused then (decision 101).
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.require_in_time() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ends_at timestamptz;
begin
    -- The broker that has a unit of another one decides when it was over; to cancel one for the other is a wish.
    select u.ends_at into v_ends_at from pgps_internal.unit u
    where u.unit_no = new.unit_no and u.is_uow and not u.is_relayed and u.ends_at <= pgps_internal.clock()
        and not (u.their_no is not null and new.status = 'CANCELLED');
    -- Reclaim writes what it keeps again, which is then there twice.
    if found and not exists (
            select from pgps_internal.unit_state s
            where s.unit_no = new.unit_no and s.version = new.version and s.at_no < new.at_no) then
        raise exception 'unit of work "U%" is TIMEOUT: it was over at %, before the transaction of its SYNCPOINT was',
            upper(to_hex(new.unit_no)), v_ends_at
        using errcode = '55000', hint = 'All that the transaction has written is undone. Commit sooner after '
            'SYNCPOINT, or have its sender give it a longer lifetime.';
    end if;
    return null;
end
$$;
comment on function pgps_internal.require_in_time() is
'Before the commit: raises 55000 when a unit that was PROCESSED or CANCELLED meanwhile is TIMEOUT';
revoke all on function pgps_internal.require_in_time() from public;

do $$
begin
    if not exists (select from pg_trigger t
            where t.tgname = 'pgps_in_time' and t.tgrelid = 'pgps_internal.unit_state'::regclass) then
        create constraint trigger pgps_in_time after insert on pgps_internal.unit_state
        deferrable initially deferred for each row when (new.status in ('PROCESSED', 'CANCELLED'))
        execute function pgps_internal.require_in_time();
        alter table pgps_internal.unit_state enable always trigger pgps_in_time;
    end if;
end
$$;
