-- Properties of queues.
-- Locks: catalogue rows; a change of persistent rewrites the log's segments.
-- Writes: event_type, queue.

create or replace function pgps_internal.do_alter_queue(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgps_internal.queue;
    v_type pgps_internal.event_type;
    v_persistent boolean := (args ->> 'persistent')::boolean;
    v_slot integer;
begin
    perform pgps_internal.require_admin(caller, 'alter queues');
    select q.* into v_queue from pgps_internal.queue q where q.name = pgps_internal.fold(args ->> 'queue');
    if not found then
        raise exception 'queue "%" does not exist', pgps_internal.fold(args ->> 'queue')
        using errcode = '42704', hint = 'Queues are named <event type>_in, _out and _exception; see pgps.queues.';
    end if;
    perform pgps_internal.check_age((args ->> 'retention')::interval, 'retention');
    if (args ->> 'retention')::interval < '0' then
        raise exception 'invalid retention "%"', args ->> 'retention' using errcode = '22023',
            hint = 'Give a positive interval; ''1000 years'' is for ever.';
    end if;
    update pgps_internal.queue q
    set auditable = coalesce((args ->> 'auditable')::boolean, q.auditable),
        retention = coalesce((args ->> 'retention')::interval, q.retention)
    where q.type_id = v_queue.type_id and q.kind = v_queue.kind;
    select t.* into v_type from pgps_internal.event_type t where t.type_id = v_queue.type_id;
    if v_persistent and v_type.reliability <> 'guaranteed' then
        raise exception 'event type "%" is non-guaranteed: its queues are never persistent', v_type.name
        using errcode = '55000', hint = 'Create a guaranteed event type.';
    elsif v_persistent <> v_type.persistent then
        perform pgps_internal.lock_types(array[v_type.type_id], only_log => true);
        for v_slot in 0..3 loop
            execute format('alter table %s set %s', pgps_internal.segment_name(v_type.name, v_slot),
                case when v_persistent then 'logged' else 'unlogged' end);
        end loop;
        update pgps_internal.event_type t set persistent = v_persistent where t.type_id = v_type.type_id;
    end if;
end
$$;
comment on function pgps_internal.do_alter_queue(name, jsonb) is 'See pgps.alter_queue';

create or replace function pgps.alter_queue(
    queue text, auditable boolean = null, persistent boolean = null, retention interval = null
) returns void
language sql
begin atomic
    select pgps._call('alter_queue', jsonb_build_object('queue', alter_queue.queue, 'auditable', alter_queue.auditable,
        'persistent', alter_queue.persistent, 'retention', alter_queue.retention));
end;
comment on function pgps.alter_queue(text, boolean, boolean, interval) is
'Changes a queue (paper, section 4.4); null leaves a property as it is. auditable: keeps its events for retention (never
set, or ''1000 years'': for ever). persistent: survives a crash; it holds for the type''s three queues at once, and
rewrites them. Needs pgps_admin. Errors: 42704, 22023, 55000, 42501.';

grant execute on function pgps.alter_queue(text, boolean, boolean, interval) to public;
