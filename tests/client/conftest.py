"""Workers for the clients' tests."""

from tests.fix_worker import workers

__all__ = ["workers"]
