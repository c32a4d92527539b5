-- Filters as they travel over links: the part of a subscription's filter that another broker can ask, and which filter
-- implies which.
-- Locks: catalogue rows.
-- Writes: cover, link_filter, pushed, setting.

create or replace function pgps_internal.travels(
    event_type pgps_internal.event_type, parsed jsonb, search_path text, collation_name text
) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- A broker with another collation orders and folds text differently, so such a condition could leave out events
    -- that are wanted.
    select pgps_internal.is_safe(travels.parsed, travels.event_type, travels.search_path)
        and (travels.collation_name = (pgps_internal.do_link_identity(current_user, '{}') ->> 'collation')
            or not (travels.parsed -> 'operators' ?| array['<', '<=', '>', '>=', '~~*', '!~~*']
                or travels.parsed -> 'functions' ?| array['lower', 'upper'])
            or not exists (select from pg_attribute a where a.attrelid = (travels.event_type).endpoint
                and a.attcollation <> 0
                and travels.parsed -> 'attributes' ? a.attname))
$$;
comment on function pgps_internal.travels(pgps_internal.event_type, jsonb, text, text) is
'True when a parsed filter means the same on a broker of that collation, and can do nothing there but read the event';

create or replace function pgps_internal.attribute_names(event_type pgps_internal.event_type) returns text[]
language sql stable
set search_path = pg_catalog, pg_temp
as $$ select array(select a.name from pgps_internal.attributes_of((attribute_names.event_type).endpoint) a) $$;
comment on function pgps_internal.attribute_names(pgps_internal.event_type) is 'The attributes of an event type';

create or replace function pgps_internal.family_of(filter pgps_internal.link_filter) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select md5(concat_ws(E'\n', (family_of.filter).type_id, (family_of.filter).shape, (family_of.filter).environment,
        (family_of.filter).constant_types, array_agg(case when b ~ '[<>]' then '' else c end order by n)))
    from unnest((family_of.filter).constants, (family_of.filter).bounds) with ordinality u(c, b, n)
    having bool_or(b ~ '[<>]')
$$;
comment on function pgps_internal.family_of(pgps_internal.link_filter) is
'The same for filters of one shape that differ in nothing but the bounds of ranges, so that one may imply another; null
for a filter without such a bound';

create or replace function pgps_internal.intern_filter(
    event_type pgps_internal.event_type, filter text, constant_types text[], environment jsonb,
    is_heard boolean = false
) returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_parsed jsonb;
    v_types text[];
    v_constants text[];
    v_environment jsonb := jsonb_build_object('timezone', coalesce(intern_filter.environment ->> 'timezone', 'UTC'),
        'datestyle', coalesce(intern_filter.environment ->> 'datestyle', 'ISO, MDY'),
        'intervalstyle', coalesce(intern_filter.environment ->> 'intervalstyle', 'postgres'), 'search_path',
            'pg_catalog, pg_temp');
    v_filter pgps_internal.link_filter;
begin
    if intern_filter.filter is not null then
        v_parsed := pgps.parse_filter(intern_filter.filter, (intern_filter.event_type).name,
            pgps_internal.attribute_names(intern_filter.event_type));
        v_types := array(select case when p.value ->> 'kind' = 'string' then t when t = 'smallint' then 'integer'
            when t = 'real' then 'double precision'
                else t end from unnest(intern_filter.constant_types) with ordinality c(t, n)
            left join jsonb_array_elements(v_parsed -> 'parameters') with ordinality p(value, n) using (n) order by n);
        v_constants := pgps_internal.constant_values(v_parsed -> 'parameters', case
            when intern_filter.constant_types is not null then v_types end,
            v_environment);
    end if;
    v_filter := row(
        md5(concat_ws(E'\n', (intern_filter.event_type).name,
            coalesce((v_parsed ->> 'shape') || v_constants::text, v_parsed ->> 'text', 'all'),
            v_environment - 'search_path')),
        (intern_filter.event_type).type_id, v_parsed ->> 'text', v_types, v_environment,
        case when v_constants is not null then v_parsed ->> 'shape' end, v_constants,
        -- The operator of each constant, from which follows which filter implies which. For text only equality counts,
        -- because each database may order text differently.
        array(select case when t.typcollation = 0 then k.value ->> 'operator' else '=' end
            from unnest(v_types) with ordinality c(name, n) join pg_type t on t.oid = to_regtype(c.name)
            left join jsonb_array_elements(v_parsed -> 'keys') k(value) on (k.value ->> 'parameter')::integer = c.n
                order by c.n), null)::pgps_internal.link_filter;
    v_filter.family := pgps_internal.family_of(v_filter);
    insert into pgps_internal.link_filter select v_filter.* on conflict do nothing;
    if found then
        perform pgps_internal.note_covers(v_filter, intern_filter.is_heard);
    end if;
    return v_filter.key;
end
$$;
comment on function pgps_internal.intern_filter(pgps_internal.event_type, text, text[], jsonb, boolean) is
'The key of a filter, equal for equal filters at all brokers; enters a new filter and what it implies. filter: null =
every event; is_heard: a neighbour has said it.';

insert into pgps_internal.setting (name, value, kind, description) values
    ('link_filters', '500', 'integer',
        'How many forms of filters of the neighbours of one role over one event type the dispatcher asks; instead of a '
        'filter of a further form they get all events of the type that they may see, and choose themselves')
on conflict (name) do nothing;

create or replace function pgps_internal.has_room(
    event_type pgps_internal.event_type, role regrole, filter pgps_internal.link_filter
) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_apart record;
begin
    if (has_room.filter).filter is null or (select count(*) from pgps_internal.signature g
        where g.type_id = (has_room.event_type).type_id and g.owner = has_room.role and not g.in_lane)
            < pgps_internal.setting('link_filters')::integer and not pgps_internal.is_apart(has_room.role) then
        return true;
    end if;
    -- A filter of a form that is asked already costs next to nothing.
    select a.* into v_apart from pgps_internal.parts_of_filter(has_room.event_type, (has_room.filter).filter,
        (has_room.filter).constant_types, (has_room.filter).environment) a;
    return exists (select from pgps_internal.signature g
        where g.type_id = (has_room.event_type).type_id and g.owner = has_room.role and not g.in_lane
            and md5(g.shape) = md5(v_apart.parsed ->> 'shape')
            and g.parameter_types = v_apart.types and g.environment = v_apart.environment
            and not exists (select from pgps_internal.unasked u where u.signature_id = g.signature_id));
end
$$;
comment on function pgps_internal.has_room(pgps_internal.event_type, regrole, pgps_internal.link_filter) is
'False for a neighbour''s filter of a form of its own, when the dispatcher asks as many for that role as it may, since
each takes its time in every batch, whoever the batch is for (decision 95), or when one has held up the dispatcher';

create or replace function pgps_internal.implies(bounds text[], types text[], narrow text, wide text) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select string_agg(case
        when b in ('>', '>=') then format('(%4$s.constants[%1$s])::%2$s <= (%3$s.constants[%1$s])::%2$s', n,
            types[n], narrow, wide)
        when b in ('<', '<=') then format('(%4$s.constants[%1$s])::%2$s >= (%3$s.constants[%1$s])::%2$s', n,
            types[n], narrow, wide)
        else format('%2$s.constants[%1$s] = %3$s.constants[%1$s]', n, narrow, wide) end, ' and ' order by n)
    from unnest(bounds) with ordinality u(b, n)
$$;
comment on function pgps_internal.implies(text[], text[], text, text) is
'The condition under which the filter of one row (narrow) implies that of another (wide), both of the same family: each
constant is the same, or a bound that is as wide';

create or replace function pgps_internal.note_covers(filter pgps_internal.link_filter, is_heard boolean) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_bounds text[] := (note_covers.filter).bounds;
    v_types text[] := (note_covers.filter).constant_types;
begin
    -- The filter for every event covers all others of the type.
    if (note_covers.filter).filter is null then
        insert into pgps_internal.cover (key, by_key)
        select f.key, (note_covers.filter).key from pgps_internal.link_filter f
        where f.type_id = (note_covers.filter).type_id and f.filter is not null;
    else
        insert into pgps_internal.cover (key, by_key)
        select (note_covers.filter).key, f.key from pgps_internal.link_filter f
        where f.type_id = (note_covers.filter).type_id and f.filter is null;
    end if;
    -- Compared with its family only, which an index finds: most filters have none, and there may be very many of them.
    -- A broker says of its filters those that no other one covers. Who says thousands that do is no reason to keep the
    -- square of that.
    if (note_covers.filter).family is not null and not (note_covers.is_heard and 500 < (select count(*) from (
            select from pgps_internal.link_filter f where f.family = (note_covers.filter).family limit 501) f)) then
        -- Of two that cover each other (1 and 1.0) only one direction is kept.
        execute format('insert into pgps_internal.cover (key, by_key)
            select f.key, g.key from pgps_internal.link_filter f, pgps_internal.link_filter g
            where f.key = ($1).key and g.family = ($1).family and g.key <> f.key
                and %1$s and (f.key > g.key or not %2$s)
            union all
            select f.key, g.key from pgps_internal.link_filter f, pgps_internal.link_filter g
            where g.key = ($1).key and f.family = ($1).family and g.key <> f.key
                and %1$s and (f.key > g.key or not %2$s)
            ', '(' || pgps_internal.implies(v_bounds, v_types, 'f', 'g') || ')',
            '(' || pgps_internal.implies(v_bounds, v_types, 'g', 'f') || ')')
        using note_covers.filter;
    end if;
end
$$;
comment on function pgps_internal.note_covers(pgps_internal.link_filter, boolean) is
'Notes which filters a new one implies, and which imply it: within a family by their constants; all imply the filter for
every event. is_heard: a neighbour has said it, so that in a family of more than 500 nothing is noted; brokers that do
not know of it ask for both filters';

create or replace function pgps_internal.constant_types(event_type text, filter text, environment jsonb) returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp set datestyle = 'ISO, MDY' set intervalstyle = postgres set timezone = 'UTC'
as $$
begin
    -- The function restores these settings when it ends, since its own set clauses name them.
    perform set_config(e.key, e.value, true) from jsonb_each_text(constant_types.environment) e
        where e.key in ('datestyle', 'intervalstyle', 'timezone');
    return pgps.check_filter(constant_types.event_type, constant_types.filter);
end
$$;
comment on function pgps_internal.constant_types(text, text, jsonb) is
'The types of a filter''s constants, as pgps.check_filter finds them under the settings in environment: 13/02/2024 is a
date under some of them only';

create or replace function pgps_internal.push_filters(most bigint = null) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_new record;
    v_filter text;
    v_types text[];
begin
    for v_new in
        select s.*, t as type_row, m.type_id from pgps_internal.subscription s
        join pgps_internal.member m using (subscription_id) join pgps_internal.event_type t on t.type_id = m.type_id
        where s.scope = 'global'
            and not exists (select from pgps_internal.pushed p where p.subscription_id = s.subscription_id
            and p.type_id = m.type_id and p.is_current)
        -- Whoever ends the subscription may keep his transaction open: no link waits for him.
        limit push_filters.most for key share of s skip locked
    loop
        v_filter := null;
        v_types := null;
        if v_new.filter is not null then
            v_filter := pgps_internal.filter_if_parsed(v_new.filter, (v_new.type_row).name,
                pgps_internal.attribute_names(v_new.type_row)) ->> 'pushed';
            if v_filter is not null and not pgps_internal.is_safe(pgps_internal.filter_if_parsed(v_filter,
                    (v_new.type_row).name, pgps_internal.attribute_names(v_new.type_row)), v_new.type_row,
                        v_new.environment ->> 'search_path') then
                v_filter := null;
            end if;
            if v_filter is not null then
                v_types := pgps_internal.constant_types((v_new.type_row).name, v_filter, v_new.environment);
            end if;
        end if;
        insert into pgps_internal.pushed (subscription_id, type_id, key)
        values (v_new.subscription_id, v_new.type_id,
            pgps_internal.intern_filter(v_new.type_row, v_filter, v_types, v_new.environment))
        on conflict (subscription_id, type_id, key) do update set is_current = true, place = default;
    end loop;
    delete from pgps_internal.pushed p
    where not exists (select from pgps_internal.member m where m.subscription_id = p.subscription_id
        and m.type_id = p.type_id);
    perform pgps_internal.drop_former_filters();
end
$$;
comment on function pgps_internal.push_filters(bigint) is
'For new global subscriptions, and those with a new filter: finds the part of the filter that other brokers can ask.
What reads tables is asked here only: a weaker filter elsewhere is correct. most: for how many at once, null = all.';

create or replace function pgps_internal.drop_former_filters() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- What a changed filter wanted before goes on being asked for where nothing newer of the subscription is in force
    -- for all that has come: otherwise events that both filters accept would be missing. Of the filters in force for an
    -- origin the newest is enough, so that no more are kept than there are origins, however often a filter is changed.
    -- Rows that somebody is about to delete with the subscription are left to him.
    delete from pgps_internal.pushed p where (p.subscription_id, p.type_id, p.key) in (
        select f.subscription_id, f.type_id, f.key from pgps_internal.pushed f
        where not f.is_current
            and not exists (select from pgps_internal.activation a where a.key = f.key
                and not exists (select from pgps_internal.pushed n
                    join pgps_internal.activation b on b.key = n.key and b.origin_id = a.origin_id
                    where n.subscription_id = f.subscription_id and n.type_id = f.type_id and n.place > f.place
                        and b.since <= coalesce((select i.horizon from pgps_internal.arrival i
                            where i.origin_id = a.origin_id order by i.arrival_id desc limit 1), 0)))
        for update of f skip locked);
end
$$;
comment on function pgps_internal.drop_former_filters() is
'Forgets the former filters of subscriptions for every origin for which a newer one is in force';

create or replace function pgps_internal.note_filter() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    update pgps_internal.pushed p set is_current = false
    where p.subscription_id = new.subscription_id and p.is_current;
    perform pg_notify('pgps_link', '');
    return null;
end
$$;
comment on function pgps_internal.note_filter() is
'Trigger after the filter of a global subscription has been changed: neighbours are to be told the new one';

do $$
begin
    if not exists (select from pg_catalog.pg_trigger where tgname = 'pgps_filter'
        and tgrelid = 'pgps_internal.subscription'::regclass) then
        create trigger pgps_filter after update of filter on pgps_internal.subscription
        for each row when (new.scope = 'global') execute function pgps_internal.note_filter();
    end if;
end
$$;

create or replace function pgps_internal.may_carry(neighbour_id integer, type_id integer) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select exists (select from pgps_internal.neighbour n, pgps_internal.event_type t
        where n.neighbour_id = may_carry.neighbour_id and t.type_id = may_carry.type_id
            and has_table_privilege(n.role::oid, t.endpoint, 'insert')
            and not exists (select from pgps_internal.foreign_type x
                where x.neighbour_id = n.neighbour_id and x.name = t.name and x.difference is not null))
$$;
comment on function pgps_internal.may_carry(integer, integer) is
'True when an event type is the same at a neighbour, as far as that has told it, and the neighbour''s role may publish
it here';
