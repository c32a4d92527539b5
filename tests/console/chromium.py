"""Debian's chromium before a console that is served, and the pictures that are made with it.

With PGPS_SCREENSHOTS=docs/images (`make pictures`) the tests write the pictures of the documentation.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect, sync_playwright
from psycopg.conninfo import conninfo_to_dict

from pgps_console.config import ConsoleConfig
from pgps_console.server import make_server
from tests.fix_db import wait_until

PATIENCE = 60_000.0
expect.set_options(timeout=PATIENCE)
# Read before the tests' environment is cleared.
_PICTURES_GO_TO = os.environ.get("PGPS_SCREENSHOTS")
# What is of the machine that makes a picture is said as anybody would have it.
_REWORD = """pairs => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) for (const [from, to] of pairs)
        texts.currentNode.nodeValue = texts.currentNode.nodeValue.replace(new RegExp(from, 'g'), to);
}"""


@dataclass
class Windows:
    """The windows of one administrator: what was asked for in them, and what the browser complained of."""

    browser: Browser
    base: str
    dsn: str
    role: str
    asked: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)

    def open(self, scheme: str, width: int) -> Page:
        """Open a window and log in, with keys alone."""
        context = self.browser.new_context(
            base_url=self.base,
            color_scheme="dark" if scheme == "dark" else "light",
            viewport={"width": width, "height": 800},
        )
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda request: self.asked.add(urlsplit(request.url).path))
        page.on(
            "console", lambda said: self.complaints.append(said.text) if said.type in {"error", "warning"} else None
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto("/login")
        page.keyboard.type(self.role)
        page.keyboard.press("Tab")
        page.keyboard.type("test")
        page.keyboard.press("Enter")
        page.wait_for_url("**/")
        return page

    def picture(self, page: Page, name: str) -> None:
        """Take a picture, when pictures are made."""
        if not _PICTURES_GO_TO:
            return
        for waiting in page.locator(".lazy").all():
            expect(waiting.locator("> p.dim")).to_have_count(0)
        dbname = re.escape(str(conninfo_to_dict(self.dsn)["dbname"]))
        page.evaluate(_REWORD, [["--dsn '[^']*'", "--dsn DSN"], [dbname, "clinic"], [re.escape(self.role), "admin"]])
        page.screenshot(path=Path(_PICTURES_GO_TO) / name)


@contextmanager
def windows(dsn: str, role: str) -> Iterator[Windows]:
    """Serve a console, and start a browser before it."""
    with _served(dsn) as base, _chromium() as browser:
        yield Windows(browser, base, dsn, role)


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
