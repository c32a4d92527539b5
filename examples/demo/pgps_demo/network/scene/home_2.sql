-- As nurse: who is cared for, who of them lets the hospital know, and what the sensors say.
create table home.patient (
    patient integer primary key,
    nhs_number text not null unique,
    name text not null,
    address text not null,
    consents boolean not null
);
create table home.measurement (
    patient integer not null references home.patient,
    taken_at timestamp not null,
    glucose integer not null,
    isig numeric
);
grant usage on schema home to broker_admin, hospital_link;
grant select (nhs_number, consents) on home.patient to broker_admin, hospital_link;
