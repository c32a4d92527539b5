-- The clock: lifetimes, leases, retries, retention, timers and lags are reckoned by it, and every recorded time comes
-- from it. It is a function so that a test can replace it (tests/fix_clock.py). It reads no setting and no table:
-- whoever could set a broker's clock could end leases and have events deleted, so only the owner of pgps can, by
-- replacing the function (decision 32). It must stay a single SQL expression without SET and without SECURITY DEFINER:
-- the planner then inlines it, so that it costs what clock_timestamp() costs, and plans that contain it are made again
-- when it is replaced. Durations are measured with clock_timestamp() itself: a test that stops the clock does not stop
-- the work.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.clock() returns timestamptz
language sql volatile parallel safe
as $$ select pg_catalog.clock_timestamp() $$;
comment on function pgps_internal.clock() is
'The broker''s time: of the moment, not of the transaction''s start. Only tests replace it.';

create or replace function pgps._clock() returns timestamptz
language sql volatile parallel safe
as $$ select pg_catalog.clock_timestamp() $$;
comment on function pgps._clock() is
'The same time as pgps_internal.clock(), for code that runs with the caller''s rights: views, rules, column defaults,
and programs.';

create or replace function pgps._began() returns timestamptz
language sql volatile parallel safe
as $$
    select pgps._clock() operator(pg_catalog.-)
        (pg_catalog.clock_timestamp() operator(pg_catalog.-) pg_catalog.transaction_timestamp())
$$;
comment on function pgps._began() is
'When this transaction began, by the broker''s clock, for code that runs with the caller''s rights';

create or replace function pgps_internal.told_time(said text) returns timestamptz
language plpgsql stable
as $$
declare
    v_time timestamptz := told_time.said::timestamptz;
begin
    -- Without set clauses, because it runs under those of what takes something from another broker.
    return case when v_time is not null
        then least(greatest(v_time, '0001-01-02 00:00+00'), '9999-12-30 00:00+00') end;
end
$$;
comment on function pgps_internal.told_time(text) is
'A time that another broker tells, within the years that every client has in every time zone: infinite ones cannot be
reckoned with, and drivers fail on others. Null for null';

revoke all on function pgps._clock(), pgps._began() from public;
grant execute on function pgps._clock(), pgps._began() to public;
