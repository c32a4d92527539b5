-- Moments: which events rules have published at the beginning, and which at the end, of a statement on their table. It
-- is noted for event types alone of which a composite event names the moment (the feature moment): before the INSERT of
-- a rule which moment it is, and none behind it.
-- Locks: share row exclusive on rule while rules are written again.
-- Writes: rule_moment.

create or replace function pgps._mark_moment(type_id integer, moment text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A rule may still be written as before when nobody asks for its moment any more.
    if pg_trigger_depth() > 0 and exists (select from pgps_internal.feature f
            where f.type_id = _mark_moment.type_id and f.name = 'moment') then
        insert into pgps_internal.rule_moment (after_event, type_id, moment)
        values (coalesce(pg_sequence_last_value('pgps_internal.event_id_seq'::regclass), 0), _mark_moment.type_id,
            _mark_moment.moment);
    end if;
end
$$;
comment on function pgps._mark_moment(integer, text) is
'Notes at which moment a rule publishes the events of a type that come now in this transaction; null = no rule does.
Called by the rules'' triggers';

create or replace function pgps_internal.fits_moment(moment text, type_id integer, xid xid8, event_id bigint)
returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_mark pgps_internal.rule_moment;
begin
    select m.* into v_mark from pgps_internal.rule_moment m
    where m.xid = fits_moment.xid and m.type_id = fits_moment.type_id and m.after_event < fits_moment.event_id
    order by m.row_id desc limit 1;
    -- What is published in consequence of the rule's events, before its trigger has ended, is of no moment.
    return v_mark.moment is null or v_mark.moment = fits_moment.moment or exists (
        select from pgps_internal.control c
        where c.xid = fits_moment.xid and c.type_id = fits_moment.type_id and c.lo > v_mark.after_event
            and c.hi < fits_moment.event_id);
end
$$;
comment on function pgps_internal.fits_moment(text, integer, xid8, bigint) is
'Whether an event is of a moment: a rule of that moment, or no rule, has published it';

create or replace function pgps._fits_moment(moment text, type_id integer, xid xid8, event_id bigint) returns boolean
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgps_internal.fits_moment(_fits_moment.moment, _fits_moment.type_id, _fits_moment.xid,
        _fits_moment.event_id);
end
$$;
comment on function pgps._fits_moment(text, integer, xid8, bigint) is
'See pgps_internal.fits_moment; for pgps.try_composite_event, which runs with the rights of its caller';

create or replace function pgps_internal.tell_moments(type_id integer) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.add_feature(tell_moments.type_id, 'moment');
    -- Whoever creates a rule at the same time has finished before, or sees the feature.
    lock table pgps_internal.rule in share row exclusive mode;
    perform pgps_internal.build_rule(r.rule_id, pgps_internal.environment_of(pgps_internal.function_of_rule(r)))
    from pgps_internal.rule r join pg_proc p on p.oid = pgps_internal.function_of_rule(r)::oid
    where r.type_id = tell_moments.type_id and strpos(p.prosrc, 'pgps._mark_moment') = 0
        and exists (select from pg_class c where c.oid = r.table_name);
end
$$;
comment on function pgps_internal.tell_moments(integer) is
'Has the rules of an event type note their moments from the commit of this transaction on';

grant execute on function pgps._mark_moment(integer, text), pgps._fits_moment(text, integer, xid8, bigint) to public;
