-- breaking: no
-- A program shows with a token of its own that it is the one which began or continued its session last, although it has
-- not been told so (decision 122).
alter table pgps_internal.client add column token text;

-- A further argument, and a further column.
drop function if exists pgps.connect_client(text, boolean, bigint);
drop function if exists pgps.fetch_direct(text, text[], bigint, integer, bigint);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0056')
on conflict (key) do update set value = excluded.value;
