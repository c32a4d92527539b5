-- Members with all that they skip: who hands events out reads these. What came over a link and is not for a
-- subscription is noted (to_skip), and the dispatcher adds it to its members, unless somebody was changing them: then
-- it stays a note until the dispatch after that (apply_skips), and whoever reads meanwhile has to heed it.
-- Locks: none.
-- Writes: nothing.

create or replace view pgps_internal.current_member as
select m.subscription_id, m.class_id, m.type_id, m.from_batch, m.takes_batch,
    -- Mostly there never were notes, or there are none, which a sequence and the size of the table tell.
    case when pg_sequence_last_value('pgps_internal.to_skip_skip_id_seq'::regclass) is null
            or pg_relation_size('pgps_internal.to_skip'::regclass) = 0 then m.skip
        else m.skip + coalesce((
            select range_agg(k.ids) from pgps_internal.to_skip k
            where k.type_id = m.type_id and case when k.subscription_ids is not null
                then m.subscription_id = any (k.subscription_ids)
                else exists (select from pgps_internal.subscription s
                    where s.subscription_id = m.subscription_id and s.kind <> 'link') end), '{}') end as skip
from pgps_internal.member m;
comment on view pgps_internal.current_member is
'Members with all that they skip, also what is noted and not added to them yet';
