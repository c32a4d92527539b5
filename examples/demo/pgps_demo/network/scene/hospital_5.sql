-- As doctor, when the home's advertisement has come.
select pgps.subscribe('assess', 'reading', filter => 'glucose < 70 or glucose > 180', scope => 'global',
    execute => 'hospital.assess');
