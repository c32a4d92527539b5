-- The roster: which room takes part in what (decision 31). The core calls the hook functions, which hooks.sql makes of
-- these lines, and knows none of the rooms behind them. A new room adds a line for each hook that it takes part in.
-- Lines of a hook that are named after a feature (see add_feature) are skipped for event types that do not have the
-- feature.
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
    ('after_match', 'composite', 'pg_notify(''pgps_composite'', '''')'),
    ('after_match', 'relay', 'pg_notify(''pgps_relay'', '''')'),

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
    ('needs_feature', 'relay', 'exists (select from pgps_internal.event_type t
        where t.type_id = needs_feature.type_id and t.name = ''pgps_uow'')'),
    ('needs_feature', 'moment', 'exists (select from pgps_internal.composite_leaf l
        where l.type_id = needs_feature.type_id and l.moment is not null)'),
    ('needs_feature', 'composite', 'exists (select from pgps_internal.composite_leaf l
        where l.type_id = needs_feature.type_id)'),

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
    ('low_batch', 'unasked', 'pgps_internal.low_of_unasked(low_batch.type_id)'),
    ('low_batch', 'dispatch', '(pgps_internal.last_batch()).batch_id'),

    -- The same for rooms that want batches kept although every subscription has acknowledged them.
    ('kept_batch', 'links', 'pgps_internal.kept_for_links(kept_batch.type_id)'),
    ('kept_batch', 'answers', 'pgps_internal.kept_for_answers(kept_batch.type_id)'),

    -- Whether a segment of a log, or of batches, may be truncated now; what must be locked for that is locked NOWAIT
    -- until the transaction ends. The second hook is called before the truncation, with the lowest and highest ids of a
    -- type's events in the segment: type_id, lo, hi.
    ('may_truncate', 'links', 'pgps_internal.stop_answering()'),
    ('before_truncate', 'links', 'pgps_internal.note_trimmed(type_id,
        int8multirange(int8range(lo, hi, ''[]'')))')
$roster$;
comment on function pgps_internal.roster_of_reclaiming() is
'The lines of the roster about what is kept and truncated; see pgps_internal.roster';

create or replace function pgps_internal.roster_of_ledgers() returns table (hook text, name text, call text)
language sql immutable
set search_path = pg_catalog, pg_temp
as $roster$
    values
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
    ('carry_over', 'client_mark', 'pgps_internal.carry_over_clients(ledger, segment)'),
    ('carry_over', 'client_checkpoint', 'pgps_internal.carry_over_clients(ledger, segment)'),
    ('carry_over', 'composite_step', 'pgps_internal.carry_over_steps(segment)'),
    ('carry_over', 'composite_key', 'pgps_internal.carry_over_keys(segment)'),
    ('carry_over', 'composite_open', 'pgps_internal.carry_over_open(segment)'),
    ('carry_over', 'reply_mark', 'pgps_internal.carry_over_clients(ledger, segment)'),
    ('carry_over', 'request', 'pgps_internal.carry_over_clients(ledger, segment)'),
    ('carry_over', 'reply', 'pgps_internal.carry_over_clients(ledger, segment)'),
    ('carry_over', 'spool_state', 'pgps_internal.carry_over_spools(ledger, segment, newest)'),
    ('carry_over', 'spool_mark', 'pgps_internal.carry_over_spools(ledger, segment, newest)'),
    ('carry_over', 'network_mark', 'pgps_internal.carry_over_networks(segment)'),

    -- Ledgers of a room's own: truncates the segments that nobody needs, and returns how many. Arguments: low (the
    -- batch up to which all have been processed), newest.
    ('reclaim_rooms', 'deliver', 'pgps_internal.reclaim_positions()'),
    ('reclaim_rooms', 'match', 'pgps_internal.reclaim_lanes()'),
    ('reclaim_rooms', 'links', 'pgps_internal.reclaim_links()'),
    ('reclaim_rooms', 'clients', 'pgps_internal.reclaim_clients(low, newest)'),
    ('reclaim_rooms', 'spools', 'pgps_internal.reclaim_spools(newest)'),
    ('reclaim_rooms', 'units', 'pgps_internal.reclaim_units()'),
    ('reclaim_rooms', 'composite', 'pgps_internal.reclaim_composites()'),

    -- Deletes what is over in a room's tables; called by reclaim.
    ('sweep', 'log', 'pgps_internal.reclaim_rows()'),
    ('sweep', 'core', 'pgps_internal.sweep_parsed()'),
    ('sweep', 'loads', 'pgps_internal.reclaim_loads()'),
    ('sweep', 'set aside', 'pgps_internal.sweep_aside()'),
    ('sweep', 'caught up', 'pgps_internal.go_on_caught_up()'),
    ('sweep', 'consumers', 'pgps_internal.sweep_consumers()'),
    ('sweep', 'types', 'pgps_internal.drop_features()'),
    ('sweep', 'advertised', 'pgps_internal.sweep_advertised()'),
    ('sweep', 'spools', 'pgps_internal.sweep_replays()'),
    ('sweep', 'networks', 'pgps_internal.sweep_known()'),
    ('sweep', 'gaps', 'pgps_internal.sweep_gaps()'),
    ('sweep', 'dropped spools', 'pgps_internal.sweep_dropped()'),
    ('sweep', 'units', 'pgps_internal.sweep_participants()'),
    ('sweep', 'composite', 'pgps_internal.sweep_composites()'),
    ('sweep', 'hosted', 'pgps_internal.sweep_hosted()'),
    ('sweep', 'coupling', 'pgps_internal.sweep_coupling()'),
    ('sweep', 'links', 'pgps_internal.push_newcomers()'),
    -- Last, since it may lock out the dispatcher.
    ('sweep', 'match', 'pgps_internal.thin_out(), pgps_internal.settle_apart()')
$roster$;
comment on function pgps_internal.roster_of_ledgers() is
'The lines of the roster about ledgers, and about what is deleted; see pgps_internal.roster';

create or replace function pgps_internal.roster_of_defining() returns table (hook text, name text, call text)
language sql immutable
set search_path = pg_catalog, pg_temp
as $roster$
    values
    -- A new event type: grants rights on it, and joins to it the patterns that it fits. Argument: event_type.
    ('join_rooms', 'links', 'pgps_internal.lend(event_type)'),
    ('join_rooms', 'deliver', 'pgps_internal.match_pattern_subscriptions((event_type).type_id)'),
    ('join_rooms', 'clients', 'pgps_internal.match_pattern_registrations((event_type).type_id)'),

    -- Event types and what rooms have for a prefix of them were made at the same time, and did not see each other.
    ('meet_rooms', 'clients', 'pgps_internal.meet_registrations()'),

    -- Why an event type should not be dropped, null: no reason. The second hook drops what depends on it, in this
    -- order. Argument: event_type.
    ('what_needs', 'composite', 'pgps_internal.composite_of(event_type)'),
    ('what_needs', 'coupling', 'pgps_internal.rule_coupled_to(event_type)'),
    ('what_needs', 'deliver', 'pgps_internal.subscription_of(event_type)'),
    ('what_needs', 'rules', 'pgps_internal.rule_of(event_type)'),
    ('what_needs', 'clients', 'pgps_internal.registration_of(event_type)'),
    ('what_needs', 'spools', 'case when (event_type).name = ''pgps_spool'' then ''spools are asked by it'' end'),
    ('what_needs', 'log', 'case when pgps_internal.has_undelivered((event_type).type_id)
        then ''events of it are not delivered yet'' end'),
    ('drop_from_rooms', 'spools', 'pgps_internal.drop_spools_of(event_type)'),
    ('drop_from_rooms', 'coupling', 'pgps_internal.drop_rules_coupled_to(event_type)'),
    ('drop_from_rooms', 'composite', 'pgps_internal.drop_composites_of(event_type)'),
    ('drop_from_rooms', 'rules', 'pgps_internal.drop_rules_of(event_type)'),
    ('drop_from_rooms', 'confirm', 'pgps_internal.drop_confirms_of(event_type)'),
    ('drop_from_rooms', 'clients', 'pgps_internal.drop_registrations_of(event_type)'),
    ('drop_from_rooms', 'deliver', 'pgps_internal.drop_subscriptions_of(event_type)'),

    -- A policy of an event type was made or dropped. Argument: event_type.
    ('policies_change', 'composite', 'pgps_internal.take_parts_back_of(event_type)'),

    -- An attribute of an event type was added or dropped, and its own code was built. Argument: event_type.
    ('attributes_change', 'composite', 'pgps_internal.build_composites_of(event_type)'),

    -- An administrator sets a setting: a room may refuse the value, or act on it. Arguments: name, value.
    ('setting_changes', 'units', 'pgps_internal.check_uow_setting(setting_changes.name, value)'),

    -- A restored or cloned database: transaction ids that a room has recorded are not valid any more.
    ('begin_life', 'confirm', 'pgps_internal.forget_raisers()'),
    ('begin_life', 'links', 'pgps_internal.forget_seen()'),
    ('begin_life', 'units', 'pgps_internal.forget_queue_marks()')
$roster$;
comment on function pgps_internal.roster_of_defining() is
'The lines of the roster about making and dropping event types; see pgps_internal.roster';

create or replace function pgps_internal.roster_of_links() returns table (hook text, name text, call text)
language sql immutable
set search_path = pg_catalog, pg_temp
as $roster$
    values
    -- What a neighbour should know beside what links tell it: rows (kind, key, value). Argument: neighbour.
    ('tells', 'composite', 'pgps_internal.parts_for(tells.neighbour)'),

    -- A neighbour says something of a kind (name) that is a room's. Arguments: neighbour, body.
    ('hears', 'part', 'pgps_internal.hear_part(neighbour, body)'),
    ('hears', 'unpart', 'pgps_internal.hear_unpart(neighbour, body ->> ''name'')'),
    ('hears', 'parted', 'pgps_internal.hear_parted(neighbour, body)'),

    -- A session opens a link to a neighbour, which says of itself what is in peer; a link is gone for good.
    ('meets_neighbour', 'composite', 'pgps_internal.note_detects(neighbour_id, peer)'),
    ('loses_neighbour', 'composite', 'pgps_internal.part_with_neighbour(neighbour)'),

    -- Whether an event type (name) is not offered to a neighbour, because it is another one's alone.
    ('is_kept_from', 'composite', 'pgps_internal.is_for_others(is_kept_from.name, neighbour)')
$roster$;
comment on function pgps_internal.roster_of_links() is
'The lines of the roster about neighbours; see pgps_internal.roster';

create or replace function pgps_internal.roster() returns table (hook text, name text, call text)
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select * from pgps_internal.roster_of_matching()
    union all
    select * from pgps_internal.roster_of_reclaiming()
    union all
    select * from pgps_internal.roster_of_ledgers()
    union all
    select * from pgps_internal.roster_of_defining()
    union all
    select * from pgps_internal.roster_of_links()
$$;
comment on function pgps_internal.roster() is
'Which room takes part in what: hook is the function that the core calls; name is what the line is for; call is run by
the hook, in the order of the lines';
