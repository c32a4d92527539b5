-- What PostgreSQL calls on behalf of an expression, read from its tree. It is more than the functions that stand there:
-- the planner exchanges an operator for its negator or commutator, asks estimators and support functions, and compares
-- with what belongs to the same operator classes; types bring their own checks (decision 106).
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

drop function if exists pgps_internal.types_in(text, boolean);

create or replace function pgps_internal.types_in(tree text) returns oid[]
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select array(
        select distinct m[1]::oid
        from regexp_matches(types_in.tree,
            ':(?:consttype|vartype|funcresulttype|opresulttype|resulttype|casetype|typeId|array_typeid|element_typeid'
            '|coalescetype|minmaxtype|type|row_typeid|refcontainertype|refelemtype|refrestype|paramtype|aggtype) (\d+)',
            'g') m
        where m[1] <> '0')
$$;
comment on function pgps_internal.types_in(text) is
'The data types that the tree of an expression names; the input functions of those of constants run when it is parsed';

create or replace function pgps_internal.is_closed(schema oid) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select pgps_internal.is_firm(is_closed.schema) and not exists (
        select from pg_namespace n cross join lateral aclexplode(n.nspacl) a left join pg_roles r on r.oid = a.grantee
        where n.oid = is_closed.schema and a.privilege_type = 'CREATE' and a.grantee <> n.nspowner
            and r.rolsuper is distinct from true)
$$;
comment on function pgps_internal.is_closed(oid) is
'True for a firm schema in which nobody but a superuser can create anything. A call that was written out again could
else mean another function or operator there, which fits its arguments better';

create or replace function pgps_internal.operators_in(tree text) returns setof oid
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with recursive used (operator_id) as (
        select n::oid
        from regexp_matches(operators_in.tree, ':(?:opno|eqop|sortop|opnos) (?:\(o )?(\d[\d ]*)', 'g') m
        cross join lateral regexp_split_to_table(btrim(m[1]), ' ') n
        where n <> '0'
        union
        select n.operator_id
        from used u join pg_operator o on o.oid = u.operator_id
        cross join lateral (values (o.oprnegate), (o.oprcom)) n(operator_id)
        where n.operator_id <> 0
    )
    select u.operator_id from used u
$$;
comment on function pgps_internal.operators_in(text) is
'The operators of an expression, from its tree, and those that the planner may put in their place: negators and
commutators';

create or replace function pgps_internal.functions_in(tree text) returns setof oid
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select m[1]::oid from regexp_matches(functions_in.tree,
        ':(?:funcid|opfuncid|elemfuncid|hashfuncid|negfuncid|aggfnoid|winfnoid) (\d+)', 'g') m
    where m[1] <> '0'
    union
    select o.oprcode::oid from pgps_internal.operators_in(functions_in.tree) u(operator_id)
        join pg_operator o on o.oid = u.operator_id
    where o.oprcode <> 0
$$;
comment on function pgps_internal.functions_in(text) is
'The functions that an expression calls, read from its tree (pg_node_tree as text), and those of the operators that may
take the place of its own';

create or replace function pgps_internal.siblings_in(tree text) returns table (operator_id oid, function_id oid)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with family (family_id) as (
        select a.amopfamily from pgps_internal.operators_in(siblings_in.tree) u(operator_id)
            join pg_amop a on a.amopopr = u.operator_id
        union
        -- Joined: as a condition the tree would be read again for each operator class.
        select c.opcfamily from unnest(pgps_internal.types_in(siblings_in.tree)) t(type_id)
            join pg_opclass c on c.opcintype = t.type_id
    )
    -- What PostgreSQL itself brings has numbers below 16384.
    select a.amopopr, o.oprcode::oid from family f join pg_amop a on a.amopfamily = f.family_id
        join pg_operator o on o.oid = a.amopopr
    where a.amopopr >= 16384
    union
    select null, a.amproc::oid from family f join pg_amproc a on a.amprocfamily = f.family_id
    where a.amproc::oid >= 16384
$$;
comment on function pgps_internal.siblings_in(text) is
'The operators and support functions, other than those of PostgreSQL itself, in the operator families of the operators
and types of an expression: sorting, hashing, GREATEST, merge joins and proofs about predicates use these';

create or replace function pgps_internal.foreign_callee(tree text, but oid = null) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with callee (operator_id, function_id) as (
        select u.operator_id, null::oid from pgps_internal.operators_in(foreign_callee.tree) u(operator_id)
        union
        select null, f.function_id from pgps_internal.functions_in(foreign_callee.tree) f(function_id)
        union
        select s.operator_id, s.function_id from pgps_internal.siblings_in(foreign_callee.tree) s
    ),
    estimated (function_id) as (
        select e.function_id from callee c join pg_operator o on o.oid = c.operator_id
        cross join lateral (values (o.oprcode::oid), (o.oprrest::oid), (o.oprjoin::oid)) e(function_id)
        union
        select c.function_id from callee c
    ),
    asked (function_id) as (
        select e.function_id from estimated e
        union
        select p.prosupport::oid from estimated e join pg_proc p on p.oid = e.function_id
    )
    select format('%s of role "%s"', x.callee, r.rolname)
    from (
        select 'operator ' || o.oid::regoperator::text as callee, o.oprowner as owner
        from callee c join pg_operator o on o.oid = c.operator_id
        union all
        select 'function ' || p.oid::regprocedure::text, p.proowner from asked a join pg_proc p on p.oid = a.function_id
    ) x(callee, owner) join pg_roles r on r.oid = x.owner
    where not r.rolsuper and x.owner is distinct from foreign_callee.but
    order by 1 desc limit 1
$$;
comment on function pgps_internal.foreign_callee(text, oid) is
'An operator or function of a role that is no superuser, and who that is, which PostgreSQL may call when it plans or
evaluates an expression; null when there is none. but: a role whose functions do not count';

create or replace function pgps_internal.type_callee(type_id oid) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select c.callee
    from (
        select pgps_internal.foreign_callee(c.conbin::text) from pg_constraint c
        where c.contypid = type_callee.type_id and c.conbin is not null
        union all
        select pgps_internal.foreign_callee(t.typdefaultbin::text) from pg_type t
        where t.oid = type_callee.type_id and t.typdefaultbin is not null
        union all
        select format('function %s of role "%s"', p.oid::regprocedure, r.rolname)
        from pg_range g join pg_proc p on p.oid in (g.rngcanonical, g.rngsubdiff) join pg_roles r on r.oid = p.proowner
        where g.rngtypid = type_callee.type_id and not r.rolsuper
        union all
        select format('function %s of role "%s"', p.oid::regprocedure, r.rolname)
        from pg_type t
        cross join lateral (values (t.typinput), (t.typoutput), (t.typreceive), (t.typsend), (t.typmodin),
            (t.typmodout), (t.typanalyze), (t.typsubscript)) f(function_id)
        join pg_proc p on p.oid = f.function_id join pg_roles r on r.oid = p.proowner
        where t.oid = type_callee.type_id and not r.rolsuper
    ) c(callee)
    where c.callee is not null limit 1
$$;
comment on function pgps_internal.type_callee(oid) is
'A function or operator of a role that is no superuser, and who that is, which a data type brings along: in a check or
default of a domain, for ranges, for input and output; null when there is none';
