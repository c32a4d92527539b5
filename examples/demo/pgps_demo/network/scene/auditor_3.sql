-- As broker_admin: a record of controlled drugs, which must last, and readings without names.
select pgps.create_event_type('prescription_record', $$
    pseudonym text not null,
    prescriber text not null,
    drug text not null,
    dose integer not null,
    glucose integer not null,
    prescribed_at timestamp not null
$$, auditable => true);
select pgps.create_event_type('anonymous_reading', $$
    pseudonym text not null,
    taken_at timestamp not null,
    glucose integer not null
$$);
grant insert on pgps_event.prescription_record, pgps_event.anonymous_reading to hospital_link;
grant select on pgps_event.prescription_record, pgps_event.anonymous_reading to auditor;
