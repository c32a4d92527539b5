-- As broker_admin: what the hospital may receive.
select pgps.create_event_type('reading', $$
    nhs_number text not null,
    taken_at timestamp not null,
    glucose integer not null
$$);
grant insert on pgps_event.reading to nurse;
grant select on pgps_event.reading to hospital_link;
select pgps.create_policy('reading', 'consent', 'hospital_link',
    'nhs_number in (select p.nhs_number from home.patient p where p.consents)');
