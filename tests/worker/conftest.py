"""Workers, and something for them to do."""

from tests.fix_worker import ticks, workers

__all__ = ["ticks", "workers"]
