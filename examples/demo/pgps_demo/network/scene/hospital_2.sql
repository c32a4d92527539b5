-- As doctor: patients, what is given for which glucose, and what comes of the readings.
create table hospital.patient (
    nhs_number text primary key,
    pseudonym text not null unique,
    prescriber text not null,
    pharmacy text not null
);
create table hospital.formulary (
    drug text primary key,
    lowest integer not null,
    highest integer not null,
    dose integer not null,
    controlled boolean not null
);
create table hospital.chart (
    arrival bigint generated always as identity primary key,
    nhs_number text not null,
    taken_at timestamp not null,
    glucose integer not null
);
create table hospital.prescription (
    arrival bigint generated always as identity primary key,
    nhs_number text not null references hospital.patient,
    prescriber text not null,
    drug text not null references hospital.formulary,
    dose integer not null,
    symptom integer not null,
    prescribed_at timestamp not null
);
grant usage on schema hospital to broker_admin, pharmacy_link, auditor_link;
grant select (nhs_number, pharmacy) on hospital.patient to broker_admin, pharmacy_link;
grant select (drug, controlled) on hospital.formulary to broker_admin, auditor_link;
