-- The audit: compares what an origin published, and what a neighbour sent, with what arrived (decision 26). Each item
-- states how many events it has, and they are counted when it is taken. At most every link_report_interval an origin
-- states its totals: how many events of each type it has published in all, and up to which of its batches. Totals
-- travel from broker to broker behind the events they cover, and every broker that wants all events of the type
-- compares them with what arrived.
-- Locks: none beside those of sessions that send, which have the turn of routes, and of sessions that receive.
-- Writes: audit_finding, audit_point, audit_told, audited, shipment.

create or replace function pgps_internal.place_hash(batch_id bigint) returns numeric
language sql immutable
as $$ select (hashint8extended(place_hash.batch_id, 0) & 1152921504606846975)::numeric $$;
comment on function pgps_internal.place_hash(bigint) is
'A 60-bit hash of a batch number. Its sum over events, modulo 2^60, is a digest of how many events each batch has, in
whatever parts they came';

create or replace function pgps_internal.is_one_in(modulus bigint, batch_id bigint) returns boolean
language sql immutable
as $$ select hashint8extended(is_one_in.batch_id, 1) % is_one_in.modulus = 0 $$;
comment on function pgps_internal.is_one_in(bigint, bigint) is
'True for one batch of an origin in so many (modulus); the same ones at every broker';

create or replace function pgps_internal.is_sampled(batch_id bigint, events bigint) returns boolean
language sql immutable
as $$ select is_sampled.events <= 32 or pgps_internal.is_one_in(16, is_sampled.batch_id) $$;
comment on function pgps_internal.is_sampled(bigint, bigint) is
'True for batches whose contents are compared: small ones, and one in sixteen of the others; the same batches at every
broker';

create or replace function pgps_internal.audits(event_type pgps_internal.event_type) returns boolean
language sql immutable
as $$ select (audits.event_type).reliability = 'guaranteed' and (audits.event_type).persistent $$;
comment on function pgps_internal.audits(pgps_internal.event_type) is
'True for event types of which no event may be lost (guaranteed and persistent); a crash may lose events of the others';

create or replace function pgps_internal.shape_of(event_type pgps_internal.event_type) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select case when getdatabaseencoding() = 'UTF8' and bool_and(pgps_internal.is_plain_text(a.atttypid::regtype))
        then md5(pgps_internal.wire_columns((shape_of.event_type).endpoint)::text) end
    from pg_attribute a where a.attrelid = (shape_of.event_type).endpoint and a.attnum > 0 and not a.attisdropped
$$;
comment on function pgps_internal.shape_of(pgps_internal.event_type) is
'A digest of an event type''s attributes, for comparison; null when the text of its events may not mean the same at
another broker';

create or replace function pgps_internal.contents(
    event_type pgps_internal.event_type, ids int8multirange, out events bigint, out digest bigint
)
language plpgsql
-- Volatile, as all that reads a log (core/generated.sql).
set search_path = pg_catalog, pg_temp set datestyle = 'ISO, '
    'YMD' set timezone = 'UTC' set intervalstyle = postgres set extra_float_digits = 1
set bytea_output = hex set lc_monetary = 'C' set xmloption = content
as $$
begin
    -- The text of a row as it travels in small batches, because that is the same at every broker.
    execute format('select count(*), coalesce(bit_xor(hashtextextended(l.pgps_row collate "C", 0)), 0)
        from unnest($1) w(pgps_ids) cross join lateral (select row(coalesce(x.pgps_origin_event, x.event_id)%s)::text '
            'as pgps_row from %s x
            where x.event_id >= lower(w.pgps_ids) and x.event_id < upper(w.pgps_ids) offset 0) l',
        (select coalesce(string_agg(format(', x.%I', c.value ->> 'name'), '' order by c.n), '')
            from jsonb_array_elements(pgps_internal.wire_columns((contents.event_type).endpoint))
                with ordinality c(value, n)), (contents.event_type).log)
    using contents.ids into contents.events, contents.digest;
end
$$;
comment on function pgps_internal.contents(pgps_internal.event_type, int8multirange) is
'How many of these events are in a log, and a digest of their ids at the origin and their attributes, in whatever order
they are';

create or replace function pgps_internal.is_truncated(type_id integer, ids int8multirange) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select exists (select from pgps_internal.trimmed t where t.type_id = is_truncated.type_id
        and t.event_id >= lower(is_truncated.ids))
$$;
comment on function pgps_internal.is_truncated(integer, int8multirange) is
'True when some of these events may have been truncated with their segment';

create or replace function pgps_internal.note_difference(
    kind text, what text, neighbour text, origin_id integer, type_id integer, after_batch bigint, upto bigint,
    there bigint, here bigint
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgps_internal.audit_finding as f (kind, what, neighbour, origin_id, type_id, after_batch, upto, there,
        here, found_at, last_found_at)
    values (note_difference.kind, note_difference.what, note_difference.neighbour, note_difference.origin_id,
        note_difference.type_id,
        note_difference.after_batch, note_difference.upto, note_difference.there, note_difference.here,
        pgps_internal.clock(), pgps_internal.clock())
    on conflict on constraint audit_finding_kind_what_neighbour_origin_id_type_id_key do update
    set after_batch = least(f.after_batch, excluded.after_batch), upto = greatest(f.upto, excluded.upto),
        there = f.there + excluded.there,
        here = f.here + excluded.here, windows = f.windows + 1, last_found_at = pgps_internal.clock();
    raise warning 'pgps: events were lost, repeated or altered on their way; see pgps.audit()';
end
$$;
comment on function pgps_internal.note_difference(text, text, text, integer, integer, bigint, bigint, bigint, bigint) is
'Records, and warns, that what was stated differs from what is here; nothing is held up by it';

create or replace function pgps_internal.tally_item(
    neighbour pgps_internal.neighbour, origin_id integer, item jsonb, slices jsonb, type_id integer, came bigint
) returns pgps_internal.tally[]
language plpgsql
as $$
declare
    v_said bigint := (tally_item.item ->> 'events')::bigint;
    v_type integer := tally_item.type_id;
begin
    if v_said <> coalesce(tally_item.came, 0) then
        -- If no event came, or events of several types: the finding is for a type of the item's events, else for some
        -- type that the neighbour is asked for.
        v_type := coalesce(v_type,
            (select (s.value ->> 'type_id')::integer from jsonb_array_elements(tally_item.slices) s
                where s.value -> 'lseq' = tally_item.item -> 'lseq' limit 1),
            (select f.type_id from pgps_internal.told t join pgps_internal.link_filter f using (key)
                where t.neighbour_id = (tally_item.neighbour).neighbour_id and t.kind = 'sub'
                    order by f.type_id limit 1));
        perform pgps_internal.note_difference('hop', 'count', (tally_item.neighbour).name, tally_item.origin_id, v_type,
            (tally_item.item ->> 'previous')::bigint, (tally_item.item ->> 'upto')::bigint, v_said,
                coalesce(tally_item.came, 0))
        from pgps_internal.event_type t where t.type_id = v_type and pgps_internal.audits(t);
    end if;
    if tally_item.came is null then
        return '{}';
    elsif tally_item.type_id is not null then
        return array[(tally_item.type_id, tally_item.came)::pgps_internal.tally];
    end if;
    return array(select ((s.value ->> 'type_id')::integer, sum(upper(r) - lower(r)))::pgps_internal.tally
        from jsonb_array_elements(tally_item.slices) s, unnest((s.value ->> 'ids')::int8multirange) r
        where s.value -> 'lseq' = tally_item.item -> 'lseq' group by s.value ->> 'type_id');
end
$$;
comment on function pgps_internal.tally_item(pgps_internal.neighbour, integer, jsonb, jsonb, integer, bigint) is
'How many events of each type came with an item; records a finding when the neighbour states another number. type_id:
null unless all events are of one type';

create or replace function pgps_internal.excuse(origin_id integer, batch_id bigint, type_id integer = null) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    update pgps_internal.audit_point p set since = excuse.batch_id
    where p.origin_id = excuse.origin_id and p.type_id = coalesce(excuse.type_id, p.type_id)
        and p.since < excuse.batch_id;
end
$$;
comment on function pgps_internal.excuse(integer, bigint, integer) is
'Excludes an origin''s events up to a batch from the comparison, here and at brokers behind this one, because some are
missing for a known reason. type_id: null = all';

create or replace function pgps_internal.count_own(packed bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_origin integer := pgps_internal.self_origin();
    v_last pgps_internal.audited;
    v_own record;
    v_found record;
begin
    select a.* into v_last from pgps_internal.audited a where a.origin_id = v_origin;
    if not found then
        insert into pgps_internal.audited (origin_id, batch_id, audited_at)
            values (v_origin, count_own.packed, pgps_internal.clock());
        return;
    elsif v_last.batch_id >= count_own.packed
            or v_last.audited_at > pgps_internal.clock() - pgps_internal.setting('link_report_interval')::interval then
        return;
    elsif (select min(b.batch_id) from pgps_internal.batch b) > v_last.batch_id + 1 then
        -- Batches were reclaimed before they were counted.
        perform pgps_internal.excuse(v_origin, count_own.packed);
    else
        for v_own in
            select o.*, t as event_type, pgps_internal.shape_of(t) as shape
                from pgps_internal.own_events(v_last.batch_id, count_own.packed) o
            join pgps_internal.event_type t using (type_id) where pgps_internal.audits(t)
        loop
            select c.* into v_found from pgps_internal.contents(v_own.event_type, v_own.ids) c
                where v_own.shape is not null;
            if v_found.events < v_own.sampled and not pgps_internal.is_truncated(v_own.type_id, v_own.ids) then
                perform pgps_internal.note_difference('here', 'count', pgps_internal.broker_name(), v_origin,
                    v_own.type_id,
                    v_last.batch_id,
                    count_own.packed, v_own.sampled, v_found.events);
            end if;
            -- A type without a row may have been dropped and created again, so it is compared from its first batch on,
            -- not from where the last count ended.
            insert into pgps_internal.audit_point as p (origin_id, type_id, events, places, contents, shape, since,
                contents_since)
            values (v_origin, v_own.type_id, v_own.events, mod(v_own.places, 1152921504606846976),
                coalesce(v_found.digest, 0), v_own.shape,
                v_own.first_batch, case when v_found.events = v_own.sampled then v_own.first_batch
                    else count_own.packed end)
            on conflict on constraint audit_point_pkey do update
            set events = p.events + excluded.events, places = mod(p.places + excluded.places, 1152921504606846976),
                contents = p.contents # excluded.contents, shape = excluded.shape,
                contents_since = case when v_found.events = v_own.sampled and p.shape = excluded.shape
                    then p.contents_since
                    else count_own.packed end;
        end loop;
    end if;
    update pgps_internal.audited a set batch_id = count_own.packed, audited_at = pgps_internal.clock()
        where a.origin_id = v_origin;
end
$$;
comment on function pgps_internal.count_own(bigint) is
'Adds what was published here up to a batch to this broker''s totals; at most every link_report_interval';

create or replace function pgps_internal.points_for(neighbour pgps_internal.neighbour, packed bigint)
returns table (origin_id integer, type_id integer, attachment integer, batch_id bigint, name text, value jsonb,
    since bigint, rights text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    return query
    with live as materialized (
        -- Origins of which the neighbour has been sent everything that the totals cover.
        select a.origin_id, a.attachment, s.batch_id
        from pgps_internal.attached a join pgps_internal.origin o using (origin_id) join pgps_internal.audited s
            using (origin_id)
        where a.neighbour_id = (points_for.neighbour).neighbour_id and a.is_live and case when o.is_self
            then o.to_batch is null and s.batch_id <= points_for.packed
            else pgps_internal.sent((points_for.neighbour).neighbour_id, a.origin_id, a.attachment) >= s.batch_id end
    ),
    wanted as materialized (
        -- A policy or a missing privilege hides events from the neighbour, so it is told no total. A grant or revoke
        -- changes xmin.
        select distinct t.type_id, t.name, case
            when has_table_privilege((points_for.neighbour).role::oid, t.endpoint, 'select') and not t.has_policy
            then (select c.xmin::text from pg_class c where c.oid = t.endpoint) end as rights
        from pgps_internal.wanted w join pgps_internal.link_filter f using (key)
            join pgps_internal.event_type t on t.type_id = f.type_id
        where w.neighbour_id = (points_for.neighbour).neighbour_id and w.gone_batch is null and f.filter is null
            and pgps_internal.audits(t)
    ),
    said as (
        select l.origin_id, w.type_id, l.attachment, l.batch_id, w.name, w.rights, k.type_id as told_type,
            k.attachment as told_attachment, k.value as told_value,
            k.since as told_since,
            greatest(p.since, case when k.rights is distinct from w.rights and k.type_id is not null then l.batch_id
                else coalesce(k.since, 0) end) as since,
            case when w.rights is not null
                then jsonb_build_object('events', p.events, 'places', p.places, 'contents', p.contents, 'shape',
                p.shape,
                'contents_since', p.contents_since) end as value
        from live l cross join wanted w
        left join pgps_internal.audit_point p on p.origin_id = l.origin_id and p.type_id = w.type_id
        left join pgps_internal.audit_told k on k.neighbour_id = (points_for.neighbour).neighbour_id
            and k.origin_id = l.origin_id
            and k.type_id = w.type_id
        where p.type_id is not null or k.value is not null
    )
    select s.origin_id, s.type_id, s.attachment, s.batch_id, s.name, case when s.value ->> 'events' is not null
        then s.value end, coalesce(s.since, 0), s.rights
    from said s
    where s.told_type is null or (s.attachment, s.since) is distinct from (s.told_attachment, s.told_since)
        or s.told_value is distinct from case when s.value ->> 'events' is not null then s.value end;
end
$$;
comment on function pgps_internal.points_for(pgps_internal.neighbour, bigint) is
'The totals of origins that a neighbour is to be told, for event types of which it wants every event; value null: the
total cannot be stated any more';

create or replace function pgps_internal.tell_audit(neighbour pgps_internal.neighbour, packed bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id integer := (tell_audit.neighbour).neighbour_id;
begin
    if not (tell_audit.neighbour).is_audited or not pgps_internal.setting('audit')::boolean
            or not exists (select from pgps_internal.attached a where a.neighbour_id = v_id and a.is_live)
            or exists (select from pgps_internal.audit_told t where t.neighbour_id = v_id
                and t.told_at > pgps_internal.clock() - pgps_internal.setting('link_report_interval')::interval) then
        return;
    end if;
    perform pgps_internal.count_own(tell_audit.packed);
    with news as materialized (
        select p.* from pgps_internal.points_for(tell_audit.neighbour, tell_audit.packed) p
    ),
    told as (
        insert into pgps_internal.audit_told as t (neighbour_id, origin_id, type_id, attachment, value, since, rights,
            told_at)
        select v_id, w.origin_id, w.type_id, w.attachment, w.value, w.since, w.rights, pgps_internal.clock() from news w
        on conflict on constraint audit_told_pkey do update
        set attachment = excluded.attachment, value = excluded.value, since = excluded.since, rights = excluded.rights,
            told_at = pgps_internal.clock()
    )
    insert into pgps_internal.shipment (neighbour_id, lseq, kind, body)
    select v_id, (select pgps_internal.last_sent(v_id)) + row_number() over (order by w.origin_id), 'audit',
        jsonb_build_object('broker', o.broker_id, 'epoch', o.epoch, 'attachment', w.attachment, 'batch', w.batch_id,
            'types', jsonb_object_agg(w.name, w.value || jsonb_build_object('since', w.since)))
    from news w join pgps_internal.origin o using (origin_id)
    group by w.origin_id, o.broker_id, o.epoch, w.attachment, w.batch_id;
end
$$;
comment on function pgps_internal.tell_audit(pgps_internal.neighbour, bigint) is
'Tells a neighbour the totals of origins, behind the events they cover; at most every link_report_interval';
