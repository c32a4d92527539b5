-- As pharmacist, when the hospital's advertisement has come.
select pgps.subscribe('dispense', 'dispensing', scope => 'global', execute => 'pharmacy.dispense');
