-- breaking: no
-- Lanes that ask about a batch in parts, each in a transaction of its own, since all of it is too much for their time.
-- events: at how many at once; batch_id: null = none is begun; class_id: a class that catches up with it, null = the
-- lane matches it; type_id, event_id: up to where it has been asked about, in this order.
create table pgps_internal.lane_part (
    lane_id bigint primary key references pgps_internal.lane on delete cascade,
    events bigint not null,
    batch_id bigint,
    class_id bigint,
    type_id integer,
    event_id bigint
);

-- What these parts have found: deliveries of the batch when it has been asked about wholly.
create table pgps_internal.lane_found (
    lane_id bigint not null references pgps_internal.lane_part on delete cascade,
    class_id bigint not null,
    type_id integer not null,
    events integer not null,
    event_ids bigint[],
    ids int8multirange
);
create index lane_found_idx on pgps_internal.lane_found (lane_id);

create type pgps_internal.lane_piece as (
    part pgps_internal.lane_part,
    batches pgps_internal.batch_type[],
    is_last boolean
);

update pgps_internal.setting
set description = 'What takes longer in a lane is asked about fewer events at once; a filter that takes longer for a '
    'hundred of them has failed, and three times in a row suspend it'
where name = 'lane_timeout';

insert into pgps_internal.installation (key, value) values ('schema_revision', '0063')
on conflict (key) do update set value = excluded.value;
