"""What a neighbour should know is found anew at each heartbeat; at rest that is little work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from tests.fix_broker import call, rows
from tests.links.horizon_stage import Scene
from tests.links.peer import Origin
from tests.links.rig import Broker


def test_who_is_interested_in_what_is_found_once_for_each_look_at_what_a_neighbour_should_know(
    brokers: Callable[[int], list[Broker]],
) -> None:
    (here,) = brokers(1)
    with ExitStack() as stack:
        scene = Scene(here, stack)
        scene.ready()
        # Nobody offers the type any more: whether B may carry it is asked once, however many filters are in force.
        for n in range(5):
            scene.subscribe(f"few_{n}", f"n >= {n}")
        scene.b.hear()
        for peer in (scene.c, scene.b):
            peer.say(peer.ad(scene.x, types=()))
        scene.b.hear()
        session = scene.b.hears
        session.execute("set track_functions = 'all'")
        with session.transaction(force_rollback=True):
            call(session, "link_next", scene.b.heard, 1000, True)
            calls: dict[str, int] = dict(rows(session, "select funcname, calls from pg_stat_xact_user_functions"))
        assert (calls["interests"], calls["may_carry"]) == (1, 1)


def test_the_place_of_each_origin_is_looked_up_once(brokers: Callable[[int], list[Broker]]) -> None:
    """Whatever was planned when tables were empty; a network may have hundreds of brokers."""
    many = 100
    with ExitStack() as stack:
        s = Scene(brokers(1)[0], stack)
        s.subscribe()
        for some in (1, many - 1):
            s.c.say(*(s.c.ad(Origin("behind")) for _ in range(some)))
            s.c.hear()
        session = s.c.hears
        session.execute("set track_functions = 'all'")
        with session.transaction(force_rollback=True):
            call(session, "link_next", s.c.heard, 1000, True)
            calls: dict[str, int] = dict(rows(session, "select funcname, calls from pg_stat_xact_user_functions"))
        assert calls["lows"] == 1
        assert calls["horizon"] <= 3 * many
