"""Order: twenty clients and five servers, rollbacks and late commits, and a model that says what comes next."""

from __future__ import annotations

from typing import LiteralString

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fix_db import Connect
from tests.fix_units import make_service
from tests.sql.units.model import Story

_FURTHER: LiteralString = """
    select setval('pgps_internal.uow_no_seq', greatest(last_value, (last_value / 65536 + %s) * 65536 - %s))
    from pgps_internal.uow_no_seq
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_story_goes_as_the_model_says(own_database: str, connect: Connect, seed: int) -> None:
    tell(own_database, connect, seed, 150)


@pytest.mark.slow
@settings(max_examples=50)
@given(seed=st.integers(0, 2**32))
def test_any_story_goes_as_the_model_says(own_database: str, connect: Connect, seed: int) -> None:
    tell(own_database, connect, seed, 400)


def tell(own_database: str, connect: Connect, seed: int, steps: int) -> None:
    service = f"a/b/{seed}"
    with connect(dsn=own_database) as broker:
        make_service(broker, service, deferred=True)
    story = Story(seed, service, lambda: connect(dsn=own_database))
    try:
        for portion in range(steps // 25):
            story.tell(25)
            # Every other story goes on in other segments of the ledgers: near the end of one, so that it is crossed in
            # the midst of conversations, then in the same place as before, where older rows are still.
            if seed % 2:
                with connect(dsn=own_database) as broker:
                    broker.execute(_FURTHER, [4, 0] if portion % 2 else [1, 30])
        story.finally_everything_is_processed()
    finally:
        for party in story.parties:
            party.connection.close()
