"""Which tests stay together in one process of pytest-xdist, told by their paths.

They share what takes long to make, a session of Spark or servers, or they look at what others of them make. Marks of
xdist_group would say the same, but xdist 3.8 hides them in the ids of tests, which pytest 9.2 no longer lets it change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadGroupScheduling

TOGETHER = (
    "tests/bench/test_field.py",
    "tests/links/test_chaos.py",
    "tests/links/test_storm.py",
    "tests/migration/test_upgrades.py",
    "tests/parsing/",
    "tests/spark/",
    "tests/testing/test_plugin.py",
    "tests/worker/test_prepared.py",
)


def group_of(test: str) -> str:
    """Return the path that a test stays together with; its own id when it goes wherever there is time."""
    return next((path for path in TOGETHER if test.startswith(path)), test)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadGroupScheduling | None:
    """Hand out groups, the largest first, and single tests behind them."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Scheduling(LoadGroupScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Scheduling(config, log)
