-- Generated: pgps_internal.callback_<subscription>_<type>, which calls a callback with the rights of its owner. Called
-- by callbacks.sql.
-- Writes: nothing.

create or replace function pgps_internal.write_call(
    subscription pgps_internal.subscription, event_type pgps_internal.event_type
) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $write$
    select case
        when s.arguments is not null
            then format(E'perform %s(%s\n) from rows from (pg_catalog.unnest(pgps_events)) as %I(%s)',
            s.callback, s.arguments, (write_call.event_type).name,
            pgps_internal.column_list((write_call.event_type).endpoint))
        -- If there is also a function of that name that takes the event's type, only a variable of type record finds
        -- the one that takes a record.
        when s.takes = 'record'
                and pgps_internal.callback_argument(s.callback, (write_call.event_type).endpoint) = 'event'
            then format('for pgps_e in select pgps_row.* from pg_catalog.unnest(pgps_events) pgps_row loop perform '
                '%s(pgps_e); end loop', s.callback)
        when coalesce(s.takes, pgps_internal.callback_argument(s.callback, (write_call.event_type).endpoint)) = 'batch'
            then format('perform %s(pgps_events)', s.callback)
        -- pgps_row cannot be mistaken for an attribute: no attribute's name begins with pgps_.
        else format('perform %s(pgps_row) from pg_catalog.unnest(pgps_events) pgps_row', s.callback) end
    from (select (write_call.subscription).*) s
$write$;
comment on function pgps_internal.write_call(pgps_internal.subscription, pgps_internal.event_type) is
'How a callback is called: for each event, with arguments made of it, or once for all';

create or replace function pgps_internal.write_callback(
    subscription pgps_internal.subscription, event_type pgps_internal.event_type
)
returns pgps_internal.piece
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $write$
begin
    -- Called with null, the function runs what the callback has deferred to the commit, with the same rights: see
    -- run_deferred.
    return pgps_internal.write_function('pgps_internal.callback_{subscription_id}_{type_id}',
        $head$(pgps_events pgps_event.{name}[]) returns void
        language plpgsql volatile security definer set enable_seqscan = on {settings}$head$, $body$
            #variable_conflict use_column
            declare
                pgps_e record;
            begin
                if pgps_events is null then
                    set constraints all immediate;
                else
                    {call};
                end if;
            end$body$, jsonb_build_object('subscription_id', (write_callback.subscription).subscription_id,
            'type_id', (write_callback.event_type).type_id, 'name', quote_ident((write_callback.event_type).name),
            'settings', pgps_internal.environment_clause((write_callback.subscription).environment),
            'call', pgps_internal.write_call(write_callback.subscription, write_callback.event_type)),
                (write_callback.subscription).owner);
end
$write$;
comment on function pgps_internal.write_callback(pgps_internal.subscription, pgps_internal.event_type) is
'Writes the function that calls a subscription''s callback for an array of events, with the rights and settings of its
owner';
