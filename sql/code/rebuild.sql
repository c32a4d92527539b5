-- Generated code is written when something is defined, by the generators of that release. This script is the last of
-- the code: whenever the code is applied to a database, it builds again what the present generators write differently
-- from what is there (core/generated.sql).
-- Locks: none of what stays as it is. Functions first, then views, and last the endpoints and segments, for which
-- publishers may have to wait: access exclusive, until the transaction ends.
-- Writes: nothing.

create or replace function pgps_internal.all_pieces() returns table (type_id integer, piece pgps_internal.piece)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select t.type_id, p from pgps_internal.event_type t, pgps_internal.pieces_of(t) p
    union all
    select t.type_id, pgps_internal.write_endpoint(t, pgps_internal.names_of(t)) from pgps_internal.event_type t
    union all
    select g.type_id, pgps_internal.write_match(g) from pgps_internal.signature g
    union all
    select m.type_id, pgps_internal.write_callback(s, t)
    from pgps_internal.member m join pgps_internal.subscription s using (subscription_id)
        join pgps_internal.event_type t using (type_id)
    where s.callback is not null
    union all
    -- Functions that run with somebody's rights are found by their owner: see visible_function and requester.
    select t.type_id, pgps_internal.write_visible('pgps_internal.' || p.proname, pgps_internal.names_of(t), p.proowner)
    from pg_proc p join pgps_internal.event_type t on p.proname ~ format('^visible_%s_\d+$', t.type_id)
    where p.pronamespace = 'pgps_internal'::regnamespace
    union all
    select null, pgps_internal.write_requester('pgps_internal.' || p.proname, p.proowner) from pg_proc p
    where p.pronamespace = 'pgps_internal'::regnamespace and p.proname ~ '^request_as_\d+$'
    union all
    select null, pgps_internal.write_confirm(k, t) from pgps_internal.confirm_link k
        join pgps_internal.event_type t on t.type_id = k.confirming
    union all
    select c.type_id, p from pgps_internal.composite c, pgps_internal.pieces_of_composite(c) p
    union all
    select * from pgps_internal.pieces_of_rules()
    union all
    select t.type_id, pgps_internal.write_spooling(t) from pgps_internal.event_type t where t.name = 'pgps_spool'
$$;
comment on function pgps_internal.all_pieces() is
'All generated code that belongs in this database, as this release writes it';

create or replace function pgps_internal.rebuild() returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_pieces pgps_internal.piece[];
    v_types integer[];
    v_detail text;
    v_place integer := 0;
begin
    -- Drop what no generator of this release writes any more.
    perform pgps_internal.drop_piece(g.kind, g.name) from pgps_internal.generated g
    where g.type_id is not null and g.name !~ '^pgps_internal\.(match|callback|visible)_'
        and not exists (select from pgps_internal.all_pieces() a where (a.piece).name = g.name);
    select array_agg(a.piece order by w.place, (a.piece).name), array_agg(a.type_id order by w.place, (a.piece).name)
        into v_pieces, v_types
    from pgps_internal.all_pieces() a, array_position('{type,function,view,relation}', (a.piece).kind) w(place)
    where not pgps_internal.is_built(a.piece);
    while v_place < coalesce(cardinality(v_pieces), 0) loop
        v_place := v_place + 1;
        perform pgps_internal.build(v_pieces[v_place], v_types[v_place]);
    end loop;
    return v_place;
exception when dependent_objects_still_exist then
    get stacked diagnostics v_detail = pg_exception_detail;
    raise exception 'generated code "%" cannot be made again: something of yours depends on it', v_pieces[v_place].name
    using errcode = '2BP01', detail = v_detail, hint = 'Drop what the detail names, upgrade, and create it again.';
end
$$;
comment on function pgps_internal.rebuild() is
'Builds the generated code that this release writes differently, or that is missing, and drops what it does not write
any more; returns how many pieces it built. Users'' views on queues are kept as long as the columns stay. Errors: 2BP01
when they cannot be.';

do $$
begin
    perform pgps_internal.leave_uncovered(), pgps_internal.leave_unregistered(), pgps_internal.rebuild();
end
$$;

-- Once, at the end of all code: a REVOKE writes a new version of every function of the schema, whether or not it
-- changes anything. After each script it took most of the time of an installation and left 57 MB behind.
revoke all on all functions in schema pgps_internal from public;
