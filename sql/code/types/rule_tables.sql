-- What an active rule can be on: a relation whose statements PostgreSQL tells triggers about, with their rows.
-- Locks: none.
-- Writes: nothing.

create or replace function pgps_internal.require_rule_table(relation regclass, operations text[], moment text)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_kind "char";
    v_schema name;
    v_type text;
    v_instead name;
begin
    select c.relkind, n.nspname into v_kind, v_schema
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = require_rule_table.relation;
    select t.name into v_type from pgps_internal.event_type t where t.endpoint = require_rule_table.relation;
    if v_type is not null then
        raise exception 'a rule cannot be on event type "%": it has no rows that change', v_type
        using errcode = '42809',
            hint = format('Make an event of another by a subscription: select pgps.subscribe(''…'', %L, '
                'execute => ''f''), where the function f publishes.', quote_ident(v_type));
    elsif v_schema in ('pg_catalog', 'information_schema', 'pg_toast')
            or v_schema in ('pgps', 'pgps_event', 'pgps_queue', 'pgps_internal') then
        raise exception 'a rule cannot be on %, which belongs to %', require_rule_table.relation,
            case when v_schema ~ '^pgps' then 'pgps' else 'PostgreSQL' end using errcode = '42809',
            hint = 'Make the rule on a table of your own.';
    elsif v_kind not in ('r', 'p') and not (v_kind = 'f' and require_rule_table.moment = 'begin') then
        raise exception 'a rule cannot be on %, which is %', require_rule_table.relation, case v_kind
                when 'v' then 'a view' when 'm' then 'a materialized view' when 'f' then 'a foreign table'
                when 'S' then 'a sequence' when 'c' then 'a composite type' else 'an index' end
        using errcode = '42809', hint = case v_kind
            when 'v' then 'Make the rule on the table that the view is of.'
            when 'f' then 'Its rows change at another server, perhaps without this one: make the rule there, and link '
                'the two brokers; or give it moment => ''begin''.'
            else 'Make the rule on the table whose rows change.' end;
    end if;
    select w.rulename into v_instead from pg_rewrite w
    where w.ev_class = require_rule_table.relation and w.is_instead and w.ev_qual::text = '<>'
        and case w.ev_type when '2' then 'UPDATE' when '3' then 'INSERT' when '4' then 'DELETE' end
            = any (require_rule_table.operations);
    if v_instead is not null then
        raise exception 'a rule on % would never publish: PostgreSQL''s rule "%" has something else done INSTEAD',
            require_rule_table.relation, v_instead using errcode = '55000',
            hint = 'Make the rule on the table that is changed instead.';
    end if;
end
$$;
comment on function pgps_internal.require_rule_table(regclass, text[], text) is
'Raises when a rule on that relation could never publish. Errors: 42809 a view, an event type or what else is no table;
55000 a table that is not changed, because of a rewrite rule';

create or replace function pgps_internal.warn_of_foreign_parts(rule pgps_internal.rule) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_part regclass := (
        select c.oid from pgps_internal.family_of((warn_of_foreign_parts.rule).table_name) f(member)
        join pg_class c on c.oid = f.member where c.relkind = 'f' and c.oid <> (warn_of_foreign_parts.rule).table_name
        order by c.oid limit 1);
begin
    if v_part is not null and (warn_of_foreign_parts.rule).moment = 'end' then
        raise warning 'rule "%" does not publish what changes in the foreign table %',
            (warn_of_foreign_parts.rule).name, v_part
        using hint = format('PostgreSQL refuses statements on %s that reach it (0A000). Make a rule at its own server, '
            'and link the two brokers.', (warn_of_foreign_parts.rule).table_name);
    end if;
end
$$;
comment on function pgps_internal.warn_of_foreign_parts(pgps_internal.rule) is
'Warns of a foreign table among the partitions or heirs of a rule''s table: no trigger is told which of its rows a
statement changes';
