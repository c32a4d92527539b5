-- What SYNCPOINT may do, as one table: pgps.syncpoint looks it up, the table in docs/how-to is generated from it, and a
-- test goes through all of its triples.
-- Locks: none.
-- Writes: nothing.

-- Without a search_path of its own, so that it is inlined: it has nothing but constants.
create or replace function pgps_internal.uow_transitions()
returns table (option text, caller text, status text, becomes text)
language sql immutable
as $$
    values
    ('backout', 'sender', 'RECEIVED', 'BACKEDOUT'),
    ('backout', 'receiver', 'DELIVERED', 'ACCEPTED'),
    ('cancel', 'sender', 'ACCEPTED', 'CANCELLED'),
    ('cancel', 'receiver', 'DELIVERED', 'CANCELLED'),
    ('commit', 'sender', 'RECEIVED', 'ACCEPTED'),
    ('commit', 'receiver', 'DELIVERED', 'PROCESSED'),
    ('eoc', 'sender', 'RECEIVED', 'ACCEPTED'),
    ('eoccancel', 'sender', 'RECEIVED', 'ACCEPTED'),
    -- Null: no trace of it is left.
    ('delete', 'sender', 'BACKEDOUT', null),
    ('delete', 'sender', 'PROCESSED', null),
    ('delete', 'sender', 'CANCELLED', null),
    ('delete', 'sender', 'TIMEOUT', null),
    ('delete', 'sender', 'DISCARDED', null),
    ('last', 'sender', 'RECEIVED', 'RECEIVED'),
    ('last', 'sender', 'ACCEPTED', 'ACCEPTED'),
    ('last', 'sender', 'DELIVERED', 'DELIVERED'),
    ('last', 'sender', 'BACKEDOUT', 'BACKEDOUT'),
    ('last', 'sender', 'PROCESSED', 'PROCESSED'),
    ('last', 'sender', 'CANCELLED', 'CANCELLED'),
    ('last', 'sender', 'TIMEOUT', 'TIMEOUT'),
    ('last', 'sender', 'DISCARDED', 'DISCARDED'),
    ('query', 'sender', 'RECEIVED', 'RECEIVED'),
    ('query', 'sender', 'ACCEPTED', 'ACCEPTED'),
    ('query', 'sender', 'DELIVERED', 'DELIVERED'),
    ('query', 'sender', 'BACKEDOUT', 'BACKEDOUT'),
    ('query', 'sender', 'PROCESSED', 'PROCESSED'),
    ('query', 'sender', 'CANCELLED', 'CANCELLED'),
    ('query', 'sender', 'TIMEOUT', 'TIMEOUT'),
    ('query', 'sender', 'DISCARDED', 'DISCARDED'),
    ('query', 'receiver', 'DELIVERED', 'DELIVERED'),
    ('setustatus', 'sender', 'RECEIVED', 'RECEIVED'),
    ('setustatus', 'sender', 'ACCEPTED', 'ACCEPTED'),
    ('setustatus', 'sender', 'DELIVERED', 'DELIVERED'),
    ('setustatus', 'receiver', 'RECEIVED', 'RECEIVED'),
    ('setustatus', 'receiver', 'ACCEPTED', 'ACCEPTED'),
    ('setustatus', 'receiver', 'DELIVERED', 'DELIVERED')
$$;
comment on function pgps_internal.uow_transitions() is
'What SYNCPOINT may do: with an option, by a caller, in a status, and the status afterwards; anything else is refused';

create or replace function pgps_internal.uow_statuses() returns table (status text, is_over boolean)
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    values ('RECEIVED', false), ('ACCEPTED', false), ('DELIVERED', false), ('BACKEDOUT', true), ('PROCESSED', true),
        ('CANCELLED', true), ('TIMEOUT', true), ('DISCARDED', true)
$$;
comment on function pgps_internal.uow_statuses() is 'The statuses of a unit of work, and whether it is over then';
