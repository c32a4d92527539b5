-- In the hospital, as the superuser. home_link is who the home's worker logs in as; the others stand for the domains
-- that they name.
create role broker_admin login in role pgps_admin;
create role broker_worker login in role pgps_worker;
create role home_link login in role pgps_link;
create role pharmacy_link nologin;
create role auditor_link nologin;
grant pharmacy_link, auditor_link to broker_admin;
create role doctor login;
create schema hospital authorization doctor;
