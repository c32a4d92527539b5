-- Settings of the broker: read with a default, checked and changed by administrators.
-- Locks: the row of a setting that is changed.
-- Writes: setting.

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
            v_lowest := case when v_name ~ '(retries|max_active|status_lifetime)$' then '0' else '1' end;
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
    perform pgps_internal.setting_changes(v_setting.name, args ->> 'value');
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

grant execute on function pgps.configure(text, text) to public;
