-- At the exchange, as the superuser: a stock that falls by 5 % from one quote to the next, and is back within ten days.
create schema trading;
create table trading.recovery (
    arrival bigint generated always as identity, symbol text, fell_from timestamptz, back_at timestamptz, price numeric
);
create function trading.note(text, timestamptz, timestamptz, numeric) returns void
language sql as $$ insert into trading.recovery (symbol, fell_from, back_at, price) values ($1, $2, $3, $4) $$;
select pgps.create_event_type('quote', 'symbol text not null, closed_at timestamptz not null, close numeric not null');
select pgps.alter_event_type('quote', time_attribute => 'closed_at');
select pgps.advertise('quote');
select pgps.create_composite_event('recovered', 'quote a ; quote b ; quote c', partition_by => 'symbol',
    within => '10 days', time_basis => 'event', filter => 'b.close <= 0.95 * a.close and c.close >= a.close',
    attributes => 'symbol text = a.symbol, price numeric = c.close');
select pgps.subscribe('recovery', 'recovered', execute => 'trading.note(symbol, starts_at, ends_at, price)');
