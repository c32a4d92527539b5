"""`pytest --part`: a part of the tests of each file, for the daily loop.

A rule says which, and no list: of each file every seventh test, the first among them, in the order of their names.
Left out is what starts something large, as its fixtures, its time limit or its folder tell. `--part=0` to `--part=6`
together run all of the others.
"""

from __future__ import annotations

from itertools import groupby

import pytest

_OF = 7
# They start servers, or install pgps.
_LARGE_FIXTURES = {"bare_server", "cluster", "empty_database", "fleet", "other_cluster", "own_cluster", "template"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    text = f"run a part of the tests only: every {_OF}th of each file, beginning with number N (0)"
    parser.addoption("--part", nargs="?", type=int, const=0, metavar="N", help=text)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect all others."""
    part = config.getoption("--part")
    if part is None:
        return
    small = sorted((item for item in items if not _is_large(item)), key=lambda item: item.nodeid)
    chosen = {
        item
        for _, of_file in groupby(small, key=lambda item: item.path)
        for number, item in enumerate(of_file)
        if number % _OF == part % _OF
    }
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def _is_large(item: pytest.Item) -> bool:
    fixtures = set(getattr(item, "fixturenames", ()))
    return bool(fixtures & _LARGE_FIXTURES) or "spark" in item.path.parts or bool(item.get_closest_marker("timeout"))
