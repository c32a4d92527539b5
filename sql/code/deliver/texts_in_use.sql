-- Where the client parses (core/parsed.sql): what subscriptions will need the parser for again. That is stored as long
-- as they are there; other results go after 30 days.
-- Locks: none.
-- Writes: parsed_text.

create or replace function pgps_internal.texts_in_use(type_id integer)
returns table (function text, arguments jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select 'parse_filter', jsonb_build_array(s.filter, t.name, to_jsonb(a.names))
    from pgps_internal.event_type t
    cross join lateral (select array(select x.name from pgps_internal.attributes_of(t.endpoint) x) as names) a
    join pgps_internal.member m on m.type_id = t.type_id
    join pgps_internal.subscription s on s.subscription_id = m.subscription_id
    where s.filter is not null and t.type_id = coalesce(texts_in_use.type_id, t.type_id)
    group by s.filter, t.name, a.names
$$;
comment on function pgps_internal.texts_in_use(integer) is
'What subscriptions need the parser for again, when they are moved or altered; of an event type, null = of all';

create or replace function pgps_internal.require_parsed(type_id integer) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_questions jsonb;
begin
    if pgps_internal.client_parser() is not null then
        select to_jsonb(array_agg(u)) into v_questions
        from (select * from pgps_internal.texts_in_use(require_parsed.type_id) u
            where pgps_internal.find_parsed(u.function, u.arguments) is null limit 1000) u;
        if v_questions is not null then
            perform pgps_internal.ask_client(v_questions);
        end if;
    end if;
end
$$;
comment on function pgps_internal.require_parsed(integer) is
'Where the client parses: asks for what the filters of an event type become with its attributes as they are now. Errors:
0A000.';

create or replace function pgps_internal.sweep_parsed() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_before timestamptz := pgps_internal.clock() - interval '30 days';
begin
    if not exists (select from pgps_internal.parsed_text p where p.kept_at < v_before) then
        return;
    end if;
    update pgps_internal.parsed_text p set kept_at = pgps_internal.clock()
    from pgps_internal.texts_in_use(null) u
    where p.key = pgps_internal.parsed_key(u.function, u.arguments) and p.kept_at < v_before;
    delete from pgps_internal.parsed_text p where p.kept_at < v_before;
end
$$;
comment on function pgps_internal.sweep_parsed() is
'Deletes what the client parsed more than 30 days ago, but for what subscriptions need';
