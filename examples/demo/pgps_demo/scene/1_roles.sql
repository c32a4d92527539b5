-- As the superuser, once: who there is. Nobody here is one, and nobody below needs to be.
-- A login of its own for each publisher, so that "publisher" in the queues says who it was.

create role broker_admin login in role pgps_admin;
create role broker_worker login in role pgps_worker;

create role home nologin;
create role home_3 login in role home;
create role home_4 login in role home;
create role home_5 login in role home;
create role home_6 login in role home;
create role home_7 login in role home;
create role home_8 login in role home;
create role home_9 login in role home;
create role home_10 login in role home;

create role exchange nologin;
create role nasdaq login in role exchange;
create role nyse login in role exchange;

create role hospital login;
create role ward login;
create role trader login;
create role auditor login;

create schema hospital authorization hospital;
create schema ward authorization ward;
create schema trading authorization trader;
