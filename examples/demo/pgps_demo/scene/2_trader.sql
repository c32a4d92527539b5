-- As trader: portfolios as in the paper, tickets that its programs write, and a settlement that trips over a missing
-- account.

create table trading.portfolio (portfolio_id integer, symbol text, primary key (portfolio_id, symbol));
create table trading.account (symbol text primary key);

create table trading.ticket (
    arrival bigint generated always as identity primary key,
    subscription text not null,
    session text not null,
    event_id bigint not null,
    publisher name not null,
    symbol text not null,
    day date not null,
    close numeric not null
);
create table trading.settlement (
    arrival bigint generated always as identity primary key,
    symbol text not null references trading.account,
    day date not null,
    volume bigint not null
);
