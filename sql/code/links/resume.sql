-- Resuming the links of a broker that was restored from an older state, or is the copy of one that goes on: what it had
-- sent in its former life, and the epoch that begins.
-- Locks: the turns of sending and of routes.
-- Writes: arrival, broker, former_link, link, origin.

drop function if exists pgps_internal.last_of_former_life();

create or replace function pgps_internal.last_packed() returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select max((pgps_internal.position_of(n.subscription_id)).received_batch) from pgps_internal.neighbour n
$$;
comment on function pgps_internal.last_packed() is
'The last batch that was sent to any neighbour; null without neighbours';

create or replace function pgps_internal.last_of_former_life(packed bigint = null) returns bigint
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- Batches of the former life have another incarnation, or were cut before the server was last started. Where
    -- nothing tells of a former life, what was sent to neighbours counts as sent in it.
    select coalesce(least(
        coalesce((select max(b.batch_id) from pgps_internal.batch b
            where b.incarnation <> pgps_internal.incarnation() or b.started_at <> pg_postmaster_start_time()),
            pgps_internal.last_packed()),
        -- The server may have been started more than once since: the former life ended no earlier than the one in which
        -- that batch was cut.
        (select max(b.batch_id) from pgps_internal.batch b join pgps_internal.batch p using (incarnation, started_at)
            where p.batch_id = last_of_former_life.packed)),
        (select min(b.batch_id) - 1 from pgps_internal.batch b), 0)
$$;
comment on function pgps_internal.last_of_former_life(bigint) is
'The last batch that was cut before this database was restored or copied: under higher numbers the neighbours may know
other batches. packed: a batch that is known to be of the former life; null = none';

create or replace function pgps_internal.do_resume_links(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_me pgps_internal.broker := pgps_internal.me();
    v_as text := args ->> 'as';
    v_last bigint;
begin
    perform pgps_internal.require_admin(caller, 'resume links');
    if v_as is null or v_as not in ('restored', 'clone') then
        raise exception 'invalid state "%"', v_as using errcode = '22023',
            hint = 'Use restored (the original is gone) or clone (it lives on).';
    end if;
    -- What is sent until now belongs to the former epoch; nothing more is sent in its name.
    perform pgps_internal.hold_sending(alone => true);
    perform pgps_internal.hold_routes();
    perform pgps.dispatch();
    -- As noted when the restore was first noticed, if it was; see pgps_internal.do_link_refused. What this life has
    -- sent in the former epoch is sent again in the new one, since some neighbours could not take it: those that have
    -- taken it recognise it (pgps_internal.skip_known). A clone has another id, by which nobody recognises anything.
    v_last := least(pgps_internal.last_of_former_life(), (select min(n.former_batch) from pgps_internal.neighbour n));
    if v_as = 'clone' then
        -- It has all that the original had published until it was copied, and had it under these numbers.
        insert into pgps_internal.arrival (neighbour_id, lseq, mark, origin_id, attachment, upto, horizon)
        select 0, 0, '', o.origin_id, -1, x.upto, x.upto
        from pgps_internal.origin o cross join lateral (select coalesce(o.to_batch, v_last) as upto) x
        where o.is_self and x.upto > 0 order by o.epoch;
        perform pgps_internal.leave_to_original(v_last);
        v_last := greatest(v_last, pgps_internal.last_packed());
    end if;
    update pgps_internal.origin o set to_batch = v_last, is_self = v_as = 'restored' where o.is_self
        and o.to_batch is null;
    if v_as = 'clone' then
        update pgps_internal.origin o set is_self = false where o.is_self;
        v_me.broker_id := gen_random_uuid();
    end if;
    -- From the clock: after a second restore from the same backup the epoch must not be the one that the neighbours
    -- know from the first.
    v_me.epoch := greatest(v_me.epoch + 1,
        extract(epoch from pgps_internal.clock() - timestamptz '2025-01-01 00:00+00')::integer);
    update pgps_internal.broker b
    set broker_id = v_me.broker_id, epoch = v_me.epoch, incarnation = pgps_internal.link_incarnation(),
        state = 'active';
    insert into pgps_internal.origin (broker_id, epoch, name, is_self, from_batch)
    values (v_me.broker_id, v_me.epoch, pgps_internal.broker_name(), true, v_last);
    delete from pgps_internal.link l using pgps_internal.neighbour n where l.link_id = n.link_id and n.is_dropped_here;
    -- A restored broker is remembered at the other ends: who drops such a link has to meet them once more.
    update pgps_internal.link l set is_known = true
    from pgps_internal.neighbour n where n.link_id = l.link_id and v_as = 'restored';
    perform pgps_internal.forget_neighbour(n.neighbour_id) from pgps_internal.neighbour n;
    -- In a new epoch the other side begins anew in any case.
    delete from pgps_internal.former_link;
    -- Those that were refused are tried again at once, not after the pause that they have come to.
    update pgps_internal.link l
    set state = case when l.enabled and l.state in ('waiting', 'blocked') then 'connecting' else 'defined' end,
        last_error = null, hint = null, changed_at = pgps_internal.clock();
    perform pg_notify('pgps_link', '');
end
$$;
comment on function pgps_internal.do_resume_links(name, jsonb) is 'See pgps.resume_links';

create or replace function pgps.resume_links("as" text) returns void
language sql
begin atomic
    select pgps._call('resume_links', jsonb_build_object('as', resume_links."as"));
end;
comment on function pgps.resume_links(text) is
'Resumes the links of a broker that was restored or cloned. as: restored = it takes the place of the original, which is
gone, in a new epoch; clone = the original is still in use, and this becomes a broker of its own. Neighbours are told
again what is wanted; events behind their horizon that are still here are sent again. What waits for networks a restored
broker sends, unless it has arrived, and a clone does not. Needs pgps_admin. Errors: 22023,
42501.';

revoke all on function pgps.resume_links(text) from public;
grant execute on function pgps.resume_links(text) to pgps_admin;
