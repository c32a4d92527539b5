-- Lifetimes: what becomes of units of work though nobody does anything. That time passes, sessions end and the broker
-- restarts is one expression, in the view unit_standing: whoever looks sees it, and nothing has to be written for it to
-- be true.
-- Locks: none.
-- Writes: nothing.

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
cross join lateral (
    select x.status, x.over_at, x.is_backed_out from (select
        case
            when s.status in ('BACKEDOUT', 'PROCESSED', 'CANCELLED', 'TIMEOUT', 'DISCARDED', 'DELETED')
                then case s.status when 'DELETED' then 'GONE' else s.status end
            when u.life_id < l.emptied_id then 'GONE'
            when c.commit_no is null then
                case when u.ends_at <= least(l.seen_at, coalesce(
                        case when r.at is not null then r.at
                            -- Null: nobody has noted when, so it was until now, as it is until somebody does.
                            when not pgps._session_lives(u.session_id)
                                then pgps._session_ended_at(u.session_id) end,
                        'infinity'), g.dropped_at) then 'TIMEOUT'
                    when r.at is not null or not pgps._session_lives(u.session_id) then 'BACKEDOUT'
                    when g.dropped_at is not null then 'DISCARDED'
                    else 'RECEIVED' end
            when g.dropped_at is not null then case when u.ends_at <= g.dropped_at then 'TIMEOUT' else 'DISCARDED' end
            -- What becomes of it is told by the broker that it was sent to.
            when u.is_relayed then case s.status when 'DELIVERED' then s.status else 'ACCEPTED' end
            when not u.is_persistent and r.at is not null
                then case when u.ends_at <= r.at then 'TIMEOUT' else 'DISCARDED' end
            when u.ends_at <= l.seen_at then 'TIMEOUT'
            when s.status = 'DELIVERED' and pgps._session_lives(s.session_id) then 'DELIVERED'
            else 'ACCEPTED' end,
        case when s.status not in ('ACCEPTED', 'DELIVERED') then s.noted_at end,
        -- While it was under way: when it was over for another reason, nobody can give it back any more.
        s.status = 'DELIVERED' and not pgps._session_lives(s.session_id) and case
            when least(u.ends_at, g.dropped_at) > l.seen_at then true
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
