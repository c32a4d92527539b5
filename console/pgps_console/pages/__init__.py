"""The pages, in the order of the menu."""

from __future__ import annotations

from pgps_console.pages import composites, events, exceptions, network, overview, server, spools, subscriptions, units
from pgps_console.pages.base import Look, NotThere, Page

__all__ = ["PAGES", "Look", "NotThere", "Page"]

PAGES: tuple[Page, ...] = (
    *overview.PAGES,
    *events.PAGES,
    *subscriptions.PAGES,
    *exceptions.PAGES,
    *network.PAGES,
    *composites.PAGES,
    *units.PAGES,
    *spools.PAGES,
    *server.PAGES,
)
