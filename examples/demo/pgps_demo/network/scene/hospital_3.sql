-- As broker_admin: what comes from the home, and what goes to the pharmacy and to the auditor.
select pgps.create_event_type('reading', $$
    nhs_number text not null,
    taken_at timestamp not null,
    glucose integer not null check (glucose between 10 and 1000)
$$);
grant insert on pgps_event.reading to home_link;
grant select on pgps_event.reading to doctor;

select pgps.create_event_type('dispensing', $$
    prescriber text not null,
    nhs_number text not null,
    drug text not null,
    dose integer not null,
    prescribed_at timestamp not null
$$);
grant insert on pgps_event.dispensing to doctor;
grant select on pgps_event.dispensing to pharmacy_link;
select pgps.create_policy('dispensing', 'registered', 'pharmacy_link',
    'nhs_number in (select p.nhs_number from hospital.patient p where p.pharmacy = ''pharmacy'')');

select pgps.create_event_type('prescription_record', $$
    pseudonym text not null,
    prescriber text not null,
    drug text not null,
    dose integer not null,
    glucose integer not null,
    prescribed_at timestamp not null
$$);
select pgps.create_event_type('anonymous_reading', $$
    pseudonym text not null,
    taken_at timestamp not null,
    glucose integer not null
$$);
grant insert on pgps_event.prescription_record, pgps_event.anonymous_reading to doctor;
grant select on pgps_event.prescription_record, pgps_event.anonymous_reading to auditor_link;
select pgps.create_policy('prescription_record', 'controlled', 'auditor_link',
    'drug in (select f.drug from hospital.formulary f where f.controlled)');
