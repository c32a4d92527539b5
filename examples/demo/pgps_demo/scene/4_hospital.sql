-- As hospital: internal subscriptions, whose callbacks run in the database. One takes a batch, one an event.

create function hospital.raise_alerts(readings pgps_event.glucose_reading[]) returns void
language sql
begin atomic
    insert into hospital.alert (patient, taken_at, glucose)
    select r.patient, r.taken_at, r.glucose from unnest(readings) with ordinality r order by r.ordinality;
end;

create function hospital.note_fault(reading pgps_event.glucose_reading) returns void
language sql
begin atomic
    insert into hospital.sensor_fault (patient, taken_at, glucose)
    values (reading.patient, reading.taken_at, reading.glucose);
end;

select pgps.subscribe('alarm', 'glucose_reading', priority => 10, execute => 'hospital.raise_alerts',
    filter => 'exists (select from hospital.threshold t
        where t.patient = glucose_reading.patient and glucose not between t.low and t.high)');
select pgps.subscribe('no_signal', 'glucose_reading', filter => 'isig is null', execute => 'hospital.note_fault');
