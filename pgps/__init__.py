"""Content-based publish/subscribe inside PostgreSQL."""

__version__ = "0.1.0"
