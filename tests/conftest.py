"""Fixtures for all tests; what they are for stands in fix_server.py and fix_db.py."""

import gc

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "pytester",
    "tests.part",
    "tests.together",
    "tests.fix_server",
    "tests.fix_db",
    "tests.fix_bare",
    "tests.fix_clock",
    "tests.fix_pooler",
]

# A database answers when it answers; and function-scoped fixtures are ours to use with care.
settings.register_profile(
    "pgps", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("pgps")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what says that it takes long, so that at the end no test process is left alone with such a one."""
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave the tests and all modules to be: they live until the end, and Python would look through them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Asynchronous tests, marked `anyio`, run on asyncio, as psycopg does."""
    return "asyncio"
