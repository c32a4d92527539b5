"""The console in a real browser: every page and every action, by day and by night, wide and narrow, with keys alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import psycopg
import pytest
from playwright.sync_api import Page, expect

from pgps_console.actions import ACTIONS
from pgps_console.pages import PAGES
from tests.console.chromium import Windows, all_can_be_read, all_is_reached_with_the_tab_key, windows
from tests.console.stage import ORIGIN, furnish
from tests.fix_broker import call, endpoint, make_type, rows, value
from tests.fix_db import Connect
from tests.fix_units import Party
from tests.links.peer import Origin, Peer
from tests.links.rig import Broker

pytestmark = pytest.mark.timeout(1200)
_PICTURES = {
    "/": "overview",
    "/exceptions": "exceptions",
    "/topology": "topology",
    "/composites/untreated": "composite",
}


@dataclass
class Desk:
    """An administrator's window beside a session in the database, in which each change is looked for."""

    page: Page
    admin: psycopg.Connection
    done: set[str] = field(default_factory=set)

    def press(self, action: str, *of: str) -> None:
        """Press the button of an action. Without a mouse: what is live is replaced, also while a pointer moves."""
        self.page.locator(f"[id='{'-'.join([action, *of])}']").press("Enter")

    def run(self, statement: str | re.Pattern[str], said: str | re.Pattern[str]) -> None:
        """Run the statement that is shown, which must be this one."""
        expect(self.page.locator("#statement")).to_have_text(statement)
        self.done.add(urlsplit(self.page.url).path.removeprefix("/act/"))
        self.page.get_by_role("button", name="Run it").click()
        expect(self.page.locator(".said")).to_have_text(said)

    def fill(self, **given: str) -> None:
        """Fill the form of an action, and have its statement shown."""
        for name, text in given.items():
            at = self.page.locator(f".fields [name={name}]")
            if at.evaluate("it => it.tagName") == "SELECT":
                at.select_option(text)
            else:
                at.fill(text)
        self.page.get_by_role("button", name="Show the statement").click()

    def holds(self, condition: str) -> bool:
        """Whether something is so in the database."""
        return bool(value(self.admin, f"select {condition}"))

    def is_in_state(self, name: str, state: str) -> bool:
        """Whether a subscription is in a state."""
        return self.holds(f"(select state from pgps.subscriptions where name = '{name}') = '{state}'")


def test_every_action_is_done_in_a_browser_and_its_effect_is_in_the_database(
    own_database: str, connect: Connect, boss: str
) -> None:
    admin = connect(dsn=own_database)
    call(admin, "configure", "broker", "clinic")
    furnish(admin)
    # Moving a subscription is for its owner alone.
    admin.execute(f"grant {boss} to current_user".encode())
    call(admin, "alter_subscription", "ward", owner=boss)
    call(admin, "grant_service", "care", "ward", "beds", "send", boss)
    Party(connect(boss, dsn=own_database)).request("care/ward/beds", "a chair, please")
    with _neighbours(own_database, admin), windows(own_database, boss) as opened:
        desk = Desk(opened.open("light", 1280), admin)
        _watch_it_live(desk)
        _pause_with_keys(desk)
        _change_a_subscription_with_keys(desk)
        _move_it_and_end_another(desk)
        _retry_and_discard(desk)
        _go_on_with_a_type(desk)
        _work_on_links(desk)
        _work_on_the_rest(desk)
        _see_every_page(opened, desk)
        _go_on_after_a_restore(desk)
        assert desk.done == set(ACTIONS)
        assert not opened.complaints


@contextmanager
def _neighbours(dsn: str, admin: psycopg.Connection) -> Iterator[None]:
    """Two brokers beside this one, and one behind them, of which they tell."""
    here = Broker("clinic", dsn, admin)
    north, south = Peer(here, "north"), Peer(here, "south")
    try:
        north.say(north.ad(Origin("laboratory"), types=("tick",)))
        south.say(south.ad(Origin("dispensary"), types=("tick",)))
        north.hear()
        south.hear()
        yield
    finally:
        north.close()
        south.close()


def _watch_it_live(desk: Desk) -> None:
    page = desk.page
    page.goto("/types/reading")
    # What others have written is text, also to a browser.
    expect(page.locator("#live")).to_contain_text(ORIGIN)
    expect(page.locator("#live")).not_to_contain_text("Zoe")
    rows(desk.admin, f"insert into {endpoint('reading')} (patient, glucose) values ('Zoe', 99)")
    expect(page.locator("#live")).to_contain_text("Zoe")
    page.goto("/")
    expect(page.locator("#findings .findings")).to_contain_text("pgps-worker")
    expect(page.locator("#totals .figure")).to_have_count(4)


def _pause_with_keys(desk: Desk) -> None:
    page = desk.page
    page.goto("/subscriptions/ward")
    desk.press("pause", "ward")
    expect(page.locator("#statement")).to_have_text("select pgps.pause('ward')")
    assert desk.is_in_state("ward", "active")
    expect(page.get_by_role("button", name="Run it")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".said")).to_have_text("paused")
    desk.done.add("pause")
    expect(page.locator("#live .state").first).to_have_text("paused")
    assert desk.is_in_state("ward", "paused")
    desk.press("resume", "ward")
    desk.run("select pgps.resume('ward')", "resumed")
    assert desk.is_in_state("ward", "active")


def _change_a_subscription_with_keys(desk: Desk) -> None:
    """Fill a form from field to field, and send it with the key that sends forms."""
    page = desk.page
    desk.press("alter", "ward")
    page.locator("textarea[name=filter]").focus()
    page.keyboard.type("glucose > 150")
    page.keyboard.press("Tab")
    expect(page.locator("input[name=priority]")).to_be_focused()
    page.keyboard.type("3")
    page.keyboard.press("Enter")
    desk.run("""select pgps.alter_subscription('ward', "filter" => 'glucose > 150', "priority" => 3)""", "changed")
    assert rows(desk.admin, "select filter, priority from pgps.subscriptions where name = 'ward'") == [
        ("glucose > 150", 3)
    ]


def _move_it_and_end_another(desk: Desk) -> None:
    depth = "(select depth from pgps.subscriptions where name = 'ward')"
    assert desk.holds(f"{depth} > 0")
    desk.press("seek", "ward")
    desk.fill(start="now")
    desk.run("select pgps.seek('ward', 'now')", "moved")
    assert desk.holds(f"{depth} = 0")
    desk.page.goto("/subscriptions/night_shift")
    desk.press("unsubscribe", "night_shift")
    desk.run("select pgps.unsubscribe('night_shift')", "ended")
    assert desk.holds("not exists (select from pgps.subscriptions where name = 'night_shift')")


def _retry_and_discard(desk: Desk) -> None:
    """First a selection of each, then all."""
    page, failed = desk.page, "(select count(*) from pgps.exceptions where state = 'failed') = "
    retried = "(select count(*) from pgps.exceptions where state = 'retrying') = "
    page.goto("/exceptions")
    page.locator("#e1").press("Space")
    expect(page.locator("#e1")).to_be_checked()
    page.get_by_role("button", name="Discard", exact=True).click()
    desk.run(re.compile("pgps.discard_exception"), "discarded: 1")
    assert desk.holds(failed + "1")
    # From its own page.
    page.locator(".exceptions a").click()
    expect(page.locator(".facts")).to_contain_text("glucose")
    page.get_by_role("button", name="Retry", exact=True).click()
    desk.run(re.compile("pgps.retry_exception"), "put back: 1")
    assert desk.holds(retried + "1")
    _fail_again(desk)
    assert desk.holds(failed + "1")
    for action, function, said, after in (
        ("retry-all", "retry_exception", "put back: 1", retried + "1"),
        ("discard-all", "discard_exception", "discarded: 1", failed + "0"),
    ):
        page.goto("/exceptions?event_type=reading&subscription=beds")
        desk.press(action, "reading", "beds")
        desk.run(f"""select pgps.{function}('reading', "subscription" => 'beds')""", said)
        assert desk.holds(after)
        _fail_again(desk)


def _fail_again(desk: Desk) -> None:
    rows(desk.admin, "call pgps.run_subscribers()")


def _go_on_with_a_type(desk: Desk) -> None:
    make_type(desk.admin, "frail")
    call(desk.admin, "subscribe", "of_frail", "frail")
    rows(desk.admin, f"insert into {endpoint('frail')} (n) values (1)")
    rows(desk.admin, "alter table pgps_internal.frail_log drop column _producer cascade")
    rows(desk.admin, "select pgps.dispatch()")
    state = "(select state from pgps.event_types where name = 'frail') = "
    assert desk.holds(state + "'set aside'")
    desk.page.goto("/types/frail")
    expect(desk.page.locator(".problem .hint")).to_contain_text("add column _producer text")
    rows(desk.admin, "alter table pgps_internal.frail_log add column _producer text")
    desk.press("resume-type", "frail")
    desk.run("select pgps.resume_event_type('frail')", "resumed")
    rows(desk.admin, "select pgps.dispatch()")
    assert desk.holds(state + "'active'")
    assert desk.holds("(select depth from pgps.subscriptions where name = 'of_frail') = 1")


def _work_on_links(desk: Desk) -> None:
    enabled = "(select enabled from pgps.links where name = 'pharmacy')"
    for action, to, said in (("disable-link", "false", "paused"), ("enable-link", "true", "resumed")):
        desk.page.goto("/links/pharmacy")
        desk.press(action, "pharmacy")
        desk.run(f"select pgps.alter_link('pharmacy', enabled => {to})", said)
        assert desk.holds(f"{enabled} = {to}")
    stale = "(select count(*) from pgps_internal.told where value ? 'is_stale')"
    assert desk.holds(f"{stale} = 0")
    # A neighbour has defined this one; it is told everything again all the same.
    desk.page.goto("/links/north")
    expect(desk.page.locator("[id='disable-link-north']")).to_have_count(0)
    desk.press("resync-link", "north")
    desk.run("select pgps.resync_link('north')", "resynchronised")
    assert desk.holds(f"{stale} > 0")


def _go_on_after_a_restore(desk: Desk) -> None:
    """Forgets the neighbours, which tell again who they are."""
    desk.page.goto("/topology")
    expect(desk.page.locator("#link-pharmacy")).to_be_visible()
    expect(desk.page.locator("#resume-links")).to_have_count(0)
    rows(desk.admin, "update pgps_internal.link set state = 'blocked' where name = 'pharmacy'")
    before = value(desk.admin, "select epoch from pgps_internal.broker")
    desk.page.locator("#resume-links").press("Enter")
    desk.fill(**{"as": "restored"})
    desk.run("select pgps.resume_links('restored')", "links go on")
    assert desk.holds(f"(select epoch from pgps_internal.broker) > {before}")
    assert desk.holds("(select state from pgps.links where name = 'pharmacy') = 'connecting'"), "it is tried at once"


def _work_on_the_rest(desk: Desk) -> None:
    page = desk.page
    is_open = "exists (select from pgps.open_occurrences where name = 'untreated')"
    assert desk.holds(is_open)
    for action, to, said, state in (
        ("disable-composite", "false", "paused", "paused"),
        ("enable-composite", "true", "goes on", "active"),
    ):
        page.goto("/composites/untreated")
        desk.press(action, "untreated")
        desk.run(f"select pgps.alter_composite_event('untreated', enabled => {to})", said)
        expect(page.locator("#live .state").first).to_have_text(state)
        assert desk.holds(f"(select state from pgps.composite_events where name = 'untreated') = '{state}'")
    assert desk.holds(is_open)
    page.goto("/composites/untreated")
    desk.press("reset-composite", "untreated")
    expect(page.locator(".note")).to_contain_text("Open occurrences are lost")
    desk.run("select pgps.reset_composite_event('untreated')", re.compile("forgotten: [1-9]"))
    assert desk.holds("not " + is_open)
    page.goto("/units")
    mine = page.locator("[id^='cancel-unit-']")
    expect(mine).to_have_count(1)
    mine.press("Enter")
    desk.run(re.compile(r"select status from pgps.cancel_unit\('\w+'\)"), "its status: CANCELLED")
    expect(mine).to_have_count(0)
    page.goto("/spools/handover")
    through = "(select play_through from pgps.spools where name = 'handover') = "
    to = "false" if desk.holds(through + "true") else "true"
    desk.press("play-through", "handover")
    desk.fill(play=to)
    desk.run(f"select pgps.spool_play_through('handover', {to})", "switched")
    assert desk.holds(through + to)
    page.goto("/settings")
    desk.press("configure", "retry_delay")
    desk.fill(value="5 seconds")
    desk.run("select pgps.configure('retry_delay', '5 seconds')", "changed")
    assert desk.holds("(select value from pgps.settings where name = 'retry_delay') = '5 seconds'")
    finding = value(
        desk.admin,
        "insert into pgps_internal.audit_finding (kind, what, neighbour, origin_id, type_id, after_batch, upto, there,"
        " here, found_at, last_found_at) select 'hop', 'count', 'north', min(o.origin_id), min(t.type_id), 0, 1, 2, 1,"
        " now(), now() from pgps_internal.origin o, pgps_internal.event_type t where t.name = 'reading'"
        " returning finding_id",
    )
    page.goto("/audit")
    desk.press("dismiss", str(finding))
    desk.run(f"select pgps.dismiss_findings({finding})", "dismissed: 1")
    assert desk.holds("not exists (select from pgps.audit_findings)")


def _see_every_page(opened: Windows, desk: Desk) -> None:
    """By day all of them, wide and narrow; at night and narrow one of each kind."""
    rows(desk.admin, f"insert into {endpoint('reading')} (patient, glucose) values ('Eva', 330), ('Finn', 402)")
    rows(desk.admin, "select pgps.dispatch()")
    _fail_again(desk)
    event = value(desk.admin, "select max(event_id) from pgps.exceptions")
    paths = [
        *(one.path for one in PAGES if one.title),
        "/types/reading",
        *(f"/types/reading/{kind}" for kind in ("in", "out", "exception")),
        f"/subscriptions/beds?event_id={event}",
        f"/exceptions/one?event_type=reading&event_id={event}&subscription=beds",
        "/links/north",
        f"/trace?event_id={event}&subscription=beds",
        "/composites/untreated",
        "/spools/handover",
    ]
    _stay_where_one_is(desk)
    for path in paths:
        _see(opened, desk.page, path, "light")
        all_is_reached_with_the_tab_key(desk.page)
        desk.page.set_viewport_size({"width": 400, "height": 800})
        _fits(desk.page, path)
        desk.page.set_viewport_size({"width": 1280, "height": 800})
    # One page of each kind at night: lists, drawings, one thing, a queue, a form.
    night = opened.open("dark", 400)
    for path in [*_PICTURES, paths[-1], "/types/reading/out", "/act/configure?name=retry_delay"]:
        _see(opened, night, path, "dark")
        ground = night.evaluate("getComputedStyle(document.body).backgroundColor")
        assert max(map(int, re.findall(r"\d+", ground)[:3])) < 64, ground
    # A new page is a line above.
    patterns = {page.path: re.sub(r"{\w+}", "[^/]+", page.path) for page in PAGES}
    missed = [path for path, one in patterns.items() if not any(re.fullmatch(one, asked) for asked in opened.asked)]
    assert not missed


def _stay_where_one_is(desk: Desk) -> None:
    """What is live is replaced under somebody's fingers, who is where they were."""
    page = desk.page
    page.goto("/subscriptions")
    link = page.locator("[id='failed-beds']")
    link.focus()
    link.evaluate("it => { window.left = it; }")
    rows(desk.admin, f"insert into {endpoint('reading')} (patient, glucose) values ('Gita', 401)")
    rows(desk.admin, "select pgps.dispatch()")
    page.wait_for_function("() => !window.left.isConnected")
    expect(link).to_be_focused()


def _see(opened: Windows, page: Page, path: str, scheme: str) -> None:
    page.goto(path)
    expect(page.locator("h1")).to_be_visible()
    _fits(page, path)
    all_can_be_read(page)
    if "event_id" in path:
        expect(page.locator(".steps li").first).to_be_visible()
    if path in _PICTURES:
        opened.picture(page, f"console-{_PICTURES[path]}-{scheme}.png")


def _fits(page: Page, path: str) -> None:
    """Tables may be wider than the screen; the page is not."""
    at = page.viewport_size
    assert at is not None
    assert page.evaluate("document.documentElement.scrollWidth") <= at["width"], path
