"""Who gets in, what a browser is told, and what other sites and other hosts get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from starlette.testclient import TestClient

from pgps.errors import ConfigError
from pgps_console import sessions
from pgps_console.app import create_app
from pgps_console.config import ConsoleConfig
from tests.console.conftest import PASSWORD, Browser, Visit, hidden
from tests.fix_broker import rows, value
from tests.fix_db import Connect, wait_until


def test_who_is_not_logged_in_is_sent_to_where_that_is_done_and_back(visit: Visit, boss: str) -> None:
    browser = visit()
    sent = browser.get("/subscriptions?state=paused", follow_redirects=False)
    assert sent.status_code == 303
    assert sent.headers["location"] == "/login?next=%2Fsubscriptions%3Fstate%3Dpaused"
    assert "Log in as a role" in browser.get(sent.headers["location"]).text
    back = browser.login(boss, next="/subscriptions?state=paused")
    assert back.headers["location"] == "/subscriptions?state=paused"
    odd = ("//example.com", "///example.com", "/\t//example.com", "/\\example.com")
    for elsewhere in ("https://example.com/", "javascript:alert(1)", *odd):
        assert browser.login(boss, next=elsewhere).headers["location"] == "/"
    cookie = back.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secure" not in cookie
    browser.get("/subscriptions")
    left = browser.client.post("/logout", data={"csrf": browser.csrf()}, follow_redirects=False)
    assert left.status_code == 303
    assert browser.get("/", follow_redirects=False).status_code == 303
    assert browser.get("/?live=1", follow_redirects=False).status_code == 204


def test_the_password_counts_and_a_server_that_asks_for_none_is_not_believed(visit: Visit, boss: str, dsn: str) -> None:
    given = conninfo_to_dict(dsn)
    if str(given.get("host", "")).startswith("/"):
        trusting = visit(without_password=False)
        answer = trusting.login(boss, "whatever")
        assert answer.status_code == 401
        assert "without a password" in answer.text
    by_tcp = make_conninfo(dsn, host=given["host"] if not str(given["host"]).startswith("/") else "127.0.0.1")
    browser = visit(without_password=False, dsn=by_tcp)
    wrong = browser.login(boss, "wrong")
    assert wrong.status_code == 401
    assert "does not let this role in" in wrong.text
    assert browser.login("nobody_of_that_name", PASSWORD).text.count("does not let this role in") == 1
    assert browser.login(boss, PASSWORD).status_code == 303
    # What ends a string for libpq would have it take a password of the console's host.
    for user, password in ((f"{boss}\0", PASSWORD), (boss, f"{PASSWORD}\0"), (f"{boss}\0", "x")):
        answer = browser.login(user, password)
        assert answer.status_code == 401
        assert "control character" in answer.text
    for _ in range(10):
        browser.login(boss, "wrong")
    held = browser.login(boss, PASSWORD)
    assert held.status_code == 401
    assert "too many failed attempts" in held.text


def test_a_database_without_pgps_is_told_what_to_type(visit: Visit, boss: str, empty_database: str) -> None:
    answer = visit(dsn=empty_database).login(boss)
    assert answer.status_code == 401
    assert "pgps install" in answer.text


def test_pages_run_no_script_but_the_console_s_and_stand_in_no_frame(visit: Visit, boss: str) -> None:
    browser = visit(boss)
    page = browser.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "no-store"
    assert "strict-transport-security" not in page.headers
    # Nothing inline, and nothing from anywhere else.
    assert "style=" not in page.text
    assert " onclick" not in page.text
    assert "<script>" not in page.text
    assert "http://" not in page.text.replace("http://localhost", "")
    for asset in ("console.css", "htmx.js", "sse.js"):
        assert browser.get(f"/static/{asset}").status_code == 200
    assert browser.get("/static/..%2Fapp.py").status_code == 404


def test_forms_of_other_sites_are_refused(visit: Visit, boss: str, connect: Connect) -> None:
    browser = visit(boss)
    token = browser.csrf()
    data = {"name": "retry_delay", "value": "1 hour", "step": "run", "seen": "x"}
    assert browser.client.post("/act/configure", data=data).status_code == 403
    assert browser.client.post("/act/configure", data={**data, "csrf": "wrong"}).status_code == 403
    for headers in ({"origin": "https://example.com"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        refused = browser.client.post("/act/configure", data={**data, "csrf": token}, headers=headers)
        assert refused.status_code == 403, headers
    other = visit(boss)
    assert other.csrf() != token
    assert other.client.post("/act/configure", data={**data, "csrf": token}).status_code == 403
    assert browser.client.post("/logout", data={}).status_code == 403
    assert value(connect(), "select value from pgps.settings where name = 'retry_delay'") == "1 second"


def test_a_foreign_name_that_leads_to_the_console_gets_nothing(visit: Visit, boss: str) -> None:
    browser = visit(boss)
    assert browser.get("/", headers={"host": "evil.example"}).status_code == 403
    assert browser.get("/", headers={"host": "localhost:8090"}).status_code == 200
    named = visit(boss, hosts=("console.example",), base="http://console.example")
    assert named.get("/").status_code == 200


def test_behind_a_proxy_with_tls_the_cookie_and_the_addresses_fit(visit: Visit, boss: str) -> None:
    browser = visit(base="https://localhost", root_path="")
    answer = browser.login(boss)
    assert "secure" in answer.headers["set-cookie"].lower()
    assert "max-age" in browser.get("/").headers["strict-transport-security"]
    below = TestClient(browser.client.app, base_url="https://localhost", root_path="/broker")
    # The connections belong to the loop of the first client.
    below.portal = browser.client.portal
    sent = below.get("/broker/subscriptions", follow_redirects=False)
    assert sent.headers["location"].startswith("/broker/login?next=%2Fsubscriptions")
    entered = below.post("/broker/login", data={"user": boss, "password": PASSWORD}, follow_redirects=False)
    assert entered.headers["location"] == "/broker/"
    assert "path=/broker" in entered.headers["set-cookie"].lower()
    page = below.get("/broker/subscriptions")
    assert page.status_code == 200, page.text
    assert 'href="/broker/static/console.css"' in page.text
    assert 'sse-connect="/broker/subscriptions?live=1"' in page.text
    assert 'href="/broker/exceptions"' in page.text
    assert hidden(page, "csrf")


def test_connections_log_in_as_the_role_read_only_and_are_closed_with_the_visit(
    visit: Visit, boss: str, connect: Connect
) -> None:
    admin = connect()
    count = "select count(*) from pg_stat_activity where application_name = 'pgps/console' and usename = %s"
    browser = visit(boss)
    browser.get("/subscriptions")
    assert value(admin, count, [boss]) >= 1
    browser.get("/settings")
    browser.client.post("/logout", data={"csrf": browser.csrf()})
    wait_until(lambda: value(admin, count, [boss]) == 0)


def test_a_visit_in_silence_ends(visit: Visit, boss: str) -> None:
    browser = visit(idle=0.0)
    browser.login(boss)
    assert browser.get("/", follow_redirects=False).status_code == 303


def test_a_filter_cannot_change_anything(visit: Visit, boss: str, connect: Connect, own_database: str) -> None:
    """A page is read in a transaction that is read-only, whatever functions a policy or a view calls."""
    admin = connect(dsn=own_database)
    rows(admin, "create table public.called (n integer)")
    rows(admin, "grant insert, select on public.called to public")
    rows(admin, "select pgps.create_event_type('tick', 'n integer')")
    rows(admin, "grant select on pgps_event.tick to public")
    rows(admin, "select pgps.advertise('tick')")
    rows(
        admin,
        "create function public.tell(n integer) returns boolean language plpgsql as "
        "$$ begin insert into public.called values (n); return true; end $$",
    )
    rows(admin, f"select pgps.create_policy('tick', 'tell', '{boss}', 'public.tell(n)')")
    rows(admin, "insert into pgps_event.tick select 1")
    browser = visit(boss, dsn=own_database)
    browser.get("/types/tick/in")
    assert value(admin, "select count(*) from public.called") == 0


@pytest.mark.anyio
async def test_no_more_of_a_form_is_read_than_a_form_may_have(dsn: str) -> None:
    """Who sends it in pieces says no length beforehand, and nobody has to be logged in to send one."""
    read = 0
    told: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        nonlocal read
        read += 65_536
        return {"type": "http.request", "body": b"u" * 65_536, "more_body": read < 100_000_000}

    async def send(message: Any) -> None:
        told.append(message)

    headers = [(b"host", b"localhost"), (b"transfer-encoding", b"chunked")]
    scope = {"type": "http", "method": "POST", "path": "/login", "raw_path": b"/login", "query_string": b""}
    scope |= {"scheme": "http", "headers": headers, "http_version": "1.1", "client": ("127.0.0.1", 1), "root_path": ""}
    await create_app(ConsoleConfig(dsn=dsn))(scope, receive, send)
    assert read < 2_000_000
    assert told[0]["status"] == 413
    assert b"too large" in told[1]["body"]


def test_a_form_that_says_it_is_too_long_is_not_read(visit: Visit) -> None:
    answer = visit().client.post("/login", content=b"user=" + b"x" * 1_000_001)
    assert (answer.status_code, answer.text) == (413, "the form is too large\n")


@pytest.mark.parametrize("content", [b"user=\xff", b"&".join(b"a=1" for _ in range(3000))])
def test_a_form_that_none_of_the_pages_has_is_refused(visit: Visit, content: bytes) -> None:
    answer = visit().client.post("/login", content=content)
    assert answer.status_code == 400
    assert "cannot be read" in answer.text


def is_in(browser: Browser) -> bool:
    return browser.get("/settings", follow_redirects=False).status_code == 200


def another(browser: Browser) -> Browser:
    """Somebody else with a browser before the same console."""
    client = TestClient(browser.client.app, base_url="http://localhost")
    client.portal = browser.client.portal
    return Browser(client)


def test_who_logs_in_without_end_throws_out_nobody_but_itself(
    visit: Visit, boss: str, role: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_MOST_SESSIONS", 20)
    stranger, other = role("stranger"), role("other")
    browser = visit(boss)
    first = another(browser)
    assert first.login(stranger).status_code == 303
    for _ in range(21):
        assert another(browser).login(stranger).status_code == 303
    assert is_in(browser), "another role's visit goes on"
    assert not is_in(first), "its own oldest one has ended"
    newcomer = another(browser)
    assert newcomer.login(other).status_code == 303
    assert is_in(newcomer)


def test_visits_are_counted_for_whoever_logged_in_not_for_whom_it_plays(
    visit: Visit, boss: str, role: Callable[..., str], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_MOST_SESSIONS", 4)
    actor = role("actor", boss)
    rows(connect(), f"alter role {actor} set role = {boss}")
    browser = visit(boss)
    for _ in range(5):
        assert another(browser).login(actor).status_code == 303
    assert is_in(browser)


@pytest.mark.anyio
async def test_of_many_guesses_at_once_only_so_many_are_made(dsn: str, boss: str) -> None:
    given = conninfo_to_dict(dsn)
    by_tcp = make_conninfo(dsn, host=given["host"] if not str(given["host"]).startswith("/") else "127.0.0.1")
    known = sessions.Sessions(ConsoleConfig(dsn=by_tcp))
    guesses = (known.login(boss, f"wrong {n}", "192.0.2.1") for n in range(30))
    answers = [str(answer) for answer in await asyncio.gather(*guesses, return_exceptions=True)]
    assert len([answer for answer in answers if "does not let this role in" in answer]) == 10
    assert len([answer for answer in answers if "too many failed attempts" in answer]) == 20


@pytest.mark.anyio
async def test_a_host_that_cannot_be_a_name_is_told_of() -> None:
    known = sessions.Sessions(ConsoleConfig(dsn="host=a..b dbname=x"))
    with pytest.raises(ConfigError, match="no host has such a name"):
        await known.login("somebody", "secret", "127.0.0.1")


def test_when_every_visit_is_another_role_s_nobody_is_thrown_out(
    visit: Visit, boss: str, role: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_MOST_SESSIONS", 2)
    browser = visit(boss)
    second = another(browser)
    assert second.login(role("second")).status_code == 303
    refused = another(browser).login(role("third"))
    assert refused.status_code == 401
    assert "too many people are logged in" in refused.text
    assert is_in(browser)
    assert is_in(second)


@pytest.mark.parametrize("path", ["/healthz"])
def test_it_says_that_it_is_there(visit: Visit, path: str) -> None:
    assert visit().get(path).text == "ok\n"
