-- Generated code: functions, views and rules that are made for each event type, signature, subscription and so on, so
-- that PostgreSQL keeps plans for them. Each piece is written by a function pgps_internal.write_<what>, in the room of
-- its caller, from a template in which {words} stand for names. The digest of each piece is stored, so that an upgrade
-- rebuilds only the pieces that this release writes differently (decision 30).
-- What reads a log is VOLATILE, though it changes nothing: each statement in it takes its snapshot when it has its
-- locks. A STABLE function reads in the snapshot of whoever calls it, which was taken before; and there a log is empty
-- that somebody has written anew meanwhile, as for an attribute of a domain with constraints, or for a queue that
-- becomes persistent.
-- What writes pieces is in PL/pgSQL, although most of it is one expression: a function in SQL would be planned anew in
-- each of the hundred calls that making an event type takes.
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
    -- In a single pass, since an inserted name may itself contain braces.
    select string_agg(case when p.place = 1 then p.part when p.word is null then '{' || p.part
            else (render.names ->> p.word) || substr(p.part, length(p.word) + 2) end, '' order by p.place),
        min(p.word) filter (where render.names ->> p.word is null)
    into v_text, v_missing
    from (select s.part, s.place, case when s.place > 1 then substring(s.part from '^([a-z_]+)\}') end as word
        from string_to_table(render.template, '{') with ordinality s(part, place)) p;
    if v_missing is not null then
        raise exception 'nothing is given for {%} of a template', v_missing using errcode = '22023',
            hint = 'Add it to the names.';
    end if;
    return v_text;
end
$$;
comment on function pgps_internal.render(text, jsonb) is
'A template with its {words} replaced by names, which are inserted as they are: identifiers and literals must come
quoted. Errors: 22023 a word without a name.';

create or replace function pgps_internal.write_function(
    name text, head text, body text, names jsonb, owner regrole = null, comment text = null
) returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.render(write_function.name, write_function.names);
begin
    -- The body is quoted as a literal: an attribute name could contain any tag of a dollar quote.
    return row('function', v_name, format('create or replace function %s%s as %L', v_name,
        pgps_internal.render(write_function.head, write_function.names),
        pgps_internal.render(write_function.body, write_function.names)),
        write_function.owner, write_function.comment)::pgps_internal.piece;
end
$$;
comment on function pgps_internal.write_function(text, text, text, jsonb, regrole, text) is
'A piece that creates a function; name, head (arguments, result, language, settings) and body are templates. owner: null
= the owner of pgps. Everybody may call a function outside of pgps_internal.';

create or replace function pgps_internal.write_view(name text, definition text, grants text, names jsonb)
returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text := pgps_internal.render(write_view.name, write_view.names);
begin
    return row('view', v_name, format('create or replace view %1$s %2$s; grant select on %1$s to %3$s', v_name,
        pgps_internal.render(write_view.definition, write_view.names), write_view.grants),
        null, null)::pgps_internal.piece;
end
$$;
comment on function pgps_internal.write_view(text, text, text, jsonb) is
'A piece that creates a view; name and definition (WITH … AS SELECT …) are templates. grants: the roles that may read
it';

create or replace function pgps_internal.digest_of(piece pgps_internal.piece) returns bytea
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return sha256(convert_to(concat_ws(E'\n', (digest_of.piece).kind, (digest_of.piece).name,
        (digest_of.piece).definition,
        (digest_of.piece).owner::text, (digest_of.piece).comment), 'UTF8'));
end
$$;
comment on function pgps_internal.digest_of(pgps_internal.piece) is
'The digest of a piece of generated code: of its kind, name, definition, owner and comment';

create or replace function pgps_internal.is_built(piece pgps_internal.piece) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select exists (select from pgps_internal.generated g
            where g.name = (is_built.piece).name and g.digest = pgps_internal.digest_of(is_built.piece))
        -- It may have been dropped together with its owner.
        and coalesce(to_regproc((is_built.piece).name)::oid, to_regclass((is_built.piece).name)::oid) is not null
$$;
comment on function pgps_internal.is_built(pgps_internal.piece) is
'True when a piece of generated code is in the database with exactly this text';

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
        -- The result type or the columns differ from before, which CREATE OR REPLACE does not allow.
        perform pgps_internal.drop_piece((build.piece).kind, v_name);
        execute (build.piece).definition;
    end;
    if (build.piece).kind = 'function' then
        if to_regproc(v_name) is null then
            -- The name is ambiguous: the arguments differ from before, and both functions exist now.
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
'Creates a piece of generated code, replacing what has its name, and records its digest. type_id: null = of no event
type';

create or replace function pgps_internal.drop_piece(kind text, name text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp set client_min_messages = warning
as $$
declare
    v_function regprocedure;
    v_path text[];
begin
    if drop_piece.kind = 'function' then
        -- Looked up by the bare name, because that has an index: a comparison of the qualified one reads all functions.
        v_path := parse_ident(drop_piece.name);
        for v_function in select p.oid from pg_proc p join pg_namespace n on n.oid = p.pronamespace
            where p.proname = v_path[2]::name and n.nspname = v_path[1]::name loop
            execute format('drop function %s', v_function);
        end loop;
    elsif drop_piece.kind in ('view', 'type') then
        execute format('drop %s if exists %s', drop_piece.kind, drop_piece.name);
    end if;
    delete from pgps_internal.generated g where g.name = drop_piece.name;
end
$$;
comment on function pgps_internal.drop_piece(text, text) is
'Drops a piece of generated code, if it exists. A piece of kind relation is only forgotten: it is dropped with the
relation that it is made upon';
