-- In DB_6, as app: a callback receives.
create function app.note(quotes pgps_event.quote[]) returns void
language sql
begin atomic
    insert into app.received (subscription, symbol, day, volume)
    select 's_6', q.symbol, q.day, q.volume from unnest(quotes) with ordinality q order by q.ordinality;
end;
