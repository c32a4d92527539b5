-- As hospital: thresholds of each patient, who lies where, and what the callbacks write.

create table hospital.threshold (patient integer primary key, low integer not null, high integer not null);
create table hospital.admission (patient integer primary key, ward text not null);

create table hospital.alert (
    arrival bigint generated always as identity primary key,
    patient integer not null,
    taken_at timestamp not null,
    glucose integer not null,
    raised_at timestamptz not null default clock_timestamp()
);
create table hospital.sensor_fault (
    arrival bigint generated always as identity primary key,
    patient integer not null,
    taken_at timestamp not null,
    glucose integer not null
);

grant usage on schema hospital to broker_admin, ward;
grant select on hospital.admission to broker_admin, ward;
