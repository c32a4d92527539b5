-- In place of python_modules.sql where the server has no PL/Python: no modules to compile.
-- Locks: none.
-- Writes: python_module.

drop function if exists pgps_internal.compile_modules();
drop function if exists pgps._python_modules(text[], text, bytea);
delete from pgps_internal.python_module;
