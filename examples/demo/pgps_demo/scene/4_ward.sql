-- As ward: an external subscription without a filter; the policy lets through the readings of its own patients.

select pgps.subscribe('ward_chart', 'glucose_reading');
