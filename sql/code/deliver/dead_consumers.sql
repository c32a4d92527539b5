-- Consumers that are presumed dead (pgps.alter_subscription, dead_after): asked by who counts the live ones
-- (buffers.sql); pgps.subscriptions shows them (views/catalogue.sql).
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.is_dead(
    subscription_id bigint, at pgps_internal.position, dead_after interval
) returns boolean
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    -- As pgps.subscriptions has it: nothing was received or acknowledged for so long, while events waited.
    select coalesce(greatest((is_dead.at).moved_at, min(b.oldest)) <= pgps_internal.clock() - is_dead.dead_after, false)
    from pgps_internal.backlog b where b.subscription_id = is_dead.subscription_id and b.depth > 0
$$;
comment on function pgps_internal.is_dead(bigint, pgps_internal.position, interval) is
'True when the consumer of a subscription is presumed dead';
