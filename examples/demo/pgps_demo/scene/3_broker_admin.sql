-- As broker_admin, a member of pgps_admin: event types, who may publish and subscribe, who may see which patient.

select pgps.create_event_type('glucose_reading', $$
    patient integer not null,
    taken_at timestamp not null,
    glucose integer not null check (glucose between 10 and 1000),
    isig numeric
$$, auditable => true);

select pgps.create_event_type('stock_quote', $$
    symbol text not null,
    day date not null,
    open numeric not null check (open > 0),
    high numeric not null,
    low numeric not null,
    close numeric not null check (close > 0),
    volume bigint not null check (volume >= 0),
    adjusted_close numeric not null,
    check (low <= high)
$$);

-- What is given up leaves a record.
select pgps.alter_queue('stock_quote_exception', auditable => true);

grant insert on pgps_event.glucose_reading to home;
grant select on pgps_event.glucose_reading to hospital, ward, auditor;
grant insert on pgps_event.stock_quote to exchange;
grant select on pgps_event.stock_quote to trader, auditor;

select pgps.create_policy('glucose_reading', 'all_patients', 'hospital', 'true');
select pgps.create_policy('glucose_reading', 'to_be_audited', 'auditor', 'true');
select pgps.create_policy('glucose_reading', 'own_patients', 'ward',
    'patient in (select a.patient from hospital.admission a where a.ward = ''B'')');
