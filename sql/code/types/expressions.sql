-- Expressions that an administrator writes and the owner of pgps parses or evaluates: defaults, checks, policies. An
-- administrator is not a superuser, so the kinds of nodes, functions and types that may appear in them are listed, and
-- everything else is refused (decision 22).
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.type_fault(types oid[]) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select format('data type %s, %s', format_type(t.oid, null), f.reason)
    from pgps_internal.types_within(type_fault.types) u(type_id)
    join pg_type t on t.oid = u.type_id
    join pg_roles r on r.oid = t.typowner
    cross join lateral (
        select format('which belongs to role "%s", who is not a superuser', r.rolname) where not r.rolsuper
        union all
        select format('which is in schema "%s" of a role that is not a superuser', t.typnamespace::regnamespace)
        where not pgps_internal.is_firm(t.typnamespace)
        union all
        select 'whose check or default, or what else belongs to it, calls ' || pgps_internal.type_callee(t.oid)
    ) f(reason)
    where f.reason is not null
    limit 1
$$;
comment on function pgps_internal.type_fault(oid[]) is
'Why the owner of pgps must not convert text to one of the types, or parse text that names it; null when nothing speaks
against it';

create or replace function pgps_internal.node_fault(tree text, subselects boolean) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    -- Servers before version 16 write some of the names without EXPR at the end, and rights with the table.
    select case
            when m[1] in ('SUBLINK', 'SUBPLAN', 'QUERY', 'RTE', 'RANGETBLENTRY') then 'a sub-select'
            when m[1] in ('AGGREF', 'GROUPINGFUNC') then 'an aggregate'
            when m[1] = 'WINDOWFUNC' then 'a window function'
            when m[1] = 'XMLEXPR' then 'an XML expression'
            when m[1] = 'NEXTVALUEEXPR' then 'an identity'
            when m[1] = 'COMMONTABLEEXPR' then 'a WITH clause'
            when m[1] in ('RANGETBLFUNCTION', 'TABLEFUNC', 'TABLESAMPLECLAUSE') then 'a function in FROM'
            else format('an expression of the kind %s', lower(m[1])) end
    from regexp_matches(node_fault.tree, '(?<!\\)\{([A-Z_0-9]+)', 'g') m
    where m[1] <> all ('{VAR,CONST,FUNCEXPR,NAMEDARGEXPR,OPEXPR,DISTINCTEXPR,NULLIFEXPR,SCALARARRAYOPEXPR,BOOLEXPR,
        NULLTEST,BOOLEANTEST,
            CASE,CASEEXPR,WHEN,CASEWHEN,CASETESTEXPR,COALESCE,COALESCEEXPR,MINMAX,MINMAXEXPR,ROW,ROWEXPR,ARRAY,
            ARRAYEXPR,COLLATE,COLLATEEXPR,
            SQLVALUEFUNCTION,RELABELTYPE,COERCEVIAIO,ARRAYCOERCEEXPR,COERCETODOMAIN,FIELDSELECT,
            SUBSCRIPTINGREF}'::text[])
        and not (node_fault.subselects
            and m[1] = any ('{SUBLINK,QUERY,RTE,RANGETBLENTRY,RTEPERMISSIONINFO,RANGETBLREF,FROMEXPR,JOINEXPR,
            TARGETENTRY,ALIAS,PARAM,AGGREF,SORTGROUPCLAUSE}'::text[]))
    limit 1
$$;
comment on function pgps_internal.node_fault(text, boolean) is
'The first node of an expression that is not of a listed kind, in words; null when all are. subselects: sub-selects are
allowed, too';

create or replace function pgps_internal.callee_fault(tree text) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(pgps_internal.foreign_callee(callee_fault.tree),
        (select format('operator %s in schema "%s", where others than superusers may create operators',
                o.oid::regoperator, o.oprnamespace::regnamespace)
            from pgps_internal.operators_in(callee_fault.tree) u(operator_id)
            join pg_operator o on o.oid = u.operator_id
            where not pgps_internal.is_closed(o.oprnamespace) limit 1))
$$;
comment on function pgps_internal.callee_fault(text) is
'Why PostgreSQL could call something of a role that is no superuser when it plans or evaluates an expression, or the
owner of pgps when it reads it again; null when there is nothing';

create or replace function pgps_internal.listed_names() returns text[]
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    -- Stable functions of PostgreSQL 15 to 18 of which everything that has the name only computes. Not among them are
    -- those that take a type or an object as text or number (pg_input_is_valid, record_in, to_regclass, pg_get_…,
    -- …_to_xml), and those that tell what only some may know (current_setting, pg_stat_get_…).
    select regexp_split_to_array(btrim('
        age anytextcat array_to_json array_to_string concat concat_ws convert convert_from convert_to current_database
        current_schema date date_add date_cmp_timestamptz date_eq_timestamptz date_ge_timestamptz date_gt_timestamptz
        date_le_timestamptz date_lt_timestamptz date_ne_timestamptz date_part date_subtract date_trunc enum_first
        enum_last enum_range extract format generate_series in_range inet_client_addr inet_client_port inet_server_addr
        inet_server_port interval_pl_timestamptz json_build_array json_build_object json_to_tsvector jsonb_build_array
        jsonb_build_object jsonb_path_exists_tz jsonb_path_match_tz jsonb_path_query_array_tz jsonb_path_query_first_tz
        jsonb_path_query_tz jsonb_to_tsvector length make_timestamptz money now numeric overlaps pg_has_role pg_typeof
        phraseto_tsquery plainto_tsquery quote_literal quote_nullable row_to_json statement_timestamp system_user
        textanycat time timestamp timestamp_cmp_timestamptz timestamp_eq_timestamptz timestamp_ge_timestamptz
        timestamp_gt_timestamptz timestamp_le_timestamptz timestamp_lt_timestamptz timestamp_ne_timestamptz timestamptz
        timestamptz_cmp_date timestamptz_cmp_timestamp timestamptz_eq_date timestamptz_eq_timestamp timestamptz_ge_date
        timestamptz_ge_timestamp timestamptz_gt_date timestamptz_gt_timestamp timestamptz_le_date
        timestamptz_le_timestamp timestamptz_lt_date timestamptz_lt_timestamp timestamptz_mi_interval
        timestamptz_ne_date timestamptz_ne_timestamp timestamptz_pl_interval timetz timezone to_char to_date to_json
        to_jsonb to_number to_timestamp to_tsquery to_tsvector transaction_timestamp ts_headline ts_match_tq ts_match_tt
        websearch_to_tsquery', E' \n'), '\s+')
$$;
comment on function pgps_internal.listed_names() is
'The stable functions of PostgreSQL that may stand in defaults, checks and policies of administrators';

create or replace function pgps_internal.is_listed(function_id oid) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select p.pronamespace = 'pg_catalog'::regnamespace and case p.provolatile
        when 'i' then not (p.proargtypes::oid[] && '{internal,cstring,regclass}'::regtype[]::oid[])
            and ('oid'::regtype <> all (p.proargtypes::oid[]) or p.proname ~ '^(oid|int8$)')
        when 's' then p.proname = any (pgps_internal.listed_names())
        else false end
    from pg_proc p where p.oid = is_listed.function_id
$$;
comment on function pgps_internal.is_listed(oid) is
'True for a function of PostgreSQL that does nothing but compute a value, from values alone: no argument names a type or
an object, of which the function would run code, or tell what others may not know';

create or replace function pgps_internal.function_fault(tree text) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(pgps_internal.callee_fault(function_fault.tree), (
        select format('function %s', p.oid::regprocedure)
        from pgps_internal.functions_in(function_fault.tree) f(function_id)
        join pg_proc p on p.oid = f.function_id
        join pg_roles r on r.oid = p.proowner
        join pg_language l on l.oid = p.prolang
        where not (r.rolsuper and pgps_internal.is_closed(p.pronamespace) and p.prokind = 'f'
            and (pgps_internal.is_listed(p.oid)
                -- Outside of pg_catalog no functions in SQL or PL/pgSQL, not even of superusers: they may read tables,
                -- with the rights of whoever calls them.
                or p.provolatile = 'i' and l.lanname in ('internal', 'c')
                    and p.pronamespace <> 'pg_catalog'::regnamespace
                or p.oid in ('clock_timestamp()'::regprocedure, 'timeofday()'::regprocedure,
                    'nextval(regclass)'::regprocedure, 'gen_random_uuid()'::regprocedure, 'random()'::regprocedure)))
        limit 1))
$$;
comment on function pgps_internal.function_fault(text) is
'The first function in the tree of a default or check, or behind it, that could do more than compute a value; null when
there is none';

create or replace function pgps_internal.sequence_fault(caller name, relation regclass) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- In a check it is not noted which one, and it would tell by refusing or not what the next number is.
    select 'a sequence in a check'
    from pg_constraint c where c.conrelid = sequence_fault.relation and c.conbin::text ~ ':funcid 1574 '
    union all
    select coalesce('sequence ' || s.sequence_id::regclass::text, 'a sequence that nextval is not given by its name')
    from pg_attrdef d
    left join lateral (select c.oid as sequence_id from pg_depend x join pg_class c on c.oid = x.refobjid
        and c.relkind = 'S'
        where x.classid = 'pg_attrdef'::regclass and x.objid = d.oid and x.refclassid = 'pg_class'::regclass) s on true
    where d.adrelid = sequence_fault.relation and d.adbin::text ~ ':funcid 1574 '
        and (s.sequence_id is null or not has_sequence_privilege(sequence_fault.caller, s.sequence_id, 'usage')
            or regexp_replace(d.adbin::text, ':funcid 1574 [^{}]*:args \(\{CONST :consttype 2205 ', '',
                'g') ~ ':funcid 1574 ')
    limit 1
$$;
comment on function pgps_internal.sequence_fault(name, regclass) is
'The first sequence that a default of a table draws from although caller may not use it, or that a check draws from;
null when there is none';

create or replace function pgps_internal.require_harmless_expressions(caller name, relation regclass) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_fault text;
begin
    -- Immediate events, added attributes and replays evaluate defaults and checks with the rights of pgps.
    select coalesce('contains ' || pgps_internal.node_fault(e.tree, false), 'calls '
        || pgps_internal.function_fault(e.tree),
        'uses ' || pgps_internal.type_fault(pgps_internal.types_in(e.tree))) into v_fault
    from (
        select d.adbin::text from pg_attrdef d where d.adrelid = require_harmless_expressions.relation
        union all
        select c.conbin::text from pg_constraint c where c.conrelid = require_harmless_expressions.relation
            and c.conbin is not null
    ) e(tree)
    order by 1 nulls last limit 1;
    v_fault := coalesce(v_fault, 'draws from '
        || pgps_internal.sequence_fault(require_harmless_expressions.caller, require_harmless_expressions.relation));
    if v_fault is not null then
        raise exception 'a default or check %: only a superuser may put that there', v_fault
        using errcode = '42501',
            hint = 'Use attributes, constants of built-in types, immutable built-in functions, now(), '
            'clock_timestamp(), random() or gen_random_uuid(), or let a superuser create the event type.';
    end if;
end
$$;
comment on function pgps_internal.require_harmless_expressions(name, regclass) is
'Raises 42501 when a default or check contains something that is not listed: with the rights of pgps it could do more
than compute a value';

drop function if exists pgps_internal.policy_fault(name, oid, text);

create or replace function pgps_internal.may_read(caller name, relation oid, tree text) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- The columns that a query reads stand in its tree as a set of numbers, of which 8 is the first column.
    select has_table_privilege(may_read.caller, may_read.relation, 'select') or coalesce((
        select bool_and(m[1] <> '' and not exists (
            select from regexp_split_to_table(btrim(m[1]), ' ') b(bit)
            where b.bit::integer < 8
                or not has_column_privilege(may_read.caller, may_read.relation, (b.bit::integer - 7)::smallint,
                    'select')))
        from regexp_matches(may_read.tree, format(':relid %s [^{}]*?:selectedCols \(b([ 0-9]*)\)', may_read.relation),
            'g') m), false)
$$;
comment on function pgps_internal.may_read(name, oid, text) is
'True when caller may read a table, or those of its columns that a query reads whose tree this is';

create or replace function pgps_internal.policy_fault(caller name, tree text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if (select r.rolsuper from pg_roles r where r.rolname = policy_fault.caller) then
        return null;
    end if;
    -- A policy runs with the rights of whoever receives, and that is each member of the role that it is for. It does
    -- not help that its author is another one.
    return coalesce('contains ' || pgps_internal.node_fault(policy_fault.tree, true),
        'calls ' || pgps_internal.callee_fault(policy_fault.tree),
        (select format('calls function %s', p.oid::regprocedure)
            from pgps_internal.functions_in(policy_fault.tree) f(function_id) join pg_proc p on p.oid = f.function_id
            where not pgps_internal.is_listed(p.oid) limit 1),
        'uses ' || pgps_internal.type_fault(pgps_internal.types_in(policy_fault.tree)),
        (select format('reads %s, which is no plain table that role "%s" may read', c.oid::regclass,
            policy_fault.caller)
            from regexp_matches(policy_fault.tree, ':relid (\d+)', 'g') m join pg_class c on c.oid = m[1]::oid
            -- A materialized view of a superuser is plain, see table_fault.
            where c.relkind not in ('r', 'p', 'm')
                or not pgps_internal.may_read(policy_fault.caller, c.oid, policy_fault.tree) limit 1),
        (select pgps_internal.table_fault(t.relation)
            from pgps_internal.tables_of_policy(policy_fault.tree) t(relation) order by 1 nulls last limit 1));
end
$$;
comment on function pgps_internal.policy_fault(name, text) is
'Why caller may not write a policy of this tree for anybody; null when nothing speaks against it, or caller is a
superuser';
