-- How JSON is made of an event, in views and in what is generated. There are values that cannot become jsonb: the type
-- json takes "\u0000", a lone surrogate and 1e400000, also within an array, a row or a domain, and a cast to json may
-- raise. See deliver/not_json.sql.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.may_be_no_json(type_oid oid) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with recursive part(oid) as (
        select may_be_no_json.type_oid
        union
        select x.oid from part p join pg_type t on t.oid = p.oid
        cross join lateral (
            select t.typbasetype as oid where t.typtype = 'd'
            union all select t.typelem where t.typcategory = 'A'
            union all select a.atttypid from pg_attribute a
            where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped) x
    )
    -- PostgreSQL asks no cast from a type of its own.
    select exists (select from part p join pg_type t on t.oid = p.oid
        where t.oid = 'json'::regtype or t.oid >= 16384 and t.typtype not in ('c', 'd') and t.typcategory <> 'A')
$$;
comment on function pgps_internal.may_be_no_json(oid) is
'True for a type of which there may be values that cannot become jsonb, however small they are';

create or replace function pgps._as_json(value anyelement) returns jsonb
language plpgsql stable
as $$
begin
    return pg_catalog.to_jsonb(_as_json.value);
exception when others then
    return null;
end
$$;
comment on function pgps._as_json(anyelement) is
'A value as jsonb; null when it cannot become that';
grant execute on function pgps._as_json(anyelement) to public;

create or replace function pgps_internal.as_json(endpoint regclass) returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select case when exists (
            select from pg_attribute a where a.attrelid = as_json.endpoint and a.attnum > 0 and not a.attisdropped
                and pgps_internal.may_be_no_json(a.atttypid))
        then jsonb_build_object('as_json', 'pgps._as_json(pgps_row)', 'to_json', 'case when '
            'current_setting(''pgps.payloads'', true) = ''or null'' then pgps._as_json(pgps_row) '
            'else to_jsonb(pgps_row) end')
        else '{"as_json": "to_jsonb(pgps_row)", "to_json": "to_jsonb(pgps_row)"}' end
$$;
comment on function pgps_internal.as_json(regclass) is
'Names for templates: how JSON is made of pgps_row, an event. as_json: null where that cannot be; to_json: that raises,
except while or_null says otherwise';

create or replace function pgps_internal.or_null(is_so boolean) returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select set_config('pgps.payloads', case when or_null.is_so then 'or null' else '' end, true)
$$;
comment on function pgps_internal.or_null(boolean) is
'While it is so, events that cannot become JSON are given without their payload: to registered clients, which have an
occurrence as a whole and no exception queue';
