-- In the hospital, as the superuser. home_link is who the home's worker logs in as.
create role broker_admin login in role pgps_admin;
create role broker_worker login in role pgps_worker;
create role home_link login in role pgps_link;
create schema hospital;
create table hospital.alert (
    arrival bigint generated always as identity, patient integer, first timestamptz, last timestamptz, glucose integer
);
create function hospital.raise_alert(integer, timestamptz, timestamptz, integer) returns void
language sql as $$ insert into hospital.alert (patient, first, last, glucose) values ($1, $2, $3, $4) $$;
