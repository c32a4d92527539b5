-- Finds the signature and the class of a filter, or makes them. Locks: catalogue rows.
-- Writes: class, signature.

create or replace function pgps_internal.clean_types(types jsonb) returns text[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if jsonb_typeof(clean_types.types) = 'array' then
        -- Names are written as the catalogue has them: a caller's own text could go on behind a name, in a comment.
        return array(select to_regtype(t.name)::text
            from jsonb_array_elements_text(clean_types.types) with ordinality t(name, place)
            order by t.place);
    end if;
    return null;
end
$$;
comment on function pgps_internal.clean_types(jsonb) is
'The type names in a JSON array given by a caller, each as the catalogue writes it; null unless it is an array';

create or replace function pgps_internal.constant_text(value text, type_name text, environment jsonb) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp set datestyle = 'ISO, MDY' set intervalstyle = postgres set timezone = 'UTC'
set timezone_abbreviations = 'Default'
as $$
declare
    v_text text;
    v_set text;
begin
    -- The literal is converted when the statement is parsed, under these settings; its first column then sets ISO for
    -- the output. The settings end with the function.
    perform set_config(e.key, e.value, true) from jsonb_each_text(constant_text.environment) e
        where e.key in ('datestyle', 'intervalstyle', 'timezone', 'timezone_abbreviations');
    execute format('select set_config(''datestyle'', ''ISO'', true) || set_config(''intervalstyle'', ''postgres'', '
        'true), (%L::%s)::text',
        constant_text.value, constant_text.type_name) into v_set, v_text;
    return v_text;
end
$$;
comment on function pgps_internal.constant_text(text, text, jsonb) is
'Rewrites a literal, written under the settings in environment, as text that means the same under any settings:
01/02/2024 may be in January. Errors: 22xxx.';

create or replace function pgps_internal.constant_values(parameters jsonb, types text[], environment jsonb)
returns text[]
language plpgsql stable
set search_path = pg_catalog, pg_temp set extra_float_digits = 1
as $$
declare
    v_values text[] := '{}';
    v_value text;
    v_kind text;
    v_same boolean;
    v_numeric boolean;
begin
    if constant_values.types is null
        or cardinality(constant_values.types) <> jsonb_array_length(constant_values.parameters) then
        return null;
    end if;
    for i in 1..cardinality(constant_values.types) loop
        v_value := constant_values.parameters -> (i - 1) ->> 'value';
        v_kind := constant_values.parameters -> (i - 1) ->> 'kind';
        -- The two most frequent kinds need no look at the catalogue; an integer always fits bigint.
        if constant_values.types[i] = 'text' and v_kind = 'string' then
            v_values := v_values || v_value;
            continue;
        elsif constant_values.types[i] = 'numeric' and v_kind = 'integer' then
            v_values := v_values || v_value::numeric::text;
            continue;
        end if;
        -- Only built-in base types: converting text to other types may run user code. "character" and "bit" without a
        -- length have length one, and unnest would take an array of arrays apart to its elements.
        if not exists (select from pg_type t where t.oid = to_regtype(constant_values.types[i])
                and t.typnamespace = 'pg_catalog'::regnamespace and t.typtype = 'b' and t.typcategory <> 'A'
                and t.typname not in ('bpchar', 'bit')) then
            return null;
        end if;
        v_numeric := constant_values.types[i] in ('integer', 'bigint', 'numeric', 'double precision');
        begin
            if v_kind <> 'string' then
                if not v_numeric then
                    return null;
                end if;
                execute format('select (%L::%s)::numeric = %L::numeric, (%L::%s)::text', v_value,
                    constant_values.types[i], v_value, v_value,
                    constant_values.types[i]) into v_same, v_value;
                if not v_same then
                    return null;
                end if;
            else
                v_value := pgps_internal.constant_text(v_value, constant_values.types[i], constant_values.environment);
            end if;
        exception when data_exception then
            return null;
        end;
        v_values := v_values || v_value;
    end loop;
    return v_values;
end
$$;
comment on function pgps_internal.constant_values(jsonb, text[], jsonb) is
'Converts the constants of a filter, written under the settings in environment, to text of their types; null when one
would change its meaning, so that the filter keeps them in its text';

create or replace function pgps_internal.is_safe(parsed jsonb, event_type pgps_internal.event_type, search_path text)
returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_attributes text[] := array(select jsonb_array_elements_text(is_safe.parsed -> 'attributes'));
    v_operators text[] := array(select jsonb_array_elements_text(is_safe.parsed -> 'operators'));
    v_functions text[] := array(select jsonb_array_elements_text(is_safe.parsed -> 'functions'));
    v_path text[];
    v_schemas oid[];
begin
    if not (is_safe.parsed ->> 'safe')::boolean then
        return false;
    end if;
    v_path := regexp_split_to_array(is_safe.search_path, '\s*,\s*');
    v_schemas := array(select n.oid from pg_namespace n where n.nspname <> 'pg_catalog'
        and quote_ident(n.nspname) = any (v_path));
    return not exists (
            select from pg_attribute a join pg_type t on t.oid = a.atttypid
            where a.attrelid = (is_safe.event_type).endpoint and a.attname = any (v_attributes)
                and (t.typnamespace <> 'pg_catalog'::regnamespace or t.typtype <> 'b' or t.typname = 'bpchar'))
        and not exists (
            -- Operators are looked up by name, through the index: a scan of the catalogue costs more than all the rest.
            select from unnest(v_operators) u(name)
            cross join lateral (select o.oprleft, o.oprright from pg_operator o
                where o.oprname = u.name::name and o.oprnamespace = any (v_schemas) offset 0) o
            where not exists (select from pg_type x where x.oid in (o.oprleft, o.oprright)
                and x.typnamespace <> 'pg_catalog'::regnamespace))
        and not exists (select from pg_proc p where p.proname = any (v_functions) and p.pronamespace = any (v_schemas));
end
$$;
comment on function pgps_internal.is_safe(jsonb, pgps_internal.event_type, text) is
'True when a filter means the same, and can do nothing but read the event, if the broker''s owner runs it with
search_path pg_catalog: only built-in types, and no operator or function of that name in the subscriber''s schemas';

create or replace function pgps_internal.parts_of_filter(
    event_type pgps_internal.event_type, filter text, constant_types text[], inout environment jsonb,
    out parsed jsonb, out constants text[], out types text[], out tier text
)
returns record
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    parsed := pgps.parse_filter(parts_of_filter.filter, (parts_of_filter.event_type).name,
        array(select a.attname::text from pg_attribute a
            where a.attrelid = (parts_of_filter.event_type).endpoint and a.attnum > 0 and not a.attisdropped
                and a.attname not in ('_producer', '_producer_seq') order by a.attnum));
    -- PostgreSQL reads a literal next to a smallint or a real as integer or double precision, but would give a
    -- parameter the column's type.
    types := array(select case when p.value ->> 'kind' = 'string' then t when t = 'smallint' then 'integer'
        when t = 'real' then 'double precision' else t end
        from unnest(parts_of_filter.constant_types) with ordinality c(t, n)
        left join jsonb_array_elements(parsed -> 'parameters') with ordinality p(value, n) using (n) order by n);
    constants := pgps_internal.constant_values(parsed -> 'parameters',
        case when parts_of_filter.constant_types is not null then types end, parts_of_filter.environment);
    tier := case when constants is not null and pgps_internal.is_safe(parsed, parts_of_filter.event_type,
        parts_of_filter.environment ->> 'search_path') then 'safe' else 'owner' end;
    if tier = 'safe' then
        environment := parts_of_filter.environment || '{"search_path": "pg_catalog, pg_temp"}';
    end if;
    -- The constants stay in the text if one cannot be converted or is not in the shape exactly once, or if there are
    -- too many for a row of constants, as in a long IN (…).
    if constants is null or cardinality(constants) > 500
            or regexp_count(parsed ->> 'shape', '\$\d+') <> cardinality(constants) then
        parsed := parsed || jsonb_build_object('shape', parsed ->> 'text', 'keys', '[]'::jsonb);
        constants := '{}';
        tier := 'owner';
    end if;
    if constants = '{}' then
        types := '{}';
    end if;
end
$$;
comment on function pgps_internal.parts_of_filter(pgps_internal.event_type, text, text[], jsonb) is
'A filter as its shape and its constants: constants, their types, the tier (safe or owner, see match.sql), and the
environment that it is evaluated under';

create or replace function pgps_internal.find_class(
    event_type pgps_internal.event_type, owner regrole, filter text, constant_types text[], environment jsonb,
    private boolean, in_lane boolean
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_apart record;
    v_constants text[];
    v_signature bigint;
    v_class bigint;
begin
    if find_class.filter is not null then
        select a.* into v_apart from pgps_internal.parts_of_filter(find_class.event_type, find_class.filter,
            find_class.constant_types, find_class.environment) a;
        v_constants := v_apart.constants;
        v_signature := pgps_internal.find_signature(find_class.event_type, find_class.owner, v_apart.parsed,
            v_apart.tier, v_apart.types, v_apart.environment,
            case when find_class.in_lane is not null then find_class.in_lane when v_apart.tier = 'owner' then true end);
    end if;
    if not find_class.private then
        if v_signature is null then
            select c.class_id into v_class from pgps_internal.class c
            where c.type_id = (find_class.event_type).type_id and c.signature_id is null and c.owner = find_class.owner
                and not c.is_private and c.is_active limit 1;
        else
            select c.class_id into v_class from pgps_internal.class c
            where c.signature_id = v_signature
                and hash_array_extended(c.constants, 0) = hash_array_extended(v_constants, 0)
                and c.constants = v_constants and not c.is_private and c.is_active limit 1;
        end if;
    end if;
    if v_class is null then
        insert into pgps_internal.class (type_id, owner, signature_id, constants, is_private)
        values ((find_class.event_type).type_id, find_class.owner, v_signature, coalesce(v_constants, '{}'),
            find_class.private)
        returning class_id into v_class;
        perform pgps_internal.note_member(v_class);
        perform pgps_internal.build_visible((find_class.event_type).type_id, find_class.owner);
    end if;
    return v_class;
end
$$;
comment on function pgps_internal.find_class(pgps_internal.event_type, regrole, text, text[], jsonb, boolean,
    boolean) is
'Finds the class of a filter for an owner, or makes it; nothing of the filter is run. private: always make a new one;
in_lane: matched in the owner''s lane, null = if it may read more than the event, or the owner has many forms of them';

create or replace function pgps_internal.find_signature(
    event_type pgps_internal.event_type, owner regrole, parsed jsonb, tier text, parameter_types text[],
    environment jsonb, in_lane boolean
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_signature bigint;
    v_in_lane boolean := coalesce(find_signature.in_lane, false);
begin
    loop
        select g.signature_id into v_signature from pgps_internal.signature g
        where g.type_id = (find_signature.event_type).type_id and g.owner = find_signature.owner
            and md5(g.shape) = md5(find_signature.parsed ->> 'shape')
            and g.parameter_types = find_signature.parameter_types and g.environment = find_signature.environment
            and g.in_lane = v_in_lane
            and (v_in_lane or not exists (select from pgps_internal.unasked u where u.signature_id = g.signature_id));
        exit when found or v_in_lane or find_signature.in_lane is not null;
        v_in_lane := pgps_internal.is_crowded((find_signature.event_type).type_id, find_signature.owner);
        exit when not v_in_lane;
    end loop;
    if v_signature is null then
        if v_in_lane then
            perform pgps_internal.open_lane(find_signature.owner);
        end if;
        insert into pgps_internal.signature (type_id, owner, shape, tier, parameter_types, key_columns, environment,
            in_lane, from_batch, unread)
        values ((find_signature.event_type).type_id, find_signature.owner, find_signature.parsed ->> 'shape',
            find_signature.tier,
            find_signature.parameter_types, (
                -- Equality conditions first, then one range.
                select array(
                    (select (k ->> 'parameter')::integer from jsonb_array_elements(find_signature.parsed -> 'keys') k
                        where k ->> 'operator' = '=' order by 1)
                    union all
                    (select (k ->> 'parameter')::integer from jsonb_array_elements(find_signature.parsed -> 'keys') k
                        where k ->> 'operator' <> '=' order by 1 limit 1))),
            find_signature.environment, v_in_lane, coalesce((pgps_internal.last_batch()).batch_id, 0),
            case when find_signature.tier = 'owner'
                then pgps_internal.unread_by(find_signature.parsed ->> 'shape', find_signature.event_type) end)
        returning signature_id into v_signature;
        perform pgps_internal.add_feature((find_signature.event_type).type_id, 'lane') where v_in_lane;
        perform pgps_internal.build_signature(v_signature);
        if find_signature.tier <> 'safe' then
            perform pgps_internal.note_names_of_signature(v_signature);
        end if;
    end if;
    return v_signature;
end
$$;
comment on function pgps_internal.find_signature(pgps_internal.event_type, regrole, jsonb, text, text[], jsonb,
    boolean) is
'Finds the signature of a shape for an owner and its settings, or makes it with its matching function. in_lane: null =
with the dispatcher, unless it asks many of the owner already';

create or replace function pgps_internal.note_member(class_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_class pgps_internal.class;
    v_signature pgps_internal.signature;
    v_threshold integer;
begin
    select c.* into v_class from pgps_internal.class c where c.class_id = note_member.class_id;
    select g.* into v_signature from pgps_internal.signature g where g.signature_id = v_class.signature_id;
    if v_signature.has_table then
        perform pgps_internal.store_constants(v_class, v_signature);
    elsif v_signature.tier = 'safe' and cardinality(v_signature.parameter_types) > 0 then
        v_threshold := pgps_internal.setting('table_threshold')::integer;
        if (select count(*) from (select from pgps_internal.class c
            where c.signature_id = v_signature.signature_id limit v_threshold) x) >= v_threshold then
            perform pgps_internal.promote(v_signature.signature_id);
        end if;
    end if;
end
$$;
comment on function pgps_internal.note_member(bigint) is
'Puts a new class into its signature''s table of constants; makes the table when there are enough classes for one';
