-- Generated: pgps_internal.visible_<type>_<number>, what a role may see of a log. Called by visible.sql.
-- Writes: nothing.

create or replace function pgps_internal.write_visible(name text, names jsonb, owner regrole)
returns pgps_internal.piece
language sql stable
set search_path = pg_catalog, pg_temp
as $write$
    -- BEGIN ATOMIC binds names when the function is made, so that its owner needs no rights on the schema; it contains
    -- no text of a user.
    select 'function', write_visible.name, format('create or replace function %s', write_visible.name)
        || pgps_internal.render(
        $function$(pgps_ids int8multirange) returns int8multirange
            language sql security definer set search_path = pg_catalog,
                pg_temp set enable_seqscan = on set enable_bitmapscan = on set datestyle = 'ISO, MDY'
                set intervalstyle = postgres {settings}
            begin atomic
                select coalesce(range_agg(int8range(l.event_id, l.event_id, '[]')), '{}')
                from (
                    select l.event_id from {log} l where l.event_id between lower(pgps_ids) and upper(pgps_ids) - 1
                    union all
                    select k.event_id from {kept} k where k.event_id between lower(pgps_ids) and upper(pgps_ids) - 1
                ) l where l.event_id <@ pgps_ids;
            end$function$, write_visible.names || jsonb_build_object('settings', pgps_internal.settled_clause())),
        write_visible.owner, null::text
$write$;
comment on function pgps_internal.write_visible(text, jsonb, regrole) is
'Writes the function, owned by a role, that reads the log under row-level security: which of these events may it see?';
