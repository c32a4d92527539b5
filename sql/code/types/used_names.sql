-- The names that the text of a rule or of a filter uses: they are recorded when the rule, or the signature of the
-- filter, is made, so that who renames one of them can be told (renames.sql, decision 29).
-- Locks: none.
-- Writes: rule, used_name.

create or replace function pgps_internal.here() returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select concat(s.system_identifier, '/', d.oid) from pg_control_system() s, pg_database d
        where d.datname = current_database()
$$;
comment on function pgps_internal.here() is
'Identifies this database of this cluster, in which the OIDs of objects are valid';

create or replace function pgps_internal.words(text text) returns text[]
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select array(select distinct case when m[1] like '"%' then replace(substr(m[1], 2, length(m[1]) - 2), '""', '"')
        else lower(m[1]) end
        from regexp_matches(regexp_replace(words.text, '''(?:[^'']|'''')*''', ' ', 'g'),
            '("(?:[^"]|"")+"|[[:alpha:]_\u0080-\uffff][[:alnum:]_$\u0080-\uffff]*)', 'g') m)
$$;
comment on function pgps_internal.words(text) is
'All words of SQL text that could be names, folded; string literals are left out';

create or replace function pgps_internal.path_items(path text) returns text[]
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select array(select m[1] from regexp_matches(path_items.path, '("(?:[^"]|"")*"|[^,[:space:]]+)', 'g')
        with ordinality x(m, place) order by x.place)
$$;
comment on function pgps_internal.path_items(text) is 'The names in a search_path, each quoted as it is there';

create or replace function pgps_internal.names_used(words text[], path text)
returns table (class_id oid, object_id oid, sub_id integer, name text, schema oid)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with space as materialized (
        select n.oid, n.nspname::text as name, n.nspname = any (names_used.words) as is_named from pg_namespace n
        where n.nspname !~ '^(pg_|pgps$|pgps_)' and n.nspname <> 'information_schema'
            and (n.nspname = any (names_used.words)
                or quote_ident(n.nspname) = any (pgps_internal.path_items(names_used.path)))
    ),
    relation as materialized (
        select c.oid, c.relname::text as name, c.relnamespace from unnest(names_used.words) w(word)
        join pg_class c on c.relname = w.word::name join space s on s.oid = c.relnamespace
            where c.relkind in ('r', 'p', 'v', 'm', 'f')
    ),
    found as (
        select 'pg_class'::regclass::oid as class_id, r.oid as object_id, 0 as sub_id, r.name, r.relnamespace as schema
            from relation r
        union all
        select 'pg_class'::regclass, a.attrelid, a.attnum, a.attname::text, r.relnamespace
        from relation r join pg_attribute a on a.attrelid = r.oid and a.attnum > 0
            and a.attname = any (names_used.words) and not a.attisdropped
        union all
        select 'pg_proc'::regclass, p.oid, 0, p.proname::text, p.pronamespace
        from unnest(names_used.words) w(word) join pg_proc p on p.proname = w.word::name
            join space s on s.oid = p.pronamespace
        union all
        select 'pg_type'::regclass, t.oid, 0, t.typname::text, t.typnamespace
        from unnest(names_used.words) w(word) join pg_type t on t.typname = w.word::name
            join space s on s.oid = t.typnamespace
        where t.typrelid = 0
    )
    select f.class_id, f.object_id, f.sub_id, f.name, f.schema from found f
    union all
    select distinct 'pg_namespace'::regclass::oid, s.oid, 0, s.name, 0::oid from space s where s.is_named and exists (
        select from found f where f.schema = s.oid)
    union all
    -- The schemas of the search_path, with sub_id -1 to tell them from those that the text names.
    select 'pg_namespace'::regclass, s.oid, -1, s.name, 0 from space s
    where quote_ident(s.name) = any (pgps_internal.path_items(names_used.path))
$$;
comment on function pgps_internal.names_used(text[], text) is
'What the words of SQL text may refer to under a search_path: relations, their columns, functions, types, and schemas,
named or in the path. Objects of PostgreSQL''s own catalogue and of pgps are left out';

create or replace function pgps_internal.environment_of(function regprocedure) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select string_agg(format('set %s = %s', split_part(c, '=', 1), case split_part(c, '=', 1) when 'search_path'
        then substr(c, strpos(c, '=') + 1)
        else quote_literal(substr(c, strpos(c, '=') + 1)) end), ' ')
    from pg_proc p, unnest(p.proconfig) c where p.oid = environment_of.function
$$;
comment on function pgps_internal.environment_of(regprocedure) is
'The SET clauses of a function, for generating it again';

create or replace function pgps_internal.function_of_rule(rule pgps_internal.rule) returns regprocedure
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select to_regprocedure(format('pgps_internal.rule_%s_%s()', (function_of_rule.rule).rule_id,
        lower((function_of_rule.rule).operations[1])))
$$;
comment on function pgps_internal.function_of_rule(pgps_internal.rule) is
'One of the trigger functions of a rule, all of which have the same settings';

create or replace function pgps_internal.words_of_rule(rule pgps_internal.rule) returns text[]
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select pgps_internal.words(concat_ws(' ', array_to_string((words_of_rule.rule).attributes, ' '),
        (words_of_rule.rule).condition))
$$;
comment on function pgps_internal.words_of_rule(pgps_internal.rule) is
'All words in the expressions of a rule that could be names';

create or replace function pgps_internal.note_columns(rule_id integer) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    -- A new column is recorded under its current name; a known one keeps the name that the rule uses for it.
    update pgps_internal.rule r set table_oid = r.table_name::oid, columns = (
        select coalesce(jsonb_object_agg(coalesce(k.name, a.attname), jsonb_build_array(a.attnum, a.attname)), '{}')
        from pg_attribute a
        left join (select c.key as name, c.value ->> 1 as attname, (c.value ->> 0)::smallint as attnum
            from jsonb_each(r.columns) c) k
            on case when r.table_oid = r.table_name::oid then k.attnum = a.attnum else k.attname = a.attname end
        where a.attrelid = r.table_name and a.attnum > 0 and not a.attisdropped
            and (k.name is not null or not r.columns ? a.attname::text))
    where r.rule_id = note_columns.rule_id
$$;
comment on function pgps_internal.note_columns(integer) is
'Records the numbers and the current names of the columns of a rule''s table';

create or replace function pgps_internal.note_names_of_rule(rule_id integer) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    delete from pgps_internal.used_name u where u.rule_id = note_names_of_rule.rule_id;
    insert into pgps_internal.used_name (rule_id, class_id, object_id, sub_id, name, schema, noted_in)
    select r.rule_id, n.*, pgps_internal.here()
    from pgps_internal.rule r
    join pg_proc p on p.oid = pgps_internal.function_of_rule(r)
    cross join lateral (select substr(c, 13) as path from unnest(p.proconfig) c where c like 'search_path=%') e
    cross join lateral pgps_internal.names_used(pgps_internal.words_of_rule(r), e.path) n
    where r.rule_id = note_names_of_rule.rule_id;
$$;
comment on function pgps_internal.note_names_of_rule(integer) is
'Records what the expressions of a rule refer to by name';

create or replace function pgps_internal.note_names_of_signature(signature_id bigint) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    delete from pgps_internal.used_name u where u.signature_id = note_names_of_signature.signature_id;
    insert into pgps_internal.used_name (signature_id, class_id, object_id, sub_id, name, schema, noted_in)
    select g.signature_id, n.*, pgps_internal.here()
    from pgps_internal.signature g
    cross join lateral pgps_internal.names_used(pgps_internal.words(g.shape), g.environment ->> 'search_path') n
    where g.signature_id = note_names_of_signature.signature_id and g.tier <> 'safe';
$$;
comment on function pgps_internal.note_names_of_signature(bigint) is
'Records what the filters of a signature refer to by name, if they may refer to more than attributes';
