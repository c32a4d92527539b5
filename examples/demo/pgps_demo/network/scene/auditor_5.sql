-- As auditor, when the hospital's advertisements have come.
select pgps.subscribe('keep', 'prescription_record', scope => 'global', execute => 'auditor.keep');
select pgps.subscribe('note', 'anonymous_reading', filter => 'glucose < 60 or glucose > 240', scope => 'global',
    execute => 'auditor.note');
