-- In DB_1 and DB_2, as broker_admin: the event type. The others learn it over links.
select pgps.create_event_type('quote', $$
    symbol text not null,
    day date not null,
    open numeric not null,
    close numeric not null,
    volume bigint not null
$$);
grant insert on pgps_event.quote to app;
grant select on pgps_event.quote to peer;
