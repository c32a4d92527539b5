"""A console before a real broker, called as a browser would call it."""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest
from starlette.testclient import TestClient

from pgps_console.app import create_app
from pgps_console.config import ConsoleConfig

PASSWORD = "test"


class Browser:
    """Somebody with a browser: what they see, and the forms that they send."""

    def __init__(self, client: TestClient) -> None:
        self.client = client
        self.page: httpx.Response | None = None
        self._csrf = ""

    def login(self, role: str, password: str = PASSWORD, **more: str) -> httpx.Response:
        return self.client.post("/login", data={"user": role, "password": password, **more}, follow_redirects=False)

    def get(self, path: str, **options: Any) -> httpx.Response:
        self.page = self.client.get(path, **options)
        return self.page

    def see(self, path: str, **options: Any) -> str:
        """Return what a page says, without its tags."""
        page = self.get(path, **options)
        assert page.status_code == 200, page.text
        return text_of(page)

    def csrf(self) -> str:
        """Return what the forms of this visit carry; a page that only leads to another has none."""
        if self.page is not None and 'name="csrf"' in self.page.text:
            self._csrf = hidden(self.page, "csrf")
        return self._csrf

    def act(self, action: str, **data: Any) -> httpx.Response:
        """Look at the statement of an action, and return the page that shows it."""
        self.page = self.client.post(f"/act/{action}", data={"csrf": self.csrf(), **data}, follow_redirects=False)
        return self.page

    def run(self, action: str, **data: Any) -> httpx.Response:
        """Have an action shown, and run it."""
        shown = self.act(action, **data)
        assert shown.status_code == 200, text_of(shown)
        return self.act(action, **data, step="run", seen=hidden(shown, "seen"))


def text_of(page: httpx.Response) -> str:
    body = re.sub(r"<(style|script).*?</\1>", " ", page.text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def hidden(page: httpx.Response, name: str) -> str:
    """Return the value of a hidden field, which must be there."""
    found = re.search(rf'name="{name}" value="([^"]*)"', page.text)
    assert found, f"no field {name}: {text_of(page)}"
    return html.unescape(found[1])


def statement(page: httpx.Response) -> str:
    """Return the statement that a page shows."""
    found = re.search(r'<pre class="sql"[^>]*>(.*?)</pre>', page.text, re.DOTALL)
    assert found, text_of(page)
    return html.unescape(found[1])


Visit = Callable[..., Browser]


@pytest.fixture
def visit(dsn: str, _connections: contextlib.ExitStack, role: Callable[..., str]) -> Visit:
    """Return a browser, logged in as a role when one is given; all are gone before the database is."""
    default = dsn

    def opened(who: str | None = None, *, dsn: str = "", base: str = "http://localhost", **config: Any) -> Browser:
        # The run's server trusts whoever may enter its socket's directory.
        settings = ConsoleConfig(dsn=dsn or default, **{"without_password": True, "every": 0.05, **config})
        client = _connections.enter_context(TestClient(create_app(settings), base_url=base))
        browser = Browser(client)
        if who is not None:
            assert browser.login(who).status_code == 303
            browser.get("/settings")
        return browser

    return opened


@pytest.fixture
def boss(role: Callable[..., str]) -> str:
    """A role that may administer the broker."""
    return role("boss", "pgps_admin")
