-- breaking: no
-- What the message under a number of a line was: another one has that number when the sender was put back to an older
-- state (sql/code/spools/reached.sql). At a contact point of the number upto, at the sender of the number handed;
-- null = nobody has said.
alter table pgps_internal.network_mark add column mark text;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0065')
on conflict (key) do update set value = excluded.value;
