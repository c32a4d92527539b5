-- Generated code: functions, views and rules that PostgreSQL keeps a plan for, which are made for each event type,
-- signature, subscription … Each is written by one function pgps_internal.write_<what>, in the room of its caller, as a
-- template in which {words} stand for names. Beside what was built stands the digest of its text, so that an upgrade
-- builds again what this release would write differently, and nothing else.
-- Locks: those of creating and dropping what is generated.
-- Writes: generated.

create or replace function pgps_internal.render(template text, names jsonb) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_text text;
    v_missing text;
begin
    -- In one pass: a name that is put in may itself contain braces.
    select string_agg(coalesce(render.names ->> m.part[1], m.part[2]), '' order by m.place),
        min(m.part[1]) filter (where render.names ->> m.part[1] is null)
    into v_text, v_missing
    from regexp_matches(render.template, '\{([a-z_]+)\}|([^{]+|\{)', 'g') with ordinality m(part, place);
    if v_missing is not null then
        raise exception 'nothing is given for {%} of a template', v_missing using errcode = '22023',
            hint = 'Add it to the names.';
    end if;
    return v_text;
end
$$;
comment on function pgps_internal.render(text, jsonb) is
'A template with the names put in for their {words}, as they stand: identifiers and literals come quoted. Errors: 22023
a word without a name.';

create or replace function pgps_internal.write_function(
    name text, head text, body text, names jsonb, owner regrole = null, comment text = null
) returns pgps_internal.piece
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- The body is quoted as a literal: an attribute may be named like any mark that a dollar quote could end with.
    select 'function', n.name, format('create or replace function %s%s as %L', n.name,
        pgps_internal.render(write_function.head, write_function.names),
        pgps_internal.render(write_function.body, write_function.names)),
        write_function.owner, write_function.comment
    from (select pgps_internal.render(write_function.name, write_function.names) as name) n
$$;
comment on function pgps_internal.write_function(text, text, text, jsonb, regrole, text) is
'A function to be generated; name, head (arguments, result, language, settings) and body are templates. owner: null = of
who owns pgps. Outside of pgps_internal everybody may call it.';

create or replace function pgps_internal.write_view(name text, definition text, grants text, names jsonb)
returns pgps_internal.piece
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select 'view', n.name, format('create or replace view %1$s %2$s; grant select on %1$s to %3$s', n.name,
        pgps_internal.render(write_view.definition, write_view.names), write_view.grants), null::regrole, null::text
    from (select pgps_internal.render(write_view.name, write_view.names) as name) n
$$;
comment on function pgps_internal.write_view(text, text, text, jsonb) is
'A view to be generated; name and definition (WITH … AS SELECT …) are templates. grants: the roles that may read it';

create or replace function pgps_internal.digest_of(piece pgps_internal.piece) returns bytea
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select sha256(convert_to(concat_ws(E'\n', (digest_of.piece).kind, (digest_of.piece).name,
        (digest_of.piece).definition,
        (digest_of.piece).owner::text, (digest_of.piece).comment), 'UTF8'))
$$;
comment on function pgps_internal.digest_of(pgps_internal.piece) is
'What tells one text of generated code from another';

create or replace function pgps_internal.is_built(piece pgps_internal.piece) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select exists (select from pgps_internal.generated g
            where g.name = (is_built.piece).name and g.digest = pgps_internal.digest_of(is_built.piece))
        -- It may have gone with its owner.
        and coalesce(to_regproc((is_built.piece).name)::oid, to_regclass((is_built.piece).name)::oid) is not null
$$;
comment on function pgps_internal.is_built(pgps_internal.piece) is
'True when a piece of generated code is in the database, with this text';

create or replace function pgps_internal.build(piece pgps_internal.piece, type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp set client_min_messages = warning
as $$
declare
    v_name text := (build.piece).name;
begin
    begin
        execute (build.piece).definition;
    exception when invalid_function_definition or invalid_table_definition then
        -- Another result or other columns than before, which PostgreSQL does not allow in place.
        perform pgps_internal.drop_piece((build.piece).kind, v_name);
        execute (build.piece).definition;
    end;
    if (build.piece).kind = 'function' then
        if to_regproc(v_name) is null then
            -- Other arguments than before: both are there now.
            perform pgps_internal.drop_piece('function', v_name);
            execute (build.piece).definition;
        end if;
        if v_name like 'pgps\_internal.%' then
            execute format('revoke all on function %s from public', to_regproc(v_name)::regprocedure);
        end if;
        if (build.piece).owner is not null then
            execute format('alter function %s owner to %s', to_regproc(v_name)::regprocedure, (build.piece).owner);
        end if;
        if (build.piece).comment is not null then
            execute format('comment on function %s is %L', to_regproc(v_name)::regprocedure, (build.piece).comment);
        end if;
    end if;
    insert into pgps_internal.generated as g (name, kind, type_id, digest)
    values (v_name, (build.piece).kind, build.type_id, pgps_internal.digest_of(build.piece))
    on conflict (name) do update set kind = excluded.kind, type_id = excluded.type_id, digest = excluded.digest;
end
$$;
comment on function pgps_internal.build(pgps_internal.piece, integer) is
'Puts a piece of generated code into the database, in place of what has its name, and notes its digest. type_id: null =
of no event type';

create or replace function pgps_internal.drop_piece(kind text, name text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp set client_min_messages = warning
as $$
declare
    v_function regprocedure;
begin
    if drop_piece.kind = 'function' then
        for v_function in select p.oid from pg_proc p join pg_namespace n on n.oid = p.pronamespace
            where format('%I.%I', n.nspname, p.proname) = drop_piece.name loop
            execute format('drop function %s', v_function);
        end loop;
    elsif drop_piece.kind in ('view', 'type') then
        execute format('drop %s if exists %s', drop_piece.kind, drop_piece.name);
    end if;
    delete from pgps_internal.generated g where g.name = drop_piece.name;
end
$$;
comment on function pgps_internal.drop_piece(text, text) is
'Drops a piece of generated code, if it is there; what is made upon a relation (kind relation) goes with that';

revoke all on all functions in schema pgps_internal from public;
