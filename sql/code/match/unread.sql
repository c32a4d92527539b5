-- What a filter that is given the events reads of them: what is stored out of line of the other attributes is not
-- read for it.
-- Locks: rows of signature.
-- Writes: signature.

create or replace function pgps_internal.unread_by(shape text, event_type pgps_internal.event_type)
returns boolean[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_shape text := regexp_replace(unread_by.shape, '"([a-z_][a-z0-9_]*)"(?!")', ' \1 ', 'g');
    v_name text := (unread_by.event_type).name;
    v_plain text;
    v_unread boolean[];
begin
    -- Where other names are quoted, or the row is used as a whole, which is where its name stands without an attribute,
    -- all may be read. A name in a text or of something else counts as well: what is read in vain does no harm.
    if strpos(v_shape, '"') > 0 or v_shape ~* '\mu&' or v_name !~ '^[a-z_][a-z0-9_]*$' then
        return null;
    end if;
    select string_agg(a.attname, '|') into v_plain from pg_attribute a
    where a.attrelid = (unread_by.event_type).endpoint and a.attnum > 0 and not a.attisdropped
        and a.attname ~ '^[a-z_][a-z0-9_]*$';
    if regexp_replace(v_shape, format('\m%s\M\s*\.\s*(%s)\M(?!\$)', v_name, v_plain), '', 'gi')
            ~* format('\m%s\M', v_name) then
        return null;
    end if;
    v_unread := array(
        select not a.attisdropped and t.typlen = -1 and t.typtype <> 'd' and case when a.attname ~ '^[a-z_][a-z0-9_]*$'
            then v_shape !~* format('\m%s\M', a.attname)
            else strpos(lower(v_shape), lower(a.attname::text)) = 0 end
        from pg_attribute a left join pg_type t on t.oid = a.atttypid
        where a.attrelid = (unread_by.event_type).endpoint and a.attnum > 0 order by a.attnum);
    return case when true = any (v_unread) then v_unread end;
end
$$;
comment on function pgps_internal.unread_by(text, pgps_internal.event_type) is
'By the numbers of attributes, which of those that may be stored out of line a filter certainly does not read; null = it
may read all';

-- Filters of an earlier release.
update pgps_internal.signature g set unread = pgps_internal.unread_by(g.shape, t)
from pgps_internal.event_type t
where t.type_id = g.type_id and g.tier = 'owner' and g.unread is null
    and pgps_internal.unread_by(g.shape, t) is not null;
