-- In DB_2, as app: the database itself publishes what comes into a table.
create table app.trade (symbol text, day date, open numeric, close numeric, volume bigint);
select pgps.advertise('quote');
select pgps.create_rule('publish', 'app.trade', 'INSERT', 'quote',
    attributes => array['new.symbol', 'new.day', 'new.open', 'new.close', 'new.volume']);
