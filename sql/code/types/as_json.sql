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
    -- The settings are of one transaction: one that a user has left behind tells nothing.
    select case when not coalesce(bool_or(pgps_internal.may_be_no_json(a.type)), false) then jsonb_build_object(
            'as_json', 'to_jsonb(pgps_row)', 'to_json', 'to_jsonb(pgps_row)', 'told_payload', 'm.payload',
            'told_attributes', coalesce(string_agg(format(', l.%I', a.name), '' order by a.place), ''),
            'tell_texts', '', 'tell_json', '')
        else jsonb_build_object('as_json', 'pgps._as_json(pgps_row)',
            'to_json', format($sql$case current_setting('pgps.payloads', true)
                    when 'or null in ' || pg_current_xact_id_if_assigned() then pgps._as_json(pgps_row)
                    when 'as texts in ' || pg_current_xact_id_if_assigned()
                        then (select to_jsonb(x) from (select %s) x)
                    else to_jsonb(pgps_row) end$sql$, string_agg(case
                when pgps_internal.may_be_no_json(a.type) then format('case when pgps_row.%1$I is distinct from null '
                    'then format(''%%s'', pgps_row.%1$I) end as %1$I', a.name)
                else format('pgps_row.%I', a.name) end, ', ' order by a.place)),
            'told_payload', format('m.payload - array[%s]',
                string_agg(quote_literal(a.name), ', ') filter (where pgps_internal.may_be_no_json(a.type))),
            'told_attributes', string_agg(case
                when pgps_internal.may_be_no_json(a.type) then format(', (m.payload ->> %L)::%s', a.name,
                    format_type(a.type, a.modifier))
                else format(', l.%I', a.name) end, '' order by a.place),
            'tell_texts', $sql$perform set_config('pgps.payloads', 'as texts in ' || pg_current_xact_id(), true);
                $sql$, 'tell_json', $sql$
                perform set_config('pgps.payloads', '', true);$sql$) end
    from (
        select a.name, x.atttypid as type, x.atttypmod as modifier, x.attnum as place
        from pgps_internal.attributes_of(as_json.endpoint) a
        join pg_attribute x on x.attrelid = as_json.endpoint and x.attname = a.name
    ) a
$$;
comment on function pgps_internal.as_json(regclass) is
'Names for templates: how JSON is made of pgps_row, an event. as_json: null where that cannot be; to_json: that raises,
except while or_null says otherwise, or tell_texts has asked for what may be no JSON as text, until tell_json. Of such a
message m, with l, its other attributes, from told_payload: told_attributes, all of them, each with a comma before it';

create or replace function pgps_internal.or_null(is_so boolean) returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select set_config('pgps.payloads', case when or_null.is_so then 'or null in ' || pg_current_xact_id() else '' end,
        true)
$$;
comment on function pgps_internal.or_null(boolean) is
'While it is so, events that cannot become JSON are given without their payload: to registered clients, which have an
occurrence as a whole and no exception queue';
