"""Pipelines: named jobs from one configuration file, run by `pgps-spark`; a module for each kind of job."""
