-- Generated: pgps_internal.confirm_<link>, which raises confirming events. Called by confirm.sql.
-- Writes: by name: the confirming event type (generated).

create or replace function pgps_internal.write_confirm(
    link pgps_internal.confirm_link, confirming pgps_internal.event_type
)
returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    -- An ordinary INSERT with the rights of the role that made the confirm link: constraints, rules and advertisements
    -- apply.
    return pgps_internal.write_function('pgps_internal.confirm_{link_id}',
        $head$(pgps_ids bigint[], pgps_committed boolean[]) returns void
        language plpgsql volatile security definer set search_path = pg_catalog,
            pg_temp set enable_seqscan = on set pgps.visibility = 'deferred'
        set pgps.client = '' set pgps.handler = ''$head$, $body$begin
                if pgps_ids is null then
                    set constraints all immediate;
                    return;
                end if;
                insert into {endpoint} ({attributes}) select e.id, e.committed
                    from unnest(pgps_ids, pgps_committed) with ordinality e(id, committed, place) order by e.place;
            end$body$, jsonb_build_object('link_id', (write_confirm.link).link_id, 'endpoint',
                (write_confirm.confirming).endpoint::text,
            'attributes', (select string_agg(quote_ident(a.name), ', ')
                from pgps_internal.attributes_of((write_confirm.confirming).endpoint) a)),
        (write_confirm.link).owner);
end
$write$;
comment on function pgps_internal.write_confirm(pgps_internal.confirm_link, pgps_internal.event_type) is
'Writes the function that raises the confirming events of a confirm link, owned by the role that made the link';
