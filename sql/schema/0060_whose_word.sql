-- breaking: no
-- Whose word the refusal of a link is: null = this broker's own worker or administrator has reported it; else the role
-- of the neighbour. claimed_at: since when that neighbour says that this broker was restored.
alter table pgps_internal.neighbour add column refused_by text, add column claimed_at timestamptz;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0060')
on conflict (key) do update set value = excluded.value;
