"""What can be changed: each change is one SQL statement, which is shown before it is run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from psycopg.sql import SQL, Composed, Identifier, Literal

from pgps.errors import BadArgument
from pgps_console.render import link

__all__ = ["ACTIONS", "Action", "Field", "quoted"]

Values = dict[str, str]


@dataclass(frozen=True, slots=True)
class Field:
    """One value that a form asks for; `fixed` ones come with the button that led there."""

    name: str
    label: str = ""
    required: bool = False
    fixed: bool = False
    kind: str = "text"
    help: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """A change: `build` makes the statement from the values and the selected lines; `back` is the page to return to."""

    title: str
    fields: tuple[Field, ...]
    build: Callable[[Values, list[str]], Composed]
    back: Callable[[Values], str]
    done: str
    warning: str = ""
    optional: bool = False  # of the fields that are not fixed, one at least has to be given

    def missing(self, values: Values) -> bool:
        """Whether something has to be asked for before the statement can be shown."""
        open_fields = [field for field in self.fields if not field.fixed]
        if self.optional:
            return not any(values.get(field.name) for field in open_fields)
        return any(field.required and not values.get(field.name) for field in self.fields)


def quoted(name: str) -> str:
    """Return a name as functions of pgps take it: in double quotes when it is not plain."""
    return name if re.fullmatch(r"[a-z_][a-z0-9_$]*", name) else '"' + name.replace('"', '""') + '"'


def _call(function: str, *arguments: str | int | None, **named: str | int | None) -> Composed:
    parts: list[Composed | Literal] = [Literal(argument) for argument in arguments]
    parts += [SQL("{} => {}").format(Identifier(key), Literal(value)) for key, value in named.items()]
    return SQL("select pgps.{}({})").format(SQL(function), SQL(", ").join(parts))


def _number(text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadArgument(f'{what} "{text}" is not a number', hint="Give a whole number.") from None


def _given(values: Values, texts: tuple[str, ...], numbers: tuple[str, ...] = ()) -> dict[str, str | int]:
    found: dict[str, str | int] = {key: values[key] for key in texts if values.get(key)}
    found.update({key: _number(values[key], key) for key in numbers if values.get(key)})
    return found


_NAME = Field("name", fixed=True, required=True)


def _to(path: str) -> Callable[[Values], str]:
    return lambda values: link(path, values["name"]) if values.get("name") else path


def _named(function: str, title: str, path: str, done: str, warning: str = "") -> Action:
    """Return an action whose only argument is a name."""
    back = (lambda _: path) if function.startswith(("unsubscribe", "drop")) else _to(path)
    return Action(title, (_NAME,), lambda v, _: _call(function, quoted(v["name"])), back, done, warning)


def _composite(*, enabled: bool) -> Action:
    """Return the action that has a composite event detected, or not."""
    return Action(
        "Go on with a composite event" if enabled else "Pause a composite event",
        (_NAME,),
        lambda v, _: SQL("select pgps.alter_composite_event({}, enabled => {})").format(
            Literal(quoted(v["name"])), Literal(enabled)
        ),
        _to("/composites"),
        "goes on" if enabled else "paused",
        "" if enabled else "Events wait for it, and keep their space, until it goes on.",
    )


def _alter_subscription(values: Values, _: list[str]) -> Composed:
    given = _given(values, ("filter", "dead_after", "on_backlog", "owner"), ("priority", "max_attempts", "max_backlog"))
    if values.get("filter") == "-":
        given["filter"] = ""
    return _call("alter_subscription", quoted(values["name"]), **given)


def selection(function: str, chosen: list[str]) -> Composed:
    """Return one statement that calls a function for each chosen exception."""
    if not chosen:
        raise BadArgument("no exception is selected", hint="Tick the boxes in front of those that are meant.")
    lines = []
    for line in chosen:
        if line.count("\t") < 2:
            raise BadArgument(f'"{line}" is no exception of the list', hint="Go back, and tick the boxes again.")
        event_type, event_id, subscription = line.split("\t", 2)
        lines.append(
            SQL("    ({}, {}, {})").format(
                Literal(quoted(event_type) if event_type else None),
                Literal(_number(event_id, "event id") if event_id else None),
                Literal(_subscription(subscription)),
            )
        )
    return SQL(
        "select sum(pgps.{}(e.event_type::text, e.event_id::bigint, e.subscription::text))\n"
        "from (values\n{}\n) e(event_type, event_id, subscription)"
    ).format(SQL(function), SQL(",\n").join(lines))


def _subscription(name: str) -> str | None:
    # What came over a link has no subscription, but the link's name behind this word.
    return (name if name.startswith("link ") else quoted(name)) if name else None


def _all_exceptions(function: str) -> Callable[[Values, list[str]], Composed]:
    def build(values: Values, _: list[str]) -> Composed:
        given = {"subscription": _subscription(values["subscription"])} if values.get("subscription") else {}
        return _call(function, quoted(values["event_type"]), **given)

    return build


def _exceptions(values: Values) -> str:
    return link("/exceptions", event_type=values.get("event_type"), subscription=values.get("subscription"))


_TYPE_AND_SUBSCRIPTION = (
    Field("event_type", "Event type", required=True),
    Field("subscription", "Subscription", help="empty: of all subscriptions"),
)

ACTIONS: dict[str, Action] = {
    "resume": _named("resume", "Resume a subscription", "/subscriptions", "resumed"),
    "pause": _named("pause", "Pause a subscription", "/subscriptions", "paused"),
    "unsubscribe": _named(
        "unsubscribe",
        "End a subscription",
        "/subscriptions",
        "ended",
        "What the subscription has not received is not kept for it.",
    ),
    "seek": Action(
        "Move a subscription",
        (_NAME, Field("start", "Where it goes on", required=True, help="now, earliest, or an event id")),
        lambda v, _: _call("seek", quoted(v["name"]), v["start"]),
        _to("/subscriptions"),
        "moved",
        "Behind the place, events come again; before it, they are skipped.",
    ),
    "alter": Action(
        "Change a subscription",
        (
            _NAME,
            Field("filter", "Filter", kind="long", help="an SQL predicate; - takes it away"),
            Field("priority", "Priority", kind="number"),
            Field("max_attempts", "Attempts at most", kind="number"),
            Field("dead_after", "Dead after", help="an interval, such as 1 hour; 0 takes it away"),
            Field("max_backlog", "Events that may wait", kind="number"),
            Field("on_backlog", "When more wait", choices=("", "suspend", "drop", "keep")),
            Field("owner", "Owner", help="a role"),
        ),
        _alter_subscription,
        _to("/subscriptions"),
        "changed",
        optional=True,
    ),
    "resume-type": _named("resume_event_type", "Go on with an event type", "/types", "resumed"),
    "retry": Action(
        "Retry the selected exceptions", (), lambda _, c: selection("retry_exception", c), _exceptions, "put back"
    ),
    "discard": Action(
        "Discard the selected exceptions",
        (),
        lambda _, c: selection("discard_exception", c),
        _exceptions,
        "discarded",
        "Discarded events do not come again.",
    ),
    "retry-all": Action(
        "Retry all exceptions of an event type",
        _TYPE_AND_SUBSCRIPTION,
        _all_exceptions("retry_exception"),
        _exceptions,
        "put back",
    ),
    "discard-all": Action(
        "Discard all exceptions of an event type",
        _TYPE_AND_SUBSCRIPTION,
        _all_exceptions("discard_exception"),
        _exceptions,
        "discarded",
        "Discarded events do not come again.",
    ),
    "enable-link": Action(
        "Resume a link",
        (_NAME,),
        lambda v, _: SQL("select pgps.alter_link({}, enabled => true)").format(Literal(v["name"])),
        lambda _: "/topology",
        "resumed",
    ),
    "disable-link": Action(
        "Pause a link",
        (_NAME,),
        lambda v, _: SQL("select pgps.alter_link({}, enabled => false)").format(Literal(v["name"])),
        lambda _: "/topology",
        "paused",
        "Events wait on both sides while it is paused.",
    ),
    "resync-link": Action(
        "Tell a neighbour everything again",
        (_NAME,),
        lambda v, _: _call("resync_link", v["name"]),
        lambda _: "/topology",
        "resynchronised",
    ),
    "resume-links": Action(
        "Go on after a restore, or as a copy",
        (
            Field(
                "as",
                "This broker",
                required=True,
                choices=("", "restored", "clone"),
                help="restored: the original is gone, and this takes its place; clone: the original goes on",
            ),
        ),
        lambda v, _: _call("resume_links", v["as"]),
        lambda _: "/topology",
        "links go on",
        "A new epoch begins. Neighbours are asked again for what is wanted here.",
    ),
    "enable-composite": _composite(enabled=True),
    "disable-composite": _composite(enabled=False),
    "reset-composite": _named(
        "reset_composite_event",
        "Forget what is open of a composite event",
        "/composites",
        "forgotten",
        "Open occurrences are lost, as if history began now.",
    ),
    "cancel-unit": Action(
        "Cancel a unit of work",
        (_NAME,),
        lambda v, _: SQL("select status from pgps.cancel_unit({})").format(Literal(v["name"])),
        lambda _: "/units",
        "its status",
        "Nobody receives it then.",
    ),
    "play-through": Action(
        "Switch what is new on or off for a group",
        (_NAME, Field("play", "Members get what is new", required=True, choices=("true", "false"))),
        lambda v, _: SQL("select pgps.spool_play_through({}, {})").format(
            Literal(quoted(v["name"])), Literal(v["play"] == "true")
        ),
        _to("/spools"),
        "switched",
    ),
    "configure": Action(
        "Change a setting",
        (_NAME, Field("value", "Value", required=True)),
        lambda v, _: _call("configure", v["name"], v["value"]),
        lambda _: "/settings",
        "changed",
    ),
    "dismiss": Action(
        "Dismiss a finding of the audit",
        (Field("name", fixed=True, required=True),),
        lambda v, _: _call("dismiss_findings", _number(v["name"], "finding")),
        lambda _: "/audit",
        "dismissed",
    ),
}
