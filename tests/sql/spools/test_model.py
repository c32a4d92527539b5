"""Random calls of all functions by several sessions: pointers, contents and deliveries are those of a plain model."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgps.embedded import EmbeddedCluster
from tests.fix_broker import rows
from tests.fix_db import Connect
from tests.sql.spools.story import NAME, Story


def forget(connection: psycopg.Connection) -> None:
    rows(connection, "delete from pgps_internal.spool where name = %s", [NAME])
    rows(connection, "delete from pgps_internal.client where name ~ '^member_[01]$'")


# The last: a replay pointer before everything that is there, when something is prepended; messages that are discarded
# between two receptions; a checkpoint ahead of the pointer that was acknowledged in a replay, before another replay.
@pytest.mark.parametrize("seed", [*range(12), 7354286, 325, 10932794])
def test_a_story_ends_as_the_model_says(own_database: str, connect: Connect, seed: int) -> None:
    tell(own_database, connect, seed)


@pytest.mark.parametrize(("seed", "limit"), [(seed, 1 + seed % 8) for seed in range(8)])
def test_a_story_of_a_spool_that_drops_its_oldest_ends_as_the_model_says(
    own_database: str, connect: Connect, seed: int, limit: int
) -> None:
    tell(own_database, connect, seed, limit)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=100)
@given(seed=st.integers(0, 2**32), limit=st.none() | st.integers(1, 12))
def test_any_story_ends_as_the_model_says(own_database: str, connect: Connect, seed: int, limit: int | None) -> None:
    tell(own_database, connect, seed, limit)


def tell(own_database: str, connect: Connect, seed: int, limit: int | None = None) -> None:
    story = Story(seed, lambda autocommit=True: connect(dsn=own_database, autocommit=autocommit), limit)
    try:
        story.tell(120)
        for number, connection in enumerate(story.sessions):
            connection.commit()
            story.model.end(number, commit=True)
        story.dispatch()
    finally:
        for connection in story.sessions:
            connection.rollback()
        forget(story.admin)
        story.close()


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "limit"), [(0, None), (1, None), (2, None), (3, 3), (4, 8)])
def test_a_server_that_is_killed_loses_nothing_that_was_committed(
    own_cluster: EmbeddedCluster, seed: int, limit: int | None
) -> None:
    story = Story(seed, lambda autocommit=True: psycopg.connect(own_cluster.dsn(), autocommit=autocommit), limit)
    try:
        for _ in range(4):
            story.tell(60)
            own_cluster.kill9()
            story.close()
            own_cluster.start()
            story.reopened()
            story.dispatch()
    finally:
        story.close()
