-- The way in. A public function runs with the caller's rights and reaches the internals only through pgps._call: an
-- INSERT into a view whose column "caller" defaults to current_user and cannot be given. So the trigger behind the view
-- knows who really calls, even inside a SECURITY DEFINER function, where session_user or the role setting would name
-- somebody else (decision 1).
-- Entry points set jit = off: the planner estimates unnested ids far too high, and compiling a receive that runs in 1
-- ms took seconds. They set enable_seqscan = off: a plan that is made while a segment is empty scans it sequentially,
-- and is kept while the segment grows to 65,536 events (a receive then takes 0.7 s, until autovacuum has analyzed the
-- segment). Filters, policies and callbacks run with sequential scans enabled again. With them disabled, what can only
-- be scanned looks costly enough for parallel workers, which take 20 ms to start: these are disabled, too.
-- Writes: pgps._calls, setting.

create or replace function pgps_internal.enter() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp set standard_conforming_strings = on
set jit = off set enable_seqscan = off set max_parallel_workers_per_gather = 0
as $$
begin
    case new.verb
        when 'ack' then new.result := pgps_internal.do_ack(new.caller, new.args);
        when 'nack' then new.result := pgps_internal.do_nack(new.caller, new.args);
        when 'nack_events' then new.result := pgps_internal.do_nack_events(new.caller, new.args);
        when 'subscribe' then new.result := pgps_internal.do_subscribe(new.caller, new.args);
        when 'link_next' then new.result := pgps_internal.do_link_next(new.caller, new.args);
        when 'link_take' then new.result := pgps_internal.do_link_take(new.caller, new.args);
        when 'types_for' then new.result := pgps_internal.do_types_for(new.caller, new.args);
        else
            -- The call below runs with the rights of the owner of pgps, so a verb must be a plain name.
            if new.verb !~ '^[a-z_]+$'
                or to_regprocedure(format('pgps_internal.do_%s(name, jsonb)', new.verb)) is null then
                raise exception 'unknown call "%"', new.verb using errcode = '22023',
                    hint = 'Use the functions of schema pgps.';
            end if;
            execute format('select to_jsonb(pgps_internal.%I($1, $2))', 'do_' || new.verb) using new.caller, new.args
                into new.result;
    end case;
    return new;
end
$$;
comment on function pgps_internal.enter() is
'Runs the internal verb do_<verb>(caller, args) for whoever inserts into pgps._calls; the verb checks the caller''s
rights.';

do $$
begin
    if to_regclass('pgps._calls') is null then
        create view pgps._calls as
        select null::text as verb, null::jsonb as args, null::name as caller, null::jsonb as result where false;
        alter view pgps._calls alter column caller set default current_user;
        create trigger enter instead of insert on pgps._calls
        for each row execute function pgps_internal.enter();
        grant insert (verb, args), select (result) on pgps._calls to public;
    end if;
end
$$;
comment on view pgps._calls is 'The only way from public functions to internals; see pgps._call';

-- Written in PL/pgSQL, which keeps the plan of the INSERT from call to call. The view is in schema pgps so that callers
-- may name it.
create or replace function pgps._call(verb text, args jsonb) returns jsonb
language plpgsql
as $$
declare
    v_result pg_catalog.jsonb;
begin
    insert into pgps._calls (verb, args) values (_call.verb, _call.args) returning result into v_result;
    return v_result;
end
$$;
comment on function pgps._call(text, jsonb) is
'Calls an internal verb as the current user. Not for applications: use the functions named in the reference.';

-- ---------------------------------------------------------------------------------------------------------------------
-- Who may what
-- ---------------------------------------------------------------------------------------------------------------------

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

create or replace function pgps_internal.require_read_committed() returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
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

-- ---------------------------------------------------------------------------------------------------------------------
-- Look-ups
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.fold(identifier text) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if fold.identifier is null then
        raise exception 'a name is missing' using errcode = '22023',
            hint = 'Give the name as text, for example ''stock_quote''.';
    end if;
    if fold.identifier ~ '^"' then
        if fold.identifier ~ '^"([^"]|"")+"$' then
            return replace(substr(fold.identifier, 2, length(fold.identifier) - 2), '""', '"');
        end if;
        raise exception 'invalid name %', fold.identifier
        using errcode = '42602',
            hint = 'A name in double quotes ends with one, and each of its own is written twice: "a ""b"" c".';
    elsif fold.identifier ~ '^[[:alpha:]_][[:alnum:]_$]*$' then
        -- Only A to Z are folded, as in SQL, whatever the locale.
        return lower(fold.identifier collate "C");
    end if;
    return fold.identifier;
end
$$;
comment on function pgps_internal.fold(text) is
'The identifier as the catalogue has it: case-folded unless in double quotes; a name that needs quotes may be given
bare. 22023 on null, 42602 when quotes are not closed.';

create or replace function pgps_internal.check_name(name text, what text) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.fold(check_name.name);
begin
    if v_name = '' or v_name ~ '[[:cntrl:]]' then
        raise exception 'invalid % name "%"', check_name.what, v_name
        using errcode = '42602', hint = 'A name has 1 to 40 bytes and no control characters.';
    elsif octet_length(v_name) > 40 then
        raise exception '% name "%" has % bytes', check_name.what, v_name, octet_length(v_name)
        using errcode = '42622', hint = 'Names have at most 40 bytes.';
    elsif v_name ~ '\*' then
        raise exception '% name "%" contains *', check_name.what, v_name
        using errcode = '42602', hint = 'A * stands for every name of a prefix; it cannot be part of a name.';
    end if;
    return v_name;
end
$$;
comment on function pgps_internal.check_name(text, text) is
'Folds and checks a new name: 42602 empty, control character or *, 42622 over 40 bytes, 22023 null. what: for the
message.';

create or replace function pgps_internal.find_type(name text) returns pgps_internal.event_type
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.fold(find_type.name);
    v_type pgps_internal.event_type;
begin
    select t.* into v_type from pgps_internal.event_type t where t.name = v_name;
    if not found then
        raise exception 'event type "%" does not exist', find_type.name
        using errcode = '42704',
            hint = 'See pgps.event_types, or create it with pgps.create_event_type(name, attributes).';
    end if;
    return v_type;
end
$$;
comment on function pgps_internal.find_type(text) is 'The event type of that name; 42704 when there is none';

create or replace function pgps_internal.find_subscription(caller name, name text) returns pgps_internal.subscription
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    -- Most names need no folding, and this test costs less than a call of fold.
    v_name text := case when find_subscription.name ~ '^[a-z_][a-z0-9_]*$' then find_subscription.name
        else pgps_internal.fold(find_subscription.name) end;
    v_subscription pgps_internal.subscription;
begin
    select s.* into v_subscription from pgps_internal.subscription s where s.name = v_name and not s.is_hidden;
    if not found then
        raise exception 'subscription "%" does not exist', find_subscription.name
        using errcode = '42704', hint = 'See pgps.subscriptions, or create it with pgps.subscribe(name, event_type).';
    elsif v_subscription.owner::text = v_subscription.owner::oid::text then
        -- regrole prints the bare OID of a role that was dropped.
        raise exception 'the owner of subscription "%" was dropped', v_subscription.name
        using errcode = '55000',
            hint = format('As an administrator: select pgps.alter_subscription(%1$L, owner => ''…''), or '
            'pgps.unsubscribe(%1$L)',
            quote_ident(v_subscription.name));
    elsif not pg_has_role(find_subscription.caller, v_subscription.owner::oid, 'usage') then
        raise exception 'subscription "%" belongs to role %', v_subscription.name, v_subscription.owner
        using errcode = '42501',
            hint = format('Become a member of role %s, or subscribe yourself.', v_subscription.owner);
    end if;
    return v_subscription;
end
$$;
comment on function pgps_internal.find_subscription(name, text) is
'The subscription of that name; 42704 when there is none, 42501 when it belongs to a role that caller is not a member
of, 55000 when that role was dropped';

create or replace function pgps_internal.find_administered(caller name, name text) returns pgps_internal.subscription
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription pgps_internal.subscription;
begin
    select s.* into v_subscription from pgps_internal.subscription s
    where s.name = pgps_internal.fold(find_administered.name) and not s.is_hidden
        and pg_has_role(find_administered.caller, 'pgps_admin', 'usage');
    return case when found then v_subscription
        else pgps_internal.find_subscription(find_administered.caller, find_administered.name) end;
end
$$;
comment on function pgps_internal.find_administered(name, text) is
'The subscription of that name, to be dropped or paused: as find_subscription, but an administrator may have anybody''s,
except a link''s';

create or replace function pgps_internal.clean_path(schemas jsonb) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- pg_temp is named, and last: otherwise temporary tables and types, which callbacks of others may have left, would
    -- be found first.
    return coalesce((
        select string_agg(quote_ident(s.name), ', ' order by s.place)
        from jsonb_array_elements_text(case jsonb_typeof(clean_path.schemas) when 'array' then clean_path.schemas
            else '[]' end)
            with ordinality s(name, place)
        where s.name <> '' and s.name !~ '^pg_temp'), 'pg_catalog') || ', pg_temp';
end
$$;
comment on function pgps_internal.clean_path(jsonb) is
'A JSON array of schema names, from whatever source, as a search_path for generated code: quoted, temporary objects
last';

create or replace function pgps_internal.setting(name text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select s.value from pgps_internal.setting s where s.name = setting.name);
end
$$;
comment on function pgps_internal.setting(text) is 'The value of a setting; null when unknown';

insert into pgps_internal.setting (name, value, kind, description) values
    ('broker', '', 'text', 'Name of this broker as shown in "origin"; empty = the database''s name'),
    ('max_batch_events', '20000', 'integer',
        'Transactions are put together into a batch until it has about this many events; by a worker, 10000 at most'),
    ('max_part_events', '65536', 'integer',
        'A transaction with more than three times as many events is matched in parts of at most this many'),
    ('run_batch_events', '2000', 'integer', 'Events an internal subscription handles in one transaction'),
    ('retry_delay', '1 second', 'interval', 'Wait before a failed callback is tried again; doubles with each attempt'),
    ('retry_delay_max', '64 seconds', 'interval', 'Longest wait between two attempts'),
    ('lease', '60 seconds', 'interval', 'How long a competing consumer holds an event before another may have it'),
    ('named_consumers', 'false', 'boolean',
        'Consumers of a shared subscription (handler any) have to name themselves, as they must behind a transaction '
        'pooler'),
    ('filter_failures', '20', 'integer',
        'A filter that has failed on this many events in a row suspends its subscriptions'),
    ('loopback', '', 'text', 'libpq connection string for immediate events; empty = the socket and port of this '
        'server'),
    ('direct_retries', '3', 'integer',
        'How often a direct event that reached nobody is tried again before the registration is invalid'),
    ('direct_retry_interval', '10 seconds', 'interval', 'Wait between two tries'),
    ('request_timeout', '10 minutes', 'interval',
        'A queued request that takes longer is cancelled, and gets an error for a reply'),
    ('request_attempts', '3', 'integer',
        'A queued request that has ended its backend this often gets an error for a reply'),
    ('link_create_types', 'true', 'boolean', 'Event types that a neighbour has and this broker lacks are created here'),
    ('link_retention', '7 days', 'interval',
        'How long what was published here is kept for brokers behind a neighbour that have not got it, should they '
        'take another path'),
    ('link_report_interval', '5 seconds', 'interval',
        'How often a broker tells how far it, and those behind it, have got'),
    ('audit', 'true', 'boolean',
        'What came from other brokers is compared with what they say that they published; see pgps.audit()'),
    ('table_threshold', '64', 'integer',
        'Filters of one shape from which their constants get an indexed table of their own')
on conflict (name) do nothing;

create or replace function pgps_internal.check_setting(setting pgps_internal.setting, value text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := (check_setting.setting).name;
    v_lowest text;
    v_highest text;
    v_ok boolean;
begin
    case (check_setting.setting).kind
        when 'text' then
            if v_name = 'broker' and check_setting.value <> '' then
                perform pgps_internal.check_name(quote_ident(check_setting.value), 'broker');
            end if;
            return;
        when 'boolean' then
            v_ok := lower(check_setting.value)
                in ('true', 'false', 'on', 'off', 'yes', 'no', '1', '0', 't', 'f', 'y', 'n');
            if v_ok is not true then
                raise exception 'invalid value "%" for setting "%"', check_setting.value, v_name
                    using errcode = '22023', hint = 'Give true or false.';
            end if;
            return;
        when 'integer' then
            v_lowest := case when v_name ~ 'retries$' then '0' else '1' end;
            v_highest := '1000000000';
        else
            -- Delays, intervals and retentions may be zero.
            v_lowest := case when v_name ~ '(delay|delay_max|interval|retention)$' then '0 seconds'
                else '1 millisecond' end;
            v_highest := '100 years';
    end case;
    begin
        execute format('select %1$L::%4$s between %2$L::%4$s and %3$L::%4$s', check_setting.value, v_lowest, v_highest,
            (check_setting.setting).kind) into v_ok;
    exception when data_exception then
        v_ok := false;
    end;
    if v_ok is not true then
        raise exception 'invalid value "%" for setting "%"', check_setting.value, v_name
        using errcode = '22023', hint = format('Give %s from %s to %s; now it is %s.',
            case (check_setting.setting).kind when 'integer' then 'a whole number' else 'an interval' end, v_lowest,
                v_highest, (check_setting.setting).value);
    end if;
end
$$;
comment on function pgps_internal.check_setting(pgps_internal.setting, text) is
'Raises 22023 unless a value is of the kind of a setting, and in its range';

create or replace function pgps_internal.do_configure(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_setting pgps_internal.setting;
begin
    perform pgps_internal.require_admin(caller, 'change settings');
    select s.* into v_setting from pgps_internal.setting s where s.name = args ->> 'name';
    if not found then
        raise exception 'setting "%" does not exist', args ->> 'name' using errcode = '42704',
            hint = 'See pgps.settings.';
    end if;
    if v_setting.name = 'loopback' and not pg_has_role(caller, current_user, 'usage') then
        -- Statements are run over this connection with the rights of the owner of pgps.
        raise exception 'role "%" may not change setting "loopback"', caller
        using errcode = '42501', hint = format('Only %I or a superuser may.', current_user);
    end if;
    perform pgps_internal.check_setting(v_setting, args ->> 'value');
    update pgps_internal.setting s set value = coalesce(args ->> 'value', '') where s.name = v_setting.name;
end
$$;
comment on function pgps_internal.do_configure(name, jsonb) is 'See pgps.configure';

create or replace function pgps.configure(name text, value text) returns void
language sql
begin atomic
    select pgps._call('configure', jsonb_build_object('name', configure.name, 'value', configure.value));
end;
comment on function pgps.configure(text, text) is
'Sets one of pgps.settings. Needs pgps_admin; the setting loopback needs the owner of pgps or a superuser. Errors: 42704
unknown setting, 22023 not of its kind, or out of its range, 42501.';

create or replace function pgps.version() returns text
language sql immutable parallel safe
as $$ select '0.1.0' $$;
comment on function pgps.version() is 'Version of the pgps code in this database';

revoke all on all functions in schema pgps_internal from public;
grant execute on function pgps._call(text, jsonb), pgps.configure(text, text), pgps.version() to public;
