-- What the detector keeps: steps, keys, open occurrences, in ledgers whose newest rows count. Written by
-- pgps_internal.detect_step, and by what alters and resets.
-- Locks: the turn of detection, until the transaction ends.
-- Writes: nothing.

create or replace function pgps_internal.hold_detection() returns void
language plpgsql
as $$
begin
    lock table only pgps_internal.turn_of_detection in exclusive mode;
end
$$;
comment on function pgps_internal.hold_detection() is
'Takes the turn of detecting, all of it; waits for those who share in it';

create or replace function pgps_internal.join_detection() returns void
language plpgsql
as $$
begin
    lock table only pgps_internal.turn_of_detection in share mode;
end
$$;
comment on function pgps_internal.join_detection() is
'Takes part in detecting, beside others who do; waits for who does it alone';

create or replace function pgps_internal.hold_composite(composite_id bigint) returns void
language plpgsql
as $$
declare
    v_held bigint;
begin
    -- In this order, which is that of a session that takes a step: its shares, and when it is done, the whole. Whoever
    -- was waited for may have divided it into more of them.
    loop
        select count(*) into v_held from (select from pgps_internal.composite_share h
            where h.composite_id = hold_composite.composite_id order by h.share for no key update) h;
        exit when v_held = (select count(*) from pgps_internal.composite_share h
            where h.composite_id = hold_composite.composite_id);
    end loop;
    perform from pgps_internal.composite c where c.composite_id = hold_composite.composite_id for no key update;
end
$$;
comment on function pgps_internal.hold_composite(bigint) is
'Keeps a composite event from being detected until the transaction ends; waits for steps of it that are being taken';

-- Views that everybody reads call none of the functions of this schema, which nobody else may call.
create or replace view pgps_internal.step_now as
select s.*
from pgps_internal.composite_share h
cross join lateral (select n.* from pgps_internal.composite_step n
    where n.composite_id = h.composite_id and n.share = h.share order by n.row_id desc limit 1) s;
comment on view pgps_internal.step_now is 'The last step of each share of a composite event that has taken one';

create or replace function pgps_internal.step_of(composite_id bigint) returns pgps_internal.composite_step
language sql stable
as $$
    select s.step from (
        select (select n from pgps_internal.composite_step n where n.composite_id = h.composite_id
            and n.share = h.share order by n.row_id desc limit 1) as step
        from pgps_internal.composite_share h where h.composite_id = step_of.composite_id) s
    where (s.step).batch_id is not null order by (s.step).batch_id limit 1
$$;
comment on function pgps_internal.step_of(bigint) is
'The last step of a composite event, of the share that is furthest behind; null before the first';

create or replace view pgps_internal.key_now as
select k.*
from (select distinct o.state_id, o.key from pgps_internal.composite_key o) w
cross join lateral (select n.* from pgps_internal.composite_key n
    where n.state_id = w.state_id and n.key = w.key order by n.row_id desc limit 1) k
where k.version > 0;
comment on view pgps_internal.key_now is 'The keys of which something is kept, each once';

create or replace view pgps_internal.open_now as
select o.*
from pgps_internal.key_now k
join pgps_internal.composite c on c.state_id = k.state_id
-- Events wait for the watermark only where there is one share.
left join pgps_internal.step_now s on s.composite_id = c.composite_id and s.share = 0
join pgps_internal.composite_open o on o.state_id = k.state_id and o.key = k.key and o.row_id >= k.born
-- As Ordering.held_back has it: a point is the time, shifted by 100 bits, and the rest.
where o.serial <@ k.live or o.slot = -1 and o.start_at >= coalesce(((s.ordering ->> 'frontier')::numeric
    + case when c.lateness > interval '0' then 0 else 1 end) * 1267650600228229401496703205376, -9e60);
comment on view pgps_internal.open_now is
'Open occurrences that count, and events that wait for the watermark';

create or replace function pgps_internal.take_state_over(
    before pgps_internal.composite, after pgps_internal.composite
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Nodes are named by what they say, limits and filter among it: what is open gets the new names.
    perform pgps_internal.detect_step(jsonb_build_object('before', (take_state_over.before).given,
        'after', (take_state_over.after).given, 'from', (take_state_over.before).state_id,
        'to', (take_state_over.after).state_id, 'intervals', pgps_internal.interval_types())::text);
end
$$;
comment on function pgps_internal.take_state_over(pgps_internal.composite, pgps_internal.composite) is
'Writes what is open of a composite event again, under the names that its altered definition gives';

create or replace function pgps_internal.is_interval(endpoint regclass) returns boolean
language plpgsql stable
as $$
#variable_conflict use_column
begin
    -- What other brokers have detected comes over links as a type with these attributes.
    return (select count(*) = 4 from pg_attribute a
        where a.attrelid = is_interval.endpoint and not a.attisdropped
            and case when a.attname in ('starts_at', 'ends_at', 'detected_at') then a.atttypid = 'timestamptz'::regtype
                when a.attname = 'constituents' then a.atttypid = 'jsonb'::regtype end);
end
$$;
comment on function pgps_internal.is_interval(regclass) is
'True for an event type whose events have a beginning of their own: composite events, of this broker or of another';

drop function if exists pgps_internal.interval_types();
create or replace function pgps_internal.interval_types(others text[] = '{}') returns jsonb
language plpgsql stable
as $$
#variable_conflict use_column
begin
    return (select coalesce(to_jsonb(array_agg(t.name)), '[]') from pgps_internal.event_type t
        where (t.type_id in (select l.type_id from pgps_internal.composite_leaf l)
                or t.name = any (interval_types.others))
            and pgps_internal.is_interval(t.endpoint));
end
$$;
comment on function pgps_internal.interval_types(text[]) is
'Of the event types that composite events are made of, and of others, those whose events have a beginning of their own';
