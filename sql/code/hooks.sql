-- The hooks: the functions that the core calls and that the roster (roster.sql) fills in. The calls are written out in
-- their bodies, so that a hook needs no look-up when it runs (decision 31).
-- Locks: none of its own.
-- Writes: nothing.

create or replace function pgps_internal.calls_of(hook text, line text, separator text) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select string_agg(format(calls_of.line, r.name, r.call), calls_of.separator order by r.place)
    from pgps_internal.roster() with ordinality r(hook, name, call, place) where r.hook = calls_of.hook
$$;
comment on function pgps_internal.calls_of(text, text, text) is
'The text of a hook''s function: line, repeated for each of its lines in the roster, with name for %1 and call for %2';

do $do$
begin
    -- The functions that dispatch and receive call have no SET clauses: they run with the settings of their caller.
    execute format($f$
        create or replace function pgps_internal.after_match(
            batch_id bigint, event_type pgps_internal.event_type, xids xid8[], ids int8multirange, features text[]
        ) returns void
        language plpgsql
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('after_match',
            E'if %1$L = any (features) then\n                perform %2$s;\n            end if;', E'\n            '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.after_receive(
            subscription pgps_internal.subscription, messages pgps_internal.message[]
        )
        returns pgps_internal.message[]
        language plpgsql stable
        as $$
        begin
            return case (subscription).kind
                %s
                else messages end;
        end
        $$$f$, pgps_internal.calls_of('after_receive', 'when %1$L then %2$s', E'\n                '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.needs_feature(name text, type_id integer) returns boolean
        language plpgsql stable set search_path = pg_catalog, pg_temp
        as $$
        begin
            return case needs_feature.name
                %s
                else false end;
        end
        $$$f$, pgps_internal.calls_of('needs_feature', 'when %1$L then %2$s', E'\n                '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.filter_failed(
            class pgps_internal.class, event_id bigint, batch_id bigint
        ) returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('filter_failed', 'perform %2$s;', E'\n            '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.filter_broken(class pgps_internal.class, after_batch bigint)
        returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('filter_broken', 'perform %2$s;', E'\n            '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.is_waited_for(class pgps_internal.class) returns boolean
        language plpgsql stable set search_path = pg_catalog, pg_temp
        as $$
        begin
            return %s;
        end
        $$$f$, pgps_internal.calls_of('is_waited_for', '%2$s', E'\n                or '));
    execute format($f$
        create or replace function pgps_internal.is_matched_at_once(class pgps_internal.class) returns boolean
        language plpgsql stable set search_path = pg_catalog, pg_temp
        as $$
        begin
            return %s;
        end
        $$$f$, pgps_internal.calls_of('is_matched_at_once', '%2$s', E'\n                or '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.low_batch(type_id integer = null) returns bigint
        language plpgsql stable
        set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off
        as $$
        begin
            return coalesce(least(
                %s), 0);
        end
        $$$f$, pgps_internal.calls_of('low_batch', '%2$s', E',\n                '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.kept_batch(type_id integer = null) returns bigint
        language plpgsql stable set search_path = pg_catalog, pg_temp
        as $$
        begin
            return least(pgps_internal.low_batch(kept_batch.type_id),
                %s);
        end
        $$$f$, pgps_internal.calls_of('kept_batch', '%2$s', E',\n                '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.may_truncate() returns boolean
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            return %s;
        end
        $$$f$, pgps_internal.calls_of('may_truncate', '%2$s', E'\n                and '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.before_truncate(type_id integer, lo bigint, hi bigint) returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('before_truncate', 'perform %2$s;', E'\n            '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.carry_over(ledger text, segment regclass, newest bigint) returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            case carry_over.ledger
                %s
                else null;
            end case;
        end
        $$$f$, pgps_internal.calls_of('carry_over', 'when %1$L then perform %2$s;', E'\n                '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.reclaim_rooms(low bigint, newest bigint) returns bigint
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            return %s;
        end
        $$$f$, pgps_internal.calls_of('reclaim_rooms', '%2$s', E'\n                + '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.sweep() returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('sweep', 'perform %2$s;', E'\n            '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.join_rooms(event_type pgps_internal.event_type) returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('join_rooms', 'perform %2$s;', E'\n            '));
    execute format('create or replace function pgps_internal.meet_rooms() returns boolean language plpgsql '
        'set search_path = pg_catalog, pg_temp as $$ begin return %s; end $$',
        pgps_internal.calls_of('meet_rooms', '%2$s', ' and '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.what_needs(event_type pgps_internal.event_type) returns text
        language plpgsql stable set search_path = pg_catalog, pg_temp
        as $$
        begin
            return coalesce(
                %s);
        end
        $$$f$, pgps_internal.calls_of('what_needs', '%2$s', E',\n                '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.drop_from_rooms(event_type pgps_internal.event_type) returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('drop_from_rooms', 'perform %2$s;', E'\n            '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.setting_changes(name text, value text) returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('setting_changes', 'perform %2$s;', E'\n            '));
    execute format($f$
        create or replace function pgps_internal.policies_change(event_type pgps_internal.event_type) returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('policies_change', 'perform %2$s;', E'\n            '));
    execute format($f$
        create or replace function pgps_internal.attributes_change(event_type pgps_internal.event_type) returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('attributes_change', 'perform %2$s;', E'\n            '));
    execute format($f$
        create or replace function pgps_internal.begin_life() returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('begin_life', 'perform %2$s;', E'\n            '));
end
$do$;

do $do$
begin
    execute format($f$
        create or replace function pgps_internal.tells(neighbour pgps_internal.neighbour)
        returns table (kind text, key text, value jsonb)
        language sql stable set search_path = pg_catalog, pg_temp
        as $$
            %s
        $$$f$, pgps_internal.calls_of('tells', 'select x.* from %2$s x', E'\n            union all\n            '));
    execute format($f$
        create or replace function pgps_internal.hears(neighbour pgps_internal.neighbour, kind text, body jsonb)
        returns boolean
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            case hears.kind
                %s
                else return false;
            end case;
            return true;
        end
        $$$f$, pgps_internal.calls_of('hears', 'when %1$L then perform %2$s;', E'\n                '));
    execute format($f$
        create or replace function pgps_internal.meets_neighbour(neighbour_id integer, peer jsonb) returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('meets_neighbour', 'perform %2$s;', E'\n            '));
    execute format($f$
        create or replace function pgps_internal.loses_neighbour(neighbour pgps_internal.neighbour) returns void
        language plpgsql set search_path = pg_catalog, pg_temp
        as $$
        begin
            %s
        end
        $$$f$, pgps_internal.calls_of('loses_neighbour', 'perform %2$s;', E'\n            '));
    execute format($f$
        create or replace function pgps_internal.is_kept_from(name text, neighbour pgps_internal.neighbour)
        returns boolean
        language plpgsql stable set search_path = pg_catalog, pg_temp
        as $$
        begin
            return %s;
        end
        $$$f$, pgps_internal.calls_of('is_kept_from', '%2$s', E'\n                or '));
end
$do$;

comment on function pgps_internal.tells(pgps_internal.neighbour) is
'What rooms want a neighbour to know; what has changed of it is sent';
comment on function pgps_internal.hears(pgps_internal.neighbour, text, jsonb) is
'What rooms do with a message of a neighbour; false when it is none of theirs';
comment on function pgps_internal.meets_neighbour(integer, jsonb) is
'What rooms note when a session opens a link to a neighbour';
comment on function pgps_internal.loses_neighbour(pgps_internal.neighbour) is
'What rooms do when a link is gone for good';
comment on function pgps_internal.is_kept_from(text, pgps_internal.neighbour) is
'True when a room offers an event type to another neighbour alone';
comment on function pgps_internal.after_match(bigint, pgps_internal.event_type, xid8[], int8multirange, text[]) is
'What rooms do with a batch of an event type after it was matched; features: those of the type. Called by dispatch, with
its settings';
comment on function pgps_internal.after_receive(pgps_internal.subscription, pgps_internal.message[]) is
'What the room that owns a kind of subscription makes of messages before a reader gets them';
comment on function pgps_internal.filter_failed(pgps_internal.class, bigint, bigint) is
'What rooms do when a filter raised an error on an event that they may want nevertheless';
comment on function pgps_internal.filter_broken(pgps_internal.class, bigint) is
'What rooms do when a filter is not evaluated any more for the batches after after_batch';
comment on function pgps_internal.is_waited_for(pgps_internal.class) is
'True when somebody in a room waits for the events of a suspended class, which are matched when it is resumed';
comment on function pgps_internal.is_matched_at_once(pgps_internal.class) is
'True when what a suspended class has missed must be matched before the next batch is cut';
comment on function pgps_internal.needs_feature(text, integer) is
'True while something that is defined on an event type needs that feature of it';
comment on function pgps_internal.low_batch(integer) is
'The batch up to which every lane has matched, and every subscription (of a type) has acknowledged, everything. A room
that needs batches for longer has a line in the roster: what is kept of all logs and ledgers follows from this number';
comment on function pgps_internal.may_truncate() is
'Whether segments of logs and batches may be truncated now; false when another session has a lock that this needs';
comment on function pgps_internal.before_truncate(integer, bigint, bigint) is
'What rooms note before events of a type, from a lowest to a highest id, are truncated';
comment on function pgps_internal.kept_batch(integer) is
'The batch up to which nobody needs batches (of a type) any more: all subscriptions have acknowledged them, and no room
wants them kept';
comment on function pgps_internal.carry_over(text, regclass, bigint) is
'Before a ledger''s segment is truncated: writes again what is still the newest of its kind, and archives deliveries of
auditable out queues';
comment on function pgps_internal.reclaim_rooms(bigint, bigint) is
'Truncates segments of the rooms'' own ledgers; returns how many';
comment on function pgps_internal.sweep() is 'Deletes what is over in tables that are neither logs nor ledgers';
comment on function pgps_internal.join_rooms(pgps_internal.event_type) is
'What rooms do about a new event type: grant rights on it, and join to it subscriptions and registrations whose pattern
it fits';
comment on function pgps_internal.meet_rooms() is 'See pgps_internal.join_unmet; false: not all have met yet';
comment on function pgps_internal.what_needs(pgps_internal.event_type) is
'Why an event type should not be dropped; null when there is no reason';
comment on function pgps_internal.drop_from_rooms(pgps_internal.event_type) is
'Drops everything that rooms have for an event type';
comment on function pgps_internal.setting_changes(text, text) is
'What rooms do before a setting is changed: raise 22023 when they do not know the value';
comment on function pgps_internal.policies_change(pgps_internal.event_type) is
'What rooms do after the policies of an event type have changed';
comment on function pgps_internal.attributes_change(pgps_internal.event_type) is
'What rooms do after an attribute of an event type was added or dropped';
comment on function pgps_internal.begin_life() is
'At the beginning of a new epoch: rooms forget transaction ids, which are not valid any more; see rebaseline';
