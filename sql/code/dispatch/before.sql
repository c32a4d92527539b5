-- What is done before events are dispatched, whoever dispatches: pgps.dispatch, a worker batch by batch, and a worker
-- that takes a large transaction apart.
-- Locks: those of what is called.
-- Writes: nothing.

create or replace function pgps_internal.join_those_waiting(last pgps_internal.batch, parts pgps_internal.part[])
returns boolean
language plpgsql
as $$
begin
    -- Common case: there never was a row, which a sequence tells without a query or a look at a file (decision 70).
    if pg_sequence_last_value('pgps_internal.late_type_place_seq'::regclass) is not null
            or pg_sequence_last_value('pgps_internal.unmet_place_seq'::regclass) is not null then
        if pg_relation_size('pgps_internal.late_type'::regclass)
                + pg_relation_size('pgps_internal.unmet'::regclass) > 0 then
            perform pgps_internal.join_late_types(join_those_waiting.last, join_those_waiting.parts);
            return true;
        end if;
    end if;
    return false;
end
$$;
comment on function pgps_internal.join_those_waiting(pgps_internal.batch, pgps_internal.part[]) is
'As join_late_types; false where there is nobody, which costs next to nothing';

create or replace function pgps_internal.before_windows(is_pending boolean) returns boolean
language plpgsql
as $$
declare
    v_has_joined boolean;
begin
    -- Set by pgps.cut_filter; read without a query.
    if pg_sequence_last_value('pgps_internal.matching_seq'::regclass) >= 4611686018427387904 then
        perform pgps_internal.set_cut_apart();
    end if;
    if before_windows.is_pending then
        perform pgps_internal.meet_newcomers(), pgps_internal.catch_up_all();
    end if;
    -- Whoever held something up may have ended; sharing that out is not for the dispatcher to do.
    if pg_sequence_last_value('pgps_internal.unshared_place_seq'::regclass) is not null
            and pg_relation_size('pgps_internal.unshared'::regclass) > 0 then
        perform pg_notify('pgps_lanes', '');
    end if;
    -- Also when no window follows: those who have not seen each other may wait for events of batches that there are.
    v_has_joined := pgps_internal.join_those_waiting(pgps_internal.last_batch(), '{}');
    return before_windows.is_pending or v_has_joined;
end
$$;
comment on function pgps_internal.before_windows(boolean) is
'What a call that dispatches does first: a filter that was cut short is asked elsewhere from now on, classes that are
behind catch up, and whoever could not join an event type before does. is_pending: there are pending classes or
newcomers. False: nothing was to be done';

create or replace function pgps_internal.before_window(last pgps_internal.batch, parts pgps_internal.part[])
returns boolean
language plpgsql
as $$
declare
    v_has_joined boolean := pgps_internal.join_those_waiting(before_window.last, before_window.parts);
    v_is_judged boolean := false;
begin
    if pg_sequence_last_value('pgps_internal.to_skip_skip_id_seq'::regclass) is not null then
        v_is_judged := pgps_internal.before_batch(before_window.last, before_window.parts);
    end if;
    return v_has_joined or v_is_judged;
end
$$;
comment on function pgps_internal.before_window(pgps_internal.batch, pgps_internal.part[]) is
'What is done when a window has been cut and before it is dispatched. last: the batch before it, parts: what it consists
of. False: nothing was to be done';
