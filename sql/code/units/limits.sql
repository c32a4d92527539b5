-- Limits of services and of the broker, and the options that they are the defaults of.
-- How many units of work are active is not counted for each send. Two sequences of each service, and two of the broker,
-- tell how many units were begun and (a hint) how often one has ended. After a count, the units begun since then are
-- added to it; units are counted again when that reaches the limit, so the cost of a count is shared by as many sends
-- as there was room. At the limit, the last count stands for a refusal while nothing can have ended.
-- What open transactions have begun counts as active, though nobody can see it: nextval locks a sequence until the end
-- of the transaction, so pg_locks tells who they are; and what was begun since a count at which none of them was open,
-- and cannot be seen, is theirs.
-- Locks: none.
-- Writes: unit_count, unit_told.

create or replace function pgps_internal.unit_limit(own integer, name text, service pgps_internal.service,
    attribute text, value bigint, what text) returns void
language plpgsql stable
as $$
declare
    v_limit bigint := coalesce(unit_limit.own, pgps_internal.setting(unit_limit.name)::bigint);
begin
    if unit_limit.value > v_limit then
        raise exception 'service "%" takes at most % %: % is %', pgps_internal.service_name(unit_limit.service),
            v_limit, unit_limit.what,
            case when unit_limit.own is null then 'setting ' || unit_limit.name else unit_limit.attribute end, v_limit
        using errcode = '54000', hint = case when unit_limit.own is null
            then format('An administrator changes it for all services with pgps.configure(%L, …)', unit_limit.name)
                || case when unit_limit.attribute <> 'max_uows' then ', or for this one with pgps.alter_service.'
                    else '.' end
            else format('An administrator changes it with pgps.alter_service(%L, %L, %L, %s => …).',
                quote_ident((unit_limit.service).class), quote_ident((unit_limit.service).server),
                quote_ident((unit_limit.service).service), unit_limit.attribute) end;
    end if;
end
$$;
comment on function pgps_internal.unit_limit(integer, text, pgps_internal.service, text, bigint, text) is
'Raises 54000 when a value is above the limit of a service (own) or, where that is null, of the broker (name)';

create or replace function pgps_internal.check_user_status(user_status text) returns void
language plpgsql immutable
as $$
begin
    if octet_length(check_user_status.user_status) > 32 then
        raise exception 'a user status takes at most 32 bytes: "%" has %', left(check_user_status.user_status, 40),
            octet_length(check_user_status.user_status)
        using errcode = '54000', hint = 'Say it shorter, or send it as a message.';
    end if;
end
$$;
comment on function pgps_internal.check_user_status(text) is 'Raises 54000 when a user status is longer than 32 bytes';

create or replace function pgps_internal.count_active(service_id integer, at_most bigint, is_committed boolean)
returns pgps_internal.unit_count
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_count pgps_internal.unit_count;
    v_is_open boolean;
    v_unseen bigint;
begin
    perform pgps_internal.require_own_snapshots();
    v_count.service_id := count_active.service_id;
    -- Read before the units are: what ends meanwhile makes another number. And a unit has its number before it counts
    -- as begun, so one that is not begun here may have a number below at_no, but none that is has one above.
    v_count.ended := pgps_internal.ends_noted(count_active.service_id);
    v_count.begun := pg_sequence_last_value(('pgps_internal.units_begun_' || count_active.service_id)::regclass);
    v_count.at_no := coalesce(pg_sequence_last_value('pgps_internal.uow_no_seq'::regclass), 0);
    v_count.open := pgps_internal.open_beginners(count_active.service_id);
    v_unseen := pgps_internal.count_unseen(v_count);
    v_count.life_id := (pgps._this_life()).life_id;
    if count_active.service_id = 0 then
        select count(*), min(a.ends_at), coalesce(bool_or(a.is_open), false)
        into v_count.active, v_count.next_end, v_is_open
        from (select u.ends_at, u.commit_no is null as is_open from pgps_internal.unit_standing u
            where u.is_uow and u.is_active limit count_active.at_most) a;
    else
        select count(*), min(a.ends_at), coalesce(bool_or(a.is_open), false)
        into v_count.active, v_count.next_end, v_is_open
        from (select u.ends_at, u.commit_no is null as is_open from pgps_internal.unit_standing u
            where u.service_id = count_active.service_id and u.is_uow and u.is_active limit count_active.at_most) a;
    end if;
    v_count.active := v_count.active + v_unseen;
    v_count.is_settled := not v_is_open and count_active.is_committed and v_count.open = '{}'
        and not exists (select from pg_snapshot_xip(pg_current_snapshot()));
    return v_count;
end
$$;
comment on function pgps_internal.count_active(integer, bigint, boolean) is
'Counts the active units of work of a service, 0: of all, up to a number, and those that open transactions have begun.
Errors: 25001. is_settled: nobody else is in the middle of
something, and no unit is being sent, so that the count is right until time passes or something is noted to have ended';

create or replace function pgps_internal.open_beginners(service_id integer) returns text[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    return array(select l.virtualtransaction from pg_locks l
        where l.locktype = 'relation' and l.granted and l.pid is distinct from pg_backend_pid()
            and l.database = (select d.oid from pg_database d where d.datname = current_database())
            and l.relation = ('pgps_internal.units_begun_' || open_beginners.service_id)::regclass);
end
$$;
comment on function pgps_internal.open_beginners(integer) is
'The open transactions of others that have begun units of a service (0: of any)';

create or replace function pgps_internal.count_unseen(count pgps_internal.unit_count) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_base pgps_internal.unit_count;
    v_seen bigint;
    v_oldest bigint := count_unseen.count.at_no - pgps_internal.segment_size('unit');
begin
    if count_unseen.count.open = '{}' then
        return 0;
    end if;
    select c.* into v_base from pgps_internal.unit_count c
    where c.service_id = count_unseen.count.service_id and not c.open && count_unseen.count.open
    order by c.at_no desc limit 1;
    v_base.at_no := coalesce(v_base.at_no, 0);
    if v_base.at_no < v_oldest then
        -- Of what was begun since then, segments may be gone. Each of them has begun one at least.
        return cardinality(count_unseen.count.open);
    elsif count_unseen.count.service_id = 0 then
        select count(*) into v_seen from pgps_internal.unit u where u.is_uow and u.unit_no > v_base.at_no;
    else
        select count(*) into v_seen from pgps_internal.unit u
        where u.service_id = count_unseen.count.service_id and u.is_uow and u.unit_no > v_base.at_no;
    end if;
    -- Without the one that the caller is about to begin.
    return greatest(cardinality(count_unseen.count.open),
        count_unseen.count.begun - coalesce(v_base.begun, -1) - v_seen - 1);
end
$$;
comment on function pgps_internal.count_unseen(pgps_internal.unit_count) is
'How many units the transactions that are open have begun, at most; what was begun and rolled back since they were is
among them';

create or replace function pgps_internal.ends_noted(service_id integer) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    return coalesce(pg_sequence_last_value(('pgps_internal.units_ended_' || ends_noted.service_id)::regclass), -1);
end
$$;
comment on function pgps_internal.ends_noted(integer) is 'A number that changes when a unit of a service (0: any) ends';

create or replace function pgps_internal.note_ended(service_id integer) returns void
language plpgsql volatile
as $$
declare
    -- The transaction has an id already: who counts while it runs sees that it does.
    v_all bigint := nextval('pgps_internal.units_ended_0');
    v_sequence regclass := to_regclass('pgps_internal.units_ended_' || note_ended.service_id);
    v_own bigint := case when v_sequence is not null then nextval(v_sequence) end;
begin
end
$$;
comment on function pgps_internal.note_ended(integer) is
'Lets counts of active units be made again; the caller has written that one has ended';

create or replace function pgps_internal.note_told(unit_no bigint, status text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if note_told.status = 'TIMEOUT' then
        -- The caller raises an error, which takes back what this transaction writes.
        perform pgps_internal.over_loopback_once(format('select pgps_internal.tell_timeout(%s)', note_told.unit_no));
    end if;
end
$$;
comment on function pgps_internal.note_told(bigint, text) is
'Notes at once that the sender of a unit that timed out while it was being sent hears of it now';

create or replace function pgps_internal.tell_timeout(unit_no bigint) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgps_internal.unit_told (unit_no) values (tell_timeout.unit_no) on conflict do nothing;
    return tell_timeout.unit_no;
end
$$;
comment on function pgps_internal.tell_timeout(bigint) is
'On the loopback connection: the next message in that conversation begins another unit';

create or replace function pgps_internal.still_counts(count pgps_internal.unit_count) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    return still_counts.count.is_settled and still_counts.count.life_id = (pgps._this_life()).life_id
        and still_counts.count.ended = pgps_internal.ends_noted(still_counts.count.service_id)
        and coalesce(still_counts.count.next_end > pgps_internal.clock(), true);
end
$$;
comment on function pgps_internal.still_counts(pgps_internal.unit_count) is
'True while none of the units that were counted can have ended';

create or replace function pgps_internal.check_count(
    service_id integer, at_most bigint, begun bigint, service pgps_internal.service, ends_at timestamptz,
    is_committed boolean
) returns void
language plpgsql volatile
as $$
declare
    v_count pgps_internal.unit_count;
begin
    select c.* into v_count from pgps_internal.unit_count c where c.service_id = check_count.service_id
    order by c.at_no desc limit 1;
    if v_count.active + check_count.begun - v_count.begun < check_count.at_most then
        return;
    end if;
    if v_count.active < check_count.at_most or v_count.active is null
        or not pgps_internal.still_counts(v_count) then
        v_count := pgps_internal.count_active(check_count.service_id, check_count.at_most, check_count.is_committed);
        v_count.active := v_count.active + 1;
        if v_count.active <= check_count.at_most then
            v_count.next_end := least(v_count.next_end, check_count.ends_at);
            insert into pgps_internal.unit_count values (v_count.*);
            return;
        end if;
    end if;
    perform pgps_internal.unit_limit(case check_count.service_id when 0 then null else check_count.at_most::integer end,
        'uow_max_active', check_count.service, 'max_uows', check_count.at_most + 1, 'active units of work');
end
$$;
comment on function pgps_internal.check_count(integer, bigint, bigint, pgps_internal.service, timestamptz, boolean) is
'As check_active, for a service or (0) for the broker, of which so many units were begun, and so many may be active';

create or replace function pgps_internal.check_begun(
    service pgps_internal.service, at_most bigint, ends_at timestamptz, is_committed boolean
) returns void
language plpgsql volatile
as $$
declare
    v_all bigint := nextval('pgps_internal.units_begun_0');
    v_own bigint := nextval(('pgps_internal.units_begun_' || (check_begun.service).service_id)::regclass);
begin
    -- Of the broker no more can be active than were ever begun.
    if v_all >= check_begun.at_most then
        perform pgps_internal.check_count(0, check_begun.at_most, v_all, check_begun.service, check_begun.ends_at,
            check_begun.is_committed);
    end if;
    if (check_begun.service).max_uows is not null then
        perform pgps_internal.check_count((check_begun.service).service_id, (check_begun.service).max_uows, v_own,
            check_begun.service, check_begun.ends_at, check_begun.is_committed);
    end if;
end
$$;
comment on function pgps_internal.check_begun(pgps_internal.service, bigint, timestamptz, boolean) is
'As check_active, where at most so many may be active at the broker';

create or replace function pgps_internal.check_active(
    service pgps_internal.service, ends_at timestamptz, is_committed boolean
) returns void
language plpgsql volatile
as $$
begin
    perform pgps_internal.check_begun(check_active.service, pgps_internal.setting('uow_max_active')::bigint,
        check_active.ends_at, check_active.is_committed);
end
$$;
comment on function pgps_internal.check_active(pgps_internal.service, timestamptz, boolean) is
'Raises 54000 when a service, or the broker, has as many active units of work as it may, with those that open
transactions have begun; else one more is begun, and (is_committed) committed in this transaction. At the limit: 25001
where the transaction does not see what others commit.';

create or replace function pgps_internal.options_of(
    speaker pgps_internal.speaker, service pgps_internal.service, args jsonb,
    out is_persistent boolean, out lifetime interval, out status_for interval
) returns record
language plpgsql
as $$
declare
    v_store text := lower(args ->> 'store');
    v_times integer := coalesce((args ->> 'status_lifetime')::integer, 0);
begin
    lifetime := (args ->> 'lifetime')::interval;
    perform pgps_internal.check_lifetime(lifetime), pgps_internal.check_user_status(args ->> 'user_status');
    if v_store not in ('off', 'broker', 'no') or v_store is null then
        raise exception 'unknown store "%"', args ->> 'store' using errcode = '22023',
            hint = 'Give off (as the service says), broker or no.';
    elsif v_times not between 0 and 255 then
        raise exception 'invalid status_lifetime %', v_times using errcode = '22023',
            hint = 'Give 1 to 254 times the lifetime, 0 for what the service says, or 255 for none.';
    end if;
    is_persistent := 'broker' = case v_store
        when 'off' then coalesce(options_of.service.store, pgps_internal.setting('uow_store')) else v_store end;
    lifetime := coalesce(lifetime, options_of.service.lifetime, pgps_internal.setting('uow_lifetime')::interval);
    v_times := case v_times when 255 then 0
        when 0 then coalesce(options_of.service.status_lifetime,
            pgps_internal.setting('uow_status_lifetime')::integer)
        else v_times end;
    status_for := nullif(v_times, 0) * lifetime;
    if is_persistent and pgps_internal.setting('uow_persistent_store') = 'no' then
        raise exception 'this broker has no persistent store' using errcode = '55000',
            hint = 'Send with store => ''no'', or as an administrator: select pgps.configure(''uow_persistent_store'', '
                '''hot'').';
    elsif is_persistent and (options_of.speaker).token is null then
        raise exception 'persistent units of work need a token' using errcode = '55000',
            hint = 'Log on with one, select pgps.logon(''token''), or send with store => ''no''.';
    end if;
end
$$;
comment on function pgps_internal.options_of(pgps_internal.speaker, pgps_internal.service, jsonb) is
'How long a unit lives, for how long its status is kept after that (null: not at all) and whether it survives a restart:
the options of the call, then those of the service, then those of the broker count. Errors: 22023, 54000, 55000.';
