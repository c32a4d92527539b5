-- Confirming events tell whether the transaction that raised an event committed (Ariel, section 3.1, link confirm
-- event). A confirm link is a hidden subscription to the original type; its cursor moves in the transaction that raises
-- the confirming events, so that each is raised exactly once. Locks: share update exclusive on confirm_link, so that
-- one session at a time raises them; a turn, so that one at a time makes one.
-- Writes: confirm_link, confirm_open, subscription.

create or replace function pgps_internal.do_link_confirm_event(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_confirming pgps_internal.event_type := pgps_internal.find_type(args ->> 'confirming');
    v_original pgps_internal.event_type := pgps_internal.find_type(args ->> 'original');
    v_subscription pgps_internal.subscription;
    v_link pgps_internal.confirm_link;
begin
    perform pgps_internal.require_admin(caller, 'link confirming events');
    -- One at a time, so that each sees whether the types confirm each other already.
    perform pgps_internal.hold('k', 0);
    if not has_table_privilege(caller, v_confirming.endpoint, 'insert') then
        raise exception 'role "%" may not publish event type "%"', caller, v_confirming.name
        using errcode = '42501', hint = format('Ask for: grant insert on %s to %I', v_confirming.endpoint, caller);
    end if;
    perform pgps_internal.require_advertised(v_confirming.type_id, quote_ident(caller)::regrole::oid)
    where not exists (select from pgps_internal.advertisement a where a.type_id = v_confirming.type_id
        and a.role = quote_ident(caller)::regrole);
    if (select array_agg(a.type)
        from pgps_internal.attributes_of(v_confirming.endpoint) a) is distinct from array['bigint', 'boolean'] then
        raise exception 'event type "%" cannot confirm another', v_confirming.name using errcode = '42804',
            hint = 'Its attributes must be one bigint, the id of the original, and one boolean, whether it was '
                'committed.';
    elsif pgps_internal.confirms(v_original.type_id, v_confirming.type_id) then
        raise exception 'event type "%" would confirm itself', v_confirming.name using errcode = '22023',
            hint = 'See pgps.confirm_events.';
    elsif exists (select from pgps_internal.confirm_link k where k.confirming = v_confirming.type_id
        and k.original = v_original.type_id) then
        raise exception 'event type "%" confirms "%" already', v_confirming.name, v_original.name
        using errcode = '42710', hint = 'See pgps.confirm_events.';
    end if;
    insert into pgps_internal.subscription (name, owner, event_type, is_pattern, environment, kind, scope, priority,
        max_attempts, handler)
    values (format('confirm*%s*%s', v_confirming.type_id, v_original.type_id), quote_ident(caller)::regrole,
        v_original.name, false,
        jsonb_build_object('search_path', 'pg_catalog, pg_temp'), 'confirm', 'local', 0, 1, 'all')
    returning * into v_subscription;
    perform pgps_internal.join_type(v_subscription, v_original, 'now');
    insert into pgps_internal.confirm_link (confirming, original, owner, subscription_id)
    values (v_confirming.type_id, v_original.type_id, quote_ident(caller)::regrole, v_subscription.subscription_id)
        returning * into v_link;
    perform pgps_internal.add_feature(v_original.type_id, 'confirm');
    perform pgps_internal.build(pgps_internal.write_confirm(v_link, v_confirming), null), pg_notify('pgps_confirm', '');
end
$$;
comment on function pgps_internal.do_link_confirm_event(name, jsonb) is 'See pgps.link_confirm_event';

create or replace function pgps_internal.confirms(type_id integer, other integer) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with recursive chain(type_id) as (
        select confirms.type_id
        union
        select k.original from chain c join pgps_internal.confirm_link k on k.confirming = c.type_id
    )
    select exists (select from chain c where c.type_id = confirms.other)
$$;
comment on function pgps_internal.confirms(integer, integer) is
'True when a type is the other one, or confirms it over any number of confirm links';

create or replace function pgps_internal.drop_confirm(link pgps_internal.confirm_link) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.drop_piece('function', 'pgps_internal.confirm_' || (drop_confirm.link).link_id);
    delete from pgps_internal.confirm_link k where k.link_id = (drop_confirm.link).link_id;
    perform pgps_internal.drop_subscription((drop_confirm.link).subscription_id);
end
$$;
comment on function pgps_internal.drop_confirm(pgps_internal.confirm_link) is
'Ends a confirm link; events raised before that are not confirmed yet will not be';

create or replace function pgps_internal.do_drop_confirm_event(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_link pgps_internal.confirm_link;
begin
    perform pgps_internal.require_admin(caller, 'link confirming events');
    select k.* into v_link from pgps_internal.confirm_link k
    where k.confirming = (pgps_internal.find_type(args ->> 'confirming')).type_id
        and k.original = (pgps_internal.find_type(args ->> 'original')).type_id;
    if not found then
        raise exception 'event type "%" does not confirm "%"', args ->> 'confirming', args ->> 'original'
        using errcode = '42704', hint = 'See pgps.confirm_events.';
    end if;
    perform pgps_internal.drop_confirm(v_link);
end
$$;
comment on function pgps_internal.do_drop_confirm_event(name, jsonb) is 'See pgps.drop_confirm_event';

create or replace function pgps.link_confirm_event(confirming text, original text) returns void
language sql
begin atomic
    select pgps._call('link_confirm_event',
        jsonb_build_object('confirming', link_confirm_event.confirming, 'original', link_confirm_event.original));
end;
comment on function pgps.link_confirm_event(text, text) is
'For each event of original raised from now on, raises an event of confirming with its id and whether the raising
transaction committed (Ariel, section 3.1): true for deferred events; for immediate ones once the transaction has ended,
also when its backend was killed; null when that is not known any more (a restored database). The attributes of
confirming are one bigint and one boolean, in this order; it is raised by the current role, which must have advertised
it. Needs pgps_admin. Errors: 42704, 42710, 42804 attributes, 22023 it would confirm itself, 42501, 55000 not
advertised.';

create or replace function pgps.drop_confirm_event(confirming text, original text) returns void
language sql
begin atomic
    select pgps._call('drop_confirm_event',
        jsonb_build_object('confirming', drop_confirm_event.confirming, 'original', drop_confirm_event.original));
end;
comment on function pgps.drop_confirm_event(text, text) is
'Ends what pgps.link_confirm_event began; events that are not confirmed yet will not be. Needs pgps_admin. Errors:
42704, 42501.';

-- ---------------------------------------------------------------------------------------------------------------------
-- What the worker calls
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.outcome(raiser xid8) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- rebaseline sets transaction ids of another life of the database to 0. A transaction at or above the snapshot's
    -- end may still run, as far as this snapshot knows.
    select case when outcome.raiser = '0' then 'unknown'
        when outcome.raiser >= pg_snapshot_xmax(pg_current_snapshot()) then 'in progress'
        else coalesce(pg_xact_status(outcome.raiser), 'unknown') end
$$;
comment on function pgps_internal.outcome(xid8) is
'What became of a transaction: in progress, committed, aborted, or unknown';

create or replace function pgps_internal.fetch_raised(
    link pgps_internal.confirm_link, max_events integer, out ids int8multirange[], out raisers xid8[], out events bigint
)
returns record
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint := (fetch_raised.link).subscription_id;
    v_position pgps_internal.position := pgps_internal.position_of(v_id);
    v_next pgps_internal.received[];
    v_last pgps_internal.received;
begin
    v_next := array(select (n.batch_id, n.event_id, n.type_id, 1)::pgps_internal.received
        from pgps_internal.next_events(v_id, v_position.acked_batch, v_position.acked_event, fetch_raised.max_events) n
            order by n.batch_id, n.event_id);
    fetch_raised.events := cardinality(v_next);
    if fetch_raised.events = 0 then
        return;
    end if;
    v_last := v_next[fetch_raised.events];
    perform pgps_internal.move(v_id, v_last.batch_id, v_last.event_id, v_last.batch_id, v_last.event_id,
        v_position.acked_total + fetch_raised.events);
    execute format('select array_agg(g.ids), array_agg(g.raiser) from (
            select c.raiser, range_agg(int8range(r.event_id, r.event_id, ''[]'')) as ids
            from unnest($1) r
            join %s l on l.event_id = r.event_id
            left join lateral (%s) c on true
            group by c.raiser) g',
                (select t.log from pgps_internal.event_type t where t.type_id = (fetch_raised.link).original),
        pgps_internal.statement_of('c.raiser', '$2'))
    using v_next, (fetch_raised.link).original into fetch_raised.ids, fetch_raised.raisers;
end
$$;
comment on function pgps_internal.fetch_raised(pgps_internal.confirm_link, integer) is
'Takes the next events of a confirm link''s original type, grouped by the transaction that raised them as immediate
events (null: deferred events), and moves its cursor past them';

create or replace function pgps_internal.confirm_raised(link pgps_internal.confirm_link, max_events integer)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_before pgps_internal.session_state;
    v_raised record;
    v_ids bigint[];
    v_committed boolean[];
begin
    select r.* into v_raised from pgps_internal.fetch_raised(confirm_raised.link, confirm_raised.max_events) r;
    insert into pgps_internal.confirm_open (link_id, raiser, ids)
    select (confirm_raised.link).link_id, u.raiser, u.ids from unnest(v_raised.ids, v_raised.raisers) u(ids, raiser)
        where u.raiser is not null;
    with outcome as materialized (
        select o.raiser, pgps_internal.outcome(o.raiser) as outcome
        from (select distinct o.raiser from pgps_internal.confirm_open o
            where o.link_id = (confirm_raised.link).link_id) o
    ),
    ended as (
        delete from pgps_internal.confirm_open o using outcome c
        where o.link_id = (confirm_raised.link).link_id and c.raiser = o.raiser and c.outcome <> 'in progress'
        returning o.ids, c.outcome
    )
    select array_agg(i.id order by i.id),
        array_agg(case e.outcome when 'committed' then true when 'aborted' then false end order by i.id)
    into v_ids, v_committed
    from (
        select e.ids, e.outcome from ended e
        union all
        select u.ids, 'committed' from unnest(v_raised.ids, v_raised.raisers) u(ids, raiser) where u.raiser is null
    ) e
    cross join lateral unnest(e.ids) r
    cross join lateral generate_series(lower(r), upper(r) - 1) i(id);
    if v_ids is not null then
        v_before := pgps_internal.session_state(false);
        execute format('select pgps_internal.confirm_%s($1, $2)', (confirm_raised.link).link_id)
        using v_ids, v_committed;
        -- All names from here on are qualified, since a constraint may have left another search_path behind.
        -- check_settings raises then, and the rollback restores it.
        perform pgps_internal.run_deferred(
            pg_catalog.format('select pgps_internal.confirm_%s(null, null)', (confirm_raised.link).link_id),
            'a constraint of the confirming event');
        perform pgps_internal.check_settings(v_before, 'a constraint of the confirming event');
        perform pgps_internal.check_session(v_before, 'a constraint of the confirming event');
    end if;
    return coalesce(v_raised.events, 0) + coalesce(cardinality(v_ids), 0);
end
$$;
comment on function pgps_internal.confirm_raised(pgps_internal.confirm_link, integer) is
'One pass over a confirm link: raises the confirming events whose outcome is known, keeps the others open; returns the
number of events taken plus the number confirmed';

create or replace function pgps_internal.is_free(link pgps_internal.confirm_link) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_position pgps_internal.position := pgps_internal.position_of((is_free.link).subscription_id);
begin
    -- Looked at first, since a lock on a row is a write.
    if not exists (select from pgps_internal.confirm_open o where o.link_id = (is_free.link).link_id)
        and not exists (select from pgps_internal.next_events((is_free.link).subscription_id, v_position.acked_batch,
            v_position.acked_event, 1)) then
        return false;
    end if;
    perform from pgps_internal.confirm_link k where k.link_id = (is_free.link).link_id for key share skip locked;
    return found and pgps_internal.hold_type((is_free.link).original)
        and pgps_internal.hold_type((is_free.link).confirming);
end
$$;
comment on function pgps_internal.is_free(pgps_internal.confirm_link) is
'True when there is something to confirm by a link, and nobody is dropping it or changing one of its types, which is not
waited for: then that does not happen before this transaction ends';

create or replace function pgps.raise_confirming(max_events integer = 10000, out done bigint, out open bigint)
returns record
language plpgsql security definer
set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off set max_parallel_workers_per_gather = 0
as $$
declare
    v_link pgps_internal.confirm_link;
    v_state text;
    v_error text;
    v_context text;
    v_prepared text;
begin
    perform pgps_internal.require_read_committed();
    if not exists (select from pgps_internal.confirm_link) then
        return;
    end if;
    perform pgps_internal.require_unwritten('confirming events cannot be raised');
    done := 0;
    open := 0;
    if not pgps_internal.try_lock('pgps_internal.confirm_link', 'share update exclusive') then
        return;
    end if;
    v_prepared := pgps_internal.prepared();
    for v_link in select k.* from pgps_internal.confirm_link k order by k.link_id loop
        begin
            continue when not pgps_internal.is_free(v_link);
            done := done + pgps_internal.confirm_raised(v_link, raise_confirming.max_events);
            update pgps_internal.confirm_link k set last_error = null where k.link_id = v_link.link_id
                and k.last_error is not null;
        exception when others or assert_failure or query_canceled then
            get stacked diagnostics v_state = returned_sqlstate, v_error = message_text,
            v_context = pg_exception_context;
            perform pgps_internal.forget_prepared(v_prepared);
            if pgps_internal.is_cancelled(v_state, v_context) then
                raise;
            end if;
            -- The cursor of this link stays where it is, so that it is tried again at the next call; the other links go
            -- on.
            update pgps_internal.confirm_link k set last_error = v_error where k.link_id = v_link.link_id
                and k.last_error is distinct from v_error;
        end;
    end loop;
    open := (select count(*) from pgps_internal.confirm_open);
end
$$;
comment on function pgps.raise_confirming(integer) is
'Raises the confirming events for events whose transactions have ended. done: how many events were taken plus how many
were confirmed, null when there is no confirm link; open: transactions that have raised immediate events and have not
ended. max_events: about how many events of each link at most. The worker calls it after dispatch, and while something
is open. Needs pgps_worker or pgps_admin.';

create or replace function pgps_internal.drop_confirms_of(event_type pgps_internal.event_type) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.drop_confirm(k) from pgps_internal.confirm_link k
    where (drop_confirms_of.event_type).type_id in (k.confirming, k.original);
end
$$;
comment on function pgps_internal.drop_confirms_of(pgps_internal.event_type) is
'Ends the confirm links from and to an event type';

create or replace function pgps_internal.forget_raisers() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    update pgps_internal.confirm_open o set raiser = '0';
end
$$;
comment on function pgps_internal.forget_raisers() is
'For another life of the database, in which the outcome of the transactions that raised immediate events is not known
any more';

revoke all on function pgps.raise_confirming(integer) from public;
grant execute on function pgps.link_confirm_event(text, text), pgps.drop_confirm_event(text, text) to public;
grant execute on function pgps.raise_confirming(integer) to pgps_worker, pgps_admin;
