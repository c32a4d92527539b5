"""The network of brokers: drawn, its links, and the path of an event through it."""

from __future__ import annotations

import math
from typing import Any

from pgps import _catalogue
from pgps.cli._network import Network, network
from pgps_console.pages.base import Look, NotThere, Page

__all__ = ["PAGES"]

_STEP, _MARGIN = 260, 60


async def _topology(look: Look) -> dict[str, Any]:
    async with look.access.read() as reader:
        links, routes = await reader.rows(_catalogue.links()), await reader.rows(_catalogue.routes())
        details = await reader.rows("select * from pgps.link_details")
    by_link = {(row["name"], row["neighbour"]): row for row in details}
    for row in links:
        row["details"] = by_link.get((row["name"], row["neighbour"]))
    return {"links": links, "routes": routes, "drawing": _drawing(network(links, routes)) if routes else None}


def _drawing(drawn: Network) -> dict[str, Any]:
    """Place the brokers on circles around this one, by their distance; each as near to what it is linked to as it can.

    Angles are shared out along the tree of shortest ways, so that branches do not cross.
    """
    distances = drawn.brokers
    children: dict[str, list[str]] = {name: [] for name in distances}
    for name in distances:
        ways = [e.other if e.one == name else e.one for e in drawn.edges if name in (e.one, e.other)]
        nearer = [way for way in ways if distances.get(way, 0) == distances[name] - 1]
        if nearer:
            children[min(nearer)].append(name)
    weights: dict[str, int] = {}
    for name in sorted(distances, key=lambda one: -distances[one]):
        weights[name] = max(1, sum(weights[child] for child in children[name]))
    places: dict[str, tuple[float, float]] = {}
    to_do = [(drawn.me, 0.0, 2 * math.pi)]
    rings = max(*distances.values(), 1)
    size = 2 * (rings * _STEP + _MARGIN)
    while to_do:
        name, low, high = to_do.pop()
        angle, radius = (low + high) / 2, distances[name] * _STEP
        # Wider than high, as screens are.
        places[name] = size / 2 + radius * math.cos(angle), (size / 2 + radius * math.sin(angle) * 0.6)
        share = (high - low) / max(sum(weights[child] for child in children[name]), 1)
        for child in sorted(children[name]):
            to_do.append((child, low, low + share * weights[child]))
            low += share * weights[child]
    ys = [y for _, y in places.values()]
    top = min(ys) - _MARGIN
    xs = [x for x, _ in places.values()]
    left = min(xs) - 2 * _MARGIN
    by_name = {row["name"]: row for row in drawn.links}
    return {
        "left": left,
        "width": max(xs) - left + 2 * _MARGIN,
        "top": top,
        "height": max(ys) - top + _MARGIN,
        "brokers": [
            {"name": name, "x": x, "y": y, "me": name == drawn.me, "types": drawn.types.get(name, [])}
            for name, (x, y) in places.items()
        ],
        "edges": [
            {
                "x1": places[edge.one][0],
                "y1": places[edge.one][1],
                "x2": places[edge.other][0],
                "y2": places[edge.other][1],
                "state": edge.state or "unknown",
                "direction": edge.direction,
                "link": by_name.get(edge.link),
            }
            for edge in drawn.edges
            if edge.one in places and edge.other in places
        ],
    }


async def _trace(look: Look) -> dict[str, Any]:
    origin, event, subscription = look.given("origin"), look.number("event_id"), look.given("subscription")
    async with look.access.read() as reader:
        brokers = await reader.rows("select distinct origin from pgps.routes order by 1")
        me = await reader.first(
            "select coalesce((select origin from pgps.routes where is_self), current_database()::text) as name"
        )
    hops = steps = None
    if event is not None:
        async with look.access.ask() as reader:
            hops = await reader.rows("select * from pgps.trace(%s, %s)", [origin or (me or {})["name"], event])
    if event is not None and subscription:
        local = next((hop["local_event_id"] for hop in hops or [] if hop["local_event_id"] is not None), event)
        async with look.access.ask() as reader:
            steps = await reader.rows("select * from pgps.explain(%s, %s)", [subscription, local])
    return {
        "brokers": brokers,
        "origin": origin or (me or {})["name"],
        "event_id": event,
        "subscription": subscription,
        "hops": hops,
        "steps": steps,
    }


async def _link(look: Look) -> dict[str, Any]:
    name = look.part("name")
    async with look.access.read() as reader:
        found = await reader.first("select * from pgps.links where name = %s", [name])
        if found is None:
            raise NotThere(f'link "{name}" does not exist, or you may not see it')
        details = await reader.first("select * from pgps.link_details where name = %s", [name])
    return {"link_row": found, "details": details}


PAGES = (
    Page("/topology", "topology.html", _topology, "Topology"),
    Page("/links/{name}", "link.html", _link),
    Page("/trace", "trace.html", _trace, "Trace", live=False),
)
