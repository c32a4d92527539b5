-- Where in a query PostgreSQL finds an error; error_place.client.sql stands in for it where PL/Python is missing.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps._error_place(query text) returns integer
language plpython3u
as $$
# Only PL/Python shows where in a query PostgreSQL found an error: the query fails once more.
try:
    with plpy.subtransaction():
        plpy.execute(query)
        raise RuntimeError("no error after all: nothing of it stays")
except plpy.SPIError as error:
    return error.spidata[4] if error.spidata else None
except RuntimeError:
    return None
$$;
comment on function pgps._error_place(text) is
'The character of a query, from 1, at which PostgreSQL finds an error when the caller runs it; null when it does not
say. For pgps._refuse_text';
