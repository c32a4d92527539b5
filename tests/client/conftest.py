"""Fixtures for tests of the client library."""

from tests.fix_worker import workers

__all__ = ["workers"]
