-- Event types whose relations somebody has locked: he alters or drops the type in a transaction that stays open. The
-- dispatcher waits for as long as its lock_timeout says, once, and then sets the type aside (set_aside.sql), so that
-- the others go on; each of the next dispatches looks whether it is free (decision 74).
-- Locks: access share on the logs of event types, which are not waited for.
-- Writes: broken_type, set_aside.

create or replace function pgps_internal.held_text(event_type text) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select format('event type "%s" is being changed or dropped in a transaction that is open', held_text.event_type)
$$;
comment on function pgps_internal.held_text(text) is 'What is said to who cannot go on because of an event type';

create or replace function pgps_internal.note_locked(parts pgps_internal.part[]) returns void
language plpgsql
as $$
begin
    perform pgps_internal.note_broken(t, '55P03', 'it is being changed or dropped in a transaction that is open')
    from pgps_internal.event_type t
    where t.type_id in (select p.type_id from unnest(note_locked.parts) p)
        and not exists (select from pgps_internal.broken_type b where b.type_id = t.type_id)
        and not pgps_internal.try_lock(t.log, 'access share');
end
$$;
comment on function pgps_internal.note_locked(pgps_internal.part[]) is
'Sets the event types of a window aside whose log somebody has locked';

create or replace function pgps_internal.free_locked() returns void
language plpgsql
as $$
declare
    -- The lock is kept until the transaction ends, so that what waits can be dispatched.
    v_free integer[] := array(select b.type_id
        from pgps_internal.broken_type b join pgps_internal.event_type t using (type_id)
        where b.sqlstate = '55P03' and not b.is_mended and b.failed_at + b.patience <= pgps_internal.clock()
            and pgps_internal.try_lock(t.log, 'access share'));
begin
    if v_free = '{}' then
        return;
    end if;
    -- Who resumes a type by hand may have its row.
    update pgps_internal.broken_type b set is_mended = true
    where b.type_id in (select o.type_id from pgps_internal.broken_type o where o.type_id = any (v_free)
        for update skip locked);
end
$$;
comment on function pgps_internal.free_locked() is
'Lets event types go on that were set aside because somebody had them locked, and that are free now. One whose log is
free, and that runs into a lock again (what a policy reads), is tried after 10 seconds, and each time after twice as
long, at most a minute: each attempt holds the others up for as long as lock_timeout says';

create or replace function pgps_internal.forget_dropped() returns void
language sql
as $$
    delete from pgps_internal.broken_type b
    where not exists (select from pgps_internal.event_type t where t.type_id = b.type_id);
    delete from pgps_internal.set_aside s
    where not exists (select from pgps_internal.event_type t where t.type_id = s.type_id)
$$;
comment on function pgps_internal.forget_dropped() is
'Forgets what was set aside of event types that have been dropped; whoever drops one does not, since the dispatcher
would wait for him';
