-- The look-up of an event's statement, as text of a query. Each publishing statement writes one row into the control
-- queue, and the row of an event's statement is found by the event's transaction and id. The look-up is inserted into
-- the text of the statement that needs it, not called: it is then planned with that statement, and reads a single
-- segment where the plan knows which.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.statement_of(
    columns text, type_id text, event_id text = 'l.event_id', xid text = 'l.xid', source text = 'pgps_internal.control',
    also text = ''
) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Of the statements that enclose the event, the one that ends first. Statements of one transaction on one type do
    -- not overlap, but a statement on another type may lie inside the range of this one.
    return format('select %s from %s c where c.xid = %s and c.hi >= %s and c.lo <= %4$s and c.type_id = %s%s order by '
        'c.hi limit 1',
        statement_of.columns, statement_of.source, statement_of.xid, statement_of.event_id, statement_of.type_id,
        statement_of.also);
end
$$;
comment on function pgps_internal.statement_of(text, text, text, text, text, text) is
'The text of a query for the statement (c) of an event, which gives one row or none. columns: what it selects; type_id,
event_id, xid: expressions for the event''s own; source: the control queue, or pgps_internal.statement, which readers
may see; also: a further condition, beginning with " and"';
