-- Names that pgps needs for itself: event types and subscriptions that begin with pgps_ are not for others. Whoever had
-- one beforehand would get what pgps puts there, or keep it from working. Nor does anybody get them who asks for all
-- event types of a prefix, unless it is theirs: MQTT has the same rule for topics that begin with $.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.is_own_role(role oid) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(pg_has_role(is_own_role.role, n.nspowner, 'usage'), false)
    from pg_namespace n where n.nspname = 'pgps_internal'
$$;
comment on function pgps_internal.is_own_role(oid) is
'True for the owner of pgps, and who has its rights; false for a role that was dropped';

create or replace function pgps_internal.check_new_name(caller name, name text, what text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.check_name(check_new_name.name, check_new_name.what);
begin
    if v_name ~ '^pgps_' and not pgps_internal.is_own_role(pgps_internal.find_role(caller)) then
        raise exception 'invalid % name "%": names that begin with pgps_ are for pgps itself', check_new_name.what,
            v_name
        using errcode = '42939', hint = 'Choose another name.';
    end if;
    return v_name;
end
$$;
comment on function pgps_internal.check_new_name(name, text, text) is
'As check_name, for what pgps makes some of by itself: 42939 a name that begins with pgps_, unless pgps itself calls';

create or replace function pgps._covers(pattern text, event_type text) returns boolean
language sql immutable
begin atomic
    select starts_with(event_type, left(pattern, -1))
        and (starts_with(pattern, 'pgps_') or not starts_with(event_type, 'pgps_'));
end;
comment on function pgps._covers(text, text) is
'True when a prefix with its *, as the catalogue has it, stands for an event type. Those of pgps itself, whose names
begin with pgps_, are stood for only by a prefix that begins so, too';
grant execute on function pgps._covers(text, text) to public;

create or replace function pgps_internal.is_relay(attributes text[]) returns boolean
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select is_relay.attributes = '{to_broker text,verb text,client_broker text,conversation bigint,unit bigint,
        body jsonb,messages bytea[]}'::text[]
$$;
comment on function pgps_internal.is_relay(text[]) is
'True for the attributes, with their types, of the event type that carries units of work';

create or replace function pgps_internal.who_was_let_in(name text) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select string_agg(distinct case a.grantee when 0 then 'public' else a.grantee::regrole::text end, ', ')
    from pgps_internal.event_type t
    join pg_class c on c.oid = t.endpoint
    cross join lateral aclexplode(c.relacl) a
    where t.name = who_was_let_in.name and a.privilege_type in ('INSERT', 'SELECT')
        and a.grantee not in (c.relowner, t.owner::oid, 'pgps_admin'::regrole, 'pgps_neighbour'::regrole)
$$;
comment on function pgps_internal.who_was_let_in(text) is
'Who may publish or receive an event type, besides its owner, administrators and the neighbours of links that lend it;
null: nobody';

create or replace function pgps_internal.names_in_the_way() returns table (kind text, name text, role text)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select 'event type', t.name, t.owner::text from pgps_internal.event_type t
    where t.name = 'pgps_spool'
            and not exists (select from pgps_internal.feature f where f.type_id = t.type_id and f.name = 'spool')
        or t.name = 'pgps_uow' and not (pgps_internal.is_own_role(t.owner::oid) and pgps_internal.is_relay(array(
            select format('%s %s', a.name, a.type) from pgps_internal.attributes_of(t.endpoint) with ordinality
                a(name, type, not_null, default_value, collate_clause, n) order by a.n)))
    union all
    select 'subscription', s.name, s.owner::text from pgps_internal.subscription s
    where s.name = 'pgps_uow' and not pgps_internal.is_own_role(s.owner::oid)
        or s.name ~ '^pgps_registration_' and s.kind <> 'registration'
    order by 1, 2
$$;
comment on function pgps_internal.names_in_the_way() is
'Event types and subscriptions of others that have a name which pgps needs for itself, from before such names were
refused';

create or replace function pgps_internal.require_free(kind text, name text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_role text;
begin
    select n.role into v_role from pgps_internal.names_in_the_way() n
    where n.kind = require_free.kind and n.name = require_free.name;
    if found then
        raise exception '% "%" of role % has a name that pgps needs for itself', require_free.kind, require_free.name,
            v_role
        using errcode = '42710', hint = format(case require_free.kind
            when 'subscription' then 'As an administrator, first: select pgps.unsubscribe(%L)'
            else 'As an administrator, first: select pgps.drop_event_type(%L, cascade => true)' end,
            quote_ident(require_free.name));
    end if;
end
$$;
comment on function pgps_internal.require_free(text, text) is
'Raises 42710 when somebody has an event type or a subscription of a name that pgps needs';
