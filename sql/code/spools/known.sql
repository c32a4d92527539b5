-- What a contact point remembers of the messages that arrived: a broker that was put back sends again what waited when
-- its backup was made, also what its former life sent since, together with others or under other numbers. Each message
-- has a mark of its own in the batch (its id over there and when it was spooled), which outlives a restore.
-- Locks: none.
-- Writes: network_arrived, setting.

insert into pgps_internal.setting (name, value, kind, description) values
    ('network_memory', '3 days', 'interval', 'How old the backup may be to which a broker is put back that spools for '
        'networks, so that nothing arrives here again; 8 bytes for each message of that time')
on conflict (name) do nothing;

create or replace function pgps_internal.marks_of_batch(args jsonb)
returns table (place bigint, id bigint, known bigint)
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select m.place, split_part(m.mark, ':', 1)::bigint, hashtextextended(m.mark, 0)
    from jsonb_array_elements_text(coalesce(nullif(args -> 'marks', 'null'), '[]')) with ordinality m(mark, place)
$$;
comment on function pgps_internal.marks_of_batch(jsonb) is
'The messages of a batch by their marks: the place in the batch, the id at the broker that sent it, and what is
remembered of it. Nothing for a batch of an older release, which has no marks';

create or replace function pgps_internal.known_of_former_lives(origin_id bigint, args jsonb) returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select array_agg(k.known)
        from (select min(m.id) as first_id, max(m.id) as last_id from pgps_internal.marks_of_batch(args) m) b
        join pgps_internal.network_arrived a on a.origin_id = known_of_former_lives.origin_id
            and a.last_id >= b.first_id and a.first_id <= b.last_id and a.epoch < (args ->> 'epoch')::integer
        cross join lateral unnest(a.known) k(known));
end
$$;
comment on function pgps_internal.known_of_former_lives(bigint, jsonb) is
'What is remembered of messages with ids like those of a batch that came before their broker was put back; null as a
rule, when there are none';

create or replace function pgps_internal.unknown_of_batch(origin_id bigint, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_known bigint[] := pgps_internal.known_of_former_lives(unknown_of_batch.origin_id, args);
begin
    if v_known is null then
        return args -> 'messages';
    end if;
    return (select coalesce(to_jsonb(array_agg(a.message order by a.place)), '[]')
        from jsonb_array_elements(args -> 'messages') with ordinality a(message, place)
        left join pgps_internal.marks_of_batch(args) m using (place)
        where not exists (select from unnest(v_known) k(known) where k.known = m.known));
end
$$;
comment on function pgps_internal.unknown_of_batch(bigint, jsonb) is
'The messages of a batch, without those that came before their broker was put back';

create or replace function pgps_internal.remember_batch(origin_id bigint, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into pgps_internal.network_arrived (origin_id, epoch, first_id, last_id, known)
    select remember_batch.origin_id, (args ->> 'epoch')::integer, min(m.id), max(m.id), array_agg(m.known)
    from pgps_internal.marks_of_batch(args) m
    having count(*) > 0;
end
$$;
comment on function pgps_internal.remember_batch(bigint, jsonb) is
'Remembers which messages have arrived with a batch';

create or replace function pgps_internal.sweep_known() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgps_internal.network_arrived a
    where a.arrived_at < pgps_internal.clock() - pgps_internal.setting('network_memory')::interval;
end
$$;
comment on function pgps_internal.sweep_known() is 'Forgets messages that arrived longer ago than network_memory';
