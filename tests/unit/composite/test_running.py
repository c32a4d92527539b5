"""The detector at work: conditions, limits, late events, transactions, stored state."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from composite.definition import define
from composite.detector import State, detect
from composite.graph import build
from composite.matching import Matcher, equality_of
from composite.occurrences import bind, constituents
from composite.points import Event, Idle, point_of, time_of
from composite.stepping import Found
from composite.told import write_few
from lexer import SqlTextError
from tests.unit.composite.histories import Store, canonical, graph_of, history, outcome, show


def priced(*given: tuple[str, float]) -> list[Event]:
    """Return events with a price, a microsecond apart."""
    return [Event(i, i, name, {"price": price, "id": f"{name}{i}"}, i) for i, (name, price) in enumerate(given, 1)]


def rising(names: dict[str, Any]) -> bool | None:
    return None if names["a"]["price"] is None else bool(names["b"]["price"] > names["a"]["price"])


def filtered(context: str, events: list[Event]) -> list[list[Any]]:
    graph = graph_of("a ; b", context, filter="b.price > a.price")
    state = State(graph, {"b.price > a.price": rising}, Matcher(graph, {}))
    found = detect(state, events)[1]
    return [[one["payload"]["id"] for one in constituents(graph.nodes[-1].roots[0], f.occurrence)] for f in found]


def test_a_combination_that_fails_the_filter_is_no_candidate() -> None:
    events = priced(("a", 5), ("a", 1), ("b", 3), ("b", 9))
    assert filtered("chronicle", events) == [["a2", "b3"], ["a1", "b4"]]
    assert filtered("continuous", events) == [["a2", "b3"], ["a1", "b4"]]
    assert filtered("recent", events) == [["a2", "b3"], ["a2", "b4"]]


def test_a_condition_that_is_unknown_or_raises_makes_no_candidate() -> None:
    graph = graph_of("a ; b", "recent", filter="b.price > a.price")
    state = State(graph, {"b.price > a.price": rising}, Matcher(graph, {}))
    events = [Event(1, 1, "a", {}, 1), Event(2, 2, "b", {"price": 3}, 2), Event(3, 3, "a", {"price": None}, 3)]
    changes, found = detect(state, [*events, Event(4, 4, "b", {"price": 3}, 4)])
    assert found == []
    (fault,) = changes.faults
    assert isinstance(fault.error, KeyError)
    assert (fault.text, time_of(fault.point)) == ("b.price > a.price", 2)


def test_a_condition_is_tested_where_its_names_come_together() -> None:
    (graph,) = build([define("x", "(a ; b) ; c", filter="a.n = b.n and c.n > 1 and a.n < c.n")])
    assert {node.text: [test.text for test in node.tests] for node in graph.nodes if node.tests} == {
        "c": ["c.n > 1"],
        "a ; b": ["a.n = b.n"],
        "a ; b ; c": ["a.n < c.n"],
    }


def test_aggregates_get_sets_in_order_of_time() -> None:
    graph = graph_of("A*(a, b, c)", "recent", filter="count(b) > 1")
    seen: list[Any] = []

    def several(names: dict[str, Any]) -> bool:
        seen.append(names)
        return len(names["b"]) > 1

    state = State(graph, {"count(b) > 1": several}, Matcher(graph, {}))
    found = detect(state, history("a1@0 b1@1 c1@2 a2@3 b2@4 b3@5 c2@6"))[1]
    assert seen == [{"b": ["b1"]}, {"b": ["b2", "b3"]}]
    assert [show(one.occurrence) for one in found] == ["(a2,{b2,b3},c2)"]
    assert bind(graph.nodes[-1].roots[0], found[0].occurrence) == {"a": "a2", "b": ["b2", "b3"], "c": "c2"}


def test_equal_parts_are_one_node_whatever_they_are_called() -> None:
    definitions = [
        define("x", "a one ; b", filter="one.n > b.n"),
        define("y", "(a ; b two) or c", filter="a.n > two.n"),
        define("z", "a ; b"),
    ]
    (graph,) = build(definitions)
    assert sorted(node.text for node in graph.nodes if node.op == "leaf") == ["a one", "b", "c"]
    assert sum(node.op == "seq" for node in graph.nodes) == 2  # with the condition and without
    assert [graph.frame.context for graph in build([*definitions, define("w", "a", context="chronicle")])] == [
        "recent",
        "chronicle",
    ]


def test_the_oldest_is_given_up_where_there_are_too_many() -> None:
    graph = graph_of("a ; b", "chronicle", max_open=2)
    state = State(graph, matcher=Matcher(graph, {}))
    changes, found = detect(state, history("a1@0 a2@1 a3@2 b1@3"))
    assert [show(one.occurrence) for one in changes.given_up] == ["a1"]
    assert [show(one.occurrence) for one in found] == ["(a2,b1)"]
    assert [row.data[-1] for row in changes.opened] == ["a3"]


def test_what_is_open_beyond_within_expires() -> None:
    graph = graph_of("a ; b", "chronicle", within="5 us")
    state = State(graph, matcher=Matcher(graph, {}))
    assert [show(one.occurrence) for one in detect(state, history("a1@0 a2@3 b1@6"))[1]] == ["(a2,b1)"]
    changes, _ = detect(state, [Event(9, 90, "b", "b2", 9)])
    assert state.keys == {}
    assert changes.dropped == [()]


def test_a_clock_that_goes_back_is_held() -> None:
    graph = graph_of("plus(a, '5 us') ; b", "recent")
    state = State(graph, matcher=Matcher(graph, {}))
    detect(state, [Event(1, 10, "a", "a1", 1)], now=16)
    found = detect(state, [Event(2, 3, "b", "b1", 2)])[1]
    assert [(time_of(one.occurrence[1]), time_of(one.occurrence[2])) for one in found] == [(15, 16)]


def test_by_arrival_an_event_needs_a_time() -> None:
    graph = graph_of("a", "recent")
    with pytest.raises(ValueError, match="event 7 has no time"):
        detect(State(graph, matcher=Matcher(graph, {})), [Event(7, None, "a")])


def event_timed(lateness: str = "5 us", expression: str = "a ; b") -> State:
    graph = graph_of(expression, "recent", time_basis="event", lateness=lateness)
    return State(graph, matcher=Matcher(graph, {}))


def test_late_events_are_told_with_the_reason() -> None:
    state = event_timed()
    changes, found = detect(state, [*history("a1@10 a2@20 a3@14 a4@15"), Event(9, None, "a", "a9", 9)])
    assert [(one.event.payload, one.reason) for one in changes.late] == [
        ("a3", "the watermark had passed its time"),
        ("a9", "its time is null"),
    ]
    assert found == []


def test_the_slowest_source_holds_the_watermark_until_it_is_idle() -> None:
    state = event_timed("0 s")
    assert detect(state, history("b1@5 a1@10 a2@30 a3@40"))[1] == []
    assert state.ordering.frontier == 5
    assert detect(state, [Idle(None, "b", 50), Event(9, 60, "a", "a4", 9)])[1] == []
    assert state.ordering.frontier == 60
    changes, _ = detect(state, [Event(10, 55, "b", "b2", 10)])
    assert len(changes.late) == 1
    found = detect(state, [Event(11, 61, "b", "b3", 11), Event(12, 62, "a", "a5", 12)])[1]
    assert [show(one.occurrence) for one in found] == ["(a4,b3)"]


def test_when_all_sources_are_idle_time_goes_on() -> None:
    state = event_timed("2 us", "not(b)[a, + '5 us']")
    assert detect(state, history("a1@10"))[1] == []
    found = detect(state, [Idle(None, "a", 40)])[1]
    assert [time_of(one.point) for one in found] == [15]


def test_without_lateness_what_has_come_counts_at_once() -> None:
    state = event_timed("0 s")
    state.ordering.take([])
    assert [show(one.occurrence) for one in detect(state, [*history("a1@1 a2@2"), Idle(None, "a", 2)])[1]] == []
    found = detect(state, [Event(5, 3, "b", "b1", 5)])[1]
    assert [show(one.occurrence) for one in found] == ["(a2,b1)"]


@pytest.mark.parametrize("loads", [False, True])
def test_a_key_begins_with_its_earliest_event_whichever_came_first(loads: bool) -> None:
    graph = graph_of("a ; every('10 us')", "recent", time_basis="event", lateness="60 us", partition_by="k")
    events = [Event(i, at, "a", {"k": 1, "n": i}, i) for i, at in enumerate((30, 5, 17, 305), 1)]
    wanted = [[2, 10], [3, 20], [1, 30], [1, 40]]
    for cuts in ((0, 4), (0, 1, 4), (0, 1, 2, 3, 4)):
        store, state, found = Store(), State(graph, matcher=Matcher(graph, {})), []
        for low, high in pairwise(cuts):
            if loads:
                state = store.state(lambda: State(graph, matcher=Matcher(graph, {})))
            changes, more = detect(state, events[low:high])
            store.apply(changes)
            found += [constituents(graph.nodes[-1].roots[0], one.occurrence) for one in more]
        told = [[first["payload"]["n"], last["tick"]] for first, last in found]
        assert told[:4] == wanted, cuts
        assert len(told) == 24
    # What has happened is not begun again by an event that is in time.
    late = detect(state, [Event(9, 246, "a", {"k": 1, "n": 9}, 9), Event(10, 320, "a", {"k": 1, "n": 10}, 10)])
    assert (late[0].late, [time_of(one.point) for one in late[1]]) == ([], [250])


def test_held_events_are_stored_and_released_once() -> None:
    make = event_timed
    store, state = Store(), make()
    for batch in (history("a1@10 b1@12"), [Event(3, 14, "a", "a3", 3), Event(4, 15, "b", "b4", 4)]):
        store.apply(detect(state, batch)[0])
    assert sorted(row.data[-1] for row in store.rows.values()) == ["a1", "a3", "b1", "b4"]
    state = store.state(make)
    changes, found = detect(state, [], now=100)
    store.apply(changes)
    assert [show(one.occurrence) for one in found] == ["(a1,b1)", "(a3,b4)"]
    assert [row.data[-1] for row in store.rows.values()] == ["a3"]


def test_an_interval_that_waits_stands_where_it_came_also_when_it_is_loaded() -> None:
    # What a pair is made of came before c1, of whose time its end is; the pair itself came behind it.
    (graph,) = build([define("it", "p ; c", time_basis="event", lateness="5 us")], ["p"])
    pair = Event(5, 10, "p", "p1", 5, span=(point_of(7, 1), point_of(10, 2)))
    for later in ([], [Event(6, 16, "c", "c2", 6)]):
        found: list[list[str]] = []
        for is_loaded in (False, True):
            store, state = Store(), State(graph, matcher=Matcher(graph, {}))
            store.apply(detect(state, [Event(3, 10, "c", "c1", 3), pair])[0])
            assert sorted(row.start for row in store.rows.values()) == [point_of(10, 3), point_of(10, 5)]
            if is_loaded:
                state = store.state(lambda: State(graph, matcher=Matcher(graph, {})))
            changes, pairs = detect(state, later, now=100)
            store.apply(changes)
            found.append([show(one.occurrence) for one in pairs])
        assert found == [["(p1,c2)"] if later else []] * 2


def test_an_interval_that_a_former_release_held_back_is_read() -> None:
    (graph,) = build([define("it", "p ; c", time_basis="event", lateness="5 us")], ["p"])
    store, state = Store(), State(graph, matcher=Matcher(graph, {}))
    changes, _ = detect(state, [Event(5, 10, "p", "p1", 5, span=(point_of(7, 1), point_of(10, 2)))])
    store.apply(changes._replace(opened=[row._replace(start=row.data[1]) for row in changes.opened]))
    state = store.state(lambda: State(graph, matcher=Matcher(graph, {})))
    found = detect(state, [Event(6, 12, "c", "c2", 6)], now=100)[1]
    assert [show(one.occurrence) for one in found] == ["(p1,c2)"]


def test_transactions_begin_and_end_around_their_events() -> None:
    def found_in(expression: str, context: str = "recent") -> list[str]:
        graph = graph_of(expression, context)
        given = [("a", 1), ("b", 1), ("a", 2), ("c", 3), ("b", 2)]
        events = [Event(i, 5, name, f"{name}{i}", i, transaction=xid) for i, (name, xid) in enumerate(given, 1)]
        return [show(one.occurrence) for one in detect(State(graph, matcher=Matcher(graph, {})), events)[1]]

    assert found_in("a ; b ; commit") == ["((a1,b2),None)", "((a3,b5),None)"]
    assert found_in("A*(begin_transaction, a or b, commit)") == ["(None,{a1,b2},None)", "(None,{a3,b5},None)"]


def test_rows_of_another_version_are_refused() -> None:
    graph = graph_of("a ; b", "recent")
    state = State(graph, matcher=Matcher(graph, {}))
    changes, _ = detect(state, history("a1@1"))
    assert "version" in changes.keys[0]._fields
    with pytest.raises(ValueError, match="version 99"):
        state.load(changes.ordering, [changes.keys[0]._replace(version=99)], changes.opened)


def test_constituents_are_told_in_order_of_time_with_their_names() -> None:
    (graph,) = build([define("x", "P*(a first, '2 s', c)")])
    events = [Event(1, 0, "a", {"n": 1}, 7, "here"), Event(2, 5_000_000, "c", {"n": 2}, 8, "there")]
    (found,) = detect(State(graph, matcher=Matcher(graph, {})), events)[1]
    assert constituents(found.node.roots[0], found.occurrence) == [
        {"as": "first", "event_type": "a", "origin": "here", "event_id": 7, "at": 0, "payload": {"n": 1}},
        {"as": "tick", "tick": 2_000_000},
        {"as": "tick", "tick": 4_000_000},
        {"as": "c", "event_type": "c", "origin": "there", "event_id": 8, "at": 5_000_000, "payload": {"n": 2}},
    ]


def test_an_occurrence_of_too_many_constituents_is_refused() -> None:
    (graph,) = build([define("x", "P*(a, '1 us', c)")])
    found: list[Found] = detect(State(graph, matcher=Matcher(graph, {})), history("a1@0 c1@200000"))[1]
    with pytest.raises(SqlTextError, match="more than 100,000 constituents") as caught:
        constituents(found[0].node.roots[0], found[0].occurrence)
    assert caught.value.sqlstate == "54000"
    assert json.loads(write_few(found[0].node.roots[0], found[0].occurrence)) == [
        {"as": "a", "event_type": "a", "origin": None, "event_id": 1, "at": "1970-01-01T00:00:00+00:00"},
        {"as": "tick", "tick": "1970-01-01T00:00:00.000001+00:00", "last": "1970-01-01T00:00:00.199999+00:00",
         "ticks": 199_999},
        {"as": "c", "event_type": "c", "origin": None, "event_id": 2, "at": "1970-01-01T00:00:00.200000+00:00"},
    ]  # fmt: skip


def test_leaves_are_found_by_equality_predicate_and_source() -> None:
    (graph,) = build([define("x", "any(1, a (symbol = 'x') p, a (n > 1) q, a@there r, a)")])
    assert equality_of("symbol = 'x' and n > 1") == ("symbol", "x", False)
    assert equality_of("7 = n") == ("n", 7, True)
    assert equality_of("symbol = 'x' or n = 1") is None
    matcher = Matcher(graph, {"n > 1": lambda payload: payload["n"] > 1}, {"symbol = 'x'": ("symbol", "x")})
    texts = {node.name: node.text for node in graph.leaves}

    def matched(**event: Any) -> list[str]:
        return sorted(texts[name] for name, _ in matcher(Event(1, 1, "a", **event)))

    assert matched(payload={"symbol": "x", "n": 1}) == ["a", "a (symbol = 'x') p"]
    assert matched(payload={"symbol": "y", "n": 2}, origin="there") == ["a", "a (n > 1) q", "a@there r"]
    with pytest.raises(ValueError, match="no callback for the predicate"):
        Matcher(graph, {})


def test_two_leaves_of_one_event_may_have_different_keys() -> None:
    (graph,) = build([define("x", "a one ; a two", partition_by="src, dst")])
    state = State(graph, matcher=Matcher(graph, {}))
    events = [Event(1, 1, "a", {"src": "u", "dst": "v"}, 1), Event(2, 2, "a", {"src": "w", "dst": "u"}, 2)]
    found = detect(state, events)[1]
    assert [(key, canonical(one)) for key, _, _, one in found] == [
        (("u",), ("seq", ((("event", 1, 1),), (("event", 2, 2),))))
    ]
    assert outcome(found)
