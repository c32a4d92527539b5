-- What user code leaves behind. A callback or a request runs in a function of its owner, in somebody else's session and
-- transaction. What it leaves there would be run, or believed, with other rights than its owner's: by the broker for
-- the rest of the transaction, at the commit, or by whoever uses the session next (decision 21). These are the kinds of
-- things that DISCARD ALL names:
--   settings              all are compared; a change is an error, which rolls it back
--   deferred work         run at once, with the rights of its owner: run_deferred
--   temporary objects     dropped
--   cursors with hold     an error: their queries would be run at the commit
--   prepared statements   deallocated, since no rollback removes them
--   LISTEN, advisory locks, numbers of sequences: taken back by pgps.run_subscribers; a worker washes (resets) its
--                         sessions
-- Locks: none.
-- Writes: command, installation.

do $$
begin
    -- The settings that a session can set. One whose value the owner of pgps may not read is left out, since user code
    -- may not set it either.
    insert into pgps_internal.installation (key, value)
    select 'settings', string_agg(s.name, ' ' order by s.name) from pg_settings s
        where s.context in ('user', 'superuser') and s.setting is not null
    on conflict (key) do update set value = excluded.value;
end
$$;

create or replace function pgps_internal.learn_settings() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Not in SQL, which would be planned anew before each run of callbacks.
    update pgps_internal.installation i set value = concat_ws(' ', i.value, n.names)
    from (
        select string_agg(s.name, ' ' order by s.name) as names from pg_settings s
        where s.context in ('user', 'superuser') and s.setting is not null
            and s.name not in (select unnest(string_to_array(k.value, ' ')) from pgps_internal.installation k
                where k.key = 'settings')
    ) n
    where i.key = 'settings' and n.names is not null;
end
$$;
comment on function pgps_internal.learn_settings() is
'Adds the settings of modules that this session has loaded (auto_explain, pg_trgm …) to those that callbacks must not
change';

create or replace function pgps_internal.session_settings(washed boolean) returns text[]
language plpgsql stable
as $$
begin
    if session_settings.washed then
        return array[pg_catalog.current_setting('search_path'),
            pg_catalog.current_setting('standard_conforming_strings'),
            pg_catalog.current_setting('row_security'), pg_catalog.current_setting('transform_null_equals'),
            pg_catalog.current_setting('array_nulls'),
            pg_catalog.current_setting('check_function_bodies'), pg_catalog.current_setting('synchronous_commit'),
            pg_catalog.current_setting('transaction_read_only'),
            pg_catalog.current_setting('default_transaction_read_only'),
            pg_catalog.current_setting('default_transaction_isolation'),
            pg_catalog.current_setting('statement_timeout'),
            coalesce(pg_catalog.current_setting('pgps.act_as', true), ''),
            coalesce(pg_catalog.current_setting('pgps.carried', true), ''),
            coalesce(pg_catalog.current_setting('pgps.client', true), ''),
            coalesce(pg_catalog.current_setting('pgps.handler', true), ''),
            coalesce(pg_catalog.current_setting('pgps.raiser', true), ''),
            coalesce(pg_catalog.current_setting('pgps.reliability', true), ''),
            coalesce(pg_catalog.current_setting('pgps.visibility', true), '')];
    end if;
    -- A custom setting (with a dot in its name) that no module has declared is in no view. It is known here only when
    -- the broker uses it, or when it is set for a role or a database.
    return array(
        select pg_catalog.concat(n.name, '=', pg_catalog.current_setting(n.name, true))
        from (
            select pg_catalog.unnest(pg_catalog.string_to_array(i.value, ' ')) as name
            from pgps_internal.installation i where i.key operator(pg_catalog.=) 'settings'
            union all
            select pg_catalog.unnest(pg_catalog.string_to_array('pgps.act_as pgps.carried pgps.client pgps.handler '
                'pgps.link_base '
                'pgps.link_batch pgps.raiser pgps.reliability pgps.visibility', ' '))
            union all
            select pg_catalog.split_part(u.setting, '=', 1)
            from pg_catalog.pg_db_role_setting d cross join lateral pg_catalog.unnest(d.setconfig) u(setting)
            where pg_catalog.strpos(pg_catalog.split_part(u.setting, '=', 1), '.') operator(pg_catalog.>) 0
        ) n);
end
$$;
comment on function pgps_internal.session_settings(boolean) is
'All settings of the session, as name=value; washed: only the values of those on which the rest of the transaction
depends, at a twentieth of the cost. Has no search_path clause, since it reports the caller''s.';

create or replace function pgps_internal.settings_again(settings text[]) returns text[]
language plpgsql stable
as $$
begin
    return array(
        select pg_catalog.concat(n.name, '=', pg_catalog.current_setting(n.name, true))
        from (select pg_catalog.split_part(s.setting, '=', 1) as name
            from pg_catalog.unnest(settings_again.settings) s(setting)) n);
end
$$;
comment on function pgps_internal.settings_again(text[]) is
'The same settings of the session once more, as name=value. Not those that there are now: somebody may give a role or a
database another one meanwhile, which is no fault of user code. Has no search_path clause, as session_settings';

create or replace function pgps_internal.check_settings(before pgps_internal.session_state, what text) returns void
language plpgsql
as $$
declare
    v_after pg_catalog.text[] := case when (check_settings.before).temporary is null
        then pgps_internal.session_settings(true)
        else pgps_internal.settings_again((check_settings.before).settings) end;
begin
    -- Has no search_path clause, so that it sees the one that was left behind; every name is therefore qualified.
    if v_after operator(pg_catalog.<>) (check_settings.before).settings then
        raise exception '% changed a setting of the session', what using errcode = '55000',
            detail = coalesce((select pg_catalog.string_agg(pg_catalog.split_part(a.setting, '=', 1), ', ')
                from pg_catalog.unnest(v_after) a(setting)
                where (check_settings.before).temporary is not null
                    and a.setting operator(pg_catalog.<>) all ((check_settings.before).settings)), ''),
            hint = 'Attach it to the function: ALTER FUNCTION … SET name = value, so that it ends with the call.';
    end if;
end
$$;
comment on function pgps_internal.check_settings(pgps_internal.session_state, text) is
'After user code has run: raises 55000 when settings have changed; the detail names them, unless the session is washed';

create or replace function pgps_internal.temporary() returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(string_agg(format('%s/%s', d.classid, d.objid), ' ' order by d.classid, d.objid), '')
        from pg_depend d
    where d.refclassid = 'pg_namespace'::regclass and d.refobjid = pg_my_temp_schema() and pg_my_temp_schema() <> 0
$$;
comment on function pgps_internal.temporary() is 'The temporary objects of this session';

create or replace function pgps_internal.session_state(washed boolean) returns pgps_internal.session_state
language plpgsql
as $$
begin
    return row(pgps_internal.session_settings(session_state.washed), pgps_internal.prepared(),
        array(select pg_catalog.concat(c.name, c.creation_time) from pg_catalog.pg_cursors c where c.is_holdable),
        case when not session_state.washed then pgps_internal.temporary() end);
end
$$;
comment on function pgps_internal.session_state(boolean) is
'What user code could change in this session, as it is before it runs. washed: whoever has the session resets it
afterwards, so that only what counts in this transaction matters; temporary is null then.';

create or replace function pgps_internal.check_session(before pgps_internal.session_state, what text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (select from pg_cursors c where c.is_holdable
        and concat(c.name, c.creation_time) <> all ((check_session.before).cursors)) then
        raise exception '% left a cursor with hold open', check_session.what using errcode = '0A000',
            hint = 'Close it, or leave WITH HOLD away.';
    end if;
    perform pgps_internal.forget_prepared((check_session.before).prepared);
    if (check_session.before).temporary is not null
        and pgps_internal.temporary() <> (check_session.before).temporary then
        if (check_session.before).temporary <> '' then
            raise exception '% left temporary objects behind', check_session.what using errcode = '55000',
                hint = 'Drop them in it, or run it from a session that has no temporary objects itself: then they are '
                    'dropped for you.';
        end if;
        -- A temporary table is found before all others, even those of the catalogue, by the session's later statements.
        discard temp;
    end if;
end
$$;
comment on function pgps_internal.check_session(pgps_internal.session_state, text) is
'After user code has run: removes what it left behind that others would run or believe, or raises. Errors: 0A000,
55000.';

-- ---------------------------------------------------------------------------------------------------------------------
-- Deferred work
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.command_number() returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_number bigint;
begin
    begin
        insert into pgps_internal.command default values returning cmin::text::bigint into v_number;
        raise exception 'take back' using errcode = 'PS001';
    exception when sqlstate 'PS001' then null;
    end;
    return v_number;
end
$$;
comment on function pgps_internal.command_number() is
'The number of the current command in its transaction; each command that has written a row increments it, even one that
was rolled back to a savepoint';

create or replace function pgps_internal.run_deferred(statement text, what text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_number bigint;
begin
    -- SET CONSTRAINTS runs what is pending. Nothing tells whether something is pending again: what has run may have set
    -- constraints DEFERRED and written. That takes a command that writes, so the work is done when a round has written
    -- nothing.
    for v_round in 1..10 loop
        v_number := pgps_internal.command_number();
        execute run_deferred.statement;
        if pgps_internal.command_number() = v_number + 1 then
            return;
        end if;
    end loop;
    raise exception '% defers constraints again and again', run_deferred.what using errcode = '0A000',
        hint = 'A trigger that is deferred must not defer others: leave SET CONSTRAINTS … DEFERRED away in it.';
end
$$;
comment on function pgps_internal.run_deferred(text, text) is
'Runs what user code has deferred to the commit (constraint triggers, foreign keys, unique and exclusion constraints),
because the commit would run it with the rights of whoever commits. statement: calls SET CONSTRAINTS ALL IMMEDIATE with
the rights of that user, so deferred work of anybody else must not be pending: see require_unwritten. Errors: 0A000, and
those that the deferred work raises.';

create or replace function pgps_internal.require_unwritten(what text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if pg_current_xact_id_if_assigned() is not null then
        raise exception '% after something was written in the same transaction', require_unwritten.what
            using errcode = '25001',
            hint = 'Call it in a transaction of its own: what you have deferred to the commit would be run with the '
                'rights of others.';
    end if;
end
$$;
comment on function pgps_internal.require_unwritten(text) is
'Raises 25001 in a transaction that has written something: it may have deferred work of its caller, which would be run
with the rights of those whose code runs here';

create or replace function pgps_internal.defer_again() returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select coalesce('set constraints ' || string_agg(distinct format('%I.%I', n.nspname, c.conname), ', ')
        || ' deferred', 'set constraints all immediate')
    from pg_constraint c join pg_namespace n on n.oid = c.connamespace
    where c.condeferred and has_schema_privilege(n.oid, 'usage')
        -- A name stands for all constraints of that name in the schema; the statement fails if one of them is not
        -- deferrable.
        and not exists (select from pg_constraint o where o.conname = c.conname and o.connamespace = c.connamespace
            and not o.condeferrable)
$$;
comment on function pgps_internal.defer_again() is
'The statement that defers constraints again that are initially deferred: PostgreSQL cannot undo a SET CONSTRAINTS
within a transaction';
