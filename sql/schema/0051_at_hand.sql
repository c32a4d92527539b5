-- breaking: no
-- Each registration of a client has an occurrence at hand, not each client one (decision 115): the newest mark of a
-- registration is looked up, completed or not.
drop index pgps_internal.client_mark_registration_idx;
create index client_mark_registration_idx on pgps_internal.client_mark (registration_id, mark_id desc);

-- They are about some registrations of a client now.
drop function if exists pgps_internal.has_news(bigint);
drop function if exists pgps_internal.last_mark(bigint);
drop function if exists pgps.receive_event(text, text, bytea, bigint);
drop function if exists pgps.re_receive_event(text, bigint);
drop function if exists pgps.fetch_tuples(text, bigint, integer, bigint);
drop function if exists pgps.commit_event(text, bytea, bigint);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0051')
on conflict (key) do update set value = excluded.value;
