-- The roster: who takes part in what. The core calls the functions that are made here and knows none of the rooms
-- behind them; a new room is a line for each hook that it takes part in. What is called stands in plain text in the
-- function of its hook, so that a hook costs no look-up. Hooks by the name of a feature (see add_feature) are skipped
-- for event types that do not have it.
-- Locks: none of its own.
-- Writes: nothing.

create or replace function pgps_internal.roster() returns table (hook text, name text, call text)
language sql immutable
set search_path = pg_catalog, pg_temp
as $roster$
    values
    -- After a batch of a type was matched, in the dispatcher's transaction: batch_id, event_type, xids, ids. name: a
    -- feature of the event type.
    ('after_match', 'share', 'pgps_internal.share_out(batch_id, (event_type).type_id)'),
    ('after_match', 'registration', 'pgps_internal.appoint(batch_id, event_type, xids, ids)'),
    ('after_match', 'confirm', 'pg_notify(''pgps_confirm'', '''')'),
    ('after_match', 'lane', 'pg_notify(''pgps_lanes'', '''')'),

    -- Is there still something that needs a feature of an event type (needs_feature.type_id)?
    ('needs_feature', 'share', 'exists (select from pgps_internal.member m
        where m.type_id = needs_feature.type_id and m.takes_batch)'),
    ('needs_feature', 'registration', 'exists (select from pgps_internal.registration_type r
        where r.type_id = needs_feature.type_id)'),
    ('needs_feature', 'confirm', 'exists (select from pgps_internal.confirm_link k
        where k.original = needs_feature.type_id)'),
    ('needs_feature', 'lane', 'exists (select from pgps_internal.signature g
        where g.type_id = needs_feature.type_id and g.in_lane)'),

    -- What a reader of a subscription of a kind is given of the messages: subscription, messages. name: a kind.
    ('after_receive', 'registration', 'pgps_internal.for_registration(subscription, messages)'),

    -- A filter of a class raised on one event of a batch: class, event_id, batch_id. It is broken, or keeps failing,
    -- and is asked no more behind a batch: class, after_batch.
    ('filter_failed', 'links', 'pgps_internal.forward_unmatched(class, event_id, batch_id)'),
    ('filter_broken', 'links', 'pgps_internal.widen(class, after_batch)'),

    -- Up to which batch somebody has everything (of a type, or null: of all); null when nobody waits for anything.
    ('low_batch', 'subscriptions', 'pgps_internal.low_of_subscriptions(low_batch.type_id)'),
    ('low_batch', 'shares', 'pgps_internal.low_of_shares(low_batch.type_id)'),
    ('low_batch', 'classes', 'pgps_internal.low_of_classes(low_batch.type_id)'),
    ('low_batch', 'lanes', 'pgps_internal.low_of_lanes(low_batch.type_id)'),
    ('low_batch', 'dispatch', '(pgps_internal.last_batch()).batch_id'),

    -- The same of who wants batches kept although every subscription has acknowledged them.
    ('kept_batch', 'links', 'pgps_internal.kept_for_links(kept_batch.type_id)'),
    ('kept_batch', 'answers', 'pgps_internal.kept_for_answers(kept_batch.type_id)'),

    -- Whether a segment of a log, or of batches, may be truncated now; what is locked for that, NOWAIT, stays so until
    -- the transaction ends. And before it is, with these lowest and highest ids of events of a type: type_id, lo, hi.
    ('may_truncate', 'links', 'pgps_internal.stop_answering()'),
    ('before_truncate', 'links', 'pgps_internal.note_trimmed(type_id, lo, hi)'),

    -- Before a segment of a ledger is truncated: segment, newest (the newest number in the ledger). name: the ledger.
    ('carry_over', 'position', 'pgps_internal.carry_over_positions(segment)'),
    ('carry_over', 'lane_step', 'pgps_internal.carry_over_lanes(segment)'),
    ('carry_over', 'producer', 'pgps_internal.carry_over_producers(segment, newest)'),
    ('carry_over', 'batch_type', 'pgps_internal.note_trimmed_batches(segment),
        pgps_internal.carry_over_totals(segment, newest)'),
    ('carry_over', 'delivery', 'pgps_internal.archive_deliveries(segment)'),
    ('carry_over', 'shipment', 'pgps_internal.carry_over_links(ledger, segment)'),
    ('carry_over', 'arrival', 'pgps_internal.carry_over_links(ledger, segment)'),
    ('carry_over', 'client_mark', 'pgps_internal.carry_over_clients(ledger, segment, newest)'),
    ('carry_over', 'client_checkpoint', 'pgps_internal.carry_over_clients(ledger, segment, newest)'),
    ('carry_over', 'reply_mark', 'pgps_internal.carry_over_clients(ledger, segment, newest)'),
    ('carry_over', 'request', 'pgps_internal.carry_over_clients(ledger, segment, newest)'),
    ('carry_over', 'reply', 'pgps_internal.carry_over_clients(ledger, segment, newest)'),

    -- Ledgers of a room's own: gives back the segments that nobody needs, and returns how many. low (up to which
    -- batch all is past), newest.
    ('reclaim_rooms', 'deliver', 'pgps_internal.reclaim_positions()'),
    ('reclaim_rooms', 'match', 'pgps_internal.reclaim_lanes()'),
    ('reclaim_rooms', 'links', 'pgps_internal.reclaim_links()'),
    ('reclaim_rooms', 'clients', 'pgps_internal.reclaim_clients(low, newest)'),

    -- What lies in a room's tables and is over; reclaim comes by here.
    ('sweep', 'log', 'pgps_internal.reclaim_rows()'),
    ('sweep', 'loads', 'pgps_internal.reclaim_loads()'),
    ('sweep', 'types', 'pgps_internal.drop_features()'),

    -- A new event type: who is lent rights on it, and whose patterns it fits. event_type.
    ('join_rooms', 'links', 'pgps_internal.lend(event_type)'),
    ('join_rooms', 'deliver', 'pgps_internal.match_pattern_subscriptions((event_type).type_id)'),
    ('join_rooms', 'clients', 'pgps_internal.match_pattern_registrations((event_type).type_id)'),

    -- Why an event type should not be dropped, null: no reason; and what goes with it, in this order. event_type.
    ('what_needs', 'deliver', 'pgps_internal.subscription_of(event_type)'),
    ('what_needs', 'rules', 'pgps_internal.rule_of(event_type)'),
    ('what_needs', 'clients', 'pgps_internal.registration_of(event_type)'),
    ('what_needs', 'log', 'case when pgps_internal.has_undelivered((event_type).type_id)
        then ''events of it are not delivered yet'' end'),
    ('drop_from_rooms', 'rules', 'pgps_internal.drop_rules_of(event_type)'),
    ('drop_from_rooms', 'confirm', 'pgps_internal.drop_confirms_of(event_type)'),
    ('drop_from_rooms', 'clients', 'pgps_internal.drop_registrations_of(event_type)'),
    ('drop_from_rooms', 'deliver', 'pgps_internal.drop_subscriptions_of(event_type)'),

    -- A restored or cloned database: ids of transactions that a room has written down mean nothing any more.
    ('begin_life', 'confirm', 'pgps_internal.forget_raisers()')
$roster$;
comment on function pgps_internal.roster() is
'Who takes part in what: hook is the function that the core calls, name whom or what a line is for, call what is run
then, in the order of the lines';

create or replace function pgps_internal.calls_of(hook text, line text, separator text) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select string_agg(format(calls_of.line, r.name, r.call), calls_of.separator order by r.place)
    from pgps_internal.roster() with ordinality r(hook, name, call, place) where r.hook = calls_of.hook
$$;
comment on function pgps_internal.calls_of(text, text, text) is
'The text of a hook''s function: line for each of its lines in the roster, with name for %1 and call for %2';

do $do$
begin
    -- What dispatch and receive call has no settings of its own: they are those of the function that calls it.
    execute format($f$
        create or replace function pgps_internal.after_match(
            batch_id bigint, event_type pgps_internal.event_type, xids xid8[], ids int8multirange, features text[]
        ) returns void
        language plpgsql
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('after_match',
            E'if %1$L = any (features) then\n                perform %2$s;\n            end if;', E'\n            '));
    execute format($f$
        create or replace function pgps_internal.after_receive(
            subscription pgps_internal.subscription, messages pgps_internal.message[]
        )
        returns pgps_internal.message[]
        language plpgsql stable
        as $$
        begin
            return case (subscription).kind
                %s
                else messages end;
        end
        $$$f$, pgps_internal.calls_of('after_receive', 'when %1$L then %2$s', E'\n                '));
    execute format($f$
        create or replace function pgps_internal.needs_feature(name text, type_id integer) returns boolean
        language plpgsql stable set search_path = pg_catalog, pg_temp
        as $$
        begin
            return case needs_feature.name
                %s
                else false end;
        end
        $$$f$, pgps_internal.calls_of('needs_feature', 'when %1$L then %2$s', E'\n                '));
    execute format($f$
        create or replace function pgps_internal.filter_failed(
            class pgps_internal.class, event_id bigint, batch_id bigint
        ) returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('filter_failed', 'perform %2$s;', E'\n            '));
    execute format($f$
        create or replace function pgps_internal.filter_broken(class pgps_internal.class, after_batch bigint)
        returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('filter_broken', 'perform %2$s;', E'\n            '));
    execute format($f$
        create or replace function pgps_internal.low_batch(type_id integer = null) returns bigint
        language plpgsql stable
        set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off
        as $$
        begin
            return coalesce(least(
                %s), 0);
        end
        $$$f$, pgps_internal.calls_of('low_batch', '%2$s', E',\n                '));
    execute format($f$
        create or replace function pgps_internal.kept_batch(type_id integer = null) returns bigint
        language plpgsql stable set search_path = pg_catalog, pg_temp
        as $$
        begin
            return least(pgps_internal.low_batch(kept_batch.type_id),
                %s);
        end
        $$$f$, pgps_internal.calls_of('kept_batch', '%2$s', E',\n                '));
    execute format($f$
        create or replace function pgps_internal.may_truncate() returns boolean
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            return %s;
        end
        $$$f$, pgps_internal.calls_of('may_truncate', '%2$s', E'\n                and '));
    execute format($f$
        create or replace function pgps_internal.before_truncate(type_id integer, lo bigint, hi bigint) returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('before_truncate', 'perform %2$s;', E'\n            '));
    execute format($f$
        create or replace function pgps_internal.carry_over(ledger text, segment regclass, newest bigint) returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            case carry_over.ledger
                %s
                else null;
            end case;
        end
        $$$f$, pgps_internal.calls_of('carry_over', 'when %1$L then perform %2$s;', E'\n                '));
    execute format($f$
        create or replace function pgps_internal.reclaim_rooms(low bigint, newest bigint) returns bigint
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            return %s;
        end
        $$$f$, pgps_internal.calls_of('reclaim_rooms', '%2$s', E'\n                + '));
    execute format($f$
        create or replace function pgps_internal.sweep() returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('sweep', 'perform %2$s;', E'\n            '));
    execute format($f$
        create or replace function pgps_internal.join_rooms(event_type pgps_internal.event_type) returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('join_rooms', 'perform %2$s;', E'\n            '));
    execute format($f$
        create or replace function pgps_internal.what_needs(event_type pgps_internal.event_type) returns text
        language plpgsql stable set search_path = pg_catalog, pg_temp
        as $$
        begin
            return coalesce(
                %s);
        end
        $$$f$, pgps_internal.calls_of('what_needs', '%2$s', E',\n                '));
    execute format($f$
        create or replace function pgps_internal.drop_from_rooms(event_type pgps_internal.event_type) returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('drop_from_rooms', 'perform %2$s;', E'\n            '));
    execute format($f$
        create or replace function pgps_internal.begin_life() returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('begin_life', 'perform %2$s;', E'\n            '));
end
$do$;

comment on function pgps_internal.after_match(bigint, pgps_internal.event_type, xid8[], int8multirange, text[]) is
'What rooms do with a batch of an event type after it was matched; features: those of the type. Called by dispatch,
with its settings';
comment on function pgps_internal.after_receive(pgps_internal.subscription, pgps_internal.message[]) is
'What the room behind a subscription of its kind makes of messages before they are given out';
comment on function pgps_internal.filter_failed(pgps_internal.class, bigint, bigint) is
'What rooms do when a filter raised on an event that they may want nevertheless';
comment on function pgps_internal.filter_broken(pgps_internal.class, bigint) is
'What rooms do when a filter is asked no more from a batch on';
comment on function pgps_internal.needs_feature(text, integer) is
'True while something defined on an event type needs that feature of it';
comment on function pgps_internal.low_batch(integer) is
'Every lane has matched, and every subscription (of a type) acknowledged, all batches up to this one. Whoever needs
batches longer has a line in the roster: what is kept of all logs and ledgers follows from it';
comment on function pgps_internal.may_truncate() is
'Whether segments of logs and batches may be truncated now; false when somebody holds what has to be held for it';
comment on function pgps_internal.before_truncate(integer, bigint, bigint) is
'What rooms note before events of a type, from a lowest to a highest id, are truncated';
comment on function pgps_internal.kept_batch(integer) is
'Nobody needs batches up to this one (of a type): all subscriptions have acknowledged them, and nobody else wants them
kept';
comment on function pgps_internal.carry_over(text, regclass, bigint) is
'Before a ledger''s segment is truncated: writes anew what is still the newest of its kind, and archives deliveries of
auditable out queues';
comment on function pgps_internal.reclaim_rooms(bigint, bigint) is
'Truncates segments of the rooms'' own ledgers; returns how many';
comment on function pgps_internal.sweep() is 'Deletes what lies beside the logs and ledgers and is over';
comment on function pgps_internal.join_rooms(pgps_internal.event_type) is
'What rooms do about a new event type: lend rights, and join to it whose pattern it fits';
comment on function pgps_internal.what_needs(pgps_internal.event_type) is
'Why an event type is not to be dropped; null when nothing speaks against it';
comment on function pgps_internal.drop_from_rooms(pgps_internal.event_type) is
'Drops all that rooms have of an event type';
comment on function pgps_internal.begin_life() is
'What rooms have written down of transactions is of another life of this database; see rebaseline';

revoke all on all functions in schema pgps_internal from public;
