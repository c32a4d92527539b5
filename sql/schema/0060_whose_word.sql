-- breaking: no
-- Whose word the refusal of a link is: null = this broker's own worker or administrator has reported it; else the role
-- of the neighbour. claimed_at: since when that neighbour says that this broker was restored.
alter table pgps_internal.neighbour add column refused_by text, add column claimed_at timestamptz;

-- What is called with more arguments now, or for several at once.
drop function if exists pgps_internal.intern_filter(pgps_internal.event_type, text, text[], jsonb);
drop function if exists pgps_internal.note_covers(pgps_internal.link_filter);
drop function if exists pgps_internal.push_filters();
drop function if exists pgps_internal.drop_unused_class(bigint);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0060')
on conflict (key) do update set value = excluded.value;
