-- Generated: the rules that make an INSERT into pgps_event.<type> a publication, see publish.sql; for an immediate type
-- the entry and the stage behind them, see immediate.sql. Locks: access exclusive on the endpoint, so an upgrade builds
-- it last, and only if it differs.
-- Writes: by name: the log, or the entry and the stage (generated).

create or replace function pgps_internal.endpoint_triggers() returns text
language sql immutable
-- For each statement: a COPY is refused before its rows are read, which may lack columns of the endpoint.
return $trigger$
    create or replace trigger pgps_no_change before update or delete or truncate on {endpoint}
    for each statement execute function pgps_internal.refuse_change();
    create or replace trigger pgps_no_copy before insert on {endpoint}
    for each statement execute function pgps_internal.refuse_copy();
    alter table {endpoint} enable always trigger pgps_no_change, enable always trigger pgps_no_copy;
    $trigger$;
comment on function pgps_internal.endpoint_triggers() is
'A template: the triggers that refuse what is no publication';

create or replace function pgps_internal.write_endpoint(event_type pgps_internal.event_type, names jsonb)
returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
declare
    v_names jsonb := write_endpoint.names || jsonb_build_object(
        'publication', pgps_internal.publication(write_endpoint.event_type, (write_endpoint.event_type).endpoint),
        'new_columns', pgps_internal.column_list((write_endpoint.event_type).endpoint, 'new.'),
        -- PostgreSQL makes no RETURNING list in a rule on a relation with dropped columns.
        'returning', case when not exists (select from pg_attribute a
            where a.attrelid = (write_endpoint.event_type).endpoint and a.attisdropped)
            then 'returning ' || pgps_internal.column_list((write_endpoint.event_type).endpoint) else '' end);
    v_definition text;
begin
    -- ENABLE ALWAYS: what a session inserts that applies replicated changes is an event, too, and must not stay in the
    -- endpoint.
    v_definition := case when exists (select from pgps_internal.composite c
            where c.type_id = (write_endpoint.event_type).type_id) then $rules$
        create or replace rule publish as on insert to {endpoint} do instead select pgps._refuse_publication({label});
        alter table {endpoint} enable always rule publish;
        $rules$ when (write_endpoint.event_type).visibility = 'deferred' then $rules$
        create or replace rule publish as on insert to {endpoint} do instead {publication} {returning};
        alter table {endpoint} enable always rule publish;
        $rules$ else $rules$
        drop rule if exists publish on {endpoint};
        drop rule if exists publish_deferred on {endpoint};
        drop rule if exists publish_immediately on {endpoint};
        -- The entry: what is inserted here goes into the log, as into the endpoint of a deferred type.
        drop table if exists {entry};
        create table {entry} (like {endpoint} including defaults);
        create rule publish as on insert to {entry} do instead {publication};
        alter table {entry} enable always rule publish;

        -- The stage: what is inserted here is forwarded at once; its rows are truncated by reclaim.
        drop table if exists {stage};
        create unlogged table {stage} (like {endpoint} including defaults including constraints including storage);
        create trigger pgps_2_publisher after insert
            on {stage} for each statement execute function pgps_internal.note_publisher();
        create trigger pgps_3_forward after insert on {stage} referencing new table as staged
        for each statement execute function pgps_internal.forward_stage({label});
        alter table {stage} enable always trigger pgps_2_publisher, enable always trigger pgps_3_forward;

        -- What one publication asks for counts more than what the type says.
        create rule publish_deferred as on insert to {endpoint}
            where current_setting('pgps.visibility', true) is not distinct from 'deferred'
        do instead insert into {entry} ({columns}) values ({new_columns});
        -- The last rule in the order of their names says how many rows the command tag counts.
        create rule publish_immediately as on insert to {endpoint}
        do instead insert into {stage} ({columns}) select {new_columns}
        where not current_setting('pgps.visibility', true) is not distinct from 'deferred' {returning};
        alter table {endpoint} enable always rule publish_deferred, enable always rule publish_immediately;
        $rules$ end;
    return ('relation', pgps_internal.render('{endpoint}', v_names), pgps_internal.render(
        pgps_internal.endpoint_triggers() || v_definition, v_names), null, null)::pgps_internal.piece;
end
$write$;
comment on function pgps_internal.write_endpoint(pgps_internal.event_type, jsonb) is
'Writes the rules of pgps_event.<type>: into the log, or for immediate types into the stage; that of a composite event
refuses';
