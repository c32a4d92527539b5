-- At home, as the superuser. What a patient may have is in a table, which the predicate of the pattern reads.
create role broker_admin login in role pgps_admin;
create role broker_worker login in role pgps_worker;
create role hospital_link nologin;
create schema home;
create table home.threshold (patient integer primary key, above integer not null);
select pgps.create_event_type('reading',
    'patient integer not null, taken_at timestamptz not null, glucose integer not null');
select pgps.create_event_type('insulin',
    'patient integer not null, given_at timestamptz not null, units integer not null');
select pgps.alter_event_type('reading', time_attribute => 'taken_at');
select pgps.alter_event_type('insulin', time_attribute => 'given_at');
select pgps.advertise('reading');
select pgps.advertise('insulin');

-- Three readings in a row above the patient's own threshold, within an hour, with no insulin between the first and
-- the last.
select pgps.create_composite_event('untreated',
    'not(insulin)[
        not(insulin)[
            reading (glucose > (select t.above from home.threshold t where t.patient = reading.patient)) a,
            reading (glucose > (select t.above from home.threshold t where t.patient = reading.patient)) b],
        reading (glucose > (select t.above from home.threshold t where t.patient = reading.patient)) c]',
    partition_by => 'patient', within => '1 hour', time_basis => 'event',
    attributes => 'patient integer = a.patient, glucose integer = c.glucose');
grant select on pgps_event.untreated to hospital_link;
