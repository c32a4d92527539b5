-- Matching: one statement a signature over the whole batch. The code is generated when something is defined; what runs per
-- batch is static plpgsql with cached plans. Two tiers of filters:
--   safe   nothing but the event's attributes, constants and built-in data functions: runs with the owner's code, joined to the log
--   owner  anything else (tables, functions): a SECURITY DEFINER function owned by the subscriber, given the events as an array

create or replace function pgps_internal.create_function(signature text, definition text, owner regrole = null) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('create or replace function %s %s', create_function.signature, create_function.definition);
    execute format('revoke all on function %s from public',
        regexp_replace(regexp_replace(create_function.signature, '\s+returns .*$', '', 'is'), '\s*=\s*null', '', 'g'));
end
$$;
comment on function pgps_internal.create_function(text, text, regrole) is 'Creates generated code and closes it to the public';

create or replace function pgps_internal.build_code(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_columns text;
    v_attributes text;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = build_code.type_id;
    v_columns := pgps_internal.column_list(v_type.endpoint, 'l.');
    v_attributes := coalesce((select string_agg('l.' || quote_ident(a.name), ', ') from pgps_internal.attributes_of(v_type.endpoint) a), '');
    perform pgps_internal.create_function(format(
        'pgps_internal.cut_%s(pgps_xids xid8[], pgps_ranges int8multirange) returns table (ids int8multirange, events bigint, numbered boolean)',
        v_type.type_id), format($sql$language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as %L$sql$, format($body$
            #variable_conflict use_column
            begin return query with l as (
                select l.event_id, l.event_id - row_number() over (order by l.event_id) as island, l._producer is not null as numbered
                from (select lower(r) as lo, upper(r) as hi from unnest(pgps_ranges) r) r
                cross join lateral (select x.event_id, x.xid, x._producer from %s x
                    where x.event_id >= r.lo and x.event_id < r.hi offset 0) l
                where l.xid in (select u from unnest(pgps_xids) u)
            ),
            i as (select min(event_id) as lo, max(event_id) as hi, count(*) as n, bool_or(numbered) as numbered from l group by island)
            select coalesce(range_agg(int8range(lo, hi, '[]')), '{}'), coalesce(sum(n), 0)::bigint, coalesce(bool_or(numbered), false) from i;
            end$body$, v_type.log)));
    perform pgps_internal.create_function(format(
        'pgps_internal.rows_%s(pgps_ids int8multirange, out event_ids bigint[], out events pgps_event.%I[]) returns record',
        v_type.type_id, v_type.name), format($sql$language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as %L$sql$, format($body$
        begin
            select array_agg(l.event_id order by l.event_id), array_agg(row(%s)::pgps_event.%I order by l.event_id) into event_ids, events
            from %s l where l.event_id between lower(pgps_ids) and upper(pgps_ids) - 1 and l.event_id <@ pgps_ids;
        end$body$, v_columns, v_type.name, v_type.log)));
    perform pgps_internal.create_function(format(
        'pgps_internal.events_%s(pgps_ids bigint[]) returns table (event_id bigint, event pgps_event.%I)',
        v_type.type_id, v_type.name), format($sql$language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as %L$sql$, format($body$
        #variable_conflict use_column
        begin
            return query
            select l.event_id, row(%1$s)::pgps_event.%2$I from %3$s l where l.event_id = any (pgps_ids)
            union all
            select l.event_id, row(%1$s)::pgps_event.%2$I from pgps_internal.%4$I l
            where l.event_id = any (pgps_ids) and not exists (select from %3$s x where x.event_id = l.event_id);
        end$body$, v_columns, v_type.name, v_type.log, v_type.name || '_kept')));
    perform pgps_internal.create_function(format(
        'pgps_internal.payload_%s(pgps_ids bigint[]) returns table (event_id bigint, payload jsonb, published_at timestamptz, publisher name, xid xid8)',
        v_type.type_id), format($sql$language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as %L$sql$, format($body$
        #variable_conflict use_column
        begin
            return query
            select l.event_id, (select to_jsonb(pgps_row) from (select %1$s) pgps_row), c.published_at, pg_get_userbyid(c.publisher), l.xid
            from %2$s l
            left join lateral (select c.published_at, c.publisher from pgps_internal.control c
                where c.xid = l.xid and c.hi >= l.event_id and c.type_id = %4$s order by c.hi limit 1) c on true
            where l.event_id = any (pgps_ids);
            if (select count(*) from unnest(pgps_ids)) > 0 and exists (select from pgps_internal.%3$I) then
                return query
                select l.event_id, (select to_jsonb(pgps_row) from (select %1$s) pgps_row), l.published_at, pg_get_userbyid(l.publisher), l.xid
                from pgps_internal.%3$I l
                where l.event_id = any (pgps_ids) and not exists (select from %2$s x where x.event_id = l.event_id);
            end if;
        end$body$, v_attributes, v_type.log, v_type.name || '_kept', v_type.type_id)));
    -- Static, so that its plan is kept: receive would else plan the join anew each time.
    perform pgps_internal.create_function(format(
        'pgps_internal.unfold_%s(pgps_taken pgps_internal.received[], pgps_ids bigint[], pgps_type text, pgps_origin text)
        returns pgps_internal.message[]', v_type.type_id),
        format('language plpgsql stable set search_path = pg_catalog, pg_temp as %L', format($body$
        begin
            return (select array_agg((r.place, p.event_id, pgps_type, p.payload, p.published_at, p.publisher, p.xid, pgps_origin, r.attempt)
                ::pgps_internal.message)
                from unnest(pgps_taken) with ordinality r(batch_id, event_id, type_id, attempt, place)
                join pgps_internal.payload_%s(pgps_ids) p using (event_id));
        end$body$, v_type.type_id)));
    perform pgps_internal.build_views(v_type);
    perform pgps_internal.build_signature(g.signature_id) from pgps_internal.signature g where g.type_id = v_type.type_id;
    perform pgps_internal.build_visible(v_type.type_id, c.owner)
    from (select distinct c.owner from pgps_internal.class c where c.type_id = v_type.type_id) c;
    perform pgps_internal.build_callback(m.subscription_id, v_type.type_id)
    from pgps_internal.member m join pgps_internal.subscription s using (subscription_id)
    where m.type_id = v_type.type_id and s.callback is not null;
end
$$;
comment on function pgps_internal.build_code(integer) is 'Generates all code of an event type; again after its attributes have changed';

create or replace function pgps_internal.drop_code(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_function regprocedure;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = drop_code.type_id;
    for v_function in
        select p.oid from pg_proc p
        where p.pronamespace = 'pgps_internal'::regnamespace and (
            p.proname in ('cut_' || v_type.type_id, 'rows_' || v_type.type_id, 'events_' || v_type.type_id, 'payload_' || v_type.type_id,
                'unfold_' || v_type.type_id)
            or p.proname ~ format('^(visible_%s_|callback_\d+_%s$)', v_type.type_id, v_type.type_id)
            or p.proname in (select 'match_' || g.signature_id from pgps_internal.signature g where g.type_id = v_type.type_id))
    loop
        execute format('drop function %s', v_function);
    end loop;
    execute format('drop view if exists pgps_queue.%I, pgps_queue.%I, pgps_queue.%I',
        v_type.name || '_in', v_type.name || '_out', v_type.name || '_exception');
end
$$;
comment on function pgps_internal.drop_code(integer) is 'Drops the generated code of an event type';

-- ---------------------------------------------------------------------------------------------------------------------
-- Signatures
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.environment_clause(environment jsonb) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select 'set standard_conforming_strings = on '
        || string_agg(format('set %s = %s', e.key, case e.key when 'search_path' then e.value else quote_literal(e.value) end), ' ')
    from jsonb_each_text(environment_clause.environment) e
$$;
comment on function pgps_internal.environment_clause(jsonb) is 'SET clauses that give generated code the settings under which a filter was written';

create or replace function pgps_internal.write_constants(shape text, alias text) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$ select regexp_replace(write_constants.shape, '\$(\d+)', write_constants.alias || '.pgps_\1', 'g') $$;
comment on function pgps_internal.write_constants(text, text) is 'A shape with $1, $2 … as columns pgps_1, pgps_2 … of alias';

create or replace function pgps_internal.build_signature(signature_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_signature pgps_internal.signature;
    v_type pgps_internal.event_type;
    v_count integer;
    v_constants text;
begin
    select g.* into v_signature from pgps_internal.signature g where g.signature_id = build_signature.signature_id;
    select t.* into v_type from pgps_internal.event_type t where t.type_id = v_signature.type_id;
    v_count := cardinality(v_signature.parameter_types);
    if v_signature.tier = 'safe' then
        if v_signature.has_table then
            v_constants := format('(select * from pgps_internal.const_%s)', v_signature.signature_id);
        else
            v_constants := format('(select c.class_id as pgps_class %s from pgps_internal.class c where c.signature_id = %s and c.is_active offset 0)',
                (select coalesce(string_agg(format(', c.constants[%s]::%s as pgps_%s', n, v_signature.parameter_types[n], n), '' order by n), '')
                    from generate_series(1, v_count) n), v_signature.signature_id);
        end if;
        perform pgps_internal.create_function(format(
            'pgps_internal.match_%s(pgps_ids int8multirange, pgps_only bigint = null) returns table (pgps_class bigint, pgps_events bigint[])',
            v_signature.signature_id), format('language plpgsql stable %s as %L', pgps_internal.environment_clause(v_signature.environment),
            format($body$
            #variable_conflict use_column
            begin
                return query
                select pgps_c.pgps_class, pg_catalog.array_agg(%1$I.event_id)
                from %2$s as %1$I, %3$s as pgps_c
                where %1$I.event_id between pg_catalog.lower(pgps_ids) and pg_catalog.upper(pgps_ids) - 1 and %1$I.event_id <@ pgps_ids
                    and (pgps_only is null or pgps_c.pgps_class = pgps_only)
                    and (%4$s
                    )
                group by pgps_c.pgps_class;
            end$body$, v_type.name, v_type.log, v_constants, pgps_internal.write_constants(v_signature.shape, 'pgps_c'))));
    else
        perform pgps_internal.build_owner_match(v_signature, v_type);
    end if;
end
$$;
comment on function pgps_internal.build_signature(bigint) is 'Generates the matching function of a signature';

create or replace function pgps_internal.build_owner_match(signature pgps_internal.signature, event_type pgps_internal.event_type) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_count integer := cardinality((build_owner_match.signature).parameter_types);
    v_types text[] := (build_owner_match.signature).parameter_types;
    v_name text := format('pgps_internal.match_%s', (build_owner_match.signature).signature_id);
    v_arguments text;
begin
    v_arguments := format('pgps_ids bigint[], pgps_rows pgps_event.%I[], pgps_classes bigint[]%s', (build_owner_match.event_type).name,
        (select coalesce(string_agg(format(', pgps_p%s %s[]', n, v_types[n]), '' order by n), '') from generate_series(1, v_count) n));
    perform pgps_internal.create_function(format('%s(%s) returns table (pgps_class bigint, pgps_events bigint[])', v_name, v_arguments),
        format('language plpgsql volatile security definer %s as %L',
            pgps_internal.environment_clause((build_owner_match.signature).environment), format($body$
            #variable_conflict use_column
            begin
                return query
                select pgps_c.pgps_class, pg_catalog.array_agg(%1$I.pgps_id)
                from rows from (pg_catalog.unnest(pgps_ids), pg_catalog.unnest(pgps_rows)) as %1$I(pgps_id, %2$s),
                    rows from (pg_catalog.unnest(pgps_classes)%3$s) as pgps_c(pgps_class%4$s)
                where (%5$s
                )
                group by pgps_c.pgps_class;
            end$body$, (build_owner_match.event_type).name, pgps_internal.column_list((build_owner_match.event_type).endpoint),
            (select coalesce(string_agg(format(', pg_catalog.unnest(pgps_p%s)', n), '' order by n), '') from generate_series(1, v_count) n),
            (select coalesce(string_agg(format(', pgps_%s', n), '' order by n), '') from generate_series(1, v_count) n),
            pgps_internal.write_constants((build_owner_match.signature).shape, 'pgps_c'))));
    execute format('alter function %s(%s) owner to %s', v_name, v_arguments, (build_owner_match.signature).owner);
end
$$;
comment on function pgps_internal.build_owner_match(pgps_internal.signature, pgps_internal.event_type) is
'The matching function of a filter that may read tables: runs with its owner''s rights, sees the events it is given and no log';

create or replace function pgps_internal.promote(signature_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_signature pgps_internal.signature;
    v_table text := format('pgps_internal.const_%s', promote.signature_id);
    v_count integer;
begin
    select g.* into v_signature from pgps_internal.signature g where g.signature_id = promote.signature_id for update;
    if v_signature.has_table then
        return;
    end if;
    v_count := cardinality(v_signature.parameter_types);
    execute format('create table %s (pgps_class bigint primary key%s)', v_table,
        (select string_agg(format(', pgps_%s %s', n, v_signature.parameter_types[n]), '' order by n) from generate_series(1, v_count) n));
    execute format('insert into %s select c.class_id%s from pgps_internal.class c where c.signature_id = %s and c.is_active', v_table,
        (select string_agg(format(', c.constants[%s]::%s', n, v_signature.parameter_types[n]), '' order by n) from generate_series(1, v_count) n),
        promote.signature_id);
    if cardinality(v_signature.key_columns) > 0 then
        execute format('create index on %s (%s)', v_table, (select string_agg('pgps_' || k, ', ' order by place)
            from unnest(v_signature.key_columns) with ordinality u(k, place)));
    end if;
    execute format('analyze %s', v_table);
    update pgps_internal.signature g set has_table = true where g.signature_id = promote.signature_id;
    perform pgps_internal.build_signature(promote.signature_id);
end
$$;
comment on function pgps_internal.promote(bigint) is
'Gives a signature with many members a table of constants, indexed by its equality conditions first, then one range (Hanson et al. 1999)';

create or replace function pgps_internal.drop_signature(signature_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_function regprocedure;
begin
    for v_function in select p.oid from pg_proc p
        where p.pronamespace = 'pgps_internal'::regnamespace and p.proname = 'match_' || drop_signature.signature_id loop
        execute format('drop function %s', v_function);
    end loop;
    if to_regclass(format('pgps_internal.const_%s', drop_signature.signature_id)) is not null then
        execute format('drop table pgps_internal.const_%s', drop_signature.signature_id);
    end if;
    delete from pgps_internal.member m using pgps_internal.class c
    where m.class_id = c.class_id and c.signature_id = drop_signature.signature_id;
    delete from pgps_internal.signature g where g.signature_id = drop_signature.signature_id;
end
$$;
comment on function pgps_internal.drop_signature(bigint) is 'Drops a signature with its function, constants and classes';

create or replace function pgps_internal.store_constants(class pgps_internal.class, signature pgps_internal.signature) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('insert into pgps_internal.const_%s select $1%s', (store_constants.signature).signature_id,
        (select string_agg(format(', ($2)[%s]::%s', n, (store_constants.signature).parameter_types[n]), '' order by n)
            from generate_subscripts((store_constants.signature).parameter_types, 1) n))
    using (store_constants.class).class_id, (store_constants.class).constants;
end
$$;
comment on function pgps_internal.store_constants(pgps_internal.class, pgps_internal.signature) is 'Puts a class into its signature''s table of constants';

create or replace function pgps_internal.set_class_active(class_id bigint, active boolean) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_class pgps_internal.class;
    v_signature pgps_internal.signature;
begin
    update pgps_internal.class c set is_active = set_class_active.active, failures = 0
    where c.class_id = set_class_active.class_id returning * into v_class;
    select g.* into v_signature from pgps_internal.signature g where g.signature_id = v_class.signature_id;
    if v_signature.has_table then
        execute format('delete from pgps_internal.const_%s where pgps_class = $1', v_signature.signature_id) using v_class.class_id;
        if set_class_active.active then
            perform pgps_internal.store_constants(v_class, v_signature);
        end if;
    end if;
end
$$;
comment on function pgps_internal.set_class_active(bigint, boolean) is 'Takes a class into matching, or out of it';

-- ---------------------------------------------------------------------------------------------------------------------
-- What a role may see: row-level policies come first
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.visible_function(type_id integer, owner regrole) returns regproc
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select p.oid from pg_proc p
    where p.pronamespace = 'pgps_internal'::regnamespace and p.proowner = visible_function.owner
        and p.proname between format('visible_%s_', visible_function.type_id)::name and format('visible_%s_:', visible_function.type_id)::name
    limit 1
$$;
comment on function pgps_internal.visible_function(integer, regrole) is
'What build_visible has made; known by its owner, since the number of a role is another one in a restored database';

create or replace function pgps_internal.build_visible(type_id integer, owner regrole) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text;
    v_type pgps_internal.event_type;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = build_visible.type_id;
    if pgps_internal.visible_function(build_visible.type_id, build_visible.owner) is null then
        select format('pgps_internal.visible_%s_%s', v_type.type_id, coalesce(max(substring(p.proname from '\d+$')::bigint), 0) + 1) into v_name
        from pg_proc p where p.pronamespace = 'pgps_internal'::regnamespace and p.proname ~ format('^visible_%s_\d+$', v_type.type_id);
        -- Bound when it is made, so that the owner needs no rights on the schema; there is no text of a user in it.
        execute format('create function %s(pgps_ids int8multirange) returns int8multirange
            language sql stable security definer set search_path = pg_catalog, pg_temp
            begin atomic
                select coalesce(range_agg(int8range(l.event_id, l.event_id, ''[]'')), ''{}'')
                from (
                    select l.event_id from %s l where l.event_id between lower(pgps_ids) and upper(pgps_ids) - 1
                    union all
                    select k.event_id from pgps_internal.%I k where k.event_id between lower(pgps_ids) and upper(pgps_ids) - 1
                ) l where l.event_id <@ pgps_ids;
            end', v_name, v_type.log, v_type.name || '_kept');
        execute format('revoke all on function %s(int8multirange) from public', v_name);
        execute format('alter function %s(int8multirange) owner to %s', v_name, build_visible.owner);
    end if;
end
$$;
comment on function pgps_internal.build_visible(integer, regrole) is
'For an owner of classes of a type a function, owned by that role, that reads the log under row-level security: which of these events may it see?';

create or replace function pgps_internal.visible(event_type pgps_internal.event_type, owner regrole, ids int8multirange) returns int8multirange
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ids int8multirange;
    v_done boolean := false;
begin
    if not exists (select from pg_roles r where r.oid = visible.owner)
        or not has_table_privilege(visible.owner::oid, (visible.event_type).endpoint, 'select') then
        return '{}';
    elsif not (visible.event_type).has_policy then
        return visible.ids;
    end if;
    -- A policy may call anybody's functions: what they did, settings above all, is taken back. See match_signature.
    begin
        execute format('select %s($1)', pgps_internal.visible_function((visible.event_type).type_id, visible.owner)) using visible.ids into v_ids;
        v_done := true;
        raise exception 'take back' using errcode = 'PS001';
    exception when sqlstate 'PS001' then
        if not v_done then
            raise;
        end if;
    end;
    return v_ids * visible.ids;
end
$$;
comment on function pgps_internal.visible(pgps_internal.event_type, regrole, int8multirange) is
'The events that a role may receive: none without SELECT on the type, those its policies let through otherwise';

create or replace function pgps_internal.visible_ids(event_type pgps_internal.event_type, owner regrole, ids bigint[]) returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_visible int8multirange;
begin
    if not (visible_ids.event_type).has_policy and has_table_privilege(visible_ids.owner::oid, (visible_ids.event_type).endpoint, 'select') then
        return visible_ids.ids;
    end if;
    v_visible := pgps_internal.visible(visible_ids.event_type, visible_ids.owner,
        (select range_agg(int8range(i, i, '[]')) from unnest(visible_ids.ids) i));
    return array(select i from unnest(visible_ids.ids) with ordinality u(i, place) where i <@ v_visible order by place);
end
$$;
comment on function pgps_internal.visible_ids(pgps_internal.event_type, regrole, bigint[]) is
'Those of the events that a role may receive, now, when they are handed out: rights may have changed since they were matched';

create or replace function pgps_internal.visible_carefully(batch_id bigint, event_type pgps_internal.event_type, owner regrole, ids int8multirange)
returns int8multirange
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_error text;
begin
    return pgps_internal.visible(visible_carefully.event_type, visible_carefully.owner, visible_carefully.ids);
exception when others or assert_failure then
    get stacked diagnostics v_error = message_text;
    perform pgps_internal.suspend_class(c.class_id, visible_carefully.batch_id - 1, format('policy: %s', v_error))
    from pgps_internal.class c
    where c.type_id = (visible_carefully.event_type).type_id and c.owner = visible_carefully.owner and c.is_active;
    return '{}';
end
$$;
comment on function pgps_internal.visible_carefully(bigint, pgps_internal.event_type, regrole, int8multirange) is
'What a role may receive of a batch; a policy that raises suspends that role''s subscriptions, and nobody else''s';

-- ---------------------------------------------------------------------------------------------------------------------
-- Matching a batch
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.match(batch_id bigint, type_id integer, ids int8multirange, events bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
    v_classes bigint[];
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = match.type_id;
    perform set_config('plan_cache_mode', case when match.events > 200 then 'force_custom_plan' else 'force_generic_plan' end, true);
    begin
        v_classes := pgps_internal.match_type(match.batch_id, v_type, match.ids, false);
    exception when others or assert_failure then
        -- One bad filter or event hurts nobody else: again, each signature on its own, then class by class, event by event.
        perform pgps_internal.clear_blame();
        perform pgps_internal.match_type(match.batch_id, v_type, match.ids, true);
        v_classes := array(select d.class_id from pgps_internal.delivery d where d.batch_id = match.batch_id and d.type_id = match.type_id);
    end;
    perform pgps_internal.wake_subscribers(v_classes);
    if not exists (select from pgps_internal.member m where m.type_id = match.type_id and m.takes_batch) then
        return;
    end if;
    insert into pgps_internal.share (subscription_id, batch_id, event_id, type_id)
    select m.subscription_id, d.batch_id, e.event_id, d.type_id
    from pgps_internal.member m
    join pgps_internal.delivery d on d.class_id = m.class_id and d.batch_id = match.batch_id and d.type_id = match.type_id
    cross join lateral pgps_internal.event_ids(d) e(event_id)
    where m.takes_batch and d.batch_id > m.from_batch and not e.event_id <@ m.skip
    on conflict do nothing;
end
$$;
comment on function pgps_internal.match(bigint, integer, int8multirange, bigint) is 'Matches the events of one type in a batch against all classes';

create or replace function pgps_internal.event_ids(delivery pgps_internal.delivery) returns setof bigint
language plpgsql stable rows 100
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    select unnest((event_ids.delivery).event_ids)
    union all
    select generate_series(lower(r), upper(r) - 1) from unnest((event_ids.delivery).ids) r;
end
$$;
comment on function pgps_internal.event_ids(pgps_internal.delivery) is 'The event ids of a delivery, not in order';

create or replace function pgps_internal.match_type(
    batch_id bigint, event_type pgps_internal.event_type, ids int8multirange, careful boolean
) returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_owner record;
    v_signature pgps_internal.signature;
    v_ids int8multirange;
    v_classes bigint[] := '{}';
    v_type_id integer := (match_type.event_type).type_id;
begin
    -- Without a filter there is nothing to evaluate; with policies or lost rights there is.
    for v_owner in
        select c.owner, array_agg(c.class_id) as classes from pgps_internal.class c
        where c.type_id = v_type_id and c.signature_id is null and c.is_active group by c.owner
    loop
        v_ids := case when match_type.careful
            then pgps_internal.visible_carefully(match_type.batch_id, match_type.event_type, v_owner.owner, match_type.ids)
            else pgps_internal.visible(match_type.event_type, v_owner.owner, match_type.ids) end;
        if not isempty(v_ids) then
            insert into pgps_internal.delivery (batch_id, class_id, type_id, events, ids)
            select match_type.batch_id, c, v_type_id, (select sum(upper(r) - lower(r)) from unnest(v_ids) r), v_ids
            from unnest(v_owner.classes) c;
            v_classes := v_classes || v_owner.classes;
        end if;
    end loop;
    for v_signature in
        select g.* from pgps_internal.signature g where g.type_id = v_type_id order by g.owner, g.signature_id
    loop
        v_ids := case when match_type.careful
            then pgps_internal.visible_carefully(match_type.batch_id, match_type.event_type, v_signature.owner, match_type.ids)
            else pgps_internal.visible(match_type.event_type, v_signature.owner, match_type.ids) end;
        continue when isempty(v_ids);
        if match_type.careful then
            perform pgps_internal.match_carefully(match_type.batch_id, v_signature, v_ids);
        else
            v_classes := v_classes || pgps_internal.match_signature(match_type.batch_id, v_signature, v_ids, null);
        end if;
    end loop;
    return v_classes;
end
$$;
comment on function pgps_internal.match_type(bigint, pgps_internal.event_type, int8multirange, boolean) is
'Deliveries of one type in a batch: unfiltered classes, then signature by signature; returns the classes that have one. careful:
failures are isolated';

create or replace function pgps_internal.prepared() returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$ select string_agg(p.name || p.prepare_time, ' ' order by p.name) from pg_prepared_statements p where p.from_sql $$;
comment on function pgps_internal.prepared() is 'The statements prepared in this session with PREPARE; see forget_prepared';

create or replace function pgps_internal.forget_prepared(known text) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text;
begin
    if pgps_internal.prepared() is not distinct from forget_prepared.known then
        return false;
    end if;
    for v_name in select p.name from pg_prepared_statements p where p.from_sql loop
        execute format('deallocate %I', v_name);
    end loop;
    return true;
end
$$;
comment on function pgps_internal.forget_prepared(text) is
'When code of a user has prepared a statement (no rollback undoes it), forgets all of the session''s: the client would run it as its own';

create or replace function pgps_internal.match_signature(batch_id bigint, signature pgps_internal.signature, ids int8multirange, only_class bigint)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (match_signature.signature).signature_id;
    v_types text[] := (match_signature.signature).parameter_types;
    v_classes text;
    v_constants text;
    v_found pgps_internal.found[];
    v_prepared text := pgps_internal.prepared();
    v_done boolean := false;
    v_matched bigint[];
begin
    -- A session lock that outlives an abort: if this is cancelled by a timeout, pgps.blame() finds whose filter it was.
    perform pg_advisory_lock(1885826164, v_id::integer);
    if (match_signature.signature).tier = 'safe' then
        execute format('with d as (insert into pgps_internal.delivery (batch_id, class_id, type_id, events, event_ids)
            select $1, m.pgps_class, $2, cardinality(m.pgps_events), m.pgps_events from pgps_internal.match_%s($3, $4) m returning class_id)
            select array_agg(d.class_id) from d', v_id)
        using match_signature.batch_id, (match_signature.signature).type_id, match_signature.ids, match_signature.only_class into v_matched;
        perform pg_advisory_unlock(1885826164, v_id::integer);
        return v_matched;
    end if;
    select array_agg(c.class_id order by c.class_id)::text into v_classes
    from pgps_internal.class c
    where c.signature_id = v_id and c.is_active and (match_signature.only_class is null or c.class_id = match_signature.only_class);
    if v_classes is null then
        perform pg_advisory_unlock(1885826164, v_id::integer);
        return null;
    end if;
    select coalesce(string_agg(format(', %L::%s[]', (
        select array_agg(c.constants[n] order by c.class_id) from pgps_internal.class c
        where c.signature_id = v_id and c.is_active and (match_signature.only_class is null or c.class_id = match_signature.only_class)
    )::text, v_types[n]), '' order by n), '') into v_constants
    from generate_subscripts(v_types, 1) n;
    -- The filter runs with its owner's rights, but a search_path or another setting that it leaves behind would hold for the
    -- statements after it, which run with ours: a rolled-back subtransaction takes all of that back; variables keep the result.
    begin
        execute format('select array_agg(((m.pgps_class, m.pgps_events)::pgps_internal.found))
            from pgps_internal.rows_%s($1) r cross join lateral pgps_internal.match_%s(r.event_ids, r.events, %L::bigint[]%s) m',
            (match_signature.signature).type_id, v_id, v_classes, v_constants)
        using match_signature.ids into v_found;
        v_done := true;
        raise exception 'take back' using errcode = 'PS001';
    exception when sqlstate 'PS001' then
        if not v_done then
            raise;
        end if;
    end;
    perform pgps_internal.forget_prepared(v_prepared);
    with d as (
        insert into pgps_internal.delivery (batch_id, class_id, type_id, events, event_ids)
        select match_signature.batch_id, f.class_id, (match_signature.signature).type_id, cardinality(f.event_ids), f.event_ids
        from unnest(v_found) f where f.class_id = any (v_classes::bigint[]) returning class_id
    )
    select array_agg(d.class_id) into v_matched from d;
    perform pg_advisory_unlock(1885826164, v_id::integer);
    return v_matched;
end
$$;
comment on function pgps_internal.match_signature(bigint, pgps_internal.signature, int8multirange, bigint) is
'Notes the deliveries of one signature in a batch and returns the classes that have one; only_class: of that class only';

create or replace function pgps_internal.match_carefully(batch_id bigint, signature pgps_internal.signature, ids int8multirange) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_class bigint;
    v_event bigint;
    v_state text;
    v_error text;
begin
    begin
        perform pgps_internal.match_signature(match_carefully.batch_id, match_carefully.signature, match_carefully.ids, null);
        return;
    exception when others or assert_failure then
        perform pgps_internal.clear_blame();
    end;
    for v_class in select c.class_id from pgps_internal.class c
        where c.signature_id = (match_carefully.signature).signature_id and c.is_active loop
        begin
            perform pgps_internal.match_signature(match_carefully.batch_id, match_carefully.signature, match_carefully.ids, v_class);
            update pgps_internal.class c set failures = 0 where c.class_id = v_class and c.failures > 0;
            continue;
        exception when others or assert_failure then
            perform pgps_internal.clear_blame();
        end;
        for v_event in select generate_series(lower(r), upper(r) - 1) from unnest(match_carefully.ids) r loop
            begin
                perform pgps_internal.match_signature(match_carefully.batch_id, match_carefully.signature,
                    int8multirange(int8range(v_event, v_event, '[]')), v_class);
            exception when others or assert_failure then
                get stacked diagnostics v_state = returned_sqlstate, v_error = message_text;
                perform pgps_internal.clear_blame();
                exit when pgps_internal.note_filter_failure(v_class, v_event, match_carefully.batch_id, v_state, v_error);
            end;
        end loop;
    end loop;
end
$$;
comment on function pgps_internal.match_carefully(bigint, pgps_internal.signature, int8multirange) is
'After a failure: the signature, then its classes one by one, then their events one by one; failures go to the exception queue';

create or replace function pgps_internal.note_filter_failure(
    class_id bigint, event_id bigint, batch_id bigint, sqlstate text, error text
) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_class pgps_internal.class;
begin
    update pgps_internal.class c set failures = c.failures + 1, last_error = note_filter_failure.error
    where c.class_id = note_filter_failure.class_id returning * into v_class;
    perform pgps_internal.keep_event(v_class.type_id, note_filter_failure.event_id);
    insert into pgps_internal.failure (subscription_id, type_id, event_id, step, state, attempts, sqlstate, error)
    select m.subscription_id, m.type_id, note_filter_failure.event_id, 'filter', 'failed', 1, note_filter_failure.sqlstate, note_filter_failure.error
    from pgps_internal.member m where m.class_id = v_class.class_id
    on conflict do nothing;
    if note_filter_failure.sqlstate in ('42883', '42P01', '42703', '42501', '3F000') or v_class.failures >= pgps_internal.setting('filter_failures')::integer then
        perform pgps_internal.suspend_class(v_class.class_id, note_filter_failure.batch_id - 1, format('filter: %s', note_filter_failure.error));
        delete from pgps_internal.delivery d where d.class_id = v_class.class_id and d.batch_id = note_filter_failure.batch_id;
        return true;
    end if;
    return false;
end
$$;
comment on function pgps_internal.note_filter_failure(bigint, bigint, bigint, text, text) is
'A filter raised on an event: to the exception queue; true when its subscriptions were suspended (it is broken, or keeps failing)';

create or replace function pgps_internal.suspend_class(class_id bigint, after_batch bigint, error text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    update pgps_internal.subscription s set state = 'suspended', last_error = suspend_class.error
    from pgps_internal.member m
    where m.class_id = suspend_class.class_id and s.subscription_id = m.subscription_id;
    perform pgps_internal.set_class_active(suspend_class.class_id, false);
    update pgps_internal.class c set suspended_batch = suspend_class.after_batch where c.class_id = suspend_class.class_id;
end
$$;
comment on function pgps_internal.suspend_class(bigint, bigint, text) is
'Suspends all subscriptions of a class; the log keeps what comes after after_batch, and pgps.resume matches it then';

create or replace function pgps_internal.clear_blame() returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    select pg_advisory_unlock(1885826164, l.objid::integer) from pg_locks l
    where l.locktype = 'advisory' and l.classid = 1885826164 and l.pid = pg_backend_pid() and l.granted
        and l.database = (select d.oid from pg_database d where d.datname = current_database())
$$;
comment on function pgps_internal.clear_blame() is 'Forgets which signature was being evaluated; see pgps.blame';

create or replace function pgps.blame() returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_signature bigint;
    v_names text;
begin
    for v_signature in
        select l.objid from pg_locks l where l.locktype = 'advisory' and l.classid = 1885826164 and l.pid = pg_backend_pid() and l.granted
            and l.database = (select d.oid from pg_database d where d.datname = current_database())
    loop
        perform pgps_internal.suspend_class(c.class_id, coalesce((pgps_internal.last_batch()).batch_id, 0), 'filter: cancelled by the statement timeout')
        from pgps_internal.class c where c.signature_id = v_signature and c.is_active;
        perform pg_advisory_unlock(1885826164, v_signature::integer);
        select concat_ws(', ', v_names, string_agg(s.name, ', ')) into v_names
        from pgps_internal.class c join pgps_internal.member m using (class_id) join pgps_internal.subscription s using (subscription_id)
        where c.signature_id = v_signature;
    end loop;
    return v_names;
end
$$;
comment on function pgps.blame() is
'After a dispatch in this session was cancelled: suspends the subscriptions whose filter ran too long and returns their names';

revoke all on all functions in schema pgps_internal from public;
revoke all on function pgps.blame() from public;
grant execute on function pgps.blame() to pgps_worker, pgps_admin;
