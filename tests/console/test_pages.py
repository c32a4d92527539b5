"""Each page shows what the views say, to whom they say it."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

import pytest

from pgps_console.pages import PAGES
from tests.console.conftest import Visit
from tests.console.stage import ORIGIN, furnish
from tests.fix_broker import call, make_type, value
from tests.fix_db import Connect
from tests.fix_units import Party

_SHOWN = {
    "/": ["Overview", "Published", "reading", "insulin"],
    "/totals": ["Subscriptions", "Exceptions"],
    "/findings": ["workers", "none: events wait until somebody calls pgps.dispatch()", "pgps-worker --dsn"],
    "/types": ["reading", "insulin", "untreated", "active"],
    "/types/reading": ["Newest events", "Ann", "410", ORIGIN, "exception", "May publish"],
    "/depths/reading": ["exception", "out"],
    "/types/reading/in": ["enqueued_at", "Bob", ORIGIN],
    "/types/reading/out": ["ward", "night_shift", "waiting"],
    "/types/reading/exception": ["beds", "P4711", "no bed for Dan"],
    "/subscriptions": ["ward", "night_shift", "paused", "glucose > 180", "pharmacy"],
    "/subscriptions/ward": [
        "Waiting",
        "glucose > 180",
        "Resume",
        "Unsubscribe",
        "Class shared with 1 other; asked in dispatch",
    ],
    "/exceptions": ["beds", "P4711", "no bed for Dan", "Retry", "Discard"],
    "/exceptions/counts": ["beds", "2"],
    "/topology": ["links_broker", "pharmacy", "Routes"],
    "/links/pharmacy": ["Filters sent to the neighbour", "Resync"],
    "/trace": ["Trace an event"],
    "/composites": ["untreated", "not(insulin)"],
    "/composites/untreated": ["Event graph", "reading", "Open, by place", "Forget what is open"],
    "/units": ["care/ward/beds", "Conversations"],
    "/spools": ["handover", "Networks", "sweden", "0 of 1"],
    "/spools/handover": ["all is well", "Members"],
    "/workers": ["Workers and clients", "pgps-worker --dsn DSN"],
    "/settings": ["retry_delay", "Wait before a failed callback is tried again"],
    "/audit": ["Findings", "Comparison now"],
}


def test_every_page_shows_what_there_is_and_what_others_have_written_as_text(
    own_database: str, connect: Connect, visit: Visit, boss: str
) -> None:
    admin = connect(dsn=own_database)
    call(admin, "configure", "broker", "links_broker")
    furnish(admin)
    browser = visit(boss, dsn=own_database)
    paths = {page.path for page in PAGES}
    for path, expected in _SHOWN.items():
        said = browser.see(path)
        missing = [text for text in expected if text not in said]
        assert not missing, f"{path}: {missing} not in: {said}"
        assert browser.page is not None
        assert "<script>alert" not in browser.page.text
        assert "<b>nurse" not in browser.page.text
    event = value(admin, "select event_id from pgps.exceptions order by event_id desc limit 1")
    one = browser.see(f"/exceptions/one?event_type=reading&event_id={event}&subscription=beds")
    assert "no bed for Dan" in one
    assert "410" in one
    assert "published" in browser.see(f"/subscriptions/ward?event_id={event}")
    traced = browser.see(f"/trace?event_id={event}&subscription=ward")
    assert "links_broker dispatched" in traced
    assert "delivery" in traced
    queued = browser.get("/types/reading/in").text
    assert f'href="/trace?origin=links_broker&amp;event_id={event}">{event}</a>' in queued
    assert "leaf" in browser.see(f"/composites/untreated?event_id={event}") or "opened" in browser.see(
        f"/composites/untreated?event_id={event}"
    )
    # A new page is a line in the table above.
    assert {path for path in paths if "{" not in path} - {"/exceptions/one"} <= set(_SHOWN)


def test_no_page_leads_to_one_that_is_not_there(connect: Connect, visit: Visit, boss: str, own_database: str) -> None:
    admin = connect(dsn=own_database)
    furnish(admin)
    # Its name is that of no event type.
    call(admin, "subscribe", "all_that_is_read", "read*")
    browser = visit(boss, dsn=own_database)
    pages = [*_SHOWN, "/subscriptions/all_that_is_read"]
    found = {html.unescape(href) for path in pages for href in re.findall(r'href="(/[^"]*)"', browser.get(path).text)}
    leads = {href: browser.get(href).status_code for href in sorted(found - set(_SHOWN))}
    assert {href: status for href, status in leads.items() if status != 200} == {}
    assert "/types?name=read" in leads


def test_the_graph_of_a_composite_event_is_the_tree_of_its_nodes(
    connect: Connect, visit: Visit, boss: str, own_database: str
) -> None:
    admin = connect(dsn=own_database)
    for one in ("tick", "ticker"):
        make_type(admin, one)
    call(admin, "create_composite_event", "it", "(tick a ; ticker b) and tick c")
    page = visit(boss, dsn=own_database).get("/composites/it").text
    tree = page.partition('<ul class="tree">')[2].partition("</ul>")[0]
    # A name that is the beginning of another is no part of it; what stands twice is below each.
    assert re.findall(r'<li class="d(\d)( operator)?"><code>([^<]*)', tree)[1:] == [
        ("1", " operator", "tick a ; ticker b"),
        ("2", "", "tick a, c"),
        ("2", "", "ticker b"),
        ("1", "", "tick a, c"),
    ]


def test_of_findings_of_one_kind_some_are_shown_and_the_number_of_the_others(
    connect: Connect, visit: Visit, boss: str, own_database: str
) -> None:
    admin = connect(dsn=own_database)
    for number in range(6):
        make_type(admin, f"light{number}", persistent=False)
    said = visit(boss, dsn=own_database).see("/findings")
    assert said.count("promises guaranteed events") == 3
    # The server of the tests is told to wait for nothing, which is a finding of the same kind.
    assert re.search(r"WARNING durability [34] more pgps doctor", said, re.IGNORECASE)
    assert "none: events wait until somebody calls pgps.dispatch()" in said


def test_a_role_sees_its_own_only(connect: Connect, visit: Visit, role: Callable[..., str], own_database: str) -> None:
    admin = connect(dsn=own_database)
    furnish(admin)
    alice = role("alice")
    call(connect(alice, dsn=own_database), "subscribe", "alices", "insulin")
    browser = visit(alice, dsn=own_database)
    said = browser.see("/subscriptions")
    assert "alices" in said
    assert "ward" not in said
    assert "P4711" not in browser.see("/exceptions")
    assert browser.get("/subscriptions/ward").status_code == 404
    assert "only members of pgps_admin" in browser.see("/settings").lower()
    assert "retry_delay" not in browser.see("/settings")
    assert "care/ward/beds" not in browser.see("/units")
    # The administrator's unit is nothing that she could cancel; hers is.
    call(admin, "grant_service", "care", "ward", "beds", "send", alice)
    mine = Party(connect(alice, dsn=own_database)).request("care/ward/beds", "a chair")["uow_id"]
    assert browser.see("/units?status=PROCESSED").count("none of that status") == 1
    assert re.findall(r"/act/cancel-unit\?name=(\w+)", browser.get("/units?status=ACCEPTED").text) == [mine]
    assert "all is well" not in browser.see("/spools")
    refused = browser.get("/audit")
    assert refused.status_code == 403
    assert "pgps_worker" in refused.text
    # What she may read is what a policy lets her.
    call(admin, "create_policy", "reading", "own", alice, "patient = 'Ann'")
    shown = browser.see("/types/reading")
    assert "Ann" in shown
    assert "Dan" not in shown


def test_a_queue_is_filtered_by_a_column_and_read_page_by_page(
    connect: Connect, visit: Visit, boss: str, own_database: str
) -> None:
    admin = connect(dsn=own_database)
    make_type(admin, "tick", "n integer, word text")
    call(admin, "subscribe", "one", "tick")
    call(admin, "subscribe", "two", "tick")
    admin.execute("insert into pgps_event.tick (n, word) select n, 'word ' || n from generate_series(1, 120) n")
    admin.execute("select pgps.dispatch()")
    browser = visit(boss, dsn=own_database)
    for kind, expected in (("in", 120), ("out", 240)):
        path, seen = f"/types/tick/{kind}", []
        while path:
            page = browser.get(path)
            assert page.status_code == 200, page.text
            seen += _numbers(page.text, kind)
            path = _next(page.text)
        assert len(seen) == expected
        assert len(set(seen)) == expected
    assert "word 7 " in browser.see("/types/tick/in?column=n&operator==&value=7")
    assert "word 8 " not in browser.see("/types/tick/in?column=n&operator==&value=7")
    assert "word 99" in browser.see("/types/tick/in?column=word&operator=contains&value=D+99")
    wrong = browser.get("/types/tick/in?column=n&operator==&value=seven")
    assert wrong.status_code == 400
    assert "invalid input syntax" in wrong.text
    assert browser.get("/types/tick/in?column=n)+or+(n&operator==&value=7").status_code == 404
    assert browser.get("/types/tick/in?column=n&operator=or&value=7").status_code == 404


def _numbers(page: str, kind: str) -> list[str]:
    """Return the event of each line, with its subscription in the out queue."""
    lines = page.partition("<tbody>")[2].partition("</tbody>")[0].split("<tr>")[1:]
    cells = [[part.partition("</td>")[0].split(">")[-1] for part in line.split("<td")[1:]] for line in lines]
    if kind == "in":
        return [line[1] for line in cells]
    return [line.partition("/subscriptions/")[2].partition('"')[0] for line in lines]


def _next(page: str) -> str:
    return page.partition('id="more" href="')[2].partition('"')[0].replace("&amp;", "&")


def test_a_search_of_exceptions_looks_at_two_thousand_and_goes_on_where_it_stopped(
    connect: Connect, visit: Visit, boss: str, own_database: str
) -> None:
    admin = connect(dsn=own_database)
    make_type(admin, "tick")
    call(admin, "subscribe", "ward", "tick", max_attempts=1)
    admin.execute("insert into pgps_event.tick (n) select generate_series(1, 2100)")
    admin.execute("select pgps.dispatch()")
    fail = "select pgps.nack_events('ward', array(select event_id from pgps.receive('ward', %s)), %s)"
    for most, error in ((10, "Out of beds"), (2090, "no nurse")):
        admin.execute(fail, [most, error])
        call(admin, "ack", "ward")
    browser = visit(boss, dsn=own_database)
    assert "more than 1,000" in browser.see("/subscriptions")
    page = browser.get("/exceptions?containing=out+OF").text
    assert "2,000 exceptions were looked at" in page
    assert "Out of beds" not in page
    page = browser.get(_next(page)).text
    assert page.count("Out of beds") == 10
    assert not _next(page)
    first = browser.get("/exceptions?containing=nurse").text
    assert first.count("no nurse") == 50
    # Nobody retries or discards "all" who sees some: these statements know subscriptions, and no errors.
    assert "discard-all" in browser.get("/exceptions?subscription=ward").text
    assert "discard-all" not in first
    assert "retry-all" not in first
    assert "discard-all" not in browser.get("/exceptions?sqlstate=P0001&subscription=ward").text
    assert "no nurse" in browser.get(_next(first)).text
    assert "none of that kind" in browser.see("/exceptions?sqlstate=22012&subscription=ward&before=2020-01-01")


def test_lists_are_read_page_by_page(connect: Connect, visit: Visit, boss: str, own_database: str) -> None:
    admin = connect(dsn=own_database)
    make_type(admin, "tick")
    admin.execute("select pgps.subscribe('s' || to_char(n, 'FM000'), 'tick') from generate_series(1, 120) n")
    call(admin, "pause", "s060")
    browser = visit(boss, dsn=own_database)
    path, seen = "/subscriptions", []
    while path:
        page = browser.get(path).text
        seen += [part.partition('"')[0] for part in page.split('id="sub-')[1:]]
        path = _next(page)
    assert seen == [f"s{n:03}" for n in range(1, 121)]
    said = browser.see("/subscriptions?state=paused&type=tick&name=s0")
    assert "s060" in said
    assert "s061" not in said


def test_what_is_not_there_is_said_to_be_missing(visit: Visit, boss: str) -> None:
    browser = visit(boss)
    for path in (
        "/types/nothing", "/subscriptions/nothing", "/links/nothing", "/composites/nothing", "/spools/nothing",
        "/types/nothing/in", "/exceptions/one?event_type=x&event_id=1&subscription=y", "/nowhere", "/act/nothing",
        "/static/nothing", "/exceptions?before=yesterday",
    ):  # fmt: skip
        answer = browser.get(path)
        assert answer.status_code == 404, path
        assert "problem" in answer.text or "Traceback" not in answer.text
    for path in ("/exceptions?subscription=nothing", "/exceptions?event_type=nothing"):
        answer = browser.get(path)
        assert answer.status_code == 404
        assert "does not exist" in answer.text


@pytest.mark.parametrize("path", ["/", "/subscriptions", "/types", "/workers"])
def test_the_moving_part_of_a_page_can_be_had_alone(visit: Visit, boss: str, path: str) -> None:
    browser = visit(boss)
    part = browser.get(path, headers={"hx-request": "true"}).text
    assert "<html" not in part
    assert "<table" in part
