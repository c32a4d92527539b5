-- breaking: no
-- Units of work: what an exchange of plain messages looks up and writes (decision 84).

-- The first message of a unit; null: all of them are in unit_message.
alter table pgps_internal.unit add column message bytea;
do $$
begin
    for v_slot in 0..3 loop
        execute format('alter table pgps_internal.unit_%s alter column message set storage external', v_slot);
    end loop;
end
$$;

-- Entries that are in a newer segment than what they are about: few, and what to look for elsewhere.
create index unit_commit_older_idx on pgps_internal.unit_commit (queue_id, entry_no)
where least(conversation_no, entry_no) / 65536 < at_no / 65536;

-- Says without a query that there never was an entry at the place of an earlier one (decision 70).
create sequence pgps_internal.units_placed_seq;
select nextval('pgps_internal.units_placed_seq')
where exists (select from pgps_internal.unit_commit c where c.entry_no < c.commit_no);

-- What of the units that it has in hand a session knows already: of one that is held and has one message, and of one
-- that is sent. Null: it is looked up. And for whom it speaks.
create type pgps_internal.in_hand as (
    unit_no bigint,
    conversation_no bigint,
    service_id integer,
    to_server boolean,
    is_persistent boolean,
    ends_at timestamptz,
    user_status text,
    version integer,
    attempts integer,
    commit_no bigint,
    first_commit_at timestamptz
);
alter table pgps_internal.session_hand add column participant_id bigint, add column role regrole,
    add column token text, add column life_id bigint, add column held_one pgps_internal.in_hand,
    add column sent_one pgps_internal.in_hand;

drop function if exists pgps_internal.queue_at_hand(bigint);
drop function if exists pgps_internal.entry_at_hand(pgps_internal.speaker, bigint, bigint, bigint[], bigint, bigint,
    text, integer[], bigint[]);
drop function if exists pgps_internal.write_first(pgps_internal.speaker, record, timestamptz, bytea, boolean);
drop function if exists pgps_internal.send_simply(name, pgps_internal.speaker, jsonb, bytea);
drop function if exists pgps_internal.send_anyhow(name, pgps_internal.speaker, jsonb, bytea);
drop function if exists pgps_internal.receive_answer(pgps_internal.speaker, jsonb);
drop function if exists pgps_internal.answer_at_hand(bigint, pgps_internal.speaker);
drop function if exists pgps_internal.lock_at_hand(bigint);
drop function if exists pgps_internal.receive_next(pgps_internal.speaker, bigint[], integer[], jsonb);
drop function if exists pgps_internal.speak_to_serve(name, jsonb);
drop function if exists pgps_internal.commit_in_hand(pgps_internal.speaker, text);
drop function if exists pgps_internal.commit_at_hand(pgps_internal.speaker, pgps_internal.unit, pgps_internal.unit);
do $$
begin
    for v_slot in 0..3 loop
        execute format('drop function if exists pgps_internal.commit_%s_as_seen(bigint, integer, bigint, bigint, '
            'boolean, bigint)', v_slot);
    end loop;
end
$$;
drop function if exists pgps_internal.commit_as_seen(bigint, integer, bigint, bigint, boolean, bigint);
drop function if exists pgps_internal.row_of_commit(pgps_internal.unit, text, text, text, text, text, timestamptz,
    integer, text);
drop function if exists pgps_internal.add_message(bigint, pgps_internal.service, bytea, boolean);
drop function if exists pgps_internal.begin_unit(pgps_internal.speaker, pgps_internal.service,
    pgps_internal.conversation, boolean, jsonb);

insert into pgps_internal.installation (key, value) values ('schema_revision', '0030')
on conflict (key) do update set value = excluded.value;
