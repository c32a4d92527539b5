-- Connection strings of links and networks: what is in them, and what they may not lead elsewhere (decision 109).
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.warn_of_password(link text, conninfo text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if warn_of_password.conninfo ~* '(^|[[:space:]?&])(ssl)?password[[:space:]]*=|^postgres(ql)?://[^/@]*:[^/@]+@' then
        raise warning 'the connection string of "%" has a password in it: workers and administrators can read '
            'it, and so can who reads a dump',
            warn_of_password.link
        using hint = 'Leave it out, and put it where the worker runs: passfile=… with a line '
            'host:port:dbname:user:password, or service=….';
    end if;
end
$$;
comment on function pgps_internal.warn_of_password(text, text) is 'Warns when a connection string has a password in it';

create or replace function pgps_internal.check_conninfo(link text, conninfo text) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_options text[];
    v_unknown text;
begin
    -- Messages never quote the text itself, because it may hold a password.
    if check_conninfo.conninfo ~ '^postgres(ql)?://[^[:space:]]*$' then
        v_options := array(select split_part(p, '=', 1)
            from regexp_split_to_table(split_part(check_conninfo.conninfo, '?', 2), '&') p where p <> '')
            || case when check_conninfo.conninfo ~ '^postgres(ql)?://([^/?@]*@)?[^/?:@]' then '{host}'::text[] end;
    elsif check_conninfo.conninfo ~ '^\s*(\w+\s*=\s*(''([^''\\]|\\.)*''|([^''\s\\]|\\.)+)(\s+|$))+$' then
        v_options := array(select m[1] from regexp_matches(check_conninfo.conninfo,
            '(\w+)\s*=\s*(?:''(?:[^''\\]|\\.)*''|(?:[^''\s\\]|\\.)+)(?:\s+|$)', 'g') m);
    else
        raise exception 'the connection string of "%" is not one of libpq', check_conninfo.link
        using errcode = '22023',
            hint = 'Give option=value pairs, ''host=… dbname=… user=… passfile=…'', or postgresql://user@host/dbname.';
    end if;
    select o into v_unknown from unnest(v_options) o
    where o <> all ('{service,user,password,passfile,require_auth,channel_binding,connect_timeout,dbname,
        host,hostaddr,port,client_encoding,options,
            application_name,fallback_application_name,keepalives,keepalives_idle,keepalives_interval,
            keepalives_count,tcp_user_timeout,sslmode,
            sslnegotiation,sslcompression,sslcert,sslkey,sslcertmode,sslpassword,sslrootcert,sslcrl,
            sslcrldir,sslsni,ssl,requirepeer,
            ssl_min_protocol_version,ssl_max_protocol_version,min_protocol_version,max_protocol_version,gssencmode,
            krbsrvname,gsslib,
            scram_client_key,scram_server_key,target_session_attrs,load_balance_hosts,oauth_issuer,oauth_client_id,
            oauth_client_secret,oauth_scope}'::text[])
    limit 1;
    if v_unknown is not null then
        raise exception 'the connection string of "%" has an unknown option "%"', check_conninfo.link, v_unknown
        using errcode = '22023',
            hint = 'The options are those of libpq: host, port, dbname, user, passfile, service, sslmode …; a value '
            'with blanks stands in single quotes. servicefile, sslkeylogfile and gssdelegation are not for links.';
    end if;
    perform pgps_internal.check_reach(check_conninfo.link, v_options,
        check_conninfo.conninfo ~ 'sslmode\s*=\s*''?verify-full');
end
$$;
comment on function pgps_internal.check_conninfo(text, text) is
'Raises 22023 unless conninfo is a connection string of libpq, with options that links may have and quotes that are
closed; also for null';

create or replace function pgps_internal.check_reach(link text, options text[], verified boolean) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_beside text;
begin
    -- The worker refuses the same, whatever stands here (pgps_worker/outward.py): what is secret is its host's. Whoever
    -- defines a link learns of it at once.
    select o into v_beside from unnest(check_reach.options) o
    where 'service' = any (check_reach.options) and o <> all ('{service,user,password,passfile,dbname,options,
        application_name,fallback_application_name,client_encoding,connect_timeout,keepalives,keepalives_idle,
        keepalives_interval,keepalives_count,tcp_user_timeout,target_session_attrs,load_balance_hosts}'::text[])
    limit 1;
    if v_beside is not null then
        raise exception 'the connection string of "%" has "%" beside a service, whose password it could lead elsewhere',
            check_reach.link, v_beside
        using errcode = '22023', hint = 'Leave it out, or put it into the service, where the worker runs.';
    elsif '{host,hostaddr}' <@ check_reach.options and not check_reach.verified then
        raise exception 'the connection string of "%" has host and hostaddr, and nothing shows that they belong '
            'together', check_reach.link
        using errcode = '22023', hint = 'Leave one of them out, or set sslmode=verify-full.';
    end if;
end
$$;
comment on function pgps_internal.check_reach(text, text[], boolean) is
'Raises 22023 when options of a connection string could lead a password of the worker''s host elsewhere: beside a
service those that say where it is and how it is known, and hostaddr beside host unless the certificate is verified';
