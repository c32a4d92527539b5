-- What PL/Python functions import. They cannot import files, so each module of sql/python is a row of a table, which
-- also has it compiled: a session reads compiled code in a fortieth of the time that compiling takes.
-- Locks: none.
-- Writes: python_module.

create or replace function pgps_internal.compile_modules() returns void
language plpython3u volatile
as $python$
import importlib.util
import marshal

keep = plpy.prepare(
    "update pgps_internal.python_module set magic = $1, code = $2 where name = $3", ["bytea", "bytea", "text"]
)
for row in plpy.execute("select name, source from pgps_internal.python_module"):
    code = compile(row["source"], f"<pgps {row['name']}>", "exec", dont_inherit=True)
    keep.execute([importlib.util.MAGIC_NUMBER, marshal.dumps(code), row["name"]])
$python$;
comment on function pgps_internal.compile_modules() is
'Compiles the modules that PL/Python functions import, for the Python of this server';

create or replace function pgps._python_modules(names text[], digest text, magic bytea)
returns table (name text, source text, code bytea)
language sql stable parallel safe security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select m.name, case when m.magic is distinct from _python_modules.magic then m.source end,
        case when m.magic = _python_modules.magic then m.code end
    from pgps_internal.python_module m
    where m.name = any (_python_modules.names) and m.digest = _python_modules.digest;
end;
comment on function pgps._python_modules(text[], text, bytea) is
'Modules that PL/Python functions of pgps import, of the release with that digest: compiled, or as source where the
server has another Python than it had when they were compiled';
revoke all on function pgps._python_modules(text[], text, bytea) from public;
grant execute on function pgps._python_modules(text[], text, bytea) to public;
