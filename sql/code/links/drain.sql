-- Links that are being dropped. Each side sends "drain" when every origin that has another path uses it, and "drained"
-- when it has packed what was dispatched before it heard "drain". A side that has sent and heard both, and whose items
-- are confirmed, may forget the other. The side that connects forgets last: if the other has gone before it, it learns
-- so by connecting again.
-- Locks: the turn of routes, until the transaction ends.
-- Writes: link, neighbour, wanted.

create or replace function pgps_internal.was_told(neighbour_id integer, kind text) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from pgps_internal.told t where t.neighbour_id = was_told.neighbour_id
        and t.kind = was_told.kind);
end
$$;
comment on function pgps_internal.was_told(integer, text) is 'True when a neighbour was told something of a kind';

create or replace function pgps_internal.last_words(
    neighbour_id integer
) returns table (kind text, key text, value jsonb)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- Not before the new parents have answered: the old one is still needed if one of them fails. But for those at the
    -- end of another link that is being dropped nobody waits: they may have lost the path themselves, or hear of no
    -- filter any more, and would never answer. Nor for one that has said that it has lost the path. Then the next path
    -- is asked from the horizon on.
    select 'drain', '', '{}'::jsonb
    where not exists (select from pgps_internal.told t join pgps_internal.origin o on o.origin_id::text = t.key
        join pgps_internal.neighbour p on p.neighbour_id = o.parent and not p.is_draining
        join pgps_internal.offer f on f.origin_id = o.origin_id and f.neighbour_id = o.parent
        where t.neighbour_id = last_words.neighbour_id and t.kind = 'attach' and o.parent <> last_words.neighbour_id)
    union all
    select 'drained', '', '{}'
    where pgps_internal.was_told(last_words.neighbour_id, 'drain')
        and not exists (select from pgps_internal.wanted w where w.neighbour_id = last_words.neighbour_id)
    union all
    -- Origins without another path still come by this link. But no filter is told any more: a new attachment without a
    -- filter that is in force here would be answered with silence, and that taken for completeness. Then nothing more
    -- comes, and the next path is asked from the horizon on.
    select 'attach', o.origin_id::text,
        jsonb_build_object('broker', o.broker_id, 'epoch', o.epoch, 'attachment', o.attachment)
    from pgps_internal.origin o join pgps_internal.told t on t.kind = 'attach' and t.key = o.origin_id::text
    where t.neighbour_id = last_words.neighbour_id and o.parent = last_words.neighbour_id
        and ((t.value ->> 'attachment')::integer = o.attachment or not exists (select from pgps_internal.activation a
            where a.origin_id = o.origin_id and not pgps_internal.is_told(last_words.neighbour_id, a.key,
                pgps_internal.links_to(o.origin_id))))
$$;
comment on function pgps_internal.last_words(integer) is 'What a neighbour whose link is being dropped should know';

create or replace function pgps_internal.hear_drain(neighbour pgps_internal.neighbour) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    update pgps_internal.neighbour n set is_draining = true, drain_heard = pg_current_snapshot()
    where n.neighbour_id = (hear_drain.neighbour).neighbour_id;
    -- They end, but it is not known yet at which batch.
    update pgps_internal.wanted w set gone_batch = 9223372036854775807
    where w.neighbour_id = (hear_drain.neighbour).neighbour_id and w.gone_batch is null;
end
$$;
comment on function pgps_internal.hear_drain(pgps_internal.neighbour) is
'Handles "drain": the neighbour drops the link. What has been published until now is sent, and this side, too, takes
other paths';

create or replace function pgps_internal.end_filters(neighbour pgps_internal.neighbour) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_last pgps_internal.batch := pgps_internal.last_batch();
begin
    -- What was published until "drain" was heard may fill several batches, and one that was being cut then may have
    -- only a part of it.
    if (end_filters.neighbour).drain_heard is null
        or exists (select from pgps_internal.waiting(v_last, (end_filters.neighbour).drain_heard)) then
        return;
    end if;
    -- All filters end at the same batch: everything up to it is sent, and nothing is said of what comes behind it.
    update pgps_internal.wanted w set gone_batch = coalesce(v_last.batch_id, 0)
    where w.neighbour_id = (end_filters.neighbour).neighbour_id and w.gone_batch = 9223372036854775807;
    update pgps_internal.neighbour n set drain_heard = null
    where n.neighbour_id = (end_filters.neighbour).neighbour_id;
end
$$;
comment on function pgps_internal.end_filters(pgps_internal.neighbour) is
'Ends the filters of a neighbour that has said "drain", once everything that had been published then is in a batch';

create or replace function pgps_internal.is_drained(neighbour pgps_internal.neighbour) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id integer := (is_drained.neighbour).neighbour_id;
begin
    return (is_drained.neighbour).is_draining and (is_drained.neighbour).has_sent_all
        and pgps_internal.was_told(v_id, 'drained')
        and (pgps_internal.position_of((is_drained.neighbour).subscription_id)).received_event
            >= pgps_internal.last_sent(v_id)
        -- All that came from it is dispatched, and so packed for other neighbours before they hear that this path is
        -- gone.
        and not exists (select from pgps_internal.in_no_batch(pgps_internal.last_batch(), pg_current_snapshot()) w
            join pgps_internal.arrival a on a.hi >= w.lo and a.lo <= w.hi
            where w.origin_id is not null and a.neighbour_id = v_id);
end
$$;
comment on function pgps_internal.is_drained(pgps_internal.neighbour) is
'True when, for a link that is being dropped, everything is sent and confirmed, and everything that came is dispatched';

create or replace function pgps_internal.require_drained(neighbour pgps_internal.neighbour, gone boolean) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if not (require_drained.neighbour).is_draining
        or not require_drained.gone and not pgps_internal.is_drained(require_drained.neighbour) then
        raise exception 'the link to broker "%" is not drained', (require_drained.neighbour).name
        using errcode = '55000', hint = 'First: select pgps.drop_link(name)';
    end if;
end
$$;
comment on function pgps_internal.require_drained(pgps_internal.neighbour, boolean) is
'Raises 55000 unless a link is drained, or being dropped and gone at the other side';

create or replace function pgps_internal.do_link_close(caller name, args jsonb) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_neighbour pgps_internal.neighbour := pgps_internal.linked('send');
    v_gone boolean := (args ->> 'gone')::boolean;
begin
    if v_gone then
        perform pgps_internal.require_worker(caller, 'serve links');
    end if;
    perform pgps_internal.require_drained(v_neighbour, v_gone);
    -- What the neighbour detected is subscribed to here now.
    perform pgps_internal.loses_neighbour(v_neighbour);
    perform pgps_internal.hold_routes();
    perform pgps_internal.require_drained(v_neighbour, v_gone);
    perform pgps_internal.forget_neighbour(v_neighbour.neighbour_id);
    if v_neighbour.is_dropped_here then
        delete from pgps_internal.link l where l.link_id = v_neighbour.link_id;
    else
        update pgps_internal.link l
        set enabled = false, state = 'defined',
            last_error = format('broker "%s" has dropped the link', v_neighbour.name),
            changed_at = pgps_internal.clock(),
            hint = format('Drop it here, too: select pgps.drop_link(%L). To link them again: select '
                'pgps.alter_link(%1$L, enabled => true)', quote_ident(l.name))
        where l.link_id = v_neighbour.link_id;
    end if;
end
$$;
comment on function pgps_internal.do_link_close(name, jsonb) is 'See pgps.link_close';

create or replace function pgps.link_close(gone boolean = false) returns void
language sql
begin atomic
    select pgps._call('link_close', jsonb_build_object('gone', link_close.gone));
end;
comment on function pgps.link_close(boolean) is
'Removes a drained link, in the session that sends: what is known of the neighbour, and the definition if it was dropped
here. To be called first at the other broker, and last at the one that connects. gone: the other broker knows nothing of
the link any more; needs pgps_worker. Needs pgps.link_open. Errors: 55000 not open, not drained; 42501.';

revoke all on function pgps.link_close(boolean) from public;
grant execute on function pgps.link_close(boolean) to pgps_link, pgps_worker, pgps_admin;
