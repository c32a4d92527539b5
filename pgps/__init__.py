"""Content-based publish/subscribe inside PostgreSQL."""

__version__ = "0.2.0.dev0"
