-- The statement that an INSERT into an endpoint becomes, and who its publisher is. It is the action of a rule, planned
-- with the INSERT (decision 11).
-- NOTIFY takes a database-wide lock until the commit is on disk, so it is sent only when the dispatcher has said in the
-- last five seconds that it sleeps (leader.sql). A dispatcher that starts, or falls asleep, looks until all
-- transactions that run then have ended. PostgreSQL sends the notification when the transaction commits, and never if
-- it does not. A transaction that has sent one could not be prepared: where that is possible, pgps._ring() is called
-- instead.
-- Locks: row exclusive on the log's and the control queue's current segment until the transaction ends.
-- Writes: control; by name: the log of a type.

create or replace function pgps_internal.publication(event_type pgps_internal.event_type, source regclass) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- pgps_opened is read before the statement draws its first event id, since nextval is given the sequence from
    -- there. pgps_recorded runs when the statement has ended, as PostgreSQL runs a WITH that writes and is not read.
    -- The statement's events are those of its transaction from lo to hi, among ids that others drew meanwhile.
    -- VALUES, not SELECT: a rule with a SELECT could not follow upon the publisher's own WITH ... DELETE ... RETURNING.
    -- All columns of the control queue are named in their order, which saves a plan node.
    -- Each function that is written here is set up by each statement, with a look at its privileges, whether or not it
    -- is called then. So what is rare stands in functions of its own, and is one call here (decision 53).
    -- The publisher is the current user if that has the privilege that pgps.advertise grants; a superuser, who has
    -- every privilege, is looked up.
    -- Clients registered for direct events are notified, and only when there are any. Whether there are is looked up
    -- when the statement is planned, see pgps._has_listeners.
    return format($rule$
        with pgps_opened as materialized (
            select coalesce(pg_sequence_last_value('pgps_internal.event_id_seq'::regclass), 0) as lo,
                'pgps_internal.event_id_seq'::regclass as ids,
                case when greatest(current_setting('pgps.act_as', true), current_setting('pgps.reliability', true),
                        current_setting('pgps.handler', true)) <> '' then pgps._manner(%1$s) end as manner
        ),
        pgps_recorded as (
            insert into pgps_internal.control (hi, lo, xid, type_id, publisher, woken, volatile, published_at, raiser,
                origin_id, handler, client_id)
            select
                pg_sequence_last_value('pgps_internal.event_id_seq'::regclass), o.lo + 1, pg_current_xact_id(), %1$s,
                case when (o.manner).acts or has_table_privilege('pgps_internal.control'::regclass, 'delete')
                        or not has_table_privilege(%2$L::regclass, 'references')
                    then pgps._publisher(%1$s, current_user) else quote_ident(current_user)::regrole end,
                case when pg_sequence_last_value('pgps_internal.wake_seq'::regclass) > 0
                    then pgps._wake('pgps_internal.wake_seq'::regclass) else false end,
                (o.manner).volatile is true, pgps._clock(), (o.manner).raiser, null::integer,
                case when pgps._has_listeners(%2$L::regclass)
                    then pgps._tell(%1$s, o.lo, o.ids, (o.manner).handler, %5$L) else (o.manner).handler end,
                nullif(current_setting('pgps.client', true), '')::bigint
            from pgps_opened o where pg_sequence_last_value('pgps_internal.event_id_seq'::regclass) > o.lo
        )
        insert into %2$s (event_id, %3$s)
        values (nextval((select o.ids from pgps_opened o)), %4$s)$rule$,
        (publication.event_type).type_id, (publication.event_type).log,
            pgps_internal.column_list((publication.event_type).endpoint),
        -- Half a number would be no protection against repeats; see pgps._half_a_number.
        replace(pgps_internal.column_list(publication.source, 'new.'), 'new._producer_seq',
            'case when (new._producer is null) = (new._producer_seq is null) then new._producer_seq '
            'else pgps._half_a_number(new._producer, new._producer_seq) end'), (publication.event_type).handler);
end
$$;
comment on function pgps_internal.publication(pgps_internal.event_type, regclass) is
'The action of a rule on source (an endpoint, or an entry): the statement that an INSERT into it becomes. It stands for
the commit trigger and the control queue of the paper (section 5.2)';

-- The rare branches of the statement. They run with the publisher's rights and search_path, so names and operators are
-- qualified, and what they return is one expression: a call with SET clauses, or a query, takes longer than the rest of
-- them. Sequences are given as regclass, since publishers may read them, but not look into their schema.

create or replace function pgps._manner(type_id integer) returns pgps_internal.manner
language plpgsql stable
as $$
begin
    return row(coalesce(pg_catalog.current_setting('pgps.act_as', true), '') operator(pg_catalog.<>) '',
        case when pg_catalog.current_setting('pgps.reliability', true) operator(pg_catalog.=) 'non-guaranteed' then true
            when pg_catalog.current_setting('pgps.reliability', true) operator(pg_catalog.=) 'guaranteed'
            then pgps._is_volatile(_manner.type_id) else false end,
        case when pg_catalog.current_setting('pgps.act_as', true) operator(pg_catalog.<>) ''
            and pg_catalog.current_setting('pgps.raiser', true) operator(pg_catalog.<>) ''
            then pg_catalog.current_setting('pgps.raiser')::pg_catalog.xid8 end,
        case when pg_catalog.current_setting('pgps.handler', true) operator(pg_catalog.<>) ''
            then case when pg_catalog.current_setting('pgps.handler') operator(pg_catalog.=)
                    any (array['all', 'raiser', 'any']) then pg_catalog.current_setting('pgps.handler')
                else pgps._no_handler(pg_catalog.current_setting('pgps.handler')) end end);
end
$$;
comment on function pgps._manner(integer) is
'How a statement publishes that has been told by settings, see pgps_internal.manner. pgps.raiser is set together
with pgps.act_as, and counts only then. Errors: 22023, 23514.';

create or replace function pgps._no_handler(handler text) returns text
language plpgsql immutable
as $$
begin
    raise exception 'invalid handler "%" in the setting pgps.handler', _no_handler.handler
    using errcode = '23514', hint = 'Use all, any or raiser.';
end
$$;
comment on function pgps._no_handler(text) is 'Raises 23514 for a setting that names no handler';

create or replace function pgps._wake(wake_seq regclass) returns boolean
language plpgsql
as $$
begin
    -- A leader that has gone without a word has said long ago that it sleeps.
    return case when pg_catalog.pg_sequence_last_value(_wake.wake_seq)::float8 operator(pg_catalog.<)
                (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) operator(pg_catalog.-) 5::float8)
            then false
        when pg_catalog.current_setting('max_prepared_transactions') operator(pg_catalog.=) '0'
            then pg_catalog.pg_notify('pgps_dispatch', '')::text operator(pg_catalog.=) ''
        else pgps._ring() end;
end
$$;
comment on function pgps._wake(regclass) is
'Wakes the dispatcher, which has said in wake_seq that it sleeps, for what is being published; false when that was long
ago';

create or replace function pgps._has_listeners(log regclass) returns boolean
language plpgsql immutable strict
as $$
begin
    return pg_catalog.has_table_privilege('pgps_worker'::pg_catalog.name, _has_listeners.log, 'trigger');
end
$$;
comment on function pgps._has_listeners(regclass) is
'True when clients are registered for direct events of the type with this log. It says that it is immutable, so that
PostgreSQL calls it when a statement is planned, and leaves out of the plan what nobody needs. What it reads is a
privilege on the log: granting or revoking it (registrations.sql) makes PostgreSQL plan each statement on the log again.
Not for use where no relation of the statement is that log';

create or replace function pgps._tell(type_id integer, lo bigint, ids regclass, handler text, default_handler text)
returns text
language plpgsql
as $$
begin
    return case when coalesce(_tell.handler, _tell.default_handler) operator(pg_catalog.<>) 'any'
            and coalesce(pg_catalog.current_setting('pgps.carried', true), '') operator(pg_catalog.=) ''
            and pg_catalog.pg_notify(pg_catalog.concat('pgps_direct_', _tell.type_id), pg_catalog.concat_ws(' ',
                _tell.type_id, _tell.lo operator(pg_catalog.+) 1::bigint,
                pg_catalog.pg_sequence_last_value(_tell.ids), pg_catalog.pg_current_xact_id()))::text
                operator(pg_catalog.<>) '' then null
        else _tell.handler end;
end
$$;
comment on function pgps._tell(integer, bigint, regclass, text, text) is
'Notifies the clients that are registered for direct events of a type about a statement whose events begin above lo;
returns handler. handler: what the statement was told, null = as the type says; ids: the sequence of the events';

create or replace function pgps._half_a_number(producer text, producer_seq bigint) returns bigint
language plpgsql immutable
as $$
begin
    raise exception '_producer and _producer_seq belong together: _producer is %, _producer_seq is %',
        coalesce(pg_catalog.quote_literal(_half_a_number.producer), 'null'),
        coalesce(_half_a_number.producer_seq::text, 'null')
    using errcode = '22023', hint = 'Give both or neither.';
end
$$;
comment on function pgps._half_a_number(text, bigint) is
'Raises 22023 for an event with a producer and no number, or the other way round, as pgps.publish does';

create or replace function pgps._is_volatile(type_id integer) returns boolean
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = _is_volatile.type_id;
    if v_type.reliability = 'non-guaranteed' then
        raise exception 'event type "%" is non-guaranteed: its events are gone after a crash', v_type.name
        using errcode = '22023',
            hint = 'Publish it without GUARANTEED (reliability => null), or create a guaranteed event type for these '
            'events.';
    elsif not v_type.persistent then
        raise exception 'event type "%" is not persistent: its events are gone after a crash', v_type.name
        using errcode = '22023',
            hint = format('Publish it without GUARANTEED (reliability => null), or first: select pgps.alter_queue(%L, '
            'persistent => true)',
            quote_ident(v_type.name || '_in'));
    end if;
    return false;
end
$$;
comment on function pgps._is_volatile(integer) is
'False for an event that is published as guaranteed. Errors: 22023 when its type cannot keep it over a crash.';

create or replace function pgps._publisher(type_id integer, role name) returns regrole
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_publisher regrole;
begin
    -- One statement, since every publication of a superuser comes here.
    select a.role into v_publisher from pgps_internal.advertisement a
    where a.type_id = _publisher.type_id
        and a.role = quote_ident(case when coalesce(current_setting('pgps.act_as', true), '') = ''
            then _publisher.role else pgps_internal.acting_publisher(_publisher.role) end)::regrole;
    if not found then
        v_publisher := quote_ident(pgps_internal.acting_publisher(_publisher.role))::regrole;
        perform pgps_internal.require_advertised(_publisher.type_id, v_publisher::oid);
    end if;
    return v_publisher;
end
$$;
comment on function pgps._publisher(integer, name) is
'The publisher, for the control queue, where no privilege tells: a superuser, the loopback connection, or a role that
has not advertised. role: the current user of the statement. Errors: 55000.';

create or replace function pgps_internal.acting_publisher(role name) returns name
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The setting is believed only on the loopback connection, whose user owns pgps.
    return case when coalesce(current_setting('pgps.act_as', true), '') <> '' and acting_publisher.role = session_user
            and (select r.rolsuper from pg_roles r where r.rolname = session_user)
        then current_setting('pgps.act_as')::name else acting_publisher.role end;
end
$$;
comment on function pgps_internal.acting_publisher(name) is
'The role for which the loopback connection publishes; role itself everywhere else';
