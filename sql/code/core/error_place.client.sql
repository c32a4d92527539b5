-- In place of error_place.sql where the server has no PL/Python: PL/pgSQL is not told where in a query an error is.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps._error_place(query text) returns integer
language plpgsql
as $$
begin
    return null;
end
$$;
comment on function pgps._error_place(text) is
'Null: without PL/Python the place of an error in a text is not known, only in which text it is. For pgps._refuse_text';
