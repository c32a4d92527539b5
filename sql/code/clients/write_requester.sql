-- Generated: pgps_internal.request_as_<number>, in which the requests of one role run. Called by requests.sql.
-- Writes: nothing.

create or replace function pgps_internal.write_requester(name text, owner regrole) returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    return pgps_internal.write_function(write_requester.name,
        $head$(pgps_request text, pgps_path text)
            returns table (pgps_payloads jsonb[], pgps_columns text[], pgps_upto bigint)
        language plpgsql volatile security definer set search_path = pg_catalog,
            pg_temp set enable_seqscan = on set jit = off$head$, $body$
            declare
                pgps_cursor refcursor;
                pgps_row record;
                pgps_payload jsonb;
                pgps_bytes bigint := 0;
                pgps_has_rows boolean := true;
            begin
                if pgps_request is null then
                    -- Deferred constraints run here with this role's rights, not at the commit with the worker's: see
                    -- run_deferred.
                    set constraints all immediate;
                    return;
                end if;
                perform pg_catalog.set_config('search_path', pgps_path, true);
                begin
                    open pgps_cursor for execute pgps_request;
                    close pgps_cursor;
                exception when others then
                    pgps_has_rows := false;
                end;
                pgps_upto := 0;
                if not pgps_has_rows then
                    -- A request without rows, or several statements, of which one may create what the next one needs.
                    -- An error is raised again here, and not caught.
                    execute pgps_request;
                    get diagnostics pgps_upto = row_count;
                    return next;
                    return;
                end if;
                -- Chunks of up to 1,000 rows or about 1 MB keep memory bounded, however large the reply is.
                for pgps_row in execute pgps_request loop
                    if pgps_columns is null then
                        pgps_columns := array(select pg_catalog.json_object_keys(pg_catalog.row_to_json(pgps_row)));
                    end if;
                    pgps_payload := pg_catalog.to_jsonb(pgps_row);
                    pgps_payloads := pg_catalog.array_append(pgps_payloads, pgps_payload);
                    pgps_bytes := pgps_bytes operator(pg_catalog.+) pg_catalog.pg_column_size(pgps_payload);
                    pgps_upto := pgps_upto operator(pg_catalog.+) 1;
                    if pgps_bytes operator(pg_catalog.>) 1000000
                        or pg_catalog.cardinality(pgps_payloads) operator(pg_catalog.>=) 1000 then
                        return next;
                        pgps_payloads := null;
                        pgps_bytes := 0;
                    end if;
                end loop;
                return next;
            end$body$, '{}', write_requester.owner);
end
$write$;
comment on function pgps_internal.write_requester(text, regrole) is
'Writes the function, owned by a role that sends requests, in which they run. It returns rows in chunks, of which the
last may be empty.';
