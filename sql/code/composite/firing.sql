-- What rules do in the publisher's transaction (coupling.sql): which fire, what composite events detect in it, and how
-- deep they are.
-- Locks: none.
-- Writes: coupling_mark.

create or replace function pgps_internal.rules_about(type_ids integer[], coupling text)
returns setof pgps_internal.coupled_rule
language plpgsql stable rows 5
as $$
begin
    return query
    select r.* from pgps_internal.coupled_rule r
    join pgps_internal.subscription s using (subscription_id)
    left join pgps_internal.composite c using (type_id)
    where r.coupling = rules_about.coupling and s.state = 'active' and s.owner::text <> s.owner::oid::text
        and case when c.type_id is null then r.type_id = any (rules_about.type_ids)
            else c.enabled and c.owner::text <> c.owner::oid::text and exists (
                select from pgps_internal.composite_leaf l
                where l.composite_id = c.composite_id and l.type_id = any (rules_about.type_ids)) end
    order by s.priority desc, s.subscription_id;
end
$$;
comment on function pgps_internal.rules_about(integer[], text) is
'The rules of a coupling that events of some types may fire, in order of their priority';

create or replace function pgps_internal.coupling_mark_of(coupling text) returns pgps_internal.coupling_mark
language plpgsql volatile
as $$
declare
    v_mark pgps_internal.coupling_mark;
begin
    select m.* into v_mark from pgps_internal.coupling_mark m
    where m.xid = pg_current_xact_id() and m.coupling = coupling_mark_of.coupling order by m.row_id desc limit 1;
    return v_mark;
end
$$;
comment on function pgps_internal.coupling_mark_of(text) is
'How far the rules of a coupling are in this transaction; null before the first event for them';

create or replace function pgps_internal.note_coupled() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp set timezone = 'UTC' set datestyle = 'ISO' set intervalstyle = 'postgres'
set extra_float_digits = 1 set bytea_output = 'hex'
set jit = off
as $$
declare
    v_before bigint;
    v_type integer;
    v_coupling text;
    v_numbered boolean;
    v_mark pgps_internal.coupling_mark;
    v_late int8multirange;
begin
    -- What came over a link is of another transaction, which has committed.
    select min(n.event_id) - 1, bool_or(n._producer_seq is not null) into v_before, v_numbered
    from pgps_new n where n.pgps_origin_event is null;
    if v_before is null then
        return null;
    end if;
    select t.type_id into v_type from pgps_internal.event_type t where t.log = tg_relid;
    -- Deferred rules only note the events here. They come first: what immediate ones publish is behind these events.
    foreach v_coupling in array array['deferred', 'immediate'] loop
        continue when not exists (select from pgps_internal.rules_about(array[v_type], v_coupling));
        v_mark := pgps_internal.coupling_mark_of(v_coupling);
        v_late := null;
        if v_before < v_mark.done and v_mark.done = v_mark.before then
            v_mark.before := v_before;
            v_mark.done := v_before;
        elsif v_before < v_mark.done then
            -- Numbered before others about which rules have run since: a function in the statement has published those,
            -- or another part of it.
            select range_agg(int8range(n.event_id, n.event_id, '[]')) into v_late
            from pgps_new n where n.pgps_origin_event is null and n.event_id <= v_mark.done;
            v_mark.before := least(v_mark.before, v_before);
        elsif v_mark.is_due and v_type = any (v_mark.type_ids) and (v_mark.numbered or not v_numbered) then
            continue;
        end if;
        insert into pgps_internal.coupling_mark (coupling, before, done, type_ids, depth, is_due, numbered)
        values (v_coupling, coalesce(v_mark.before, v_before), coalesce(v_mark.done, v_before),
            case when v_mark.is_due then v_mark.type_ids else '{}' end || v_type,
            -- Outside of all triggers no rule runs, whatever a savepoint has left behind.
            case when pg_trigger_depth() = 1 then 0 else coalesce(v_mark.depth, 0) end, v_coupling = 'deferred',
            v_numbered or coalesce(v_mark.numbered, false))
        returning * into v_mark;
        -- What is late is behind the mark, so deferred rules take it now, with all that waits for them.
        if v_coupling = 'immediate' or v_late is not null then
            perform pgps_internal.run_rules(v_mark, v_late);
        end if;
    end loop;
    return null;
end
$$;
comment on function pgps_internal.note_coupled() is
'After events were published: runs immediate rules about them, and has deferred ones run before the commit';

create or replace function pgps_internal.run_due_rules() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp set timezone = 'UTC' set datestyle = 'ISO' set intervalstyle = 'postgres'
set extra_float_digits = 1 set bytea_output = 'hex'
set jit = off
as $$
declare
    v_mark pgps_internal.coupling_mark := pgps_internal.coupling_mark_of(new.coupling);
begin
    -- One run takes all there is: of several rows, the first that fires.
    if v_mark.is_due then
        perform pgps_internal.run_rules(v_mark);
    end if;
    return null;
end
$$;
comment on function pgps_internal.run_due_rules() is 'Before the commit: runs deferred rules about what was published';

do $$
declare
    v_slot integer;
begin
    for v_slot in 0..3 loop
        if not exists (select from pg_trigger t where t.tgname = 'pgps_due'
            and t.tgrelid = format('pgps_internal.coupling_mark_%s', v_slot)::regclass) then
            execute format('create constraint trigger pgps_due after insert on pgps_internal.coupling_mark_%1$s
                deferrable initially deferred for each row when (new.is_due)
                execute function pgps_internal.run_due_rules();
                alter table pgps_internal.coupling_mark_%1$s enable always trigger pgps_due', v_slot);
        end if;
    end loop;
end
$$;

drop function if exists pgps_internal.run_rules(pgps_internal.coupling_mark);
create or replace function pgps_internal.run_rules(mark pgps_internal.coupling_mark, late int8multirange = null)
returns void
language plpgsql
as $$
declare
    v_depth integer := (run_rules.mark).depth + 1;
    v_done bigint := pg_sequence_last_value('pgps_internal.event_id_seq');
    v_rules pgps_internal.coupled_rule[] := array(select r
        from pgps_internal.rules_about((run_rules.mark).type_ids, (run_rules.mark).coupling) r);
    v_rule pgps_internal.coupled_rule;
    v_found jsonb;
    v_prepared text := pgps_internal.prepared();
    v_after pgps_internal.coupling_mark;
begin
    if v_depth > pgps_internal.setting('coupling_depth')::integer then
        raise exception 'rules with the coupling % are % deep, the last one about event type "%"',
            (run_rules.mark).coupling, v_depth,
            (select t.name from pgps_internal.event_type t where t.type_id = (run_rules.mark).type_ids[1])
        using errcode = '54000', hint = 'A rule publishes what fires it again: change its filter, or have an '
            'administrator raise the limit: select pgps.configure(''coupling_depth'', …)';
    end if;
    v_found := pgps_internal.detect_coupled(run_rules.mark, v_rules, v_done);
    if v_found is not null then
        perform pgps_internal.forget_prepared(v_prepared);
    end if;
    insert into pgps_internal.coupling_mark (coupling, before, done, type_ids, depth, is_due, numbered)
    values ((run_rules.mark).coupling, (run_rules.mark).before, v_done, '{}', v_depth, false,
        (run_rules.mark).numbered);
    foreach v_rule in array v_rules loop
        perform pgps_internal.run_rule(v_rule, run_rules.mark, v_found, v_done, run_rules.late);
    end loop;
    v_after := pgps_internal.coupling_mark_of((run_rules.mark).coupling);
    if not v_after.is_due then
        insert into pgps_internal.coupling_mark (coupling, before, done, type_ids, depth, is_due, numbered)
        values (v_after.coupling, v_after.before, v_after.done, '{}', (run_rules.mark).depth, false, v_after.numbered);
    end if;
end
$$;
comment on function pgps_internal.run_rules(pgps_internal.coupling_mark, int8multirange) is
'Runs the rules about what the transaction has published since the last run, by priority; what they raise aborts it.
late: ids of events before that, which no run has had; null = none';

create or replace function pgps_internal.without_repeats(type_id integer, ids bigint[]) returns bigint[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off
as $$
declare
    v_log regclass := (select t.log from pgps_internal.event_type t where t.type_id = without_repeats.type_id);
    v_ids bigint[];
begin
    -- One statement, since its snapshot tells what has been dispatched, with its numbers in the ledger, from what still
    -- waits, with its numbers in the log. What others have committed comes before what this transaction publishes.
    execute format($sql$
        with span as materialized (
            select min(s.lo) as lo from (
                select c.lo from pgps_internal.control c where c.xid = pg_current_xact_id() and c.type_id = $1
                union all
                select w.lo from pgps_internal.waiting(pgps_internal.last_batch(), pgps_internal.committed_now()) w
                where w.type_id = $1) s
        ),
        asked as materialized (
            select min(x._producer_seq) as low, max(x._producer_seq) as high,
                array_agg(distinct x._producer) as producers
            from %1$s x where x.event_id = any ($2)
        ),
        numbered as materialized (
            select l.*, p.publisher, row_number() over (partition by p.publisher, l.producer, l.number
                order by l.is_own, l.event_id) as place
            from asked a
            cross join lateral (select x.event_id, x.xid, x.xid = pg_current_xact_id() as is_own,
                    x._producer as producer, x._producer_seq as number
                from %1$s x where x.event_id >= (select s.lo from span s) and x._producer = any (a.producers)
                    and x._producer_seq between a.low and a.high offset 0) l
            cross join lateral (%2$s) p
        ),
        known as materialized (
            select n.publisher, n.producer, k.taken
            from (select distinct n.publisher, n.producer from numbered n) n
            cross join lateral (select k.taken from pgps_internal.producer k
                where k.type_id = $1 and k.producer = n.producer and k.publisher = n.publisher
                order by k.batch_id desc limit 1) k
        )
        select array(select i from unnest($2) i except
            select n.event_id from numbered n left join known k using (publisher, producer)
            where n.place > 1 or n.number <@ k.taken or n.event_id in (%3$s) order by 1)$sql$, v_log,
        pgps_internal.statement_of('c.publisher', '$1'), pgps_internal.claimed_numbers(without_repeats.type_id))
    using without_repeats.type_id, without_repeats.ids into v_ids;
    return v_ids;
end
$$;
comment on function pgps_internal.without_repeats(integer, bigint[]) is
'Of events that this transaction has published those, by their ids, whose (producer, number) their publisher has not
used before, in this transaction or in one that has committed: the rest will be dropped by dispatch (drop_repeats)';

create or replace function pgps_internal.coupled_ids(
    event_type pgps_internal.event_type, bounds text, numbered boolean
) returns text
language sql stable
as $$
    -- Events without a number cost nothing more.
    select format(case when coupled_ids.numbered then 'pgps_internal.without_repeats(%2$s, %1$s)' else '%1$s' end,
        format('array(select l.event_id from %1$s l where %2$s and l.xid = pg_current_xact_id()
            and l.pgps_origin_event is null order by l.event_id)', (coupled_ids.event_type).log, coupled_ids.bounds),
        (coupled_ids.event_type).type_id)
$$;
comment on function pgps_internal.coupled_ids(pgps_internal.event_type, text, boolean) is
'The text of an array: the ids of events of a type that this transaction has published, numbered: without repeats;
bounds: a condition on l.event_id';

drop function if exists pgps_internal.coupled_events(pgps_internal.event_type, pgps_internal.composite_leaf[]);
create or replace function pgps_internal.coupled_events(
    event_type pgps_internal.event_type, leaves pgps_internal.composite_leaf[], numbered boolean
) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select format($query$
        with ids as materialized (select %5$s as ids),
        hit as materialized (%2$s)
        select l.event_id, h.composites, h.leaves, l.xid::text::bigint as xid,
            pgps_internal.microseconds(c.published_at) as published,
            (select k.name from pgps_internal.client k where k.client_id = c.client_id
                and pg_has_role(c.publisher::oid, k.owner::oid, 'usage')) as client,
            (select to_json(pgps_row)::text from (select %3$s) pgps_row) as payload
        from (select h.event_id, array_agg(h.composite_id) as composites, array_agg(h.leaf) as leaves
            from hit h group by h.event_id) h
        join %1$s l on l.event_id = h.event_id
        left join lateral (%4$s) c on true$query$,
        (coupled_events.event_type).log,
        (select string_agg(format($leaf$
            select v.ids[p.place] as event_id, %1$s::bigint as composite_id, %2$s as leaf
            from ids cross join lateral (select pgps_internal.visible_ids(t, %3$L::regrole, ids.ids) as ids
                from pgps_internal.event_type t where t.type_id = %4$s) v
            cross join lateral unnest(pgps_internal.composite_leaf_%1$s_%2$s(array(
                select e.event from unnest(v.ids) with ordinality u(event_id, place)
                join pgps_internal.events_%4$s(v.ids) e using (event_id) order by u.place))) p(place)%5$s$leaf$,
            l.composite_id, l.leaf, c.owner, l.type_id, case when l.moment is not null then format(
                ' where pgps_internal.fits_moment(%L, %s, pg_current_xact_id(), v.ids[p.place])', l.moment,
                l.type_id) else '' end), ' union all ' order by l.composite_id, l.leaf)
            from unnest(coupled_events.leaves) l join pgps_internal.composite c using (composite_id)),
        (select string_agg('l.' || quote_ident(a.name), ', ')
            from pgps_internal.attributes_of((coupled_events.event_type).endpoint) a),
        pgps_internal.statement_of('c.published_at, c.client_id, c.publisher',
            (coupled_events.event_type).type_id::text),
        pgps_internal.coupled_ids(coupled_events.event_type, 'l.event_id > $1', coupled_events.numbered))
$$;
comment on function pgps_internal.coupled_events(pgps_internal.event_type, pgps_internal.composite_leaf[], boolean) is
'The query that reads the events of a type that this transaction has published behind an id, for leaves; numbered: some
of the transaction''s events have producers'' numbers, so repeats are left out';

create or replace function pgps_internal.detector_job(composite pgps_internal.composite) returns jsonb
language sql stable
as $$
    select jsonb_build_object('composite_id', c.composite_id, 'version', c.state_id::text, 'given', c.given,
        'intervals', pgps_internal.interval_types(), 'binds', jsonb_array_length(c.parsed -> 'attributes') > 0,
        'sources', pgps_internal.sources_of(c.composite_id),
        'whole', (c.parsed ->> 'transactional')::boolean,
        'tests', (select coalesce(jsonb_object_agg(t ->> 'text',
                format('select * from pgps_internal.composite_test_%s_%s($1)', c.composite_id, o)), '{}')
            from jsonb_array_elements(c.parsed -> 'conditions') with ordinality x(t, o)))
    from (select (detector_job.composite).*) c
$$;
comment on function pgps_internal.detector_job(pgps_internal.composite) is
'What the detector takes of a composite event for a transaction';

create or replace function pgps_internal.detect_coupled(
    mark pgps_internal.coupling_mark, rules pgps_internal.coupled_rule[], done bigint
) returns jsonb
language sql volatile
as $$
    with c as (
        select distinct c.composite_id, c from unnest(detect_coupled.rules) r
        join pgps_internal.composite c using (type_id)
    )
    select case when exists (select from c) then pgps_internal.detect_step(jsonb_build_object(
        'coupling', (detect_coupled.mark).coupling, 'xid', (detect_coupled.mark).xid::text,
        'before', (detect_coupled.mark).before, 'reached', (detect_coupled.mark).done, 'done', detect_coupled.done,
        'broker', (select p.broker from pgps_internal.progress p),
        'composites', (select to_jsonb(array_agg(pgps_internal.detector_job(c.c) order by c.composite_id)) from c),
        'types', (select to_jsonb(array_agg(jsonb_build_object('type', t.name,
                'query', pgps_internal.coupled_events(t, l.leaves, (detect_coupled.mark).numbered)) order by t.type_id))
            from (select l.type_id, array_agg(l order by l.composite_id, l.leaf) as leaves
                from c join pgps_internal.composite_leaf l using (composite_id) group by l.type_id) l
            join pgps_internal.event_type t using (type_id)))::text) end
$$;
comment on function pgps_internal.detect_coupled(pgps_internal.coupling_mark, pgps_internal.coupled_rule[], bigint) is
'What the composite events of some rules detect in what the transaction has published since the last run, up to the id
done; null when none of the rules is about one';
