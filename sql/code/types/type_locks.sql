-- Who changes or drops an event type takes its relations exclusively, all of them at once or none, in tries that are
-- short, with pauses in between. Whoever asks for a lock that is exclusive holds up all who come behind him: a reader
-- whose transaction stays open would hold up the publishers of the type for as long as the administrator waits for him
-- (decision 102).
-- Locks: a type's relations in the mode that is asked for, its views first, as readers have them; steps of composite
-- events, before that.
-- Writes: nothing.

create or replace function pgps_internal.relations_of(type_ids integer[]) returns regclass[]
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(array_agg(r.relation::regclass order by r.place, r.relation), '{}')
    from (
        select 1 as place, to_regclass(g.name)::oid as relation from pgps_internal.generated g
        where g.type_id = any (relations_of.type_ids) and g.kind = 'view'
        union
        select 2, c.relation::oid
        from pgps_internal.event_type t
        cross join lateral unnest(array[t.endpoint, to_regclass(format('pgps_stage.%I', t.name)),
            to_regclass(format('pgps_internal.%I', t.name || '_entry')), t.log,
            to_regclass(format('pgps_internal.%I', t.name || '_kept')),
            to_regclass(format('pgps_internal.%I', t.name || '_audit'))]) c(relation)
        where t.type_id = any (relations_of.type_ids)
        union
        select 3, i.inhrelid from pgps_internal.event_type t join pg_inherits i on i.inhparent = t.log
        where t.type_id = any (relations_of.type_ids)) r
    -- Somebody may have taken the type apart.
    where exists (select from pg_class c where c.oid = r.relation)
$$;
comment on function pgps_internal.relations_of(integer[]) is
'The relations of event types: their views, their tables, the segments of their logs';

create or replace function pgps_internal.rule_tables_of(type_ids integer[]) returns regclass[]
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(array_agg(distinct t.tgrelid::regclass), '{}')
    from pgps_internal.rule r cross join unnest(r.operations) o(operation)
    join pg_trigger t on t.tgfoid = to_regproc(format('pgps_internal.rule_%s_%s', r.rule_id, lower(o.operation)))
    where r.type_id = any (rule_tables_of.type_ids)
        and has_table_privilege(current_user, t.tgrelid, 'update, delete, truncate')
        -- Foreign tables take no LOCK.
        and not exists (select from pg_class c where c.oid = t.tgrelid and c.relkind = 'f')
$$;
comment on function pgps_internal.rule_tables_of(integer[]) is
'The tables whose active rules publish event types, as far as pgps may lock them: their triggers are dropped with the
types';

create or replace function pgps_internal.lock_relations(relations regclass[], mode text, "limit" interval) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_began timestamptz := clock_timestamp();
    v_one record;
begin
    for v_one in
        select c.relkind, format('%I.%I', n.nspname, c.relname) as name, (select a.attname from pg_attribute a
            where a.attrelid = c.oid and a.attnum = 1) as first
        from unnest(lock_relations.relations) with ordinality r(relation, place)
        join pg_class c on c.oid = r.relation join pg_namespace n on n.oid = c.relnamespace order by r.place
    loop
        perform set_config('lock_timeout', format('%sms', greatest(1, ceil(1000 * extract(epoch from
            lock_relations."limit" - (clock_timestamp() - v_began)))::integer)), true);
        if v_one.relkind = 'v' then
            -- LOCK would go on to the tables that it reads, ledgers of everybody. This changes nothing.
            execute format('alter view %s alter column %I drop default', v_one.name, v_one.first);
        else
            execute format('lock table only %s in %s mode', v_one.name, lock_relations.mode);
        end if;
    end loop;
end
$$;
comment on function pgps_internal.lock_relations(regclass[], text, interval) is
'Locks relations one after the other, views always exclusively. Changes the setting lock_timeout of the transaction.
Errors: 55P03 not all of them within limit';

create or replace function pgps_internal.users_of(relations regclass[]) returns table (pid integer, path integer[])
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with recursive waits(first, pid, path) as (
        select distinct l.pid, l.pid, array[l.pid] from pg_locks l
        where l.relation = any (users_of.relations) and l.granted and l.pid <> pg_backend_pid()
            and l.database = (select d.oid from pg_database d where d.datname = current_database())
        union all
        select w.first, b.pid, w.path || b.pid from waits w cross join lateral unnest(pg_blocking_pids(w.pid)) b(pid)
        where b.pid <> all (w.path)
    )
    select distinct on (w.first) w.first, case when w.pid = pg_backend_pid() then w.path end
    from waits w order by w.first, w.pid <> pg_backend_pid()
$$;
comment on function pgps_internal.users_of(regclass[]) is
'The processes that have some of these relations locked; path: for one that waits for this session, by which processes,
else null';

create or replace function pgps_internal.require_patience(
    type_ids integer[], relations regclass[], waited interval, patience interval
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_types text := (select string_agg(format('"%s"', t.name), ', ' order by t.name) from pgps_internal.event_type t
        where t.type_id = any (require_patience.type_ids));
    v_path integer[];
begin
    -- The server finds no deadlock when nobody waits for longer than a try.
    if require_patience.waited >= current_setting('deadlock_timeout')::interval then
        select u.path into v_path from pgps_internal.users_of(require_patience.relations) u
        where u.path is not null limit 1;
        if v_path is not null then
            raise exception 'event type % is used by process %, which waits for this transaction', v_types, v_path[1]
            using errcode = '40P01',
                detail = format('Processes that wait for each other: %s.', array_to_string(v_path, ', ')),
                hint = 'Roll back and try again.';
        end if;
    end if;
    if require_patience.patience > '0' and require_patience.waited >= require_patience.patience then
        raise exception 'event type % is used by other transactions', v_types using errcode = '55P03',
            detail = format('It was waited for as long as lock_timeout says. Processes that use it: %s.', coalesce((
                select string_agg(u.pid::text, ', ' order by u.pid)
                from pgps_internal.users_of(require_patience.relations) u), 'none for now')),
            hint = 'Try again when these transactions have ended; see pg_stat_activity.';
    end if;
end
$$;
comment on function pgps_internal.require_patience(integer[], regclass[], interval, interval) is
'Says that event types could not be locked, when that has been tried for as long as patience (0 = for ever), or for as
long as the server waits before it looks for a deadlock, and there is one. Errors: 55P03, 40P01';

create or replace function pgps_internal.lock_types(
    type_ids integer[], mode text = 'access exclusive', only_log boolean = false, more regclass[] = '{}'
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_timeout text := current_setting('lock_timeout');
    v_patience interval := v_timeout::interval;
    v_began timestamptz := clock_timestamp();
    v_try interval := least(interval '100 ms', nullif(v_patience, '0'));
    v_pause interval := '100 ms';
    v_name text := (select min(t.name) from pgps_internal.event_type t where t.type_id = any (lock_types.type_ids));
    v_relations regclass[];
begin
    loop
        -- Anew each time: somebody may have altered it meanwhile, or dropped it.
        v_relations := case when lock_types.only_log then array(
                select t.log from pgps_internal.event_type t where t.type_id = any (lock_types.type_ids)
                union all
                select i.inhrelid::regclass from pgps_internal.event_type t join pg_inherits i on i.inhparent = t.log
                where t.type_id = any (lock_types.type_ids))
            else pgps_internal.relations_of(lock_types.type_ids) end || lock_types.more;
        begin
            perform pgps_internal.lock_relations(v_relations, lock_types.mode, v_try);
            perform set_config('lock_timeout', v_timeout, true);
            exit;
        exception when lock_not_available or undefined_table then
            -- What it has got is given back, and lock_timeout is what it was.
            null;
        end;
        perform pgps_internal.require_patience(lock_types.type_ids, v_relations, clock_timestamp() - v_began,
            v_patience);
        perform pg_sleep(extract(epoch from least(v_pause,
            nullif(v_patience, '0') - (clock_timestamp() - v_began))));
        v_pause := least(2 * v_pause, interval '1 second');
    end loop;
    if not exists (select from pgps_internal.event_type t where t.type_id = any (lock_types.type_ids)) then
        raise exception 'event type "%" does not exist any more', v_name using errcode = '42704',
            hint = 'Another session has dropped it meanwhile.';
    end if;
end
$$;
comment on function pgps_internal.lock_types(integer[], text, boolean, regclass[]) is
'Locks the relations of event types until the transaction ends. Nobody who publishes waits for it for longer than 100
ms, unless it has got them. It tries for as long as lock_timeout says. only_log: their logs alone; more: further tables.
Errors: 55P03, 40P01, 42704 dropped meanwhile';

create or replace function pgps_internal.stay_in(type_ids integer[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Not waited for: who has it locked would wait for this transaction then, and it for him.
    perform pgps_internal.try_lock(t.log, 'access share') from pgps_internal.event_type t
    where t.type_id = any (stay_in.type_ids);
end
$$;
comment on function pgps_internal.stay_in(integer[]) is
'Before rows, rights or functions of event types are changed that who alters or drops a type changes, too: has him wait
for the end of this transaction before he has the type, as for readers, and not when he has locked it and all who
publish wait for him';

create or replace function pgps_internal.lock_to_drop(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_types integer[];
begin
    -- What is made of it goes with it.
    with recursive gone(type_id) as (
        select lock_to_drop.type_id
        union
        select n.type_id from gone g cross join lateral (
            select c.type_id from pgps_internal.composite_leaf l join pgps_internal.composite c using (composite_id)
            where l.type_id = g.type_id
            union all
            select t.type_id from pgps_internal.composite c join pgps_internal.composite_part p using (composite_id)
            join pgps_internal.event_type t on t.name = p.name where c.type_id = g.type_id) n
    )
    select array_agg(g.type_id order by g.type_id) into v_types from gone g;
    -- Steps first, which may take their time: nobody else waits for them.
    perform pgps_internal.hold_composite(c.composite_id)
    from (select c.composite_id from pgps_internal.composite c where c.type_id = any (v_types)
        order by c.composite_id) c;
    perform pgps_internal.lock_types(v_types, more => pgps_internal.rule_tables_of(v_types));
end
$$;
comment on function pgps_internal.lock_to_drop(integer) is
'Locks all that is dropped with an event type: it, composite events that are made of it, and tables with rules that
publish them. Errors: 55P03, 40P01';
