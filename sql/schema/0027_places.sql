-- breaking: no
-- Units of work: new conversations are as old as their first unit, whatever has become of that one.

-- Entries that have the place of an earlier one (pgps_internal.commit_unit). Few: they are asked for in each look.
create index unit_commit_place_idx on pgps_internal.unit_commit (queue_id, xid) where entry_no < commit_no;

-- When a session ended says whether it gave back what it held before that timed out: also after a crash.
alter table pgps_internal.participant_session_end set logged;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0027')
on conflict (key) do update set value = excluded.value;
