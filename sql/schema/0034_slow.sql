-- breaking: no
-- Roles whose code in composite events has taken too long: they are detected apart from all others, in turn. turn_at:
-- when the next turn of one is, in the order of which they have it; slow_until: it is not tried among the others
-- before; offences: how often it was slow within an hour.
create table pgps_internal.slow_detection (
    owner oid primary key,
    is_slow boolean not null default true,
    offences integer not null default 1,
    failed_at timestamptz not null,
    slow_until timestamptz not null,
    turn_at timestamptz not null default '-infinity',
    last_error text not null
);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0034')
on conflict (key) do update set value = excluded.value;
