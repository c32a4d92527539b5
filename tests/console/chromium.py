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

_FOCUSABLE = "a[href], button, input:not([type=hidden]), select, textarea, [tabindex='0']"
# What is reached by a key, in its order, and whether the browser shows where one is.
_WATCH_FOCUS = """selector => {
    const all = [...document.querySelectorAll(selector)].filter(one => one.getClientRects().length && !one.disabled);
    // What is live is replaced by its like.
    const key = one => one.id || [one.tagName, one.getAttribute('href'), one.name, one.textContent].join(' ');
    window.missing = new Set(all.map(key));
    window.unseen = [];
    document.addEventListener('focusin', ({target}) => {
        window.missing.delete(key(target));
        const style = getComputedStyle(target);
        if (style.outlineStyle === 'none' || parseFloat(style.outlineWidth) < 2) window.unseen.push(target.outerHTML);
    });
    return all.length;
}"""
_NOT_REACHED = "() => [[...window.missing], window.unseen]"
# What is replaced while somebody is in it: without an id of its own the browser does not find the place again.
_LOSES_FOCUS = """selector => [...document.querySelectorAll('[sse-swap], [hx-get]')]
    .flatMap(part => [...part.querySelectorAll(selector)])
    .filter(one => !one.id || document.querySelectorAll('#' + CSS.escape(one.id)).length > 1)
    .map(one => one.outerHTML)"""
# Text whose contrast with what is behind it is below 4.5, as WCAG 2 reckons it for text that is not large.
_FAINT = """() => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const channels = colour => {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        return canvas.getImageData(0, 0, 1, 1).data;
    };
    const luminance = ([r, g, b]) => [r, g, b].map(part => part / 255)
        .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
    const ground = one => {
        for (let at = one; at; at = at.parentElement) {
            const found = channels(getComputedStyle(at).backgroundColor);
            if (found[3] === 255) return found;
        }
        return channels('Canvas');
    };
    const found = [];
    for (const one of document.querySelectorAll('body *')) {
        const hasText = [...one.childNodes].some(node => node.nodeType === 3 && node.nodeValue.trim());
        if (!hasText || !one.getClientRects().length || one.closest('svg, option')) continue;
        const pair = [luminance(channels(getComputedStyle(one).color)), luminance(ground(one))].sort((a, b) => b - a);
        const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
        if (contrast < 4.5) found.push(`${contrast.toFixed(2)}: ${one.outerHTML.slice(0, 200)}`);
    }
    return found;
}"""


def all_is_reached_with_the_tab_key(page: Page) -> None:
    """Go through a page from its top, key by key: each link, button and field is met, and it is seen which."""
    for waiting in page.locator(".lazy").all():
        expect(waiting.locator("> p.dim")).to_have_count(0)
    loses_focus = page.evaluate(_LOSES_FOCUS, _FOCUSABLE)
    assert not loses_focus, f"{page.url}: {loses_focus[:5]}"
    number = page.evaluate(_WATCH_FOCUS, _FOCUSABLE)
    page.evaluate("() => { document.activeElement.blur(); window.scrollTo(0, 0); }")
    # What is live may have got longer meanwhile.
    for _ in range(2 * number + 3):
        page.keyboard.press("Tab")
    missing, unseen = page.evaluate(_NOT_REACHED)
    assert not missing, f"{page.url}: {missing[:5]}"
    assert not unseen, f"{page.url}: {unseen[:5]}"


def all_can_be_read(page: Page) -> None:
    """Look at all text there is: it stands out from what is behind it."""
    faint = page.evaluate(_FAINT)
    assert not faint, f"{page.url}: {faint[:5]}"


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
        # A page is there before the browser has come to give its first field the focus.
        expect(page.locator("[name=user]")).to_be_focused()
        page.keyboard.type(self.role)
        page.keyboard.press("Tab")
        page.keyboard.type("test")
        page.keyboard.press("Enter")
        expect(page.locator("form [name=password]"), "was not let in").to_have_count(0)
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
