-- In the pharmacy, as the superuser. hospital_link is who the hospital's worker logs in as.
create role broker_admin login in role pgps_admin;
create role broker_worker login in role pgps_worker;
create role hospital_link login in role pgps_link;
create role pharmacist login;
create schema pharmacy authorization pharmacist;
