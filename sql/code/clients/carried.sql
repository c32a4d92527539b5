-- Direct events that travel in the notification, so that the client need not fetch them. Only immediate statements are
-- sent so: they are raised on the loopback connection, where their tuples can be read again. Since anybody may LISTEN,
-- they go to a channel of each client's session whose name client_channels tells to that session alone. A statement
-- that is too large, is for too many clients or is under policies is sent as a note, as deferred events are
-- (direct.sql; decision 15). Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.may_carry(event_type pgps_internal.event_type, handler text) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return not (may_carry.event_type).has_policy
        and has_table_privilege('pgps_worker', (may_carry.event_type).log, 'trigger')
        and coalesce(nullif(may_carry.handler, ''), (may_carry.event_type).handler) = 'all';
end
$$;
comment on function pgps_internal.may_carry(pgps_internal.event_type, text) is
'True when what is raised with this handler clause may travel in the notification: the type has direct registrations,
and all directly registered clients may have the same events';

create or replace function pgps_internal.carry(event_type pgps_internal.event_type, last_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    v_statement pgps_internal.control;
    v_channels text[];
    v_note text;
    v_tuples text;
    v_told bigint;
begin
    -- hi may be above last_id: other sessions may have drawn event ids before the statement ended.
    select c.* into v_statement from pgps_internal.control c
    where c.xid = pg_current_xact_id() and c.hi >= carry.last_id and c.type_id = (carry.event_type).type_id
        and pgps_internal.log_segment(c.hi) in (pgps_internal.log_segment(carry.last_id),
            (pgps_internal.log_segment(carry.last_id) + 1) % 4);
    v_note := concat_ws(' ', (carry.event_type).type_id, v_statement.lo, v_statement.hi, v_statement.xid);
    -- Each notification takes its own space in PostgreSQL's queue: above 8 channels one note serves all clients.
    v_channels := array(
        select distinct 'pgps_carried_' || c.secret
        from pgps_internal.registration_type t join pgps_internal.registration r using (registration_id)
            join pgps_internal.client c using (client_id)
        where t.type_id = (carry.event_type).type_id and r.mode = 'direct' and r.state = 'valid'
            and c.holder is not null
            and has_table_privilege(c.owner::oid, (carry.event_type).endpoint, 'select')
                and pg_has_role(c.connected_as::oid, c.owner::oid, 'usage')
        limit 9);
    if v_channels = '{}' then
        return;
    elsif cardinality(v_channels) <= 8 and v_statement.hi - v_statement.lo < 100 then
        execute 'select pgps_internal.carry_' || (carry.event_type).type_id || '($1)' using v_statement into v_tuples;
        -- NOTIFY refuses payloads of 8,000 bytes or more.
        if octet_length(v_note) + octet_length(v_tuples) < 7999 then
            select count(pg_notify(c, concat_ws(' ', v_note, v_tuples))::text) into v_told from unnest(v_channels) c;
            return;
        end if;
    end if;
    perform pg_notify('pgps_direct_' || (carry.event_type).type_id, v_note);
end
$$;
comment on function pgps_internal.carry(pgps_internal.event_type, bigint) is
'Sends the events of this transaction''s statement with the event last_id to the directly registered clients whose
owners may see the type: in the notification, or as a note when they do not fit';
