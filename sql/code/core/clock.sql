-- The clock: what lifetimes, leases, retries, retention, timers and lags read the time from, and what every time that
-- is recorded comes from. It is a function so that a test can put another in its place (tests/fix_clock.py). There is
-- no setting and no table that it reads: whoever could move the clock of a broker could end leases and have events
-- deleted, so only who owns pgps can, by replacing a function. It costs what clock_timestamp() costs: one statement of
-- SQL without a SET clause is put into the plan in place of the call, and a plan that contains it is made again when
-- somebody replaces it. So it must stay a single expression, without SET and without SECURITY DEFINER. How long
-- something takes is measured with clock_timestamp() itself: a test that stops the clock does not stop the work.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.clock() returns timestamptz
language sql volatile parallel safe
as $$ select pg_catalog.clock_timestamp() $$;
comment on function pgps_internal.clock() is
'The time by which the broker acts: of the moment, not of the transaction''s start. Only tests replace it.';

create or replace function pgps._clock() returns timestamptz
language sql volatile parallel safe
as $$ select pg_catalog.clock_timestamp() $$;
comment on function pgps._clock() is
'The same time as pgps_internal.clock(), for what runs with the rights of whoever calls: views, rules, defaults of
columns, and programs.';

revoke all on all functions in schema pgps_internal from public;
revoke all on function pgps._clock() from public;
grant execute on function pgps._clock() to public;
