-- breaking: no
-- Spools that are not persistent and whose messages are counted since they were lost last: like these messages it is
-- empty after a crash, and in a base backup. What spool_state says of the others is of before.
create unlogged table pgps_internal.spool_counted (
    spool_id integer primary key
);

-- What was lost before there was this table is not counted any more.
with standing as (
    select distinct on (t.spool_id) t.spool_id, t.batch_id, t.emptied
    from pgps_internal.spool_state t join pgps_internal.spool s using (spool_id)
    where not s.persistent
    order by t.spool_id, t.batch_id desc
),
live as (
    select t.spool_id, t.batch_id, count(m.id) as messages, coalesce(sum(m.bytes), 0) as bytes
    from standing t
    left join pgps_internal.spool_message m on m.spool_id = t.spool_id and m.slot >= 8 and not m.seqn <@ t.emptied
        and not exists (select from pgps_internal.spool_gone g
            where g.slot = m.slot and g.spool_id = m.spool_id and g.seqn = m.seqn)
    group by t.spool_id, t.batch_id
),
counted as (
    insert into pgps_internal.spool_counted (spool_id) select l.spool_id from live l
)
update pgps_internal.spool_state t set messages = l.messages, bytes = l.bytes
from live l
where t.spool_id = l.spool_id and t.batch_id = l.batch_id and (t.messages, t.bytes) <> (l.messages, l.bytes);

-- The dispatcher writes these: it must not wait for who is dropping the spool. What is left of one is swept.
alter table pgps_internal.spool_gap drop constraint spool_gap_spool_id_fkey;
alter table pgps_internal.spool_cancelled drop constraint spool_cancelled_spool_id_fkey;
alter table pgps_internal.spool_replay drop constraint spool_replay_spool_id_fkey;

-- The turn of becoming a member of a group, taken together by those who do, and alone by who takes a message back.
insert into pgps_internal.turn (kind, id) select 'q', s.spool_id from pgps_internal.spool s on conflict do nothing;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0053')
on conflict (key) do update set value = excluded.value;
