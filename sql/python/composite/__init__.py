"""Composite events: their language and their detector, without a database."""
