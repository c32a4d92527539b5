-- Competing consumers: what a batch brings is shared out among the members of a class that are one subscription.
-- Locks: the members that are shared out among, for which the dispatcher does not wait.
-- Writes: share, unshared.

drop function if exists pgps_internal.share_out(bigint, integer, bigint[]);
create or replace function pgps_internal.share_out(
    batch_id bigint, type_id integer, classes bigint[] = null, later boolean = false
) returns void
language plpgsql
as $$
begin
    -- Whoever changes the filter of a subscription locks its members until the transaction ends (hold_members). Nobody
    -- waits for that here: what such a subscription should get is noted, and shared out later (unshared.sql).
    with wanted as materialized (
        select m.subscription_id, m.class_id, m.skip
        from pgps_internal.current_member m
        -- OFFSET 0: so the index is searched for the class, by a plan of any age (write_unfold.sql).
        cross join lateral (select x.batch_id from pgps_internal.delivery x where x.class_id = m.class_id
            and x.batch_id = share_out.batch_id and x.type_id = share_out.type_id offset 0) d
        where m.type_id = share_out.type_id and m.takes_batch
            and (d.batch_id > m.from_batch
                or m.from_batch >= pgps_internal.hidden() and exists (select from pgps_internal.newcomer n
                    where n.subscription_id = m.subscription_id and d.batch_id > n.from_batch))
            and (share_out.classes is null or m.class_id = any (share_out.classes))
    ),
    free as materialized (
        select m.subscription_id, m.class_id, m.skip + w.skip as skip
        from wanted w join pgps_internal.member m using (subscription_id, class_id)
        where not share_out.later for key share of m skip locked
    ),
    held as (
        insert into pgps_internal.unshared (subscription_id, class_id, type_id, batch_id, owner)
        select w.subscription_id, w.class_id, share_out.type_id, share_out.batch_id,
            (select c.owner from pgps_internal.class c where c.class_id = w.class_id)
        from wanted w where not exists (select from free f
            where f.subscription_id = w.subscription_id and f.class_id = w.class_id)
        on conflict do nothing
    )
    insert into pgps_internal.share (subscription_id, batch_id, event_id, type_id)
    select f.subscription_id, share_out.batch_id, e.event_id, share_out.type_id
    from free f
    cross join lateral (select x as delivery from pgps_internal.delivery x where x.class_id = f.class_id
        and x.batch_id = share_out.batch_id and x.type_id = share_out.type_id offset 0) d
    cross join lateral pgps_internal.event_ids(d.delivery) e(event_id)
    where not e.event_id <@ f.skip
    on conflict do nothing;
end
$$;
comment on function pgps_internal.share_out(bigint, integer, bigint[], boolean) is
'Writes a row for each event of a batch and each subscription whose consumers share it, except those that somebody is
changing; classes: of these only, null = all. later: all of it is noted, to be shared out afterwards';

create or replace function pgps_internal.hold_members(subscription_id bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Waits for a dispatch that has shared out to it and is not committed; later ones leave it out. So the last batch,
    -- read after this, is the last one that was shared out.
    perform from pgps_internal.member m where m.subscription_id = hold_members.subscription_id for update;
end
$$;
comment on function pgps_internal.hold_members(bigint) is
'Nothing more is shared out to the consumers of a subscription until the transaction ends; the dispatcher does not wait
for it';
