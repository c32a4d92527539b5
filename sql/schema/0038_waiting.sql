-- breaking: no
-- What waits for the watermark (slot -1) is found by the point at which it waits: of an interval, which a composite
-- event is, not that at which it begins.
update pgps_internal.composite_open o set start_at = (o.data ->> 2)::numeric
where o.slot = -1 and o.start_at < (o.data ->> 2)::numeric;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0038')
on conflict (key) do update set value = excluded.value;
