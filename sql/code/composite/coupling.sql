-- Rules in the publisher's transaction: internal subscriptions with the coupling immediate run in the statement that
-- publishes, those with the coupling deferred before the commit, over the events of that transaction alone. A statement
-- trigger on the log of an event type notes what was published; no other event type has it. What the detector knows of
-- a transaction stays with the session, and is made again from the log where a savepoint was rolled back to.
-- Locks: a rule is made under share row exclusive on the logs that it needs.
-- Writes: coupled_rule, setting.

insert into pgps_internal.setting (name, value, kind, description) values
    ('coupling_depth', '32', 'integer',
        'How deep rules with the coupling immediate or deferred may nest: a rule that publishes what fires a rule')
on conflict (name) do nothing;

create or replace function pgps_internal.types_of_rule(event_type pgps_internal.event_type)
returns setof pgps_internal.event_type
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select (types_of_rule.event_type).*
    where not exists (select from pgps_internal.composite c where c.type_id = (types_of_rule.event_type).type_id)
    union
    select t.* from pgps_internal.composite c join pgps_internal.composite_leaf l using (composite_id)
    join pgps_internal.event_type t on t.type_id = l.type_id
    where c.type_id = (types_of_rule.event_type).type_id
$$;
comment on function pgps_internal.types_of_rule(pgps_internal.event_type) is
'The event types whose events a rule on a type is about: the leaves of a composite event, any other type itself';

create or replace function pgps_internal.require_coupling_right(
    role name, event_type pgps_internal.event_type
) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if not pg_has_role(require_coupling_right.role, 'pgps_admin', 'usage')
        and not pg_has_role(require_coupling_right.role, (require_coupling_right.event_type).owner::oid, 'usage') then
        raise exception 'role "%" may not run rules in transactions that publish event type "%"',
            require_coupling_right.role, (require_coupling_right.event_type).name
        using errcode = '42501', hint = format('Become a member of role %s or of pgps_admin, or use the coupling '
            'detached.', (require_coupling_right.event_type).owner);
    end if;
end
$$;
comment on function pgps_internal.require_coupling_right(name, pgps_internal.event_type) is
'Raises 42501 for a role whose code may not run in the transactions that publish events of a type';

create or replace function pgps_internal.require_coupled_owner(
    rule pgps_internal.coupled_rule, owner name
) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_type pgps_internal.event_type;
begin
    select t.* into v_type from pgps_internal.event_type t where t.type_id = (require_coupled_owner.rule).type_id;
    if not has_table_privilege(require_coupled_owner.owner, v_type.endpoint, 'select') then
        raise exception 'role "%" may not subscribe to event type "%"', require_coupled_owner.owner, v_type.name
        using errcode = '42501', hint = format('Ask for: grant select on %s to %I', v_type.endpoint,
            require_coupled_owner.owner);
    end if;
    perform pgps_internal.require_coupling_right(require_coupled_owner.owner, t)
    from pgps_internal.types_of_rule(v_type) t;
end
$$;
comment on function pgps_internal.require_coupled_owner(pgps_internal.coupled_rule, name) is
'Raises 42501 for a role that may not own a rule that runs in the publisher''s transaction';

create or replace function pgps_internal.check_coupling(caller name, args jsonb, event_type pgps_internal.event_type)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_given text := args ->> 'coupling';
    v_composite pgps_internal.composite;
    v_type pgps_internal.event_type;
begin
    select c.* into v_composite from pgps_internal.composite c where c.type_id = (check_coupling.event_type).type_id;
    if args ->> 'execute' is null then
        raise exception 'a rule with the coupling % executes nothing', v_given using errcode = '22023',
            hint = 'Give execute => ''f(attribute, …)'', or leave coupling out.';
    elsif args ->> 'scope' <> 'local' or args ->> 'start' <> 'now' then
        raise exception 'a rule with the coupling % sees the events of the publisher''s transaction alone', v_given
        using errcode = '22023', hint = 'Leave scope and start out, or use the coupling detached.';
    elsif v_given = 'immediate' and (v_composite.parsed ->> 'transactional')::boolean then
        raise exception 'composite event "%" waits for the end of a transaction', (check_coupling.event_type).name
        using errcode = '22023', hint = 'Use the coupling deferred.';
    end if;
    for v_type in select * from pgps_internal.types_of_rule(check_coupling.event_type) loop
        if v_type.visibility = 'immediate' then
            raise exception 'events of type "%" are published in a transaction of their own', v_type.name
            using errcode = '22023', hint = 'Use the coupling detached for an immediate event type.';
        elsif exists (select from pgps_internal.composite c where c.type_id = v_type.type_id) then
            raise exception 'composite event "%" is made of composite event "%", which no transaction publishes',
                (check_coupling.event_type).name, v_type.name
            using errcode = '0A000', hint = 'Write its expression in place of its name, or use the coupling detached.';
        end if;
        perform pgps_internal.require_coupling_right(check_coupling.caller, v_type);
    end loop;
end
$$;
comment on function pgps_internal.check_coupling(name, jsonb, pgps_internal.event_type) is
'Raises 22023, 0A000 or 42501 for a rule that cannot run in the publisher''s transaction; args as of pgps.subscribe';

create or replace function pgps_internal.couple(
    caller name, args jsonb, subscription pgps_internal.subscription, event_type pgps_internal.event_type
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp set client_min_messages = warning
as $$
declare
    v_type pgps_internal.event_type;
begin
    perform pgps_internal.check_coupling(couple.caller, args, couple.event_type);
    insert into pgps_internal.coupled_rule (subscription_id, type_id, coupling)
    values ((couple.subscription).subscription_id, (couple.event_type).type_id, args ->> 'coupling');
    perform pgps_internal.build(p, (couple.event_type).type_id)
    from pgps_internal.pieces_of_rule(couple.subscription, couple.event_type) p;
    perform pgps_internal.lock_types(array(select t.type_id
        from pgps_internal.types_of_rule(couple.event_type) t), 'share row exclusive', only_log => true);
    for v_type in select * from pgps_internal.types_of_rule(couple.event_type) order by type_id loop
        execute format('create or replace trigger pgps_coupling after insert on %1$s referencing new table as pgps_new
            for each statement execute function pgps_internal.note_coupled();
            alter table %1$s enable always trigger pgps_coupling', v_type.log);
    end loop;
end
$$;
comment on function pgps_internal.couple(name, jsonb, pgps_internal.subscription, pgps_internal.event_type) is
'Makes a subscription a rule that runs in the publisher''s transaction; see pgps.subscribe';

-- ---------------------------------------------------------------------------------------------------------------------
-- Generated: conditions over events of the transaction, with the rights of who made them
-- ---------------------------------------------------------------------------------------------------------------------

create or replace function pgps_internal.write_choice(
    name text, event_type text, filter text, environment jsonb, owner regrole
) returns pgps_internal.piece
language sql stable
set search_path = pg_catalog, pg_temp
as $write$
    -- No attribute's name begins with pgps_, so the filter means the event's attributes, also by the name of the type.
    select pgps_internal.write_function(write_choice.name, $head$(pgps_events pgps_event.{type}[]) returns integer[]
        language plpgsql volatile security definer set enable_seqscan = on {settings}$head$, $body$
        #variable_conflict use_column
        begin
            return array(select pgps_u.pgps_o::integer
                from (select pgps_e, pg_catalog.row_number() over () as pgps_o
                    from pg_catalog.unnest(pgps_events) pgps_e) pgps_u
                cross join lateral (select (pgps_u.pgps_e).*) {type}
                where ({filter}
                ) order by pgps_u.pgps_o);
        end$body$, jsonb_build_object('type', quote_ident(write_choice.event_type),
            'filter', coalesce(nullif(write_choice.filter, ''), 'true'),
            'settings', pgps_internal.environment_clause(write_choice.environment)), write_choice.owner)
$write$;
comment on function pgps_internal.write_choice(text, text, text, jsonb, regrole) is
'A function that tells which of some events, by their places, satisfy a filter; runs with the rights of owner';

create or replace function pgps_internal.pieces_of_rule(
    subscription pgps_internal.subscription, event_type pgps_internal.event_type
) returns setof pgps_internal.piece
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select pgps_internal.write_callback(pieces_of_rule.subscription, pieces_of_rule.event_type)
    union all
    select pgps_internal.write_choice(format('pgps_internal.coupled_%s_%s', s.subscription_id,
        (pieces_of_rule.event_type).type_id), (pieces_of_rule.event_type).name, s.filter, s.environment, s.owner)
    from (select (pieces_of_rule.subscription).*) s
    union all
    select pgps_internal.write_choice(format('pgps_internal.composite_leaf_%s_%s', c.composite_id, l.leaf), t.name,
        u.filter, u.environment, u.owner)
    from pgps_internal.composite c join pgps_internal.composite_leaf l using (composite_id)
    join pgps_internal.event_type t on t.type_id = l.type_id
    join pgps_internal.subscription u on u.subscription_id = l.subscription_id
    where c.type_id = (pieces_of_rule.event_type).type_id
$$;
comment on function pgps_internal.pieces_of_rule(pgps_internal.subscription, pgps_internal.event_type) is
'The generated code of a rule that runs in the publisher''s transaction: its callback, its filter, and the predicates of
the leaves of its composite event';

drop function if exists pgps_internal.pieces_of_rules();
create or replace function pgps_internal.pieces_of_rules(of_type integer = null)
returns table (type_id integer, piece pgps_internal.piece)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- OFFSET 0: the join comes first, or code would be written for subscriptions that are no rules.
    select distinct on ((p).name) w.type_id, p
    from (select r.type_id, s, t
        from pgps_internal.coupled_rule r join pgps_internal.subscription s using (subscription_id)
        join pgps_internal.event_type t using (type_id)
        where r.type_id = coalesce(pieces_of_rules.of_type, r.type_id) offset 0) w(type_id, s, t),
        pgps_internal.pieces_of_rule(w.s, w.t) p
    order by (p).name
$$;
comment on function pgps_internal.pieces_of_rules(integer) is
'The generated code of all rules in publishers'' transactions, or of those on one type';

create or replace function pgps_internal.build_rules(type_id integer) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$ select pgps_internal.build(p.piece, p.type_id) from pgps_internal.pieces_of_rules(build_rules.type_id) p $$;
comment on function pgps_internal.build_rules(integer) is
'Generates the code of the rules on a type again, after the type, a composite event or a rule has changed';

create or replace function pgps_internal.rule_coupled_to(event_type pgps_internal.event_type) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select format('subscription "%s" wants its events', s.name)
    from pgps_internal.coupled_rule r join pgps_internal.subscription s using (subscription_id)
    where r.type_id = (rule_coupled_to.event_type).type_id order by s.name limit 1
$$;
comment on function pgps_internal.rule_coupled_to(pgps_internal.event_type) is
'A rule in publishers'' transactions about a type, as a reason not to drop it; null when there is none';

create or replace function pgps_internal.drop_rules_coupled_to(event_type pgps_internal.event_type) returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    select pgps_internal.drop_subscription(r.subscription_id) from pgps_internal.coupled_rule r
    where r.type_id = (drop_rules_coupled_to.event_type).type_id
$$;
comment on function pgps_internal.drop_rules_coupled_to(pgps_internal.event_type) is
'Drops the rules in publishers'' transactions about a type';

create or replace function pgps_internal.idle_couplings() returns setof regclass
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select t.log from pgps_internal.event_type t
    join pg_trigger g on g.tgrelid = t.log and g.tgname = 'pgps_coupling' and g.tgparentid = 0
    where not exists (select from pgps_internal.coupled_rule r join pgps_internal.event_type x using (type_id),
        pgps_internal.types_of_rule(x) w where w.type_id = t.type_id)
$$;
comment on function pgps_internal.idle_couplings() is
'The logs with a trigger for rules in publishers'' transactions of which none is left';

create or replace function pgps_internal.sweep_coupling() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_log regclass;
begin
    -- Publishers are not made to wait for a trigger that does nothing: another time will do.
    for v_log in select pgps_internal.idle_couplings() loop
        continue when not pgps_internal.try_lock(v_log);
        -- Looked at again, now that the log is locked: somebody may have made such a rule meanwhile.
        if v_log in (select pgps_internal.idle_couplings()) then
            execute format('drop trigger pgps_coupling on %s', v_log);
        end if;
    end loop;
end
$$;
comment on function pgps_internal.sweep_coupling() is
'Drops the triggers of event types about which no rule is left that runs in publishers'' transactions';
