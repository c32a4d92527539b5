-- Look-ups by name: names are folded as PostgreSQL folds identifiers, and what is not found, or not the caller's, is an
-- error that names it and says what to type.
-- Locks: none.
-- Writes: nothing.

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
    -- The name of a role brings its collation along, by which only ASCII has letters.
    elsif fold.identifier collate "default" ~ '^[[:alpha:]_][[:alnum:]_$]*$' then
        -- Only A to Z are folded, as in SQL, whatever the locale.
        return lower(fold.identifier collate "C");
    end if;
    return fold.identifier;
end
$$;
comment on function pgps_internal.fold(text) is
'The identifier as the catalogue has it: case-folded unless in double quotes; a name that needs quotes may be given
bare. 22023 on null, 42602 when quotes are not closed.';

create or replace function pgps_internal.check_age(age interval, what text) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if check_age.age > '1000 years' then
        raise exception 'invalid % %: more than 1000 years', check_age.what, check_age.age using errcode = '22023',
            hint = 'Give at most 1000 years.';
    end if;
end
$$;
comment on function pgps_internal.check_age(interval, text) is
'Raises 22023 for an age that cannot be subtracted from the time, or added to it: whoever looks for what is older would
fail, a batch or reclaim for all. what: for the message';

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
        raise exception 'event type "%" does not exist', v_name
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
        raise exception 'subscription "%" does not exist', v_name
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

create or replace function pgps_internal.find_role(name text) returns oid
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_role oid := (select r.oid from pg_roles r where r.rolname = find_role.name);
begin
    if v_role is null then
        raise exception 'role "%" does not exist', find_role.name
        using errcode = '42704', hint = 'See \du, or pg_roles.';
    end if;
    return v_role;
end
$$;
comment on function pgps_internal.find_role(text) is 'The role of that name, not folded; 42704 when there is none';

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
