"""Workers for the examples."""

from tests.fix_worker import workers

__all__ = ["workers"]
