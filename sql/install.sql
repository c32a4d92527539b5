\ir schema/0001_baseline.sql
