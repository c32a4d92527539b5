-- As broker_admin: prescriptions come from the hospital. The event type could be left to the link to create.
select pgps.create_event_type('dispensing', $$
    prescriber text not null,
    nhs_number text not null,
    drug text not null,
    dose integer not null check (dose > 0),
    prescribed_at timestamp not null
$$);
grant insert on pgps_event.dispensing to hospital_link;
grant select on pgps_event.dispensing to pharmacist;
