-- breaking: no
-- What failed, seen.

-- What older releases had, and what returns something else from now on.
drop function if exists pgps_internal.received_events(bigint, pgps_internal.position), pgps.try_lead(),
    pgps_internal.evict_impostor(integer), pgps_internal.require_harmless_expressions(regclass),
    pgps_internal.require_trusted_types(regclass);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0012')
on conflict (key) do update set value = excluded.value;
