-- As auditor.
create table auditor.record (
    arrival bigint generated always as identity primary key,
    pseudonym text not null,
    prescriber text not null,
    drug text not null,
    dose integer not null,
    glucose integer not null,
    prescribed_at timestamp not null
);
create table auditor.reading (
    arrival bigint generated always as identity primary key,
    pseudonym text not null,
    taken_at timestamp not null,
    glucose integer not null
);
create function auditor.keep(records pgps_event.prescription_record[]) returns void
language sql
begin atomic
    insert into auditor.record (pseudonym, prescriber, drug, dose, glucose, prescribed_at)
    select r.pseudonym, r.prescriber, r.drug, r.dose, r.glucose, r.prescribed_at
    from unnest(records) with ordinality r order by r.ordinality;
end;
create function auditor.note(readings pgps_event.anonymous_reading[]) returns void
language sql
begin atomic
    insert into auditor.reading (pseudonym, taken_at, glucose)
    select r.pseudonym, r.taken_at, r.glucose from unnest(readings) with ordinality r order by r.ordinality;
end;
