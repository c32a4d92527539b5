"""Workers for tests of composite events."""

from tests.fix_worker import workers

__all__ = ["workers"]
