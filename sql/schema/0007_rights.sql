-- breaking: no
-- What runs as whom.

-- Where pgps_internal.command_number asks PostgreSQL for the number of the current command; what it inserts is rolled
-- back at once.
create unlogged table pgps_internal.command ();
comment on table pgps_internal.command is 'Always empty; see pgps_internal.command_number';

create type pgps_internal.session_state as (settings text[], prepared text, cursors text[], temporary text);
comment on type pgps_internal.session_state is
'What code of a user could leave behind in a session; see pgps_internal.session_state()';

-- EXECUTE f(arguments): SQL over the attributes of the event; null = the callback takes the event, or a batch of
-- them, as it is.
alter table pgps_internal.subscription add column arguments text;
-- EXECUTE f(record), f(pgps_event.t), f(pgps_event.t[]): which of the functions of that name; null = any, in this
-- order: event, batch, record.
alter table pgps_internal.subscription add column takes text check (takes in ('event', 'batch', 'record'));

-- Have other arguments now, or nothing to do any more.
drop function if exists pgps.run_subscriber(text, integer);
drop function if exists pgps_internal.run(pgps_internal.subscription, integer, boolean);
drop function if exists pgps_internal.try_events(pgps_internal.subscription, pgps_internal.received[]);
drop function if exists pgps_internal.call_back(pgps_internal.subscription, integer, bigint[]);
drop function if exists pgps_internal.check_session(text, text[], regrole, text);
drop function if exists pgps_internal.refuse_deferred(regrole);
drop function if exists pgps_internal.session_settings();

insert into pgps_internal.installation (key, value) values ('schema_revision', '0007')
on conflict (key) do update set value = excluded.value;
