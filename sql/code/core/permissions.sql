-- Who may what, and under which circumstances a call may be made.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.require_admin(caller name, action text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if not pg_has_role(require_admin.caller, 'pgps_admin', 'usage') then
        raise exception 'role "%" may not %', require_admin.caller, require_admin.action
        using errcode = '42501',
            hint = format('Ask an administrator for: grant pgps_admin to %I', require_admin.caller);
    end if;
end
$$;
comment on function pgps_internal.require_admin(name, text) is 'Raises 42501 unless caller is a member of pgps_admin';

create or replace function pgps_internal.require_worker(caller name, action text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if not (pg_has_role(require_worker.caller, 'pgps_worker', 'usage')
        or pg_has_role(require_worker.caller, 'pgps_admin', 'usage')) then
        raise exception 'role "%" may not %', require_worker.caller, require_worker.action
        using errcode = '42501',
            hint = format('Ask an administrator for: grant pgps_worker to %I', require_worker.caller);
    end if;
end
$$;
comment on function pgps_internal.require_worker(name, text) is
'Raises 42501 unless caller is a member of pgps_worker or pgps_admin';

create or replace function pgps_internal.may_become(caller name, role oid) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- From PostgreSQL 16 on one can be a member without the rights of the role and without SET ROLE.
    select pg_has_role(may_become.caller, may_become.role, case
        when current_setting('server_version_num')::integer >= 160000 then 'usage, set' else 'member' end)
$$;
comment on function pgps_internal.may_become(name, oid) is
'True when caller has the rights of a role, or can take them with SET ROLE';

create or replace function pgps_internal.require_read_committed() returns void
language plpgsql stable
as $$
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception 'pgps cannot move a position in a % transaction', current_setting('transaction_isolation')
        using errcode = '25001',
            hint = 'Use BEGIN ISOLATION LEVEL READ COMMITTED: an older snapshot would hand events out again.';
    end if;
end
$$;
comment on function pgps_internal.require_read_committed() is
'Raises 25001 in a transaction whose snapshot may be older than the lock it waits for: ledgers are append-only, so no
write conflict would reveal it';

create or replace function pgps_internal.is_cancelled(sqlstate text, context text) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- The innermost line of the context tells a RAISE, in every language of messages, from a real cancellation. Code
    -- that turns a cancellation into a RAISE of its own is recognised by the time: statement_timeout has passed.
    select is_cancelled.sqlstate = '57014' and (split_part(is_cancelled.context, E'\n', 1) !~ ' RAISE$'
        or current_setting('statement_timeout')::interval > '0'
            and clock_timestamp() - statement_timestamp() >= current_setting('statement_timeout')::interval)
$$;
comment on function pgps_internal.is_cancelled(text, text) is
'True when a caught error is this session''s own cancellation, by a person or by statement_timeout, which must be raised
again; false when user code raised query_canceled (57014), which is an error like any other. context: that of the error,
innermost line first';

create or replace function pgps_internal.is_held_up(sqlstate text, context text) returns boolean
language sql immutable
set search_path = pg_catalog, pg_temp
as $$ select is_held_up.sqlstate = '55P03' and split_part(is_held_up.context, E'\n', 1) !~ ' RAISE$' $$;
comment on function pgps_internal.is_held_up(text, text) is
'True when a caught error says that another session has something locked (lock_timeout), which is the fault of no filter
and no policy; false when user code raised lock_not_available (55P03). context: as in is_cancelled';

create or replace function pgps_internal.temporary(name text) returns regclass
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_found regclass := to_regclass(format('pg_temp.%I', temporary.name));
begin
    if v_found is not null and not exists (select from pg_class c where c.oid = v_found
            and c.relowner = quote_ident(current_user)::regrole and c.relkind = 'r') then
        raise exception 'a temporary relation of this session has the name "%", which is for pgps itself',
            temporary.name
        using errcode = '42501', hint = format('Drop pg_temp.%I.', temporary.name);
    end if;
    return v_found;
end
$$;
comment on function pgps_internal.temporary(text) is
'The temporary table of pgps of that name in this session, null when there is none. Everybody can make a temporary view,
which would run his code with the rights of whoever reads it: raises 42501 for what is not a table of pgps''';
