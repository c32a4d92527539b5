-- Checkpoints: bytes that a client leaves with what it receives, sends or registers, and is given again when it
-- connects. The newest row counts; long ones are kept apart.
-- Locks: those of the caller, which has the turn of the client; access share on the ledger.
-- Writes: client_blob, client_checkpoint.

create or replace function pgps_internal.keep_checkpoint(client_id bigint, kind text, data bytea) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_bytes bigint := octet_length(keep_checkpoint.data);
begin
    if v_bytes > 104857600 then
        raise exception 'checkpoint has % bytes', v_bytes using errcode = '54000',
            hint = 'At most 104857600 (100 MB); keep more in tables of your own.';
    elsif v_bytes > 8192 then
        -- The ledger is reclaimed in segments of 16,384 rows: large checkpoints would stay in it for too long.
        insert into pgps_internal.client_blob (client_id, kind, data)
            values (keep_checkpoint.client_id, keep_checkpoint.kind, keep_checkpoint.data)
        on conflict on constraint client_blob_pkey do update set data = excluded.data;
    end if;
    if v_bytes is not null then
        -- Until this is committed, reclaim carries no older one over, behind this one.
        lock table pgps_internal.client_checkpoint in access share mode;
        insert into pgps_internal.client_checkpoint (client_id, kind, bytes, data)
        values (keep_checkpoint.client_id, keep_checkpoint.kind, v_bytes, case when v_bytes <= 8192
            then keep_checkpoint.data end);
    end if;
end
$$;
comment on function pgps_internal.keep_checkpoint(bigint, text, bytea) is
'Stores a checkpoint of a client; data null: keeps the stored one. 54000 above 100 MB';

create or replace function pgps_internal.checkpoint_of(client_id bigint, kind text) returns bytea
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(k.data, (select b.data from pgps_internal.client_blob b where b.client_id = checkpoint_of.client_id
        and b.kind = checkpoint_of.kind))
    from pgps_internal.client_checkpoint k
    where k.client_id = checkpoint_of.client_id and k.kind = checkpoint_of.kind order by k.checkpoint_id desc limit 1
$$;
comment on function pgps_internal.checkpoint_of(bigint, text) is
'The newest checkpoint of a client; kind: reply or event';
