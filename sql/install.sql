-- The table of contents: what is installed, in this order. Each room of sql/code is one section, the lowest first.
-- `pgps install --parser client` takes NAME.client.sql in place of NAME.sql wherever there is one (decision 81).

-- Tables: one script for each revision, never changed afterwards.
\ir schema/0001_baseline.sql
\ir schema/0002_links.sql
\ir schema/0003_clients.sql
\ir schema/0004_streams.sql
\ir schema/0005_consumers.sql
\ir schema/0006_links.sql
\ir schema/0007_rights.sql
\ir schema/0008_locks.sql
\ir schema/0009_lanes.sql
\ir schema/0010_housekeeping.sql
\ir schema/0011_failures.sql
\ir schema/0012_audit.sql
\ir schema/0013_roster.sql
\ir schema/0014_clock.sql
\ir schema/0015_leftovers.sql
\ir schema/0016_generator.sql
\ir schema/0017_names.sql
\ir schema/0018_mends.sql
\ir schema/0019_composite.sql
\ir schema/0020_units.sql
\ir schema/0021_spools.sql
\ir schema/0022_newcomers.sql
\ir schema/0023_seldom.sql
\ir schema/0024_held.sql
\ir schema/0025_parsed.sql
\ir schema/0026_fewer.sql
\ir schema/0027_places.sql
\ir schema/0028_recounts.sql
\ir schema/0029_steps.sql
\ir schema/0030_plain.sql
\ir schema/0031_late.sql
\ir schema/0032_unmet.sql
\ir schema/0033_dense.sql
\ir schema/0034_slow.sql
\ir schema/0035_unread.sql
\ir schema/0036_named.sql
\ir schema/0037_plain_tables.sql

-- Functions in PL/Python and the modules that they import, generated from sql/python.
\ir code/core/python_modules.sql
\ir generated/python.sql

-- core: What everything else uses: settings, look-ups, turns instead of locks, segments of queues.
\ir code/core/clock.sql
\ir code/core/entry.sql
\ir code/core/permissions.sql
\ir code/core/lookups.sql
\ir code/core/settings.sql
\ir code/core/generated.sql
\ir code/core/turns.sql
\ir code/core/segments.sql
\ir code/core/statement.sql
\ir code/core/error_place.sql
\ir code/core/error_places.sql
\ir code/core/parsed.sql

-- types: Event types: making and changing them, their queues, policies, rules and rights, the code made for each.
\ir code/types/types.sql
\ir code/types/expressions.sql
\ir code/types/type_checks.sql
\ir code/types/type_locks.sql
\ir code/types/alter.sql
\ir code/types/queues.sql
\ir code/types/advertise.sql
\ir code/types/features.sql
\ir code/types/rule_tables.sql
\ir code/types/rules.sql
\ir code/types/build_rules.sql
\ir code/types/moments.sql
\ir code/types/generate.sql
\ir code/types/left_behind.sql
\ir code/types/plain_tables.sql
\ir code/types/policies.sql
\ir code/types/used_names.sql
\ir code/types/renames.sql

-- match: Which event goes to which subscription: classes of equal filters, lanes for filters that read tables.
\ir code/match/unread.sql
\ir code/match/match.sql
\ir code/match/share_out.sql
\ir code/match/write_rows.sql
\ir code/match/lanes.sql
\ir code/match/match_lanes.sql
\ir code/match/lane_joining.sql
\ir code/match/isolate.sql
\ir code/match/signatures.sql
\ir code/match/write_match.sql
\ir code/match/visible.sql
\ir code/match/write_visible.sql
\ir code/match/crowded.sql
\ir code/match/classes.sql
\ir code/match/slow_lanes.sql
\ir code/match/run_lanes.sql
\ir code/match/alarm.sql
\ir code/match/lanes_by_hand.sql
\ir code/match/lane_sessions.sql
\ir code/match/class_views.sql
\ir code/match/lane_views.sql
\ir code/match/reclaim.sql

-- deliver: Subscriptions and what reaches them: receiving, acknowledging, callbacks, exceptions.
\ir code/deliver/current_member.sql
\ir code/deliver/check_filter.sql
\ir code/deliver/subscribe.sql
\ir code/deliver/joining.sql
\ir code/deliver/unmet.sql
\ir code/deliver/late_types.sql
\ir code/deliver/subscriptions.sql
\ir code/deliver/texts_in_use.sql
\ir code/deliver/alter.sql
\ir code/deliver/troubles.sql
\ir code/deliver/count_exceptions.sql
\ir code/deliver/find_exceptions.sql
\ir code/deliver/queued_in.sql
\ir code/deliver/queued_out.sql
\ir code/deliver/find_queued.sql
\ir code/deliver/find_subscriptions.sql
\ir code/deliver/consumers.sql
\ir code/deliver/leases.sql
\ir code/deliver/unfold.sql
\ir code/deliver/large_events.sql
\ir code/deliver/deliver.sql
\ir code/deliver/write_unfold.sql
\ir code/deliver/positions.sql
\ir code/deliver/acknowledge.sql
\ir code/deliver/receive_rows.sql
\ir code/deliver/large_rows.sql
\ir code/deliver/write_receive.sql
\ir code/deliver/failures.sql
\ir code/deliver/exceptions.sql
\ir code/deliver/callbacks.sql
\ir code/deliver/subscribers.sql
\ir code/deliver/write_callback.sql
\ir code/deliver/renamed_callbacks.sql
\ir code/deliver/write_events.sql
\ir code/deliver/run_subscribers.sql
\ir code/deliver/queue_views.sql
\ir code/deliver/write_queues.sql
\ir code/deliver/backlogs.sql
\ir code/deliver/dead_consumers.sql
\ir code/deliver/lags.sql
\ir code/deliver/buffers.sql
\ir code/deliver/streams.sql
\ir code/deliver/stream_acks.sql
\ir code/deliver/reclaim.sql
\ir code/deliver/write_log_view.sql

-- dispatch: Cutting the log into batches, and waking who has to.
\ir code/dispatch/epochs.sql
\ir code/dispatch/windows.sql
\ir code/dispatch/producer_numbers.sql
\ir code/dispatch/dispatch.sql
\ir code/dispatch/together.sql
\ir code/dispatch/set_aside.sql
\ir code/dispatch/locked_types.sql
\ir code/dispatch/resumed_types.sql
\ir code/dispatch/write_part_ids.sql
\ir code/dispatch/leader.sql
\ir code/dispatch/wake.sql
\ir code/dispatch/reclaim.sql

-- log: Publishing into the log, and giving its space back.
\ir code/log/publication.sql
\ir code/log/publish.sql
\ir code/log/write_endpoint.sql
\ir code/log/immediate.sql
\ir code/log/write_bring.sql
\ir code/log/large.sql
\ir code/log/refused.sql
\ir code/log/reclaim_rows.sql
\ir code/log/reclaim.sql
\ir code/log/archive.sql
\ir code/log/loads.sql
\ir code/log/retention.sql
\ir code/log/statement_language.sql

-- links: Between brokers: identity, neighbours, routes, sending and receiving, rewinding, dropping.
\ir code/links/identity.sql
\ir code/links/resume.sql
\ir code/links/neighbours.sql
\ir code/links/link_limits.sql
\ir code/links/link_filters.sql
\ir code/links/interests.sql
\ir code/links/routes.sql
\ir code/links/skips.sql
\ir code/links/newcomers.sql
\ir code/links/paths.sql
\ir code/links/asked.sql
\ir code/links/told.sql
\ir code/links/horizon.sql
\ir code/links/rewind.sql
\ir code/links/told_types.sql
\ir code/links/messages.sql
\ir code/links/runs.sql
\ir code/links/positions.sql
\ir code/links/pack.sql
\ir code/links/send.sql
\ir code/links/flowing.sql
\ir code/links/copy.sql
\ir code/links/write_segments.sql
\ir code/links/write_sent_rows.sql
\ir code/links/receive.sql
\ir code/links/admit.sql
\ir code/links/stages.sql
\ir code/links/small_batches.sql
\ir code/links/write_wire.sql
\ir code/links/write_sent.sql
\ir code/links/write_store.sql
\ir code/links/reclaim.sql
\ir code/links/links.sql
\ir code/links/stuck.sql
\ir code/links/views.sql
\ir code/links/resync.sql
\ir code/links/drain.sql
\ir code/links/failing.sql
\ir code/links/audit.sql
\ir code/links/own_events.sql
\ir code/links/audit_compare.sql
\ir code/links/audit_recount.sql
\ir code/links/audit_recounted.sql
\ir code/links/audit_report.sql

-- clients: Sessions of client libraries: registrations, direct events, requests and replies.
\ir code/clients/clients.sql
\ir code/clients/client_calls.sql
\ir code/clients/checkpoints.sql
\ir code/clients/registrations.sql
\ir code/clients/occurrences.sql
\ir code/clients/marks.sql
\ir code/clients/receive_events.sql
\ir code/clients/write_statement.sql
\ir code/clients/write_slice.sql
\ir code/clients/events.sql
\ir code/clients/handler_clause.sql
\ir code/clients/direct.sql
\ir code/clients/write_push.sql
\ir code/clients/carried.sql
\ir code/clients/write_carry.sql
\ir code/clients/cancel.sql
\ir code/clients/requests.sql
\ir code/clients/write_requester.sql
\ir code/clients/replies.sql
\ir code/clients/confirm.sql
\ir code/clients/write_confirm.sql
\ir code/clients/reclaim.sql
\ir code/clients/views.sql

-- spools: Messages for a group that may be away: numbers, pointers, replay, members.
\ir code/spools/patterns.sql
\ir code/spools/find.sql
\ir code/spools/read.sql
\ir code/spools/extents.sql
\ir code/spools/requests.sql
\ir code/spools/cancel.sql
\ir code/spools/pointers.sql
\ir code/spools/spools.sql
\ir code/spools/number.sql
\ir code/spools/limits.sql
\ir code/spools/discard.sql
\ir code/spools/groups.sql
\ir code/spools/replay.sql
\ir code/spools/hand_out.sql
\ir code/spools/large_messages.sql
\ir code/spools/acknowledge.sql
\ir code/spools/arrived.sql
\ir code/spools/long_haul.sql
\ir code/spools/networks.sql
\ir code/spools/spool_one.sql
\ir code/spools/calls.sql
\ir code/spools/reclaim.sql
\ir code/spools/views.sql

-- units: Services, conversations and units of work, which survive their senders and receivers.
\ir code/units/restarts.sql
\ir code/units/in_hand.sql
\ir code/units/sessions.sql
\ir code/units/speakers.sql
\ir code/units/logon.sql
\ir code/units/services.sql
\ir code/units/rights.sql
\ir code/units/transitions.sql
\ir code/units/lifetimes.sql
\ir code/units/standing.sql
\ir code/units/limits.sql
\ir code/units/commit.sql
\ir code/units/send.sql
\ir code/units/at_hand.sql
\ir code/units/queue.sql
\ir code/units/commit_simply.sql
\ir code/units/receive_simply.sql
\ir code/units/send_simply.sql
\ir code/units/hold.sql
\ir code/units/receive.sql
\ir code/units/in_time.sql
\ir code/units/syncpoint.sql
\ir code/units/asking.sql
\ir code/units/relay.sql
\ir code/units/relay_in.sql
\ir code/units/service_calls.sql
\ir code/units/calls.sql
\ir code/units/reclaim.sql
\ir code/units/views.sql

-- composite: Composite events: their definitions, the detector's steps over the log, what it keeps.
\ir code/composite/definitions.sql
\ir code/composite/check.sql
\ir code/composite/sources.sql
\ir code/composite/create.sql
\ir code/composite/alter.sql
\ir code/composite/state.sql
\ir code/composite/hosted.sql
\ir code/composite/parts.sql
\ir code/composite/gather.sql
\ir code/composite/publish.sql
\ir code/composite/shares.sql
\ir code/composite/due.sql
\ir code/composite/detect.sql
\ir code/composite/handing_on.sql
\ir code/composite/held.sql
\ir code/composite/slow.sql
\ir code/composite/stuck.sql
\ir code/composite/coupling.sql
\ir code/composite/firing.sql
\ir code/composite/run_rule.sql
\ir code/composite/trial.sql
\ir code/composite/plan.sql
\ir code/composite/reclaim.sql
\ir code/composite/views.sql

-- views: What people look at: catalogue, health, explanations, traces.
\ir code/views/catalogue.sql
\ir code/views/disks.sql
\ir code/views/health.sql
\ir code/views/metrics.sql
\ir code/views/totals.sql
\ir code/views/explain.sql
\ir code/views/trace.sql

-- roster: Who takes part in what.
\ir code/roster.sql
\ir code/hooks.sql

-- Builds the generated code that everything above would write differently.
\ir code/rebuild.sql
