"""A server whose files are put back to what they were: noticed on both sides, stopped, and resumed without a loss."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest

from pgps_worker.links import keeper
from pgps_worker.links.together import together
from tests.fix_broker import call, make_type, publish, rows, value
from tests.fix_db import wait_until
from tests.links.fleet import Fleet, Member, make_fleet
from tests.links.rig import received
from tests.links.serving import served


@pytest.fixture
def fleet(embedded_home: Path) -> Iterator[Fleet]:
    made = make_fleet(embedded_home, f"restores-{os.environ.get('PYTEST_XDIST_WORKER', 'gw')}", 2)
    yield made
    for member in made.made:
        member.admin.close()
    made.close()


def waits(member: Member, subscription: str, count: int) -> None:
    query = "select depth from pgps.subscriptions where name = %s"
    wait_until(
        lambda: value(member.admin, query, [subscription]) >= count,
        what=f"{count} events for {subscription} at {member.name}",
    )


def links_of(member: Member) -> list[tuple[str, str, str | None]]:
    return rows(member.admin, "select state, last_error, hint from pgps.links")


def is_link(member: Member, state: str) -> bool:
    """Whether its only link is in this state. A broker that has resumed has no row for a neighbour that is not back."""
    return [found for found, _, _ in links_of(member)] == [state]


def is_told_what_to_do(member: Member) -> bool:
    """Whether its only link is blocked, and says why and what to type, and where."""
    hint = "On broker \"f\": select pgps.resume_links('restored')"
    found = [(state, "was restored" in (error or ""), said) for state, error, said in links_of(member)]
    return found == [("blocked", True, hint)]


def findings(member: Member) -> list[str]:
    """What the doctor calls a problem with links, and what it says to type."""
    environment = {**os.environ, "PGPS_DSN": member.dsn}
    ran = subprocess.run(
        [sys.executable, "-m", "pgps.cli", "doctor", "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        check=False,
        timeout=200,
    )
    found = json.loads(ran.stdout)
    return [f"{one['message']} {one['fix']}" for one in found if one["level"] == "problem" and one["check"] == "links"]


def linked(a: Member, f: Member, definer: Member, other: Member) -> None:
    """Link a and f; each subscribes to what the other publishes."""
    make_type(a.admin, "tick")
    make_type(f.admin, "tick")
    call(a.admin, "subscribe", "all", "tick", scope="global")
    call(f.admin, "subscribe", "all", "tick", scope="global")
    call(definer.admin, "create_link", f"to_{other.name}", other.dsn)


def in_force(*members: Member) -> bool:
    return all(value(m.admin, "select count(*) from pgps_internal.activation where is_confirmed") == 1 for m in members)


def put_back(member: Member) -> None:
    member.admin.close()
    member.site.put_back()
    member.reopen()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("definer", ["a", "f"])
def test_files_put_back_are_noticed_by_both_and_nothing_is_lost_when_resumed(fleet: Fleet, definer: str) -> None:
    a, f = fleet.broker("a", site=fleet.sites[0]), fleet.broker("f", site=fleet.sites[1])
    linked(a, f, *((a, f) if definer == "a" else (f, a)))
    with served(a, f):
        wait_until(lambda: in_force(a, f), what="both filters are in force")
        publish(a.admin, "tick", 1, 2, 3)
        publish(f.admin, "tick", 101)
        waits(f, "all", 4)
        waits(a, "all", 4)
    f.admin.close()
    f.site.back_up()
    f.reopen()
    with served(a, f):
        for n in range(4, 10):
            publish(a.admin, "tick", n)
            publish(f.admin, "tick", 100 + n)
        waits(f, "all", 16)
        waits(a, "all", 16)
    put_back(f)
    # Published before anybody has noticed.
    publish(f.admin, "tick", 201, 202)
    with served(a, f):
        for member in (a, f):
            # Whoever could not connect in time before says that for a moment yet.
            wait_until(partial(is_told_what_to_do, member), what=f"{member.name} sees it")
            assert any("was restored" in said or "restored or cloned" in said for said in findings(member))
        publish(f.admin, "tick", 203)
        publish(a.admin, "tick", 10)
    # Once more, before an administrator comes.
    f.admin.close()
    f.site.crash()
    f.reopen()
    publish(f.admin, "tick", 204)
    call(f.admin, "resume_links", "restored")
    with served(a, f):
        for member in (a, f):
            wait_until(partial(is_link, member, "up"), what=f"{member.name} is up")
        publish(a.admin, "tick", 11)
        publish(f.admin, "tick", 205)
        waits(f, "all", 3 + 1 + 8 + 5)
        waits(a, "all", 3 + 1 + 12 + 5 + 2)
    got = received(f, "all")
    assert [n for origin, n in got if origin == "a"] == list(range(1, 12))
    assert [n for origin, n in got if origin == "f"] == [101, 201, 202, 203, 204, 205]
    got = received(a, "all")
    assert [n for origin, n in got if origin == "a"] == list(range(1, 12))
    assert [n for origin, n in got if origin == "f"] == [101, *range(104, 110), *range(201, 206)]
    assert fleet.differences() == []


def test_a_way_that_fails_leaves_no_mark_of_being_cancelled_and_its_error_is_the_first() -> None:
    asyncio.run(_one_fails())


async def _one_fails() -> None:
    ended = asyncio.Event()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise psycopg.errors.ObjectNotInPrerequisiteState("it was restored")

    async def goes_on() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()
            raise psycopg.OperationalError("the connection is closed") from None

    with pytest.raises(ExceptionGroup) as raised:
        await together({"on": goes_on(), "fails": fails()})
    assert [str(error) for error in raised.value.exceptions] == ["it was restored", "the connection is closed"]
    assert ended.is_set()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


def test_who_waits_for_ways_and_is_cancelled_ends_them() -> None:
    asyncio.run(_is_cancelled())


async def _is_cancelled() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def goes_on() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(together({"on": goes_on()}))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


@pytest.mark.parametrize("why", ["one failed", "it was cancelled"])
def test_who_ends_ways_and_is_cancelled_meanwhile_waits_for_them(why: str) -> None:
    """Two ways of a link break at once; one is still cancelling its statement, and its connections are open."""
    asyncio.run(_is_cancelled_meanwhile(fails=why == "one failed"))


async def _is_cancelled_meanwhile(*, fails: bool) -> None:
    begun, ending, answered, ended = (asyncio.Event() for _ in range(4))

    async def goes_on() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await answered.wait()
            ended.set()

    async def breaks() -> None:
        await begun.wait()
        if fails:
            raise psycopg.OperationalError("the connection is lost")

    task = asyncio.create_task(together({"on": goes_on(), "breaks": breaks()}))
    await begun.wait()
    if not fails:
        task.cancel()
    await ending.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not task.done(), "somebody would close the connections"
    answered.set()
    with pytest.raises(ExceptionGroup if fails else asyncio.CancelledError):
        await task
    assert ended.is_set()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("back", ["f", "m"])
def test_an_idle_network_comes_to_rest_complete(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, back: str) -> None:
    """What a broker that was put back lacks comes from further off, and nothing new is published to bring it.

    F lacks what is two brokers away; m lacks what f, behind it, has, and f what has waited for m.
    """
    # A link that was blocked for long is tried again only after as long a time.
    monkeypatch.setattr(keeper, "_LONGEST_PAUSE", 4.0)
    made = {name: fleet.broker(name, site=fleet.sites[name == back]) for name in "amf"}
    a, m, f = made["a"], made["m"], made["f"]
    restored = made[back]
    for member in (a, m, f):
        make_type(member.admin, "tick")
    for member in (m, f):
        call(member.admin, "subscribe", "all", "tick", scope="global")
    call(a.admin, "create_link", "to_m", m.dsn)
    call(m.admin, "create_link", "to_f", f.dsn)
    got: dict[str, list[int]] = {"f": [], "m": []}

    def has(newest: int, *members: Member) -> bool:
        for member in members:
            got[member.name] += [n for origin, n in received(member, "all") if origin == "a" and n]
        return all(newest in got[member.name] for member in members)

    def arrives() -> bool:
        publish(a.admin, "tick", 0)
        return bool(received(f, "all"))

    def is_seen() -> bool:
        states = {state for state, _, _ in links_of(restored)}
        return "blocked" in states and "up" not in states

    with served(a, m, f):
        # What is published before the filters are in force is nobody's: the first that arrives says that they are.
        wait_until(arrives, what="the filters are in force")
    restored.admin.close()
    restored.site.back_up()
    restored.reopen()
    with served(a, m, f):
        publish(a.admin, "tick", 1, 2, 3)
        wait_until(partial(has, 3, m, f), what="both have what came after the backup")
    put_back(restored)
    got[back].clear()
    with served(a, m, f):
        wait_until(is_seen, what=f"{back} sees that it was put back")
        publish(a.admin, "tick", 4, 5, 6)
        if restored is f:
            wait_until(partial(has, 6, m), what="m goes on")
        assert is_seen()
        # From here on nobody publishes.
        call(restored.admin, "resume_links", "restored")
        wait_until(partial(has, 6, m, f), what="both have all of it")
        wait_until(lambda: {state for state, _, _ in links_of(restored)} == {"up"}, what=f"{back} is up")
    assert got == {"f": [1, 2, 3, 4, 5, 6], "m": [1, 2, 3, 4, 5, 6]}
    assert fleet.differences() == []
