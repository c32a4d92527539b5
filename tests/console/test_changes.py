"""Every change is one statement that is shown first, and that the visitor's role may run."""

from __future__ import annotations

from collections.abc import Callable

from pgps_console.actions import ACTIONS
from tests.console.conftest import Visit, hidden, statement, text_of
from tests.console.stage import furnish
from tests.fix_broker import call, make_type, rows, value
from tests.fix_db import Connect

# What is given to each action, and how its statement begins.
_STATEMENTS = {
    "pause": ({"name": "ward"}, "select pgps.pause('ward')"),
    "resume": ({"name": "ward"}, "select pgps.resume('ward')"),
    "seek": ({"name": "ward", "start": "now"}, "select pgps.seek('ward', 'now')"),
    "alter": (
        {"name": "ward", "filter": "glucose > '7'::integer", "priority": "3"},
        """select pgps.alter_subscription('ward', "filter" => 'glucose > ''7''::integer', "priority" => 3)""",
    ),
    "resume-type": ({"name": "reading"}, "select pgps.resume_event_type('reading')"),
    "discard-all": ({"event_type": "reading"}, "select pgps.discard_exception('reading')"),
    "retry-all": (
        {"event_type": "reading", "subscription": "beds"},
        """select pgps.retry_exception('reading', "subscription" => 'beds')""",
    ),
    "disable-link": ({"name": "pharmacy"}, "select pgps.alter_link('pharmacy', enabled => false)"),
    "enable-link": ({"name": "pharmacy"}, "select pgps.alter_link('pharmacy', enabled => true)"),
    "disable-composite": (
        {"name": "untreated"},
        "select pgps.alter_composite_event('untreated', enabled => false)",
    ),
    "enable-composite": ({"name": "untreated"}, "select pgps.alter_composite_event('untreated', enabled => true)"),
    "resume-links": ({"as": "restored"}, "select pgps.resume_links('restored')"),
    "reset-composite": ({"name": "untreated"}, "select pgps.reset_composite_event('untreated')"),
    "play-through": ({"name": "handover", "play": "false"}, "select pgps.spool_play_through('handover', false)"),
    "configure": ({"name": "retry_delay", "value": "5 seconds"}, "select pgps.configure('retry_delay', '5 seconds')"),
    "unsubscribe": ({"name": "night_shift"}, "select pgps.unsubscribe('night_shift')"),
}
# These need what a single broker does not have; their statements are looked at all the same.
_SHOWN_ONLY = {
    "resync-link": ({"name": "pharmacy"}, "select pgps.resync_link('pharmacy')"),
    "cancel-unit": ({"name": "7"}, "select status from pgps.cancel_unit('7')"),
    "dismiss": ({"name": "7"}, "select pgps.dismiss_findings(7)"),
}


def test_every_action_shows_its_statement_and_runs_it(
    own_database: str, connect: Connect, visit: Visit, boss: str
) -> None:
    admin = connect(dsn=own_database)
    furnish(admin)
    browser = visit(boss, dsn=own_database)
    # Moving a subscription is for its owner alone.
    admin.execute(f"grant {boss} to current_user".encode())
    call(admin, "alter_subscription", "ward", owner=boss)
    for action, (given, expected) in (_STATEMENTS | _SHOWN_ONLY).items():
        shown = browser.act(action, **given)
        assert shown.status_code == 200, f"{action}: {text_of(shown)}"
        assert statement(shown) == expected
        if action in _STATEMENTS:
            done = browser.act(action, **given, step="run", seen=hidden(shown, "seen"))
            assert done.status_code == 303, f"{action}: {text_of(done)}"
            browser.see(done.headers["location"])
    assert value(admin, "select filter from pgps.subscriptions where name = 'ward'").startswith("glucose > '7'")
    assert value(admin, "select value from pgps.settings where name = 'retry_delay'") == "5 seconds"
    assert not value(admin, "select enabled is distinct from true from pgps.links")
    assert value(admin, "select count(*) from pgps.exceptions") == 0
    assert value(admin, "select count(*) from pgps.subscriptions where name = 'night_shift'") == 0
    assert set(_STATEMENTS) | set(_SHOWN_ONLY) | {"retry", "discard"} == set(ACTIONS)


def test_nothing_changes_until_the_statement_was_seen(
    visit: Visit, boss: str, connect: Connect, name: Callable[..., str]
) -> None:
    admin = connect()
    event, subscription = name(), name("sub")
    make_type(admin, event)
    call(admin, "subscribe", subscription, event)
    state = f"select state from pgps.subscriptions where name = '{subscription}'"
    browser = visit(boss)
    asked = browser.get(f"/act/pause?name={subscription}")
    assert statement(asked) == f"select pgps.pause('{subscription}')"
    assert value(admin, state) == "active"
    shown = browser.act("pause", name=subscription)
    assert value(admin, state) == "active"
    # A statement that was not shown is not run, whatever the form says.
    other = browser.act("unsubscribe", name=subscription, step="run", seen=hidden(shown, "seen"))
    assert other.status_code == 409
    assert "not the statement that was shown" in other.text
    done = browser.run("pause", name=subscription)
    assert done.status_code == 303
    assert value(admin, state) == "paused"
    assert "paused" in browser.see(done.headers["location"])


def test_a_selection_of_exceptions_is_one_statement(
    own_database: str, connect: Connect, visit: Visit, boss: str
) -> None:
    admin = connect(dsn=own_database)
    furnish(admin)
    ids = [row[0] for row in admin.execute("select event_id from pgps.exceptions order by 1")]
    assert len(ids) == 2
    browser = visit(boss, dsn=own_database)
    browser.get("/exceptions")
    nothing = browser.act("retry")
    assert nothing.status_code == 409
    assert "no exception is selected" in nothing.text
    browser.get("/exceptions")
    chosen = [f"reading\t{event}\tbeds" for event in ids]
    shown = browser.act("discard", chosen=chosen)
    assert statement(shown).count("'reading'") == 2
    assert statement(shown).startswith("select sum(pgps.discard_exception(")
    done = browser.run("discard", chosen=chosen[:1])
    assert done.status_code == 303
    assert "discarded: 1" in browser.see(done.headers["location"])
    assert value(admin, "select event_id from pgps.exceptions") == ids[1]
    again = browser.run("retry", chosen=chosen[1:])
    assert again.status_code == 303
    assert rows(admin, "select state, attempts from pgps.exceptions") == [("retrying", 0)]
    # What the form's lines say is data, whatever it is.
    odd = browser.act("retry", chosen=["x'); drop table t; --\t1\ty"])
    assert "'\"x''); drop table t; --\"'" in statement(odd)


def test_what_the_database_refuses_is_said_with_its_hint(
    visit: Visit, role: Callable[..., str], connect: Connect, name: Callable[..., str]
) -> None:
    admin = connect()
    event, subscription = name(), name("sub")
    make_type(admin, event)
    call(admin, "subscribe", subscription, event)
    browser = visit(role("alice"))
    browser.get("/subscriptions")
    answer = browser.run("pause", name=subscription)
    assert answer.status_code == 409
    assert "42501" in answer.text or "42704" in answer.text
    assert value(admin, f"select state from pgps.subscriptions where name = '{subscription}'") == "active"
    refused = browser.run("configure", name="retry_delay", value="1 second")
    assert refused.status_code == 409
    assert "grant pgps_admin" in refused.text
    odd = browser.act("alter", name=subscription, priority="high")
    assert "not a number" in odd.text


def test_a_console_that_is_read_only_has_no_form_and_changes_nothing(
    own_database: str, connect: Connect, visit: Visit, boss: str
) -> None:
    admin = connect(dsn=own_database)
    furnish(admin)
    browser, writing = visit(boss, dsn=own_database, read_only=True), visit(boss, dsn=own_database)
    event = value(admin, "select max(event_id) from pgps.exceptions")
    offered = 0
    for path in (
        "/", "/types", "/types/reading", "/subscriptions", "/subscriptions/ward", "/exceptions",
        f"/exceptions/one?event_type=reading&event_id={event}&subscription=beds", "/topology", "/links/pharmacy",
        "/composites", "/composites/untreated", "/units", "/spools", "/spools/handover", "/workers", "/settings",
        "/audit",
    ):  # fmt: skip
        page = browser.get(path)
        assert page.status_code == 200, path
        assert "/act/" not in page.text, path
        assert page.text.count('method="post"') == 1, f"{path}: nothing but logging out"
        assert "read-only" in page.text
        offered += "/act/" in writing.get(path).text
    assert offered >= 7
    for action in ACTIONS:
        answers = (browser.get(f"/act/{action}?name=ward&value=1"), browser.act(action, name="ward", step="run"))
        for answer in answers:
            assert answer.status_code == 403, action
            assert "read-only" in answer.text
    assert value(admin, "select state from pgps.subscriptions where name = 'ward'") == "active"
