-- breaking: no
-- What was left: who is slow, dead or passed over is seen; rules and filters outlive renames (decision 29).

-- It returns more.
drop function if exists pgps.trouble_counts();
-- It takes more.
drop function if exists pgps.alter_subscription(text, text, integer, integer, interval, bigint, text);

-- Under which name a rule knows each column of its table: {"name": [attnum, its name now]}; and the number the table
-- had when that was noted.
alter table pgps_internal.rule add column columns jsonb not null default '{}', add column table_oid oid;

-- What the text of a rule, or of a filter that reads tables, names besides: a relation, a column, a schema, a
-- function, a type; sub_id -1: a schema of its search_path.
create table pgps_internal.used_name (
    rule_id integer references pgps_internal.rule on delete cascade,
    signature_id bigint references pgps_internal.signature on delete cascade,
    class_id oid not null,
    object_id oid not null,
    sub_id integer not null,
    name text not null,
    schema oid,
    -- Numbers mean something in the database they were noted in only, not in one restored from a dump.
    noted_in text not null,
    check (num_nonnulls(rule_id, signature_id) = 1)
);
-- Failed events whose filter is to be asked again by its owner's lane, since it was not its owner who put them back.
create table pgps_internal.asked_again (
    subscription_id bigint not null references pgps_internal.subscription on delete cascade,
    event_id bigint not null,
    owner regrole not null,
    primary key (subscription_id, event_id)
);
create index used_name_object_idx on pgps_internal.used_name (object_id);
create index used_name_rule_idx on pgps_internal.used_name (rule_id);
create index used_name_signature_idx on pgps_internal.used_name (signature_id);

-- Of events from other brokers some may have been truncated before that was noted with the filters: from now on.
update pgps_internal.activation a set since = greatest(a.since, w.upto)
from pgps_internal.filter f,
    (select distinct on (w.origin_id) w.origin_id, w.horizon as upto from pgps_internal.arrival w
    where w.origin_id is not null order by w.origin_id, w.arrival_id desc) w
where f.key = a.key and w.origin_id = a.origin_id and (
    exists (select from pgps_internal.trimmed t where t.type_id = f.type_id)
    or (select min(b.batch_id) > 1 from pgps_internal.batch b));

insert into pgps_internal.installation (key, value) values ('schema_revision', '0015')
on conflict (key) do update set value = excluded.value;
