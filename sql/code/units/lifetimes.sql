-- Lifetimes: what becomes of units of work though nobody does anything. That time passes, sessions end and the broker
-- restarts is one expression, in the view unit_standing: whoever looks sees it, and nothing has to be written for it to
-- be true.
-- Locks: none.
-- Writes: nothing.

-- Which sessions live, and what time it is, whoever looks knows as of now, and the units themselves as of the snapshot
-- of the statement, or of the transaction where that keeps one. Together these may be what never was: a server that
-- has committed a unit and gone since seems to have lost it. So what would follow from the end of a session or of a
-- lifetime is asked for again, of the unit as it is now. What was settled since is shown as it stands in the snapshot;
-- what was not, as it stands now.
create or replace function pgps_internal.settled_since(
    unit_no bigint, is_committed boolean, version integer, attempts integer, ends_at timestamptz
) returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_dropped_at timestamptz := (select g.dropped_at
        from pgps_internal.unit u join pgps_internal.service_dropped g on g.service_id = u.service_id
        where u.unit_no = settled_since.unit_no);
    v_settled boolean := case
        when not settled_since.is_committed
            then exists (select from pgps_internal.unit_commit c where c.unit_no = settled_since.unit_no)
        -- More attempts: it was given back, by the end of the session or before, and that is what is shown.
        else v_dropped_at is not null or coalesce((select s.attempts <= settled_since.attempts
            from pgps_internal.unit_state s
            where s.unit_no = settled_since.unit_no and s.version > settled_since.version
            order by s.version limit 1), false) end;
    v_in_time boolean := coalesce(v_dropped_at < settled_since.ends_at, false) or exists (
        select from pgps_internal.unit_state s
        where s.unit_no = settled_since.unit_no and s.version > settled_since.version
            and s.status in ('PROCESSED', 'CANCELLED', 'BACKEDOUT', 'DISCARDED'));
begin
    return v_settled::integer + 2 * v_in_time::integer;
end
$$;
comment on function pgps_internal.settled_since(bigint, boolean, integer, integer, timestamptz) is
'What became of a unit after a version of it: 1 its session did what was due (SYNCPOINT), or its service was dropped, 2
it was over before its lifetime was; the sum of these';

create or replace function pgps_internal.is_touched_since(conversation_no bigint, service_id integer) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_from bigint := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
begin
    -- SYNCPOINT locks its conversation, and xmax tells in any snapshot who did that last: zero, or 32 bits of its id.
    return coalesce((select bool_or(t.by <> 0 and (t.by - v_from & 4294967295) < 2147483648)
        from (select c.xmax::text::bigint from pgps_internal.conversation c
                where c.conversation_no = is_touched_since.conversation_no
            union all
            select v.xmax::text::bigint from pgps_internal.service v
                where v.service_id = is_touched_since.service_id) t(by)), true);
end
$$;
comment on function pgps_internal.is_touched_since(bigint, integer) is
'False when nobody can have called SYNCPOINT in a conversation, or have dropped its service, since the snapshot of this
transaction was taken';

create or replace function pgps._settled_since(
    unit_no bigint, conversation_no bigint, service_id integer, is_committed boolean, version integer,
    attempts integer, ends_at timestamptz
) returns integer
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('transaction_isolation') like 'read %committed' then
        return pgps_internal.settled_since(_settled_since.unit_no, _settled_since.is_committed, _settled_since.version,
            _settled_since.attempts, _settled_since.ends_at);
    elsif not pgps_internal.is_touched_since(_settled_since.conversation_no, _settled_since.service_id) then
        return 0;
    end if;
    begin
        -- Here every statement has the same snapshot.
        return pgps_internal.over_loopback_once(format('select pgps_internal.settled_since(%s, %L, %s, %s, %L)',
            _settled_since.unit_no, _settled_since.is_committed, _settled_since.version, _settled_since.attempts,
            _settled_since.ends_at));
    exception when connection_exception or too_many_connections or lock_not_available or deadlock_detected then
        -- Who only looks is not refused: it is shown as it stood.
        return 3;
    end;
end
$$;
comment on function pgps._settled_since(bigint, bigint, integer, boolean, integer, integer, timestamptz) is
'As pgps_internal.settled_since, of a unit as it is now, whatever snapshot the transaction has; 3 where that cannot be
told. For views: anybody may ask.';

create or replace view pgps_internal.unit_standing as
select u.unit_no, u.conversation_no, u.service_id, u.to_server, u.is_uow, u.sender_id, u.session_id as sender_session,
    u.life_id, u.is_persistent, u.status_for, u.began_at, u.ends_at, c.commit_no, c.committed_at,
    coalesce(s.version, 0) as version, s.receiver_id, s.session_id as receiver_session,
    coalesce(s.messages_given, 0) as messages_given,
    d.status,
    coalesce(s.attempts + coalesce(s.status = 'DELIVERED' and d.status <> 'DELIVERED' and d.is_backed_out,
        false)::integer, 0) as attempts,
    d.status in ('RECEIVED', 'ACCEPTED', 'DELIVERED') as is_active,
    d.status <> 'GONE' and (d.status in ('RECEIVED', 'ACCEPTED', 'DELIVERED')
        or u.status_for is not null and d.over_at + u.status_for > l.seen_at) as is_known,
    u.life_id < l.held_id as is_held_back,
    d.over_at,
    case when n.version is not null then n.user_status else u.user_status end as user_status,
    coalesce(n.version, 0) as note_version, u.is_relayed, u.their_no
from pgps_internal.unit u
cross join pgps._this_life() l
left join lateral (select c.commit_no, c.committed_at from pgps_internal.unit_commit c
    where c.unit_no = u.unit_no order by c.entry_no limit 1) c on true
left join lateral (select s.* from pgps_internal.unit_state s
    where s.unit_no = u.unit_no order by s.version desc limit 1) s on true
left join lateral (select n.version, n.user_status from pgps_internal.unit_note n
    where n.unit_no = u.unit_no order by n.version desc limit 1) n on true
left join pgps_internal.service_dropped g on g.service_id = u.service_id
-- When the first restart since it was made happened, if there was one.
left join lateral (select case when u.life_id < l.life_id then coalesce((select min(r.started_at)
    from pgps_internal.broker_life r where r.life_id > u.life_id), l.seen_at) end as at) r on true
-- Whether the session that has it in hand is gone, and what time it is: unless it was settled meanwhile.
cross join lateral (select h.is_gone and w.settled & 1 = 0 as is_lost,
    case when w.settled & 2 = 0 then l.seen_at else '-infinity' end as seen_at
    from (select case
            when s.status in ('BACKEDOUT', 'PROCESSED', 'CANCELLED', 'TIMEOUT', 'DISCARDED', 'DELETED') then false
            when c.commit_no is null then r.at is not null or not pgps._session_lives(u.session_id)
            else coalesce(s.status = 'DELIVERED', false) and not pgps._session_lives(s.session_id) end as is_gone) h
    cross join lateral (select case
            when g.dropped_at is not null or c.commit_no is not null and u.is_relayed
                or s.status in ('BACKEDOUT', 'PROCESSED', 'CANCELLED', 'TIMEOUT', 'DISCARDED', 'DELETED') then 0
            -- What was over when the transaction began was over in its snapshot.
            when h.is_gone or u.ends_at <= l.seen_at and u.ends_at > pgps._began()
                then pgps._settled_since(u.unit_no, u.conversation_no, u.service_id, c.commit_no is not null,
                    coalesce(s.version, 0), coalesce(s.attempts, 0), u.ends_at)
            else 0 end as settled) w
) k
cross join lateral (
    select x.status, x.over_at, x.is_backed_out from (select
        case
            when s.status in ('BACKEDOUT', 'PROCESSED', 'CANCELLED', 'TIMEOUT', 'DISCARDED', 'DELETED')
                then case s.status when 'DELETED' then 'GONE' else s.status end
            when u.life_id < l.emptied_id then 'GONE'
            when c.commit_no is null then
                case when u.ends_at <= least(k.seen_at, coalesce(
                        case when r.at is not null then r.at
                            -- Null: nobody has noted when, so it was until now, as it is until somebody does.
                            when k.is_lost then pgps._session_ended_at(u.session_id) end,
                        'infinity'), g.dropped_at) then 'TIMEOUT'
                    when k.is_lost then 'BACKEDOUT'
                    when g.dropped_at is not null then 'DISCARDED'
                    else 'RECEIVED' end
            when g.dropped_at is not null then case when u.ends_at <= g.dropped_at then 'TIMEOUT' else 'DISCARDED' end
            -- What becomes of it is told by the broker that it was sent to.
            when u.is_relayed then case s.status when 'DELIVERED' then s.status else 'ACCEPTED' end
            when not u.is_persistent and r.at is not null
                then case when u.ends_at <= r.at then 'TIMEOUT' else 'DISCARDED' end
            when u.ends_at <= k.seen_at then 'TIMEOUT'
            when s.status = 'DELIVERED' and not k.is_lost then 'DELIVERED'
            else 'ACCEPTED' end,
        case when s.status not in ('ACCEPTED', 'DELIVERED') then s.noted_at end,
        -- While it was under way: when it was over for another reason, nobody can give it back any more.
        s.status = 'DELIVERED' and k.is_lost and case
            when least(u.ends_at, g.dropped_at) > k.seen_at then true
            else least(pgps._session_ended_at(s.session_id), (select min(b.started_at) from pgps_internal.broker_life b
                where b.life_id > u.life_id and b.started_at >= s.noted_at)) < least(u.ends_at, g.dropped_at) end,
        least(r.at, g.dropped_at)
    ) y(status, noted_at, is_backed_out, discarded_at)
    cross join lateral (select y.status, case y.status when 'TIMEOUT' then u.ends_at
        -- Noted: another broker has told that its restart did it.
        when 'DISCARDED' then coalesce(y.noted_at, y.discarded_at)
        when 'BACKEDOUT' then coalesce(y.noted_at, y.discarded_at, pgps._session_ended_at(u.session_id),
            u.began_at)
        else y.noted_at end as over_at, y.is_backed_out) x
) d;
comment on view pgps_internal.unit_standing is
'How units of work stand now, whoever has noted it; GONE: no trace is left. is_known: the status is still kept';

grant execute on function pgps._settled_since(bigint, bigint, integer, boolean, integer, integer, timestamptz)
to public;
