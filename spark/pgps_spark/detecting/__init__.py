"""Composite events in Spark: the broker's own detector, in Spark's stateful processing."""
