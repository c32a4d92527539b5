-- Since when the parent for an origin has been asked for what this broker lacks.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.note_asked() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A parent that is asked once more before it has answered has been asked since the first time.
    if old.asked_at is null or old.answered is not distinct from old.attachment
        or old.parent is distinct from new.parent then
        new.asked_at := pgps_internal.clock();
    end if;
    return new;
end
$$;
comment on function pgps_internal.note_asked() is
'Trigger before an origin gets another attachment: notes since when its parent has not answered';

do $$
begin
    if not exists (select from pg_catalog.pg_trigger where tgname = 'pgps_asked'
        and tgrelid = 'pgps_internal.origin'::regclass) then
        create trigger pgps_asked before update on pgps_internal.origin for each row
        when (old.attachment <> new.attachment) execute function pgps_internal.note_asked();
    end if;
end
$$;
