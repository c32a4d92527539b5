-- breaking: no
-- What was left: who is slow, dead or passed over is seen; rules and filters outlive renames (decision 29).

-- It returns more.
drop function if exists pgps.trouble_counts();

insert into pgps_internal.installation (key, value) values ('schema_revision', '0015')
on conflict (key) do update set value = excluded.value;
