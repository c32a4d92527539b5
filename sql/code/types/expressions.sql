-- Expressions that an administrator writes and the owner of pgps parses or evaluates: defaults, checks, policies. An
-- administrator is not a superuser, so the kinds of nodes, functions and types that may appear in them are listed, and
-- everything else is refused (decision 22).
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.is_firm(schema oid) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- The owner of a schema can rename it and create another one of that name with other contents.
    select exists (
        select from pg_namespace n join pg_roles r on r.oid = n.nspowner
        where n.oid = is_firm.schema and (r.rolsuper or r.rolname = 'pg_database_owner' and exists (
            select from pg_database d join pg_roles o on o.oid = d.datdba where d.datname = current_database()
                and o.rolsuper)))
$$;
comment on function pgps_internal.is_firm(oid) is
'True for a schema that nobody but a superuser can rename or replace, so that names in it keep their meaning';

create or replace function pgps_internal.types_within(types oid[]) returns setof oid
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with recursive used (type_id) as (
        select t from unnest(types_within.types) t
        union
        select n.type_id
        from used u
        join pg_type t on t.oid = u.type_id
        cross join lateral (
            select t.typelem union all select t.typbasetype
            union all select a.atttypid from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0
                and not a.attisdropped
            union all select r.rngsubtype from pg_range r where t.oid in (r.rngtypid, r.rngmultitypid)
            union all select r.rngtypid from pg_range r where t.oid = r.rngmultitypid
        ) n(type_id)
        where n.type_id <> 0
    )
    select u.type_id from used u
$$;
comment on function pgps_internal.types_within(oid[]) is
'The types and all types that they consist of: elements, base types, columns, bounds';

create or replace function pgps_internal.functions_in(tree text) returns setof oid
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select m[1]::oid from regexp_matches(functions_in.tree,
        ':(?:funcid|opfuncid|elemfuncid|hashfuncid|negfuncid|aggfnoid|winfnoid) (\d+)', 'g') m
    where m[1] <> '0'
    union
    select o.oprcode::oid from regexp_matches(functions_in.tree, ':opno (\d+)', 'g') m
        join pg_operator o on o.oid = m[1]::oid
    where o.oprcode <> 0
$$;
comment on function pgps_internal.functions_in(text) is
'The functions that an expression calls, read from its tree (pg_node_tree as text)';

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
        select format('whose check calls function %s of a role that is not a superuser', p.oid::regprocedure)
        from pg_constraint c
        cross join lateral pgps_internal.functions_in(c.conbin::text) i(function_id)
        join pg_proc p on p.oid = i.function_id join pg_roles o on o.oid = p.proowner
        where c.contypid = t.oid and not o.rolsuper
    ) f(reason)
    limit 1
$$;
comment on function pgps_internal.type_fault(oid[]) is
'Why the owner of pgps must not convert text to one of the types, or parse text that names it; null when nothing speaks
against it';

create or replace function pgps_internal.types_in(tree text, constants_only boolean) returns oid[]
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select array(
        select distinct m[1]::oid
            from regexp_matches(types_in.tree, case when types_in.constants_only then '\{CONST :consttype (\d+)' else
            ':(?:consttype|vartype|funcresulttype|opresulttype|resulttype|casetype|typeId|array_typeid'
            '|element_typeid|coalescetype'
            '|minmaxtype|type|row_typeid|refcontainertype|refelemtype|refrestype|paramtype|aggtype) (\d+)' end, 'g') m
                where m[1] <> '0')
$$;
comment on function pgps_internal.types_in(text, boolean) is
'The data types that the tree of an expression names; constants_only: only those of constants, whose input functions run
when the expression is parsed';

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

create or replace function pgps_internal.function_fault(tree text) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select format('function %s', p.oid::regprocedure)
    from pgps_internal.functions_in(function_fault.tree) f(function_id)
    join pg_proc p on p.oid = f.function_id
    join pg_roles r on r.oid = p.proowner
    join pg_language l on l.oid = p.prolang
    where not (r.rolsuper and pgps_internal.is_firm(p.pronamespace) and p.prokind = 'f'
            -- Outside of pg_catalog no functions in SQL or PL/pgSQL, not even of superusers: they may read tables, with
            -- the rights of whoever calls them.
            and (p.provolatile = 'i' and (l.lanname in ('internal', 'c') or p.pronamespace = 'pg_catalog'::regnamespace)
                or p.oid in ('now()'::regprocedure, 'transaction_timestamp()'::regprocedure,
                    'statement_timestamp()'::regprocedure,
                    'clock_timestamp()'::regprocedure, 'timeofday()'::regprocedure, 'nextval(regclass)'::regprocedure,
                    'gen_random_uuid()'::regprocedure, 'random()'::regprocedure)
                or p.provolatile = 's' and p.pronamespace = 'pg_catalog'::regnamespace
                    and p.proname ~ '^(date|time|timetz|timestamp|timestamptz|interval|to_char|to_date|to_timestamp'
                        '|timezone|date_trunc|date_part|extract|textin|concat|format)'))
    limit 1
$$;
comment on function pgps_internal.function_fault(text) is
'The first function in the tree of a default or check that could do more than compute a value; null when there is none';

create or replace function pgps_internal.sequence_fault(caller name, relation regclass) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
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
'The first sequence that a default of a table draws from although caller may not use it; null when there is none';

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
        'uses ' || pgps_internal.type_fault(pgps_internal.types_in(e.tree, false))) into v_fault
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

create or replace function pgps_internal.policy_fault(caller name, role oid, tree text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type text := 'uses ' || pgps_internal.type_fault(pgps_internal.types_in(policy_fault.tree, true));
begin
    if (select r.rolsuper from pg_roles r where r.rolname = policy_fault.caller) then
        return null;
    elsif v_type is not null or pg_has_role(policy_fault.caller, policy_fault.role, 'usage') then
        return v_type;
    end if;
    -- The policy will run with the rights of a role whose rights the caller does not have.
    return coalesce('contains ' || pgps_internal.node_fault(policy_fault.tree, true),
        (select format('calls function %s', p.oid::regprocedure)
            from pgps_internal.functions_in(policy_fault.tree) f(function_id) join pg_proc p on p.oid = f.function_id
            where not (p.pronamespace = 'pg_catalog'::regnamespace and p.provolatile in ('i', 's')
                and p.proname !~ 'to_xml') limit 1),
        'uses ' || pgps_internal.type_fault(pgps_internal.types_in(policy_fault.tree, false)),
        (select format('reads %s, which is no plain table that role "%s" may read', c.oid::regclass,
            policy_fault.caller)
            from regexp_matches(policy_fault.tree, ':relid (\d+)', 'g') m join pg_class c on c.oid = m[1]::oid
            where c.relkind not in ('r', 'p', 'm')
                or not has_table_privilege(policy_fault.caller, c.oid, 'select') limit 1),
        (select pgps_internal.table_fault(t.relation, policy_fault.role)
            from pgps_internal.tables_of_policy(policy_fault.tree) t(relation) order by 1 nulls last limit 1));
end
$$;
comment on function pgps_internal.policy_fault(name, oid, text) is
'Why caller may not write a policy of this tree for a role; null when nothing speaks against it. For a role whose rights
caller has, only the types of constants matter, since constants are parsed with the rights of pgps.';
