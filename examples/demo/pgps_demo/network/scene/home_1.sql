-- At home, as the superuser: who there is. hospital_link stands for the hospital: what it may see is what the
-- hospital gets.
create role broker_admin login in role pgps_admin;
create role broker_worker login in role pgps_worker;
create role hospital_link nologin;
grant hospital_link to broker_admin;
create role nurse login;
create schema home authorization nurse;
