-- Functions that applications call for the events of registrations: the channels on which these are told of, and those
-- that hand out what is queued.
-- Locks: see receive_events.sql.
-- Writes: pgps_entry.client_calls.

create or replace function pgps_internal.channels_of(client pgps_internal.client, registration_id bigint = null)
returns text[]
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select array(
        select 'pgps_client_' || (channels_of.client).client_id where channels_of.registration_id is null
        union
        select 'pgps_' || r.subscription_id from pgps_internal.registration r
        where r.client_id = (channels_of.client).client_id and r.mode = 'queued'
            and coalesce(r.registration_id = channels_of.registration_id, true)
        union
        select 'pgps_direct_' || t.type_id
        from pgps_internal.registration r join pgps_internal.registration_type t using (registration_id)
            join pgps_internal.event_type e using (type_id)
        where r.client_id = (channels_of.client).client_id and r.mode = 'direct' and r.state = 'valid'
            and coalesce(r.registration_id = channels_of.registration_id, true)
            and has_table_privilege((channels_of.client).owner::oid, e.endpoint, 'select')
        union
        select 'pgps_carried_' || (channels_of.client).secret from pgps_internal.registration r
        where r.client_id = (channels_of.client).client_id and r.mode = 'direct'
            and coalesce(r.registration_id = channels_of.registration_id, true)
        order by 1)
$$;
comment on function pgps_internal.channels_of(pgps_internal.client, bigint) is
'The channels that a client is to LISTEN to: for one of its registrations, or (registration_id null) for all of them and
itself';

create or replace function pgps_internal.do_client_channels(caller name, args jsonb) returns text[]
language sql stable
set search_path = pg_catalog, pg_temp
as $$ select pgps_internal.channels_of(pgps_internal.look_session(caller, args)) $$;
comment on function pgps_internal.do_client_channels(name, jsonb) is 'See pgps.client_channels';

create or replace function pgps.client_channels(client text, session bigint = null) returns text[]
language sql
begin atomic
    select array(select jsonb_array_elements_text(pgps._call('client_channels',
        jsonb_build_object('client', client_channels.client,
        'session', client_channels.session))));
end;
comment on function pgps.client_channels(text, bigint) is
'The channels that a client is to LISTEN to now: one of its own; one for each queued registration; if it has direct
registrations, one for each of their types and one that only this session knows. Ask again when "registrations" comes on
its own channel. Errors: 42704, 42501, 08003.';

create or replace function pgps.receive_event(
    client text, event text = null, checkpoint bytea = null, session bigint = null, among bigint[] = null
)
returns table (event_id bigint, last_event_id bigint, tuples bigint, event_type text, event_name text,
    published_at timestamptz, publisher name,
    xid xid8, origin text, raiser text, attempt integer)
language sql rows 1
begin atomic
    select r.event_id, r.last_event_id, r.tuples, r.event_type, r.event_name, r.published_at, r.publisher, r.xid,
        r.origin, r.raiser, r.attempt
    from jsonb_to_record(pgps._call_client('receive_event',
        jsonb_build_object('client', receive_event.client, 'event_name', $2,
        'session', receive_event.session, 'among', receive_event.among), receive_event.checkpoint)) r(event_id bigint,
            last_event_id bigint, tuples bigint,
        event_type text, event_name text, published_at timestamptz, publisher name, xid xid8, origin text, raiser text,
        attempt integer)
    where r.event_id is not null;
end;
comment on function pgps.receive_event(text, text, bytea, bigint, bigint[]) is
'The next occurrence of a client''s queued registrations (Ariel, section 5, ReceiveQueuedEvent): one raise with all its
tuples, identified by the id of its first event; no row when nothing waits. event: only that event name or prefix*, as
registered; null = all registrations, in delivery order. among: only these registrations (their numbers, as
pgps.register_for_event returned them; null = all), so that parts of a program work side by side, each on an occurrence
of its own. Completes the occurrence received before among them, and stores the checkpoint (null: keeps the stored one).
Its tuples: pgps.fetch_tuples. Locks the client until the transaction ends. Errors: 42704, 42501, 08003, 54000
checkpoint above 100 MB, 25001.';

create or replace function pgps.re_receive_event(client text, session bigint = null, among bigint[] = null)
returns table (event_id bigint, last_event_id bigint, tuples bigint, event_type text, event_name text,
    published_at timestamptz, publisher name,
    xid xid8, origin text, raiser text, attempt integer)
language sql rows 1
begin atomic
    select r.event_id, r.last_event_id, r.tuples, r.event_type, r.event_name, r.published_at, r.publisher, r.xid,
        r.origin, r.raiser, r.attempt
    from jsonb_to_record(pgps._call_client('re_receive_event', jsonb_build_object('client', re_receive_event.client,
        'session', re_receive_event.session, 'among', re_receive_event.among))) r(event_id bigint,
        last_event_id bigint, tuples bigint,
        event_type text, event_name text, published_at timestamptz, publisher name, xid xid8, origin text, raiser text,
        attempt integer)
    where r.event_id is not null;
end;
comment on function pgps.re_receive_event(text, bigint, bigint[]) is
'The occurrence that pgps.receive_event returned last among these registrations (null: all), in this or an earlier
session: one that is not completed, if there is any; no row when there was none, or when its events are gone. Locks the
client until the transaction ends. Errors: 42704, 42501, 08003, 25001.';

create or replace function pgps.fetch_tuples(
    client text, after bigint = 0, max_tuples integer = 1000, session bigint = null, among bigint[] = null
)
returns table (event_id bigint, payload jsonb)
language plpgsql rows 1000
as $$
#variable_conflict use_column
begin
    return query
    with fetched as (
        insert into pgps_entry.client_calls (verb, args)
            values ('fetch_tuples', pg_catalog.jsonb_build_object('client', fetch_tuples.client,
            'after', fetch_tuples.after, 'max', fetch_tuples.max_tuples, 'session', fetch_tuples.session,
            'among', fetch_tuples.among))
                returning pushed
    )
    select (p.message).event_id, (p.message).payload from fetched f cross join lateral pg_catalog.unnest(f.pushed) p
        order by 1;
end
$$;
comment on function pgps.fetch_tuples(text, bigint, integer, bigint, bigint[]) is
'Up to max_tuples tuples of the occurrence that pgps.re_receive_event would return, with event ids above after. To read
all of them in bounded memory, call it again with the last event id until no row comes. payload: null when an attribute
cannot become JSON; pgps_queue.<type>_log has the attributes as columns. Errors: 42704, 42501, 08003, 22023.';

create or replace function pgps.commit_event(
    client text, checkpoint bytea = null, session bigint = null, among bigint[] = null
)
returns bigint
language sql
begin atomic
    select (pgps._call_client('commit_event',
        jsonb_build_object('client', commit_event.client, 'session', commit_event.session,
        'among', commit_event.among), commit_event.checkpoint) #>> '{}')::bigint;
end;
comment on function pgps.commit_event(text, bytea, bigint, bigint[]) is
'Completes the occurrence received last among these registrations (null: all) and stores the checkpoint (null: keeps the
stored one), atomically; returns its event id, null when nothing was open. Called in the transaction of the
application''s own writes, it makes processing exactly once. Errors: 42704, 42501, 08003, 54000, 25001.';

grant execute on function
    pgps.receive_event(text, text, bytea, bigint, bigint[]),
    pgps.re_receive_event(text, bigint, bigint[]),
    pgps.fetch_tuples(text, bigint, integer, bigint, bigint[]),
    pgps.commit_event(text, bytea, bigint, bigint[]),
    pgps.client_channels(text, bigint)
to public;
