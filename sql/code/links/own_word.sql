-- What a neighbour says of its own origins, which counts for more than what others say of them.
-- Locks: those of routes.
-- Writes: activation, arrival, attached, audited, gap, lack, origin, rejected, shipment.

create or replace function pgps_internal.veiled(broker_id uuid, name text) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$ select left(md5(concat(veiled.broker_id, veiled.name)), 16) $$;
comment on function pgps_internal.veiled(uuid, text) is
'The name of an event type that a broker withholds from a neighbour, as it tells it: who knows the name recognises it';

create or replace function pgps_internal.said_to_withhold(body jsonb) returns text[]
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select case when jsonb_array_length(said_to_withhold.body -> 'withheld') <= 10000 then
        array(select distinct left(t, 16) from jsonb_array_elements_text(said_to_withhold.body -> 'withheld') t
        order by 1) end
$$;
comment on function pgps_internal.said_to_withhold(jsonb) is
'The event types that a broker says that it withholds of its own; null when it does not say, or says too many to keep';

create or replace function pgps_internal.more_of_ad(
    neighbour pgps_internal.neighbour, cost integer, is_draining boolean, is_open boolean
) returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select case when more_of_ad.is_draining then '{"is_draining": true}'::jsonb else '{}' end
        || case when more_of_ad.is_open then '{"is_open": true}'::jsonb else '{}' end
        || case when more_of_ad.cost = 0 then jsonb_build_object('withheld', array(
            select pgps_internal.veiled(b.broker_id, t.name) from pgps_internal.broker b, pgps_internal.event_type t
            where exists (select from pgps_internal.advertisement a join pg_roles r on r.oid = a.role::oid
                    where a.type_id = t.type_id)
                and not has_table_privilege((more_of_ad.neighbour).role::oid, t.endpoint, 'select') order by 1))
            else '{}' end
$$;
comment on function pgps_internal.more_of_ad(pgps_internal.neighbour, integer, boolean, boolean) is
'What an advertisement says only where it is so; of this broker''s own origins (cost 0) which event types the
neighbour''s role may not receive';

create or replace function pgps_internal.ever_said(before text[], now text[]) returns text[]
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select case when cardinality(ever_said.before) + cardinality(ever_said.now) > 20000 then ever_said.now
        else array(select unnest(ever_said.before) union select unnest(ever_said.now)) end
$$;
comment on function pgps_internal.ever_said(text[], text[]) is
'What a broker has promised or withheld, with what it does now; too much to be kept is forgotten';

create or replace function pgps_internal.own_words() returns table (
    origin_id integer, neighbour_id integer, broker_id uuid, types text[], withheld text[], said text[], is_up boolean,
    is_denied boolean
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    with up as materialized (
        select n.neighbour_id, n.broker_id, n.epoch, pgps_internal.is_up(n.neighbour_id) as is_up
        from pgps_internal.neighbour n where n.direction <> 'out'
    )
    select o.origin_id, n.neighbour_id, o.broker_id, f.types, f.withheld, f.said, n.is_up,
        n.is_up and f.neighbour_id is null and (o.epoch > n.epoch or exists (select from pgps_internal.offer x
            join pgps_internal.origin y using (origin_id)
            where x.neighbour_id = n.neighbour_id and y.broker_id = n.broker_id and y.epoch = n.epoch))
    from pgps_internal.origin o
    join up n using (broker_id)
    left join pgps_internal.offer f on f.neighbour_id = n.neighbour_id and f.origin_id = o.origin_id;
end
$$;
comment on function pgps_internal.own_words() is
'The origins of brokers that are neighbours, with what those say of them themselves; types, withheld, said: null when
they have not said. is_denied: the broker can be asked, and knows nothing of this origin of its own: an epoch that it is
not in yet, or never was in.';

create or replace function pgps_internal.is_too_far(origin_id integer, reached bigint) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- In a former epoch a neighbour may have come further than this broker, which was restored.
    select exists (select from pgps_internal.origin o where o.origin_id = is_too_far.origin_id and o.is_self
        and o.to_batch is null and is_too_far.reached > coalesce((pgps_internal.last_batch()).batch_id, 0))
$$;
comment on function pgps_internal.is_too_far(integer, bigint) is
'True for a place in the history of this broker that is behind its end: whoever says that it has come there has been
told so by somebody else';

create or replace function pgps_internal.send_back(neighbour pgps_internal.neighbour) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A silence that ends before it begins: no other does.
    with behind as (
        update pgps_internal.attached a set back_to = null
        from (select b.origin_id, b.back_to, pgps_internal.sent(b.neighbour_id, b.origin_id, b.attachment) as sent
            from pgps_internal.attached b
            where b.neighbour_id = (send_back.neighbour).neighbour_id and b.back_to is not null) b
        where a.neighbour_id = (send_back.neighbour).neighbour_id and a.origin_id = b.origin_id
        returning a.origin_id, a.attachment, b.back_to, greatest(b.back_to + 1, a.horizon, b.sent) as previous
    )
    insert into pgps_internal.shipment (neighbour_id, lseq, kind, origin_id, attachment, previous, upto)
    select (send_back.neighbour).neighbour_id,
        (select pgps_internal.last_sent((send_back.neighbour).neighbour_id)) + row_number() over (order by b.origin_id),
        'silence', b.origin_id, b.attachment, b.previous, b.back_to
    from behind b;
end
$$;
comment on function pgps_internal.send_back(pgps_internal.neighbour) is
'Tells a neighbour that it has been told of batches that there are not, and how far there are some';

create or replace function pgps_internal.note_set_back(
    neighbour pgps_internal.neighbour, origin pgps_internal.origin, upto bigint, horizon bigint, known bigint
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_from text := (select n.name from pgps_internal.arrival a join pgps_internal.neighbour n using (neighbour_id)
        where a.origin_id = (note_set_back.origin).origin_id and a.horizon > note_set_back.upto
        order by a.arrival_id limit 1);
begin
    insert into pgps_internal.rejected (neighbour_id, neighbour, publisher, origin_id, origin_batch, sqlstate, error)
    values ((note_set_back.neighbour).neighbour_id, (note_set_back.neighbour).name, (note_set_back.neighbour).role,
        (note_set_back.origin).origin_id, note_set_back.upto, '58030',
        format('neighbour "%s" says that broker "%s" has batches up to %s; some up to %s had come from neighbour "%s"; '
            '%s', (note_set_back.neighbour).name, (note_set_back.origin).name, note_set_back.upto,
            note_set_back.horizon, coalesce(v_from, '?'), case
            when note_set_back.known is null then 'which of them came before that is not known: the rest is missing'
            else format('those behind %s are asked for again', note_set_back.known) end));
    perform pgps_internal.check_refused((note_set_back.neighbour).role);
end
$$;
comment on function pgps_internal.note_set_back(
    pgps_internal.neighbour, pgps_internal.origin, bigint, bigint, bigint
) is
'Notes among the exceptions that a neighbour takes back what was told of an origin, and who had told it. known: the
place from which on it is asked for again; null = not known';

create or replace function pgps_internal.set_back(
    neighbour pgps_internal.neighbour, origin pgps_internal.origin, upto bigint
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id integer := (set_back.origin).origin_id;
    v_horizon bigint := pgps_internal.horizon(v_id);
    v_is_own boolean := (set_back.neighbour).broker_id = (set_back.origin).broker_id;
    v_known bigint;
    v_to bigint;
begin
    -- Only the broker itself can say so of all that came; who passes its word on, or says that he does, of what came by
    -- him: he could have sent that twice as well.
    if not v_is_own and set_back.upto < (set_back.origin).parent_since then
        return;
    end if;
    perform pgps_internal.hold_routes();
    v_known := greatest((select max(a.horizon) from pgps_internal.arrival a
        where a.origin_id = v_id and a.horizon <= set_back.upto),
        case when not v_is_own then (set_back.origin).parent_since end);
    -- Where the ledger does not say any more how far this broker was, nothing comes twice, and the gap is told.
    v_to := coalesce(v_known, set_back.upto);
    perform pgps_internal.note_set_back(set_back.neighbour, set_back.origin, set_back.upto, v_horizon, v_known);
    -- What came with them stays, at the end of what there is, so that the audit finds too many.
    update pgps_internal.arrival a set upto = least(a.upto, v_to), horizon = least(a.horizon, v_to)
    where a.origin_id = v_id and (a.upto > v_to or a.horizon > v_to);
    insert into pgps_internal.arrival (neighbour_id, lseq, mark, origin_id, attachment, upto, horizon)
    select (set_back.neighbour).neighbour_id, coalesce(a.lseq, 0), coalesce(a.mark, ''), v_id, -1, v_to, v_to
    from (select) one
    left join lateral (select a.lseq, a.mark from pgps_internal.arrival a
        where a.neighbour_id = (set_back.neighbour).neighbour_id order by a.lseq desc limit 1) a on true;
    -- Filters that came into force meanwhile begin with what comes from now on.
    update pgps_internal.activation a set since = least(a.since, set_back.upto),
        had_since = least(a.had_since, set_back.upto), is_confirmed = false
    where a.origin_id = v_id and greatest(a.since, a.had_since) > v_to;
    delete from pgps_internal.gap g where g.origin_id = v_id and g.after_batch >= v_to;
    update pgps_internal.gap g set upto = v_to where g.origin_id = v_id and g.upto > v_to;
    update pgps_internal.lack l set after_batch = v_to where l.origin_id = v_id and l.after_batch > v_to;
    delete from pgps_internal.audited a where a.origin_id = v_id and a.batch_id > set_back.upto;
    update pgps_internal.origin o
    set attachment = o.attachment + 1, is_settled = false, rewind_start = null, rewind_from = null, rewind_keep = '{}'
    where o.origin_id = v_id;
    -- First the ledger is locked in which the next statement reads what was sent (decision 105).
    perform pgps_internal.last_sent(a.neighbour_id) from pgps_internal.attached a where a.origin_id = v_id;
    update pgps_internal.attached a set is_live = false, back_to = set_back.upto
    where a.origin_id = v_id
        and greatest(a.horizon, pgps_internal.sent(a.neighbour_id, a.origin_id, a.attachment)) > set_back.upto;
    raise warning 'pgps: a neighbour told of batches that there are not; see pgps.exceptions';
    perform pg_notify('pgps_link', '');
end
$$;
comment on function pgps_internal.set_back(pgps_internal.neighbour, pgps_internal.origin, bigint) is
'The parent for an origin says that it has batches up to one (upto) that is before the horizon: somebody has told of
batches that there are not. What is behind the last true one is asked for again, and children are told in turn.';

create or replace function pgps_internal.is_set_back(
    neighbour pgps_internal.neighbour, origin pgps_internal.origin, item jsonb, horizon bigint
) returns boolean
language plpgsql
as $$
begin
    if ((is_set_back.item ->> 'upto')::bigint >= (is_set_back.item ->> 'previous')::bigint) is not false then
        return false;
    elsif (is_set_back.item ->> 'upto')::bigint < is_set_back.horizon and is_set_back.item ->> 'kind' = 'silence' then
        perform pgps_internal.set_back(is_set_back.neighbour, is_set_back.origin,
            (is_set_back.item ->> 'upto')::bigint);
    end if;
    return true;
end
$$;
comment on function pgps_internal.is_set_back(pgps_internal.neighbour, pgps_internal.origin, jsonb, bigint) is
'True for an item that ends before it begins: no broker that has all that it tells of is told one. Goes back, if this is
ahead';
