-- As trader: portfolios, slumps shared by two sessions, and a settlement that fails where there is no account.

create function trading.settle(quote pgps_event.stock_quote) returns void
language sql
begin atomic
    insert into trading.settlement (symbol, day, volume) values (quote.symbol, quote.day, quote.volume);
end;

select pgps.subscribe(format('portfolio_%s', k), 'stock_quote',
    filter => format('symbol in (select symbol from trading.portfolio where portfolio_id = %s)', k))
from generate_series(1, 4) k;

select pgps.subscribe('slump', 'stock_quote', filter => 'close < open * 0.95', handler => 'any');

select pgps.subscribe('settlement', 'stock_quote', filter => 'volume > 30000000',
    execute => 'trading.settle', max_attempts => 2);
