"""What a page asks while nobody looks, how many connections that takes, and addresses with odd names in them."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest

from pgps_console import database
from pgps_console.database import Access, Busy, Places
from tests.console.conftest import Visit, text_of
from tests.fix_broker import call, column, rows, value
from tests.fix_db import Connect, wait_until

POLLED = {"hx-request": "true"}


@pytest.mark.parametrize("path", ["/totals", "/?live=1"])
def test_what_an_open_page_asks_by_itself_keeps_no_visit_alive(visit: Visit, boss: str, path: str) -> None:
    browser = visit(boss, idle=2.0, every=0.02)
    headers = POLLED if path == "/totals" else {}

    def is_over() -> bool:
        # A live page is an answer without end, until the visit is over.
        return browser.client.get(path, headers=headers, follow_redirects=False).status_code == 204

    wait_until(is_over, timeout=60, what="the visit has ended")
    assert browser.get("/settings", follow_redirects=False).status_code == 303


def test_findings_have_a_time_limit_and_hold_up_nobody(
    visit: Visit, boss: str, own_database: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgps_console.pages.overview.STATEMENT_TIMEOUT", 0.5, raising=False)
    browser = visit(boss, dsn=own_database)
    holder, admin = connect(dsn=own_database, autocommit=False), connect(dsn=own_database)
    rows(holder, "lock table pgps_internal.event_type in access exclusive mode")
    found: list[int] = []

    def look() -> None:
        found.append(browser.client.get("/findings").status_code)

    several = [threading.Thread(target=look) for _ in range(5)]
    for one in several:
        one.start()
    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    try:
        wait_until(lambda: value(admin, waiting) > 0 or found, what="one of them waits")
        assert value(admin, waiting) <= 1, "one examination serves all who ask meanwhile"
        for one in several:
            one.join(60)
        assert found == [503] * 5
    finally:
        holder.rollback()
        for one in several:
            one.join()
    # As long as a busy machine needs.
    monkeypatch.setattr("pgps_console.pages.overview.STATEMENT_TIMEOUT", 60.0)
    assert browser.get("/findings").status_code == 200


@pytest.mark.anyio
async def test_all_visits_together_have_so_many_connections(
    dsn: str, role: Callable[..., str], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "STATEMENT_TIMEOUT", 0.2)
    admin, places = connect(), Places(2)
    names = [role(f"visitor{number}") for number in range(3)]
    visits = [Access(dsn, name, "test", without_password=True, places=places) for name in names]
    here = "select usename::text from pg_stat_activity where application_name = 'pgps/console' and usename = any (%s)"
    for visit in visits:
        async with visit.read() as reader:
            await reader.first("select 1")
    # Whoever has not looked for longest has given his connection to the third.
    wait_until(lambda: sorted(column(admin, here, [names])) == sorted(names[1:]))
    assert places.open == 2
    async with visits[0].read(), visits[1].ask():
        with pytest.raises(Busy):
            async with visits[2].read():
                pass
    async with visits[2].place():
        wait_until(lambda: len(column(admin, here, [names])) == 1)
    await asyncio.gather(*(visit.close() for visit in visits))
    assert places.open == 0


def test_names_that_look_like_addresses_lead_where_they_should(
    visit: Visit, boss: str, own_database: str, connect: Connect
) -> None:
    admin = connect(dsn=own_database)
    odd = "a/in%41?b#"
    call(admin, "create_event_type", f'"{odd}"', "n integer")
    browser = visit(boss, dsn=own_database)
    (href,) = re.findall(r'href="(/types/[^"]*)"', browser.get("/types").text)

    def arrived(address: str) -> str:
        """Quote an address once more: starlette's client takes a quoting away, and then does what servers do."""
        return address.replace("%", "%25")

    assert odd in browser.see(arrived(href))
    (live,) = re.findall(r'sse-connect="([^"]*)"', browser.get(arrived(href)).text)
    assert live == f"{href}?live=1"
    stranger = visit(dsn=own_database)
    sent = stranger.get(arrived(href), follow_redirects=False).headers["location"]
    wanted = parse_qs(urlsplit(sent).query)["next"][0]
    assert stranger.login(boss, next=wanted).headers["location"] == href
    assert odd in browser.see(arrived(f"{href}/in"))


def test_what_no_page_sends_is_refused_with_a_message(visit: Visit, boss: str) -> None:
    browser = visit(boss)
    assert browser.get("/exceptions?before_event=--5").status_code == 200
    refused = browser.act("retry", chosen=["without tabs"])
    assert refused.status_code == 409
    assert "no exception of the list" in text_of(refused)
