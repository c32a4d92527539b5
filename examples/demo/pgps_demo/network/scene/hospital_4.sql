-- As doctor: readings are charted, and answered by prescriptions; both are published for each domain in its own words.
create function hospital.assess(readings pgps_event.reading[]) returns void
language sql
begin atomic
    insert into hospital.chart (nhs_number, taken_at, glucose)
    select r.nhs_number, r.taken_at, r.glucose from unnest(readings) with ordinality r order by r.ordinality;
    insert into hospital.prescription (nhs_number, prescriber, drug, dose, symptom, prescribed_at)
    select r.nhs_number, p.prescriber, f.drug, f.dose, r.glucose, r.taken_at
    from unnest(readings) with ordinality r
    join hospital.patient p on p.nhs_number = r.nhs_number
    join hospital.formulary f on r.glucose between f.lowest and f.highest
    order by r.ordinality;
end;

select pgps.advertise('dispensing');
select pgps.advertise('prescription_record');
select pgps.advertise('anonymous_reading');

select pgps.create_rule('to_pharmacy', 'hospital.prescription', 'INSERT', 'dispensing', attributes => array[
    'new.prescriber', 'new.nhs_number', 'new.drug', 'new.dose', 'new.prescribed_at']);
select pgps.create_rule('to_auditor', 'hospital.prescription', 'INSERT', 'prescription_record', attributes => array[
    '(select p.pseudonym from hospital.patient p where p.nhs_number = new.nhs_number)',
    'new.prescriber', 'new.drug', 'new.dose', 'new.symptom', 'new.prescribed_at']);
select pgps.create_rule('anonymous', 'hospital.chart', 'INSERT', 'anonymous_reading', attributes => array[
    '(select p.pseudonym from hospital.patient p where p.nhs_number = new.nhs_number)', 'new.taken_at', 'new.glucose']);
