-- As the superuser, once: roles are the server's. peer is who the workers of neighbours log in as.
create role broker_admin login in role pgps_admin;
create role broker_worker login in role pgps_worker;
create role peer login in role pgps_link;
grant peer to broker_admin;
create role app login;
create schema app authorization app;
set role app;
create table app.received (
    arrival bigint generated always as identity primary key,
    subscription text not null,
    symbol text not null,
    day date not null,
    volume bigint not null
);
