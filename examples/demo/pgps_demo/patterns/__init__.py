"""Patterns of events: readings that nobody treats, and a stock that recovers."""
