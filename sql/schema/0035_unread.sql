-- breaking: no
-- Which attributes a filter that is given the events certainly does not read, by their numbers, so that what is stored
-- out of line of them need not be read; null: it may read all.
alter table pgps_internal.signature add column unread boolean[];

insert into pgps_internal.installation (key, value) values ('schema_revision', '0035')
on conflict (key) do update set value = excluded.value;
