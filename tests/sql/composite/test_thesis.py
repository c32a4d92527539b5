"""The global detector of the thesis on three brokers: its figure 4.6 and its sample scenario (section 7.7)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from tests.fix_broker import call, column, make_type, rows, value
from tests.fix_clock import Clock
from tests.links.conftest import brokers  # noqa: F401 - a fixture
from tests.links.rig import Broker, Link, linked, open_link, settle


def publish(broker: Broker, *names: str) -> None:
    """Publish events, each in a transaction of its own."""
    for name in names:
        rows(broker.admin, f"insert into pgps_event.{name} values (1)")


def come(everybody: list[Broker], links: list[Link]) -> None:
    """Move everything; what is detected is published by the detection, and moves in its turn."""
    for _ in range(3):
        settle(everybody, links)


def parts(broker: Broker, name: str) -> list[list[Any]]:
    """Return of what a broker has detected the types of the constituents, in order."""
    query = f"select constituents from pgps_entry.log_{type_id(broker, name)} order by pgps_event_id"
    return [[one["event_type"] for one in found] for found in column(broker.admin, query)]


def type_id(broker: Broker, name: str) -> int:
    return int(value(broker.admin, "select type_id from pgps_internal.event_type where name = %s", [name]))


def held(broker: Broker, name: str) -> int:
    """Return how many events of a type a broker has got; it may not know the type."""
    known = value(broker.admin, "select count(*) from pgps_internal.event_type where name = %s", [name])
    return int(value(broker.admin, f"select count(*) from pgps_entry.log_{type_id(broker, name)}")) if known else 0


def test_what_applications_detect_is_put_together_elsewhere(
    brokers: Callable[[int], list[Broker]],  # noqa: F811
) -> None:
    """Figure 4.6: SOR = L1 or L2 at S, TAND = M1 and (M1 ; M3) at T, G_AND = SOR and TAND at V."""
    s, t, v = brokers(3)
    for broker, names in ((s, ("l1", "l2")), (t, ("m1", "m3"))):
        for name in names:
            make_type(broker.admin, name)
    call(s.admin, "create_composite_event", "sor", "l1 or l2")
    call(t.admin, "create_composite_event", "m_seq", "m1 ; m3")
    call(t.admin, "create_composite_event", "tand", "m1 and m_seq", context="chronicle", max_open=10)
    with linked([(s, v), (t, v)]) as links:
        settle([s, t, v], links)
        call(
            v.admin, "create_composite_event", "g_and", "sor and tand", scope="global", context="chronicle", max_open=9
        )
        settle([s, t, v], links)
        publish(s, "l1")
        come([s, t, v], links)
        assert parts(v, "g_and") == []
        publish(t, "m1", "m3", "m1")
        publish(s, "l2")
        come([s, t, v], links)
        # Only what the applications have detected has crossed.
        assert [held(v, name) for name in ("l1", "l2", "m1", "m3", "m_seq")] == [0] * 5
        assert held(v, "sor") == 2
        assert held(v, "tand") == len(parts(t, "tand")) > 0
        found = parts(v, "g_and")
        assert found
        assert all(sorted(one) == ["sor", "tand"] for one in found)
        # What comes over a link keeps its interval: one that lies within the other is none.
        bounds = "select starts_at < ends_at from pgps_entry.log_{} order by pgps_event_id"
        assert all(column(v.admin, bounds.format(type_id(v, "g_and"))))


def test_consumers_come_late_and_go_and_come_back(brokers: Callable[[int], list[Broker]]) -> None:  # noqa: F811
    """Section 7.7: two clients behind a server, of which each wants events of the other; e1 occurs three times."""
    coconut, server, manatee = brokers(3)
    make_type(coconut.admin, "e1")
    for name in ("e2", "e3", "e4"):
        make_type(manatee.admin, name)
    everybody = [coconut, server, manatee]
    with linked([(server, coconut), (server, manatee)]) as links:
        settle(everybody, links)
        # Nobody has asked for it: it is not forwarded.
        publish(coconut, "e1")
        come(everybody, links)
        assert held(server, "e1") == 0
        call(manatee.admin, "create_source", "coconut__client1", "a")
        call(manatee.admin, "create_composite_event", "g_e1", "e1::coconut__client1", scope="global")
        call(coconut.admin, "create_source", "rain__client2", "c")
        for name in ("e2", "e4"):
            call(coconut.admin, "create_composite_event", f"g_{name}", f"{name}@rain__client2", scope="global")
        settle(everybody, links)
        publish(coconut, "e1")
        publish(manatee, "e2", "e3", "e4")
        come(everybody, links)
        assert parts(manatee, "g_e1") == [["e1"]]
        assert [len(parts(coconut, name)) for name in ("g_e2", "g_e4")] == [1, 1]
        assert held(coconut, "e3") == 0
        # The consumer is away when e1 occurs again, and is told when it has come back: same as before, and once.
        links[1].close()
        publish(coconut, "e1")
        for _ in range(3):
            settle(everybody[:2], links[:1])
        assert parts(manatee, "g_e1") == [["e1"]]
        links[1] = open_link(server, manatee, "to_c")
        come(everybody, links)
        assert parts(manatee, "g_e1") == [["e1"], ["e1"]]
        # The application moves: its name means another broker, and no definition changes.
        call(manatee.admin, "alter_source", "coconut__client1", broker="b")
        publish(coconut, "e1")
        come(everybody, links)
        assert parts(manatee, "g_e1") == [["e1"], ["e1"]]


def test_each_application_detects_its_part_of_one_definition(
    brokers: Callable[[int], list[Broker]],  # noqa: F811
) -> None:
    """Figure 4.6 in one expression: S detects SOR and T detects TAND, though only V has defined anything."""
    s, t, v = everybody = brokers(3)
    for broker, names in ((s, ("l1", "l2")), (t, ("m1", "m3"))):
        for name in names:
            make_type(broker.admin, name)
    clocks = [Clock(broker.admin) for broker in everybody]
    with linked([(s, v), (t, v)]) as links:
        settle(everybody, links)
        options = {"scope": "global", "context": "chronicle", "max_open": 10}
        call(v.admin, "create_composite_event", "g_and", "(l1 or l2) and (m1 and (m1 ; m3))", **options)
        # S wants what happens at T, which is not its neighbour; the paper's server has no P*.
        call(s.admin, "create_composite_event", "g_star", "P*(m1, '10 s', m3)", **options)
        settle(everybody, links)
        plan = "select expression, broker, forwards from pgps.plan_composite_event(%s) where cardinality(parts) > 0"
        tand = "m1 and m1 ; m3"
        assert sorted(rows(v.admin, plan, ["g_and"])) == sorted(
            [(f"(l1 or l2) and ({tand})", "c", None), ("l1 or l2", "a", "a"), (tand, "b", "b"), ("m1 ; m3", "b", None)]
        )
        assert rows(s.admin, plan, ["g_star"]) == [("P*(m1, '10 s', m3)", "c", "c")]
        asked = "select name from pgps.composite_events where name like 'pgps\\_part\\_%%'"
        (relayed,) = column(v.admin, asked)
        assert rows(v.admin, plan, [relayed]) == [("P*(m1, '10 s', m3)", "b", "b")]
        publish(s, "l1")
        publish(t, "m1")
        come(everybody, links)
        for clock in clocks:
            clock.advance("25 s")
        publish(t, "m3", "m1")
        come(everybody, links)
        publish(s, "l2")
        come(everybody, links)
        assert parts(v, "g_and") == [["l1", "m1", "m3", "m1"]]
        constituents = f"select constituents from pgps_entry.log_{type_id(s, 'g_star')}"
        (found,) = column(s.admin, constituents)
        began, *ticks, ended = found
        passed = datetime.fromisoformat(ended["at"]) - datetime.fromisoformat(began["at"])
        assert [one["as"] for one in (began, ended)] == ["m1", "m3"]
        assert [one["as"] for one in ticks] == ["tick"] * (passed // timedelta(seconds=10)) != []
        # The number of an event that stayed at its broker is the one that it has there.
        numbers = column(t.admin, f"select pgps_event_id from pgps_entry.log_{type_id(t, 'm3')}")
        assert [ended[name] for name in ("origin", "broker", "event_id")] == ["b", "b", *numbers]
        assert [held(v, name) for name in ("l1", "l2", "m1", "m3")] == [0] * 4
        assert [held(s, name) for name in ("m1", "m3")] == [0] * 2
