-- The roster: which room takes part in what (decision 31). The core calls the hook functions that are created here and
-- knows none of the rooms behind them. A new room adds a line for each hook that it takes part in. The calls are
-- written out in the body of the hook's function, so that a hook needs no look-up. Lines of a hook that are named after
-- a feature (see add_feature) are skipped for event types that do not have the feature.
-- Locks: none of its own.
-- Writes: nothing.

create or replace function pgps_internal.roster_of_matching() returns table (hook text, name text, call text)
language sql immutable
set search_path = pg_catalog, pg_temp
as $roster$
    values
    -- After a batch of a type was matched, in the dispatcher's transaction. Arguments: batch_id, event_type, xids, ids.
    -- name: a feature of the event type.
    ('after_match', 'share', 'pgps_internal.share_out(batch_id, (event_type).type_id)'),
    ('after_match', 'registration', 'pgps_internal.appoint(batch_id, event_type, xids, ids)'),
    ('after_match', 'confirm', 'pg_notify(''pgps_confirm'', '''')'),
    ('after_match', 'lane', 'pg_notify(''pgps_lanes'', '''')'),
    ('after_match', 'spool', 'pgps_internal.number_spooled(batch_id, ids)'),

    -- Whether something still needs a feature of an event type (needs_feature.type_id). name: the feature.
    ('needs_feature', 'share', 'exists (select from pgps_internal.member m
        where m.type_id = needs_feature.type_id and m.takes_batch)'),
    ('needs_feature', 'registration', 'exists (select from pgps_internal.registration_type r
        where r.type_id = needs_feature.type_id)'),
    ('needs_feature', 'confirm', 'exists (select from pgps_internal.confirm_link k
        where k.original = needs_feature.type_id)'),
    ('needs_feature', 'lane', 'exists (select from pgps_internal.signature g
        where g.type_id = needs_feature.type_id and g.in_lane)'),
    ('needs_feature', 'spool', 'needs_feature.type_id = pgps_internal.spool_type()'),

    -- What a reader of a subscription of a kind receives in place of the messages. Arguments: subscription, messages.
    -- name: the kind.
    ('after_receive', 'registration', 'pgps_internal.for_registration(subscription, messages)'),

    -- A filter of a class raised an error on one event of a batch. Arguments: class, event_id, batch_id. The second
    -- hook: it is broken, or fails again and again, and is not evaluated any more for later batches. Arguments: class,
    -- after_batch.
    ('filter_failed', 'links', 'pgps_internal.forward_unmatched(class, event_id, batch_id)'),
    ('filter_broken', 'links', 'pgps_internal.widen(class, after_batch)'),

    -- A class is suspended: whether somebody waits for its events beside the subscriptions that the core knows. It is
    -- resumed: whether what came meanwhile must be matched before the next batch is cut, since who has it does not go
    -- back to earlier batches. Argument: class.
    ('is_waited_for', 'links', 'pgps_internal.is_of_neighbour(class, only_blocked => true)'),
    ('is_matched_at_once', 'links', 'pgps_internal.is_of_neighbour(class, only_blocked => false)')
$roster$;
comment on function pgps_internal.roster_of_matching() is
'The lines of the roster about batches, classes and subscriptions; see pgps_internal.roster';

create or replace function pgps_internal.roster_of_reclaiming() returns table (hook text, name text, call text)
language sql immutable
set search_path = pg_catalog, pg_temp
as $roster$
    values
    -- Up to which batch a room has everything (of low_batch.type_id, or of all types if that is null); null when it
    -- waits for nothing.
    ('low_batch', 'subscriptions', 'pgps_internal.low_of_subscriptions(low_batch.type_id)'),
    ('low_batch', 'shares', 'pgps_internal.low_of_shares(low_batch.type_id)'),
    ('low_batch', 'classes', 'pgps_internal.low_of_classes(low_batch.type_id)'),
    ('low_batch', 'lanes', 'pgps_internal.low_of_lanes(low_batch.type_id)'),
    ('low_batch', 'dispatch', '(pgps_internal.last_batch()).batch_id'),

    -- The same for rooms that want batches kept although every subscription has acknowledged them.
    ('kept_batch', 'links', 'pgps_internal.kept_for_links(kept_batch.type_id)'),
    ('kept_batch', 'answers', 'pgps_internal.kept_for_answers(kept_batch.type_id)'),

    -- Whether a segment of a log, or of batches, may be truncated now; what must be locked for that is locked NOWAIT
    -- until the transaction ends. The second hook is called before the truncation, with the lowest and highest ids of a
    -- type's events in the segment: type_id, lo, hi.
    ('may_truncate', 'links', 'pgps_internal.stop_answering()'),
    ('before_truncate', 'links', 'pgps_internal.note_trimmed(type_id, lo, hi)'),

    -- Before a segment of a ledger is truncated. Arguments: segment, newest (the newest number in the ledger). name:
    -- the ledger.
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
    ('carry_over', 'spool_state', 'pgps_internal.carry_over_spools(ledger, segment, newest)'),
    ('carry_over', 'spool_mark', 'pgps_internal.carry_over_spools(ledger, segment, newest)'),

    -- Ledgers of a room's own: truncates the segments that nobody needs, and returns how many. Arguments: low (the
    -- batch up to which all have been processed), newest.
    ('reclaim_rooms', 'deliver', 'pgps_internal.reclaim_positions()'),
    ('reclaim_rooms', 'match', 'pgps_internal.reclaim_lanes()'),
    ('reclaim_rooms', 'links', 'pgps_internal.reclaim_links()'),
    ('reclaim_rooms', 'clients', 'pgps_internal.reclaim_clients(low, newest)'),
    ('reclaim_rooms', 'spools', 'pgps_internal.reclaim_spools(newest)'),

    -- Deletes what is over in a room's tables; called by reclaim.
    ('sweep', 'log', 'pgps_internal.reclaim_rows()'),
    ('sweep', 'loads', 'pgps_internal.reclaim_loads()'),
    ('sweep', 'set aside', 'pgps_internal.sweep_aside()'),
    ('sweep', 'consumers', 'pgps_internal.sweep_consumers()'),
    ('sweep', 'types', 'pgps_internal.drop_features()'),
    ('sweep', 'spools', 'pgps_internal.sweep_replays()')
$roster$;
comment on function pgps_internal.roster_of_reclaiming() is
'The lines of the roster about what is kept, carried over and truncated; see pgps_internal.roster';

create or replace function pgps_internal.roster_of_defining() returns table (hook text, name text, call text)
language sql immutable
set search_path = pg_catalog, pg_temp
as $roster$
    values
    -- A new event type: grants rights on it, and joins to it the patterns that it fits. Argument: event_type.
    ('join_rooms', 'links', 'pgps_internal.lend(event_type)'),
    ('join_rooms', 'deliver', 'pgps_internal.match_pattern_subscriptions((event_type).type_id)'),
    ('join_rooms', 'clients', 'pgps_internal.match_pattern_registrations((event_type).type_id)'),

    -- Why an event type should not be dropped, null: no reason. The second hook drops what depends on it, in this
    -- order. Argument: event_type.
    ('what_needs', 'deliver', 'pgps_internal.subscription_of(event_type)'),
    ('what_needs', 'rules', 'pgps_internal.rule_of(event_type)'),
    ('what_needs', 'clients', 'pgps_internal.registration_of(event_type)'),
    ('what_needs', 'spools', 'case when (event_type).name = ''pgps_spool'' then ''spools are asked by it'' end'),
    ('what_needs', 'log', 'case when pgps_internal.has_undelivered((event_type).type_id)
        then ''events of it are not delivered yet'' end'),
    ('drop_from_rooms', 'spools', 'pgps_internal.drop_spools_of(event_type)'),
    ('drop_from_rooms', 'rules', 'pgps_internal.drop_rules_of(event_type)'),
    ('drop_from_rooms', 'confirm', 'pgps_internal.drop_confirms_of(event_type)'),
    ('drop_from_rooms', 'clients', 'pgps_internal.drop_registrations_of(event_type)'),
    ('drop_from_rooms', 'deliver', 'pgps_internal.drop_subscriptions_of(event_type)'),

    -- A restored or cloned database: transaction ids that a room has recorded are not valid any more.
    ('begin_life', 'confirm', 'pgps_internal.forget_raisers()')
$roster$;
comment on function pgps_internal.roster_of_defining() is
'The lines of the roster about making and dropping event types; see pgps_internal.roster';

create or replace function pgps_internal.roster() returns table (hook text, name text, call text)
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select * from pgps_internal.roster_of_matching()
    union all
    select * from pgps_internal.roster_of_reclaiming()
    union all
    select * from pgps_internal.roster_of_defining()
$$;
comment on function pgps_internal.roster() is
'Which room takes part in what: hook is the function that the core calls; name is what the line is for; call is run by
the hook, in the order of the lines';

create or replace function pgps_internal.calls_of(hook text, line text, separator text) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select string_agg(format(calls_of.line, r.name, r.call), calls_of.separator order by r.place)
    from pgps_internal.roster() with ordinality r(hook, name, call, place) where r.hook = calls_of.hook
$$;
comment on function pgps_internal.calls_of(text, text, text) is
'The text of a hook''s function: line, repeated for each of its lines in the roster, with name for %1 and call for %2';

do $do$
begin
    -- The functions that dispatch and receive call have no SET clauses: they run with the settings of their caller.
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
end
$do$;

do $do$
begin
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
end
$do$;

do $do$
begin
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
end
$do$;

do $do$
begin
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
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.filter_broken(class pgps_internal.class, after_batch bigint)
        returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('filter_broken', 'perform %2$s;', E'\n            '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.is_waited_for(class pgps_internal.class) returns boolean
        language plpgsql stable set search_path = pg_catalog, pg_temp
        as $$
        begin
            return %s;
        end
        $$$f$, pgps_internal.calls_of('is_waited_for', '%2$s', E'\n                or '));
    execute format($f$
        create or replace function pgps_internal.is_matched_at_once(class pgps_internal.class) returns boolean
        language plpgsql stable set search_path = pg_catalog, pg_temp
        as $$
        begin
            return %s;
        end
        $$$f$, pgps_internal.calls_of('is_matched_at_once', '%2$s', E'\n                or '));
end
$do$;

do $do$
begin
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
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.kept_batch(type_id integer = null) returns bigint
        language plpgsql stable set search_path = pg_catalog, pg_temp
        as $$
        begin
            return least(pgps_internal.low_batch(kept_batch.type_id),
                %s);
        end
        $$$f$, pgps_internal.calls_of('kept_batch', '%2$s', E',\n                '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.may_truncate() returns boolean
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            return %s;
        end
        $$$f$, pgps_internal.calls_of('may_truncate', '%2$s', E'\n                and '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.before_truncate(type_id integer, lo bigint, hi bigint) returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('before_truncate', 'perform %2$s;', E'\n            '));
end
$do$;

do $do$
begin
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
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.reclaim_rooms(low bigint, newest bigint) returns bigint
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            return %s;
        end
        $$$f$, pgps_internal.calls_of('reclaim_rooms', '%2$s', E'\n                + '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.sweep() returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('sweep', 'perform %2$s;', E'\n            '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.join_rooms(event_type pgps_internal.event_type) returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('join_rooms', 'perform %2$s;', E'\n            '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.what_needs(event_type pgps_internal.event_type) returns text
        language plpgsql stable set search_path = pg_catalog, pg_temp
        as $$
        begin
            return coalesce(
                %s);
        end
        $$$f$, pgps_internal.calls_of('what_needs', '%2$s', E',\n                '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.drop_from_rooms(event_type pgps_internal.event_type) returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('drop_from_rooms', 'perform %2$s;', E'\n            '));
end
$do$;

do $do$
begin
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
'What rooms do with a batch of an event type after it was matched; features: those of the type. Called by dispatch, with
its settings';
comment on function pgps_internal.after_receive(pgps_internal.subscription, pgps_internal.message[]) is
'What the room that owns a kind of subscription makes of messages before a reader gets them';
comment on function pgps_internal.filter_failed(pgps_internal.class, bigint, bigint) is
'What rooms do when a filter raised an error on an event that they may want nevertheless';
comment on function pgps_internal.filter_broken(pgps_internal.class, bigint) is
'What rooms do when a filter is not evaluated any more for the batches after after_batch';
comment on function pgps_internal.is_waited_for(pgps_internal.class) is
'True when somebody in a room waits for the events of a suspended class, which are matched when it is resumed';
comment on function pgps_internal.is_matched_at_once(pgps_internal.class) is
'True when what a suspended class has missed must be matched before the next batch is cut';
comment on function pgps_internal.needs_feature(text, integer) is
'True while something that is defined on an event type needs that feature of it';
comment on function pgps_internal.low_batch(integer) is
'The batch up to which every lane has matched, and every subscription (of a type) has acknowledged, everything. A room
that needs batches for longer has a line in the roster: what is kept of all logs and ledgers follows from this number';
comment on function pgps_internal.may_truncate() is
'Whether segments of logs and batches may be truncated now; false when another session has a lock that this needs';
comment on function pgps_internal.before_truncate(integer, bigint, bigint) is
'What rooms note before events of a type, from a lowest to a highest id, are truncated';
comment on function pgps_internal.kept_batch(integer) is
'The batch up to which nobody needs batches (of a type) any more: all subscriptions have acknowledged them, and no room
wants them kept';
comment on function pgps_internal.carry_over(text, regclass, bigint) is
'Before a ledger''s segment is truncated: writes again what is still the newest of its kind, and archives deliveries of
auditable out queues';
comment on function pgps_internal.reclaim_rooms(bigint, bigint) is
'Truncates segments of the rooms'' own ledgers; returns how many';
comment on function pgps_internal.sweep() is 'Deletes what is over in tables that are neither logs nor ledgers';
comment on function pgps_internal.join_rooms(pgps_internal.event_type) is
'What rooms do about a new event type: grant rights on it, and join to it subscriptions and registrations whose pattern
it fits';
comment on function pgps_internal.what_needs(pgps_internal.event_type) is
'Why an event type should not be dropped; null when there is no reason';
comment on function pgps_internal.drop_from_rooms(pgps_internal.event_type) is
'Drops everything that rooms have for an event type';
comment on function pgps_internal.begin_life() is
'At the beginning of a new epoch: rooms forget transaction ids, which are not valid any more; see rebaseline';
