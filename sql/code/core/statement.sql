-- The statement of an event, as text: who publishes writes one row into the control queue for each statement, and
-- whoever wants to know what an event's statement says looks that row up. The look-up is put into the text of the
-- statement that needs it, not called: so it is planned with it, and reads one segment where the plan knows which.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.statement_of(
    columns text, type_id text, event_id text = 'l.event_id', xid text = 'l.xid', source text = 'pgps_internal.control',
    also text = ''
) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    -- The statement that ends first at or behind the event: its transaction's statements do not overlap, but others
    -- of the same transaction may lie inside its range, of another event type.
    select format('select %s from %s c where c.xid = %s and c.hi >= %s and c.lo <= %4$s and c.type_id = %s%s order by '
        'c.hi limit 1',
        statement_of.columns, statement_of.source, statement_of.xid, statement_of.event_id, statement_of.type_id,
        statement_of.also)
$$;
comment on function pgps_internal.statement_of(text, text, text, text, text, text) is
'The text of a query for the statement (c) of an event, one row or none. columns: what it gives; type_id, event_id, xid:
how the text says which event; source: the control queue, or pgps_internal.statement, which readers may see; also: a
further condition, beginning with " and"';

revoke all on all functions in schema pgps_internal from public;
