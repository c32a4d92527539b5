-- breaking: no
-- A step of a composite event asks less of its definition (decision 85): what of it is asked in each step.

alter table pgps_internal.composite
    -- It has something to do without an event; the clock itself ticks for it.
    add column is_timed boolean not null
        generated always as (coalesce((parsed ->> 'timed')::boolean, false)) stored,
    add column is_ticking boolean not null
        generated always as (coalesce((parsed ->> 'ticking')::boolean, false)) stored,
    -- It has a filter or attributes.
    add column runs_code boolean not null
        generated always as (parsed -> 'conditions' <> '[]' or parsed -> 'attributes' <> '[]') stored;

drop function if exists pgps_internal.all_before();
drop function if exists pgps_internal.detect_due(bigint, timestamptz, integer, integer, integer, bigint, bigint);
drop function if exists pgps_internal.write_made(pgps_internal.composite, pgps_internal.event_type);
drop function if exists pgps_internal.note_steps(bigint[], integer[], bigint[], bigint[], text[], text[], bigint[],
    bigint[], bigint[], bigint[], bigint[], bigint[], text[]);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0029')
on conflict (key) do update set value = excluded.value;
