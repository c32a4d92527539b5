-- Attempts to execute queued requests: a row of request_attempt for each claim, which tells of sessions that have ended
-- in the middle. A row with an empty holder is a cancellation (cancel.sql).
-- Locks: the row of the attempt, in end_attempt.
-- Writes: nothing.

create or replace function pgps_internal.is_being_taken(request_no bigint) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from pgps_internal.request_attempt a
        where a.request_no = is_being_taken.request_no and a.holder not in ('', pgps_internal.holder())
            and a.started_at between pgps_internal.clock() - interval '1 second' and pgps_internal.clock()
            and pgps._is_alive(a.holder));
end
$$;
comment on function pgps_internal.is_being_taken(bigint) is
'True while another session that is alive has claimed a request and has not begun with it: for a second, in case it
never does. Whoever asks has the turn of the client';

create or replace function pgps_internal.deaths(request_no bigint) returns integer
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select count(*)::integer from pgps_internal.request_attempt a
    where a.request_no = deaths.request_no and a.holder <> ''
        and a.holder not in (select format('%s@%s', s.pid, extract(epoch from s.backend_start))
            from pg_stat_get_activity(null) s)
$$;
comment on function pgps_internal.deaths(bigint) is 'How many sessions have claimed a request and have ended since';

create or replace function pgps_internal.end_attempt(request_no bigint) returns void
language plpgsql
as $$
begin
    perform from pgps_internal.request_attempt a
    where a.request_no = end_attempt.request_no and a.holder = pgps_internal.holder() for update;
end
$$;
comment on function pgps_internal.end_attempt(bigint) is
'Called behind a request, in its transaction: who is about to cancel this session for its sake does it now, or not any
more. So a cancellation meets no later request';
