"""What neighbours say to be shown here: whose word it is, and how an administrator refuses it."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable

import pytest

from tests.fix_broker import call, column, make_type, publish, rows, value
from tests.links.rig import Broker, linked, open_link, received, settle
from tests.links.test_hostile_neighbours import Stranger, stranger

__all__ = ["stranger"]

Brokers = Callable[[int], list[Broker]]
NASTY = "broken\n\x1b[2J\u202etype: rm -rf " + "x" * 100_000


def is_fit(text: str, most: int) -> bool:
    return len(text) <= most and not any(unicodedata.category(char) in ("Cc", "Cf") for char in text)


def test_what_a_neighbour_says_is_short_and_named_as_its_word(stranger: Stranger) -> None:
    call(stranger.session, "link_refused", NASTY, NASTY, NASTY)
    ((error, hint),) = rows(stranger.here.admin, "select last_error, hint from pgps.links")
    role = stranger.session.info.user
    assert error.startswith(f'role "{role}" says: broken [2J type: rm -rf x')
    assert hint.startswith(f'Role "{role}" advises: broken [2J type')
    assert is_fit(error, 400)
    assert is_fit(hint, 400)


def test_what_a_server_says_to_the_worker_is_short(brokers: Brokers) -> None:
    (here,) = brokers(1)
    call(here.admin, "create_link", "far", "host=127.0.0.1")
    call(here.admin, "note_link", "far", "waiting", NASTY, NASTY)
    ((error, hint),) = rows(here.admin, "select last_error, hint from pgps.links")
    assert is_fit(error, 1000)
    assert is_fit(hint, 300)


def claim(here: Broker, there: Broker, link: str) -> None:
    """The server at the end of a link says that this broker was restored, and the worker here believes it."""
    me = here.identity()
    with here.admin.transaction():
        call(here.admin, "link_open", json.dumps(there.identity()), "receive", link)
        detail = f"The restored one is {me['broker']} in epoch {me['epoch']}."
        call(here.admin, "link_refused", f'broker "{here.name}" was restored', "resume", detail)


def test_whoever_says_that_this_broker_was_restored_is_named_and_can_be_dropped(brokers: Brokers) -> None:
    a, b, c = made = brokers(3)
    for broker in made:
        make_type(broker.admin, "tick")
    call(b.admin, "subscribe", "all", "tick", scope="global")
    with linked([(a, b), (a, c)]) as links:
        settle(made, links)
        for link in links:
            link.close()
        claim(a, b, "to_b")
        links.clear()
        assert a.identity()["state"] == "restored"
        (said,) = value(a.admin, "select pgps.health() -> 'claims'")
        assert (said["link"], said["neighbour"], said["broker_id"]) == ("to_b", "b", b.identity()["broker"])
        names = "select name from pgps.links where last_error like '%it says that this broker was restored, since %'"
        assert column(a.admin, names) == ["to_b"]
        call(a.admin, "drop_link", "to_c", cascade=True)
        assert a.identity()["state"] == "restored", "it was another one that said so"
        call(a.admin, "drop_link", "to_b", cascade=True)
        assert a.identity()["state"] == "active"
        assert value(a.admin, "select pgps.health() -> 'claims'") == []
        call(b.admin, "drop_link", "a", cascade=True)
        call(a.admin, "create_link", "to_b", b.dsn)
        links.append(open_link(a, b, "to_b"))
        settle([a, b], links)
        publish(a.admin, "tick", 1)
        settle([a, b], links)
        assert received(b, "all") == [("a", 1)]


@pytest.mark.parametrize("claims", [True, False])
def test_a_broker_that_finds_out_itself_that_it_was_restored_stays_so(
    brokers: Brokers, copied: Callable[[Broker], Broker], claims: bool
) -> None:
    a, b = brokers(2)
    with linked([(a, b)]) as links:
        settle([a, b], links)
        links.pop().close()
        if claims:
            claim(a, b, "to_b")
        backup = copied(a)
    call(backup.admin, "drop_link", "to_b", cascade=True)
    assert backup.identity()["state"] == "restored"
