"""Who gets in, what a browser is told, and what other sites and other hosts get."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from starlette.testclient import TestClient

from tests.console.conftest import PASSWORD, Visit, hidden
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
    for elsewhere in ("https://example.com/", "//example.com", "/\\example.com", "javascript:alert(1)"):
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


@pytest.mark.parametrize("path", ["/healthz"])
def test_it_says_that_it_is_there(visit: Visit, path: str) -> None:
    assert visit().get(path).text == "ok\n"
