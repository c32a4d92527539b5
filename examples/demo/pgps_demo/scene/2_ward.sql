-- As ward: the chart that its own program writes.

create table ward.chart (
    arrival bigint generated always as identity primary key,
    subscription text not null,
    session text not null,
    event_id bigint not null,
    publisher name not null,
    patient integer not null,
    taken_at timestamp not null,
    glucose integer not null,
    isig numeric
);
