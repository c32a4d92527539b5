-- Whether this is still the database that cut the last batch. One that was restored or cloned has other transaction
-- ids: its first batch begins a new epoch, with all that waits.
-- Locks: those of dispatch.sql.
-- Writes: control, pg_temp.pgps_rebaseline.

create or replace function pgps_internal.incarnation() returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Not cached in a setting: any callback or filter could change that, and make dispatch begin a new epoch.
    return format('%s/%s', (select c.system_identifier from pg_control_system() c),
        (select d.oid from pg_database d where d.datname = current_database()));
end
$$;
comment on function pgps_internal.incarnation() is
'Which database this is: its transaction ids mean nothing in another one (system identifier and database oid)';

create or replace function pgps_internal.incarnation_of_session() returns text
language plpgsql immutable
as $$
begin
    return pgps_internal.incarnation();
end
$$;
comment on function pgps_internal.incarnation_of_session() is
'As pgps_internal.incarnation(), which stays the same while a session lasts: immutable, so that plans of a session have
it as a constant. Not for indexes and the like, which outlive the session';

create or replace function pgps_internal.is_same_life(last pgps_internal.batch) returns boolean
language plpgsql stable
as $$
begin
    -- The identity cannot change while the server runs: it is read from disk again only after a restart. The database's
    -- OID is taken from the path of a table; looking it up took eight times as long.
    return (is_same_life.last).started_at = pg_postmaster_start_time()
            and split_part((is_same_life.last).incarnation, '/',
                2) = split_part(pg_relation_filepath('pgps_internal.installation'), '/', -2)
        or (is_same_life.last).incarnation = pgps_internal.incarnation();
end
$$;
comment on function pgps_internal.is_same_life(pgps_internal.batch) is
'True when this is the database that cut the last batch, not a restored or cloned one';

create or replace function pgps_internal.rebaseline(last pgps_internal.batch) returns pgps_internal.batch
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now pg_snapshot;
    v_base bigint;
    v_new pgps_internal.batch := rebaseline.last;
begin
    -- A restored or cloned database, whose transaction ids start elsewhere. All that was committed here and is in no
    -- batch waits: what the last snapshot of the old epoch does not see, and what was published since (above its
    -- highest event id).
    perform pgps_internal.temporary('pgps_rebaseline');
    create temp table if not exists pgps_rebaseline (like pgps_internal.control) on commit drop;
    -- In one statement, so that what waits, and the snapshot behind which the next batch begins, are of one moment.
    with waiting as (
        insert into pg_temp.pgps_rebaseline
        select c.* from pgps_internal.control c
        where (c.hi > (rebaseline.last).max_hi or not pgps_internal.is_dispatched(c.xid, c.hi, rebaseline.last))
            and c.xid is distinct from pg_current_xact_id_if_assigned()
    )
    -- What is visible, though its transaction is not ended in that snapshot, has its number from the former life.
    select n.now, (select max(c.hi) from pgps_internal.control c where not pg_visible_in_snapshot(c.xid, n.now)
        and c.xid is distinct from pg_current_xact_id_if_assigned())
    into v_now, v_base from (select pgps_internal.committed_now() as now) n;
    -- Whether the transactions that raised immediate events committed is not known any more.
    update pgps_internal.control c set raiser = '0' where c.raiser is not null;
    perform pgps_internal.begin_life();
    v_new.batch_id := (rebaseline.last).batch_id + 1;
    v_new.previous := v_now;
    v_new.snapshot := v_now;
    v_new.upto := null;
    v_new.base_hi := coalesce(v_base, 0);
    v_new.max_hi := greatest((rebaseline.last).max_hi, (select max(r.hi) from pg_temp.pgps_rebaseline r));
    v_new.incarnation := pgps_internal.incarnation();
    v_new.started_at := pg_postmaster_start_time();
    v_new.created_at := pgps_internal.clock();
    raise notice 'pgps: this database is a restored or cloned one; a new epoch begins with batch %', v_new.batch_id;
    return v_new;
end
$$;
comment on function pgps_internal.rebaseline(pgps_internal.batch) is
'The first batch of a new epoch, with all waiting control rows in pg_temp.pgps_rebaseline; nothing lost, nothing
repeated';

create or replace function pgps_internal.begin_epoch(last pgps_internal.batch) returns pgps_internal.batch_window
language plpgsql
as $$
declare
    v_window pgps_internal.batch_window;
begin
    -- Creates the temporary table that the next statement reads.
    v_window.batch := pgps_internal.rebaseline(begin_epoch.last);
    v_window.parts := array(select (r.type_id, array_agg(distinct r.xid),
        range_agg(int8range(r.lo, r.hi, '[]')))::pgps_internal.part
        from pg_temp.pgps_rebaseline r group by r.type_id);
    return v_window;
end
$$;
comment on function pgps_internal.begin_epoch(pgps_internal.batch) is
'The first batch of a new epoch and what it consists of; see rebaseline';
