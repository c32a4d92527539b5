-- breaking: no
-- Which role speaks for a broker whose network spools here: the first that did. Null: none has since this revision.
alter table pgps_internal.network_origin add column role regrole;

-- Until now whoever might link might spool everywhere. Where messages of other networks have come, those roles keep
-- that as grants, which can be taken back: pgps.revoke_spool.
with linking as (
    select r.oid::regrole as role from pg_roles r
    where pg_has_role(r.oid, 'pgps_link', 'usage') and not pg_has_role(r.oid, 'pgps_worker', 'usage')
        and not pg_has_role(r.oid, 'pgps_admin', 'usage') and r.rolname <> 'pgps_link'
)
update pgps_internal.spool s set spoolers = s.spoolers
    || array(select l.role from linking l where l.role <> all (s.spoolers) order by l.role::oid)
where s.network_id is null and exists (select from pgps_internal.network_origin);

-- Where only one role can have spoken, it has.
with speaking as (
    select min(r.oid::bigint)::oid::regrole as role from pg_roles r
    where (pg_has_role(r.oid, 'pgps_link', 'usage') or pg_has_role(r.oid, 'pgps_worker', 'usage'))
        and not pg_has_role(r.oid, 'pgps_admin', 'usage') and r.rolname !~ '^pgps_'
    having count(*) = 1
)
update pgps_internal.network_origin o set role = s.role from speaking s;

insert into pgps_internal.installation (key, value) values ('schema_revision', '0039')
on conflict (key) do update set value = excluded.value;
