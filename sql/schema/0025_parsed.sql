-- breaking: no
-- What the client has parsed, for servers without PL/Python (decision 81).

create table pgps_internal.parsed_text (
    key bytea primary key,
    function text not null,
    arguments jsonb not null,
    parser text not null,
    result jsonb not null,
    kept_at timestamptz not null
);
create index on pgps_internal.parsed_text (kept_at);
comment on table pgps_internal.parsed_text is
'Definitions as the client has taken them apart, where the server has no PL/Python. result decides what runs with '
'whose rights: whoever writes here has the rights of the owner. parser: the digest of the modules it is from; others '
'are not believed. kept_at: when it was stored, or last seen in use';

insert into pgps_internal.installation (key, value) values ('schema_revision', '0025')
on conflict (key) do update set value = excluded.value;
