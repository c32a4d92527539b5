-- Lives of the broker: each start of the server, and each recovery from a crash, is a restart (decision 42). A crash
-- empties the unlogged mark; a start without a crash has another start time. The first session that logs on, or looks,
-- afterwards notes the new life.
-- Locks: share row exclusive on broker_life, by a transaction of its own that ends at once.
-- Writes: broker_life, broker_life_mark, setting.

create or replace function pgps_internal.noted_life() returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select l.life_id from pgps_internal.broker_life l
        join pgps_internal.broker_life_mark m on m.life_id = l.life_id
        where l.life_id = (select max(n.life_id) from pgps_internal.broker_life n)
            and l.postmaster = pg_postmaster_start_time());
end
$$;
comment on function pgps_internal.noted_life() is
'The number of this life of the broker; null while nobody has noted the newest restart';

create or replace function pgps._this_life() returns pgps_internal.life
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_life pgps_internal.life;
    v_newest bigint;
    v_store text;
begin
    -- Who asks how units stand asks anew which sessions live, in each statement of a transaction.
    perform pg_stat_clear_snapshot();
    for v_try in 1..2 loop
        select x.emptied_id, x.held_id, x.newest,
            (select l.life_id from pgps_internal.broker_life l join pgps_internal.broker_life_mark m using (life_id)
                where l.life_id = x.newest and l.postmaster = pg_postmaster_start_time())
        into v_life.emptied_id, v_life.held_id, v_newest, v_life.life_id
        from (select max(l.life_id) filter (where l.store = 'cold') as emptied_id,
            max(l.life_id) filter (where l.is_held) as held_id, max(l.life_id) as newest
            from pgps_internal.broker_life l) x;
        exit when v_life.life_id is not null or v_newest is null or pg_is_in_recovery()
            or not pgps_internal.note_life_first();
    end loop;
    if v_life.life_id is null then
        v_life.life_id := coalesce(v_newest, 0) + 1;
        v_store := pgps_internal.setting('uow_persistent_store');
        v_life.emptied_id := case v_store when 'cold' then v_life.life_id else v_life.emptied_id end;
        v_life.held_id := case v_store when 'warm' then v_life.life_id else v_life.held_id end;
    end if;
    v_life.emptied_id := coalesce(v_life.emptied_id, 0);
    v_life.held_id := coalesce(v_life.held_id, 0);
    v_life.seen_at := pgps_internal.clock();
    return v_life;
end
$$;
comment on function pgps._this_life() is
'What the restarts of the broker, noted or not, mean to units of work: those of lives before emptied_id are gone, and
those before held_id are not given out. For views: anybody may ask.';

create or replace function pgps_internal.note_life() returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_life bigint;
    v_store text;
begin
    -- Looked at without the lock first: a transaction that changes settings may have rows of it.
    v_life := pgps_internal.noted_life();
    if v_life is not null then
        return v_life;
    end if;
    lock table only pgps_internal.broker_life in share row exclusive mode;
    v_life := pgps_internal.noted_life();
    if v_life is null then
        v_store := pgps_internal.setting('uow_persistent_store');
        insert into pgps_internal.broker_life (life_id, started_at, postmaster, store, is_held)
        select coalesce(max(l.life_id), 0) + 1, pgps_internal.clock(), pg_postmaster_start_time(), v_store,
            v_store = 'warm'
        from pgps_internal.broker_life l returning life_id into v_life;
        delete from pgps_internal.broker_life_mark;
        insert into pgps_internal.broker_life_mark (life_id) values (v_life);
        if v_store = 'cold' then
            -- The store is emptied once.
            update pgps_internal.setting s set value = 'hot' where s.name = 'uow_persistent_store';
        end if;
    end if;
    return v_life;
end
$$;
comment on function pgps_internal.note_life() is
'Notes a restart of the broker, unless that is done; returns the number of its life';

create or replace function pgps_internal.note_life_first() returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.over_loopback_once('select pgps_internal.note_life()');
    return true;
exception when connection_exception or lock_not_available then
    return false;
end
$$;
comment on function pgps_internal.note_life_first() is
'Notes a restart for who looks first, at once and whatever becomes of the transaction: what lapsed before the restart,
and what the restart discarded, must not depend on when somebody looks again. False where the loopback connection cannot
be used; then it is reckoned with as if it were noted.';

create or replace function pgps_internal.check_uow_setting(name text, value text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_words text[] := case check_uow_setting.name when 'uow_store' then array['off', 'broker']
        when 'uow_persistent_store' then array['hot', 'cold', 'warm', 'no'] end;
begin
    if check_uow_setting.name !~ '^uow_' then
        return;
    elsif check_uow_setting.value <> all (v_words) or v_words is not null and check_uow_setting.value is null then
        raise exception 'invalid value "%" for setting "%"', check_uow_setting.value, check_uow_setting.name
        using errcode = '22023', hint = format('Give one of: %s.', array_to_string(v_words, ', '));
    elsif check_uow_setting.name = 'uow_status_lifetime'
        and check_uow_setting.value::integer not between 0 and 254 then
        raise exception 'invalid value "%" for setting "%"', check_uow_setting.value, check_uow_setting.name
        using errcode = '22023', hint = 'Give 0 to 254 times the lifetime.';
    elsif check_uow_setting.name = 'uow_persistent_store' then
        -- What a restart did is decided by the setting as it was then.
        perform pgps_internal.over_loopback_once('select pgps_internal.note_life()');
        if check_uow_setting.value = 'hot' then
            update pgps_internal.broker_life l set is_held = false where l.is_held;
        end if;
    end if;
end
$$;
comment on function pgps_internal.check_uow_setting(text, text) is
'Raises 22023 unless the value is one of those that a setting of units of work may have. Notes a restart before the
setting changes that says what restarts do; hot gives out what a warm one held back';

create or replace function pgps_internal.over_loopback_once(statement text) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_result bigint;
    v_was_open boolean := pgps_internal.has_loopback();
begin
    -- A session that logs on once should not keep a second backend for as long as it lives.
    if not v_was_open then
        perform pgps_internal.open_loopback();
    end if;
    v_result := pgps_internal.over_loopback(over_loopback_once.statement);
    if not v_was_open then
        perform pgps_internal.close_loopback();
    end if;
    return v_result;
end
$$;
comment on function pgps_internal.over_loopback_once(text) is
'Runs a statement in a transaction of its own, as over_loopback, and closes the loopback connection if it was not open';

grant execute on function pgps._this_life() to public;
