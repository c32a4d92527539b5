"""The console in a real browser: Debian's chromium, by day and by night, wide and narrow, with keys alone.

With PGPS_SCREENSHOTS=docs/images it makes the pictures of the documentation.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from pgps_console.config import ConsoleConfig
from pgps_console.pages import PAGES
from pgps_console.server import make_server
from tests.console.stage import furnish
from tests.fix_broker import endpoint, rows, value
from tests.fix_db import Connect, wait_until

pytestmark = pytest.mark.timeout(600)
_PATIENCE = 60_000.0
expect.set_options(timeout=_PATIENCE)
# Read before the tests' environment is cleared.
_PICTURES_GO_TO = os.environ.get("PGPS_SCREENSHOTS")
_PICTURES = {
    "/": "overview",
    "/exceptions": "exceptions",
    "/topology": "topology",
    "/composites/untreated": "composite",
}


@contextmanager
def _served(dsn: str) -> Iterator[str]:
    server = make_server(ConsoleConfig(dsn=dsn, port=0, without_password=True, every=0.2), log_level="error")
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)


@contextmanager
def _chromium() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program, "apt-get install chromium"
    with sync_playwright() as playwright:
        # Root, as which tests may run, gets no sandbox.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def _open(browser: Browser, base: str, boss: str, complaints: list[str], scheme: str, width: int) -> Page:
    context = browser.new_context(
        base_url=base, color_scheme="dark" if scheme == "dark" else "light", viewport={"width": width, "height": 800}
    )
    page = context.new_page()
    page.set_default_timeout(_PATIENCE)
    page.on("console", lambda said: complaints.append(said.text) if said.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto("/login")
    page.keyboard.type(boss)
    page.keyboard.press("Tab")
    page.keyboard.type("test")
    page.keyboard.press("Enter")
    page.wait_for_url("**/")
    return page


def test_an_administrator_works_in_a_browser(own_database: str, connect: Connect, boss: str) -> None:
    admin = connect(dsn=own_database)
    furnish(admin)
    complaints: list[str] = []
    with _served(own_database) as base, _chromium() as browser:
        page = _open(browser, base, boss, complaints, "light", 1280)
        _watch_it_live(page, admin)
        _pause_with_keys(page, admin)
        _retry_a_selection(page, admin)
        for scheme, width in (("light", 1280), ("dark", 400)):
            seen = page if width == 1280 else _open(browser, base, boss, complaints, scheme, width)
            for path in [*(one.path for one in PAGES if one.title), "/types/reading", "/composites/untreated"]:
                seen.goto(path)
                expect(seen.locator("h1")).to_be_visible()
                # Tables may be wider than the screen; the page is not.
                assert seen.evaluate("document.documentElement.scrollWidth") <= width, path
                if path in _PICTURES:
                    _picture(seen, f"console-{_PICTURES[path]}-{scheme}.png")
    assert not complaints


def _watch_it_live(page: Page, admin: psycopg.Connection) -> None:
    page.goto("/types/reading")
    expect(page.locator("#live")).not_to_contain_text("Zoe")
    rows(admin, f"insert into {endpoint('reading')} (patient, glucose) values ('Zoe', 99)")
    expect(page.locator("#live")).to_contain_text("Zoe", timeout=_PATIENCE)
    page.goto("/")
    expect(page.locator("#findings .findings")).to_contain_text("pgps-worker", timeout=_PATIENCE)
    expect(page.locator("#totals .figure")).to_have_count(4, timeout=_PATIENCE)


def _pause_with_keys(page: Page, admin: psycopg.Connection) -> None:
    state = "select state from pgps.subscriptions where name = 'ward'"
    page.goto("/subscriptions/ward")
    # At once: what is live is replaced, and the focus with it.
    page.locator("#pause-ward").press("Enter")
    expect(page.locator("#statement")).to_have_text("select pgps.pause('ward')")
    assert value(admin, state) == "active"
    expect(page.get_by_role("button", name="Run it")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".said")).to_have_text("paused")
    expect(page.locator("#live .state").first).to_have_text("paused")
    assert value(admin, state) == "paused"


def _retry_a_selection(page: Page, admin: psycopg.Connection) -> None:
    page.goto("/exceptions")
    page.locator("#e1").press("Space")
    expect(page.locator("#e1")).to_be_checked()
    page.get_by_role("button", name="Discard", exact=True).click()
    expect(page.locator("#statement")).to_contain_text("pgps.discard_exception")
    page.get_by_role("button", name="Run it").click()
    expect(page.locator(".said")).to_have_text("discarded: 1")
    assert value(admin, "select count(*) from pgps.exceptions") == 1


def _picture(page: Page, name: str) -> None:
    if not _PICTURES_GO_TO:
        return
    for waiting in page.locator(".lazy").all():
        expect(waiting.locator("> p.dim")).to_have_count(0, timeout=_PATIENCE)
    page.screenshot(path=Path(_PICTURES_GO_TO) / name)
