-- breaking: no
-- What units of work looked up and wrote in several statements, they do in one (decision 60): the functions that did.

drop function if exists pgps_internal.first_at_hand(pgps_internal.speaker, pgps_internal.queue_low, text, integer[],
    bigint[]);
drop function if exists pgps_internal.answer_at_hand(bigint);
drop function if exists pgps_internal.first_answer(pgps_internal.speaker, pgps_internal.conversation);
drop function if exists pgps_internal.first_commit_in(bigint);
drop function if exists pgps_internal.hand_out_first(pgps_internal.speaker, bigint, bigint);
drop function if exists pgps_internal.queue_unit(bigint, bigint, boolean, bigint);
drop function if exists pgps_internal.commit_held(pgps_internal.speaker, pgps_internal.unit_at_hand, timestamptz);
drop function if exists pgps_internal.row_at_hand(pgps_internal.unit_at_hand, text, timestamptz);
drop function if exists pgps_internal.is_sent(pgps_internal.unit_at_hand, pgps_internal.speaker);
drop function if exists pgps_internal.holds_unit(pgps_internal.unit_at_hand, pgps_internal.speaker);
drop function if exists pgps_internal.is_common(pgps_internal.unit_at_hand, pgps_internal.speaker);
drop function if exists pgps_internal.at_hand(bigint, bigint);
drop function if exists pgps_internal.unit_to_send(pgps_internal.speaker, pgps_internal.service, bytea, boolean);
drop function if exists pgps_internal.place_simply(pgps_internal.speaker, jsonb);
drop function if exists pgps_internal.uow_settings();
drop function if exists pgps_internal.pass_over(pgps_internal.speaker, pgps_internal.queue_low, bigint);
drop view if exists pgps_internal.unit_at_hand, pgps_internal.unit_at_hand_0, pgps_internal.unit_at_hand_1,
    pgps_internal.unit_at_hand_2, pgps_internal.unit_at_hand_3;

-- Who speaks in a session is said by its row alone.
alter table pgps_internal.participant_session add column role regrole, add column token text;
update pgps_internal.participant_session s set role = p.role, token = p.token
from pgps_internal.participant p where p.participant_id = s.participant_id;
alter table pgps_internal.participant_session alter column role set not null;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0026')
on conflict (key) do update set value = excluded.value;
