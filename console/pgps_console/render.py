"""How values look on a page."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup, escape

__all__ = ["environment", "link"]

_NOTHING = "\N{EN DASH}"
_UNITS = [("y", 31_557_600), ("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)]
_SIZES = ["B", "kB", "MB", "GB", "TB"]


def link(path: str, *parts: Any, **query: Any) -> str:
    """Return an address on this console; parts are put behind the path, and what is None or "" is left out.

    Parts are quoted twice, since servers and proxies take one quoting away before they look at the path: a "/" within
    a name would divide it.
    """
    where = "/".join([path, *(quote(quote(str(part), safe=""), safe="") for part in parts)])
    given = {key: value for key, value in query.items() if value not in (None, "")}
    return f"{where}?{urlencode(given)}" if given else where


def environment() -> jinja2.Environment:
    """Return what templates are rendered with; whatever is put into a page is escaped."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("pgps_console"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters.update(count=_count, rate=_rate, size=_size, span=_span, ago=_ago, value=_value, moment=_moment)
    made.globals["link"] = link
    made.globals["ui"] = made.get_template("_ui.html").module
    return made


def _count(number: int | None) -> str:
    return _NOTHING if number is None else f"{number:,}"


def _rate(number: float | None) -> str:
    if number is None:
        return _NOTHING
    if number == 0 or number >= 10:
        return f"{number:,.0f}/s"
    return f"{number:.2g}/s"


def _size(number: float | None) -> str:
    if number is None:
        return _NOTHING
    unit = 0
    while number >= 10_000 and unit < len(_SIZES) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:,.0f} {_SIZES[unit]}"


def _span(seconds: float | None) -> str:
    if seconds is None:
        return _NOTHING
    for unit, length in _UNITS:
        if abs(seconds) >= 2 * length or unit == "s":
            return f"{seconds / length:.0f} {unit}"
    return ""


def _moment(at: Any) -> str:
    return at.isoformat(" ", "seconds") if isinstance(at, dt.datetime) else _NOTHING if at is None else str(at)


def _ago(at: Any) -> Markup:
    if not isinstance(at, dt.datetime):
        return escape(_moment(at))
    # The time itself for whoever points at it; a live page would otherwise change with every look.
    seconds = max((dt.datetime.now(dt.UTC) - at).total_seconds(), 0)
    return Markup('<time title="{}" datetime="{}">{} ago</time>').format(_moment(at), at.isoformat(), _span(seconds))


def _value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return _moment(value)
    if isinstance(value, Mapping | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
