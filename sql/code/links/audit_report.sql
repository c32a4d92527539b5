-- What an administrator sees of the audit. Locks: the rows of findings, when they are dismissed.
-- Writes: audit_finding.

create or replace view pgps.audit_findings with (security_barrier) as
select f.finding_id, f.kind, f.what, f.neighbour, o.name as origin, t.name as event_type, f.after_batch,
    f.upto as upto_batch, f.there as events_there,
    f.here as events_here, f.windows, f.found_at, f.last_found_at
from pgps_internal.audit_finding f join pgps_internal.origin o using (origin_id) join pgps_internal.event_type t
    using (type_id)
where pg_has_role(current_user, 'pgps_admin', 'usage') or pg_has_role(current_user, 'pgps_worker', 'usage');
comment on view pgps.audit_findings is
'Where events were lost, repeated or altered without notice, for pgps_admin and pgps_worker, until
pgps.dismiss_findings. kind: hop (a neighbour states that it sent more or fewer than came), log (its log has
more or fewer that the filters select than came), end (the origin states that it has published others than came here),
here (events in the ledgers of this broker are not in its log). what: count, places (the same number, but of other
batches) or contents. after_batch, upto_batch: batches of the origin. events_there, events_here: events of the windows
that differed. windows: how many did, from found_at to last_found_at';
grant select on pgps.audit_findings to public;

create or replace function pgps_internal.filters_told(neighbour_id integer, type_id integer) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select string_agg(coalesce(l.filter, 'all'), '; ' order by l.filter)
    from pgps_internal.told k join pgps_internal.link_filter l using (key)
    where k.neighbour_id = filters_told.neighbour_id and k.kind = 'sub' and l.type_id = filters_told.type_id
$$;
comment on function pgps_internal.filters_told(integer, integer) is
'The filters of an event type that a neighbour was told, for people; null: none';

create or replace function pgps_internal.audit_rows() returns table (
    kind text, neighbour text, origin text, event_type text, filter text, events_there bigint, events_here bigint,
    is_compared boolean, finding text
)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with hop as (
        select x.neighbour_id, x.origin_id, x.type_id, sum(x.events)::bigint as events
        from (
            select h.neighbour_id, h.origin_id, h.type_id, h.events from pgps_internal.audit_hop h
            union all
            select a.neighbour_id, a.origin_id, y.type_id, y.events from pgps_internal.arrival a cross
                join unnest(a.tallies) y
        ) x group by x.neighbour_id, x.origin_id, x.type_id
    ),
    finding as (
        select f.kind, f.neighbour, f.origin_id, f.type_id, sum(f.there - f.here)::bigint as lacking,
            string_agg(f.what, ', ' order by f.what) as what
        from pgps_internal.audit_finding f group by f.kind, f.neighbour, f.origin_id, f.type_id
    ),
    row as (
        select 'hop' as kind, n.name as neighbour, h.origin_id, h.type_id,
            pgps_internal.filters_told(h.neighbour_id, h.type_id) as filter, null::bigint as there, h.events as here,
            true as is_compared
        from hop h join pgps_internal.neighbour n using (neighbour_id)
        union all
        select case when o.is_self then 'here' else 'end' end, coalesce(n.name, o.name), p.origin_id, p.type_id, 'all',
            case when o.is_self then p.events else p.there end, case when o.is_self then p.events else p.here end,
                o.is_self or p.compared > 0
        from pgps_internal.audit_point p join pgps_internal.origin o using (origin_id) left
            join pgps_internal.neighbour n on n.neighbour_id = o.parent
        union all
        select 'log', n.name, r.origin_id, r.type_id, pgps_internal.filters_told(n.neighbour_id, r.type_id), r.there,
            r.here, true
        from pgps_internal.audit_recounted r join pgps_internal.origin o using (origin_id)
            join pgps_internal.neighbour n on n.neighbour_id = o.parent
        where r.compared > 0
    )
    select coalesce(r.kind, f.kind), coalesce(r.neighbour, f.neighbour), o.name, t.name, r.filter,
        case when r.kind in ('end', 'log') then r.there else coalesce(r.there, r.here, 0) + case when f.kind = 'hop'
            then f.lacking else 0 end end,
        coalesce(r.here, 0) - case when coalesce(r.kind, f.kind) = 'here' then coalesce(f.lacking, 0) else 0 end,
        coalesce(r.is_compared, true), f.what
    from row r full join finding f using (kind, neighbour, origin_id, type_id)
    join pgps_internal.origin o on o.origin_id = coalesce(r.origin_id, f.origin_id)
    join pgps_internal.event_type t on t.type_id = coalesce(r.type_id, f.type_id)
$$;
comment on function pgps_internal.audit_rows() is
'The rows of pgps.audit; finding: in what the two sides differ, null if they do not';

create or replace function pgps_internal.do_audit(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgps_internal.require_worker(caller, 'read the audit');
    return (
        select coalesce(to_jsonb(array_agg(to_jsonb(r) - '{is_compared,finding}'::text[] || jsonb_build_object(
            'digest_equal', case when r.is_compared then r.finding is null end,
            'verdict', case when r.finding is not null then 'differs' when not r.is_compared then 'not yet compared'
                else 'complete' end,
            'hint', case
                when r.finding is null then null
                when r.kind = 'here'
                    then format('Events that "%s" has taken are gone from its log: see pgps.audit_findings, and what '
                    'was done there.', pgps_internal.broker_name())
                when r.kind in ('hop', 'log')
                    then format('Fewer or more came than "%s" says: see pgps.audit_findings here and pgps.audit() '
                    'there. To ask again: select pgps.resync_link(%L)',
                    r.neighbour, quote_ident(r.neighbour))
                else format('What "%s" published did not come as it was (%s): see pgps.audit_findings, and '
                    'pgps.audit() at each broker on the way.', r.origin, r.finding) end)
            order by r.finding is null, r.origin, r.event_type, r.kind, r.neighbour)), '[]')
        from pgps_internal.audit_rows() r);
end
$$;
comment on function pgps_internal.do_audit(name, jsonb) is 'See pgps.audit';

create or replace function pgps.audit() returns table (
    kind text, neighbour text, origin text, event_type text, filter text, events_there bigint, events_here bigint,
    digest_equal boolean, verdict text, hint text
)
language sql
begin atomic
    select a.kind, a.neighbour, a.origin, a.event_type, a.filter, a.events_there, a.events_here, a.digest_equal,
        a.verdict, a.hint
    from jsonb_to_recordset(pgps._call('audit', '{}')) a(kind text, neighbour text, origin text, event_type text,
        filter text, events_there bigint,
        events_here bigint, digest_equal boolean, verdict text, hint text);
end;
comment on function pgps.audit() is
'Compares what was sent with what arrived; rows that differ come first. kind: hop = what the neighbour states that it
sent of an origin''s events, under the filters that it was sent, and what came; log = what these filters, if narrower
than all, select in the neighbour''s log, in all batches or, of more than 1000 events, in some of them, and what came;
end = what the origin states that it has published of a type, and what came here, by whichever path, where every event
is wanted; here = what the ledgers of this broker have, and what its log has. events_there, events_here: counted since
the audit began; for log and end, only what has been compared. digest_equal: whether numbers, batches, and the
contents of small batches and of one in sixteen of the others agree; null = not yet compared. verdict: complete, not
yet compared, differs (until pgps.dismiss_findings). An origin states its totals every link_report_interval; the
setting audit turns the audit off. Types that are not guaranteed, or not persistent, and events that a policy hides,
are not compared end to end; explicit gaps and refused events are no difference. Needs pgps_worker or pgps_admin.
Errors: 42501.';

create or replace function pgps_internal.do_dismiss_findings(caller name, args jsonb) returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_dismissed bigint;
begin
    perform pgps_internal.require_admin(caller, 'dismiss findings of the audit');
    delete from pgps_internal.audit_finding f where args ->> 'finding_id' is null
        or f.finding_id = (args ->> 'finding_id')::bigint;
    get diagnostics v_dismissed = row_count;
    if v_dismissed = 0 and args ->> 'finding_id' is not null then
        raise exception 'finding % does not exist', args ->> 'finding_id' using errcode = '42704',
            hint = 'See pgps.audit_findings.';
    end if;
    return to_jsonb(v_dismissed);
end
$$;
comment on function pgps_internal.do_dismiss_findings(name, jsonb) is 'See pgps.dismiss_findings';

create or replace function pgps.dismiss_findings(finding_id bigint = null) returns bigint
language sql
begin atomic
    select pgps._call('dismiss_findings', jsonb_build_object('finding_id', dismiss_findings.finding_id))::bigint;
end;
comment on function pgps.dismiss_findings(bigint) is
'Deletes a finding from pgps.audit_findings, which ends its alarm; null = all. Returns how many. What is found from then
on is a new finding. Needs pgps_admin. Errors: 42501, 42704.';

grant execute on function pgps.audit(), pgps.dismiss_findings(bigint) to public;
