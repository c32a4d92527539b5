-- Marks: the occurrence that a client has received last of each registration, as a row of a ledger. It outlives the
-- session, so that the client may receive the same occurrence again until it has completed it (decision 115).
-- Locks: those of the caller, which has the turn of the client.
-- Writes: client_mark.

create or replace function pgps_internal.among(client_id bigint, args jsonb) returns bigint[]
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select array(
        select r.registration_id from pgps_internal.registration r
        where r.client_id = among.client_id and (coalesce(jsonb_typeof(args -> 'among'), 'null') = 'null'
            or to_jsonb(r.registration_id) <@ (args -> 'among')))
$$;
comment on function pgps_internal.among(bigint, jsonb) is
'The registrations of a client that a call is about: those in args.among, all when that is null';

create or replace function pgps_internal.last_marks(registration_ids bigint[]) returns setof pgps_internal.client_mark
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    return query
    select m.* from unnest(last_marks.registration_ids) r(id)
    cross join lateral (select k.* from pgps_internal.client_mark k where k.registration_id = r.id
        order by k.mark_id desc limit 1) m
    order by m.mark_id;
end
$$;
comment on function pgps_internal.last_marks(bigint[]) is
'The occurrence received last of each of these registrations, and whether it was completed';

create or replace function pgps_internal.last_mark(registration_ids bigint[]) returns pgps_internal.client_mark
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_mark pgps_internal.client_mark;
begin
    select m.* into v_mark from pgps_internal.last_marks(last_mark.registration_ids) m
        order by m.completed, m.mark_id desc limit 1;
    return v_mark;
end
$$;
comment on function pgps_internal.last_mark(bigint[]) is
'The newest occurrence of these registrations that is not completed, or else the one completed last; null when there is
none';

create or replace function pgps_internal.note_mark(mark pgps_internal.client_mark, completed boolean) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgps_internal.client_mark (client_id, registration_id, batch_id, type_id, xid, lo, hi, first_event,
        last_event, tuples, attempt, completed)
    values ((note_mark.mark).client_id, (note_mark.mark).registration_id, (note_mark.mark).batch_id,
        (note_mark.mark).type_id, (note_mark.mark).xid,
        (note_mark.mark).lo, (note_mark.mark).hi, (note_mark.mark).first_event, (note_mark.mark).last_event,
            (note_mark.mark).tuples,
        (note_mark.mark).attempt, note_mark.completed);
end
$$;
comment on function pgps_internal.note_mark(pgps_internal.client_mark, boolean) is
'Notes in the ledger that a client has received or completed an occurrence';

create or replace function pgps_internal.describe_mark(mark pgps_internal.client_mark) returns jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_statement pgps_internal.control;
    v_registration pgps_internal.registration;
begin
    select r.* into v_registration from pgps_internal.registration r
        where r.registration_id = (describe_mark.mark).registration_id;
    if not found or to_regproc('pgps_internal.statement_' || (describe_mark.mark).type_id) is null then
        return null;
    end if;
    execute 'select * from pgps_internal.statement_' || (describe_mark.mark).type_id || '($1)'
        using (describe_mark.mark).first_event into v_statement;
    return case when v_statement.xid is not null
        then jsonb_build_object('event_id', (describe_mark.mark).first_event, 'last_event_id',
        (describe_mark.mark).last_event,
        'tuples', (describe_mark.mark).tuples, 'event_type',
            (select t.name from pgps_internal.event_type t where t.type_id = (describe_mark.mark).type_id),
        'event_name', v_registration.event_name, 'published_at', v_statement.published_at,
        'publisher', case when v_statement.publisher is not null then pg_get_userbyid(v_statement.publisher::oid) end,
            'xid', coalesce(nullif(v_statement.raiser, '0'), v_statement.xid)::text,
        'origin', coalesce((select o.name from pgps_internal.origin o where o.origin_id = v_statement.origin_id),
            pgps_internal.broker_name()),
        'raiser', pgps_internal.raiser_of(v_statement.client_id, v_statement.publisher),
        'attempt', (describe_mark.mark).attempt) end;
end
$$;
comment on function pgps_internal.describe_mark(pgps_internal.client_mark) is
'An occurrence as pgps.receive_event returns it; null when its registration or its events are gone';

create or replace function pgps_internal.complete(mark pgps_internal.client_mark) returns pgps_internal.client_mark
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_registration pgps_internal.registration;
begin
    if (complete.mark).first_event is null or (complete.mark).completed then
        return null;
    end if;
    select r.* into v_registration from pgps_internal.registration r
    where r.registration_id = (complete.mark).registration_id and r.subscription_id is not null;
    perform pgps_internal.hold_subscriptions(array[v_registration.subscription_id]),
        pgps_internal.note_mark(complete.mark, true);
    return case when v_registration.registration_id is not null
        then pgps_internal.follow(v_registration, (complete.mark).batch_id, (complete.mark).tuples) end;
end
$$;
comment on function pgps_internal.complete(pgps_internal.client_mark) is
'Completes an occurrence that is open; returns the next one of its registration in the same batch';

create or replace function pgps_internal.complete_all(marks pgps_internal.client_mark[])
returns pgps_internal.client_mark[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- As a rule there is one. The turns of several subscriptions are taken together, in the order of their ids.
    perform pgps_internal.hold_subscriptions(array(
        select r.subscription_id from unnest(complete_all.marks) m
        join pgps_internal.registration r using (registration_id)));
    return array(select pgps_internal.complete(m) from unnest(complete_all.marks) m);
end
$$;
comment on function pgps_internal.complete_all(pgps_internal.client_mark[]) is
'Completes occurrences that are open, of several registrations; returns the next one of each in the same batch';
