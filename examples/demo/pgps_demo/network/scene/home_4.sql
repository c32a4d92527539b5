-- As nurse: each measurement is published without the sensor's signal, the name and the address.
select pgps.advertise('reading');
select pgps.create_rule('to_hospital', 'home.measurement', 'INSERT', 'reading', attributes => array[
    '(select p.nhs_number from home.patient p where p.patient = new.patient)', 'new.taken_at', 'new.glucose']);
