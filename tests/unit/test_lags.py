"""How a worker finds the subscriptions that are furthest behind without asking all of them at once."""

from __future__ import annotations

from dataclasses import replace

from pgps._lags import Lag, Lags


def _answer(lags: Lags, seconds: dict[int, float]) -> list[Lag]:
    """Return what pgps.lag_counts would of subscriptions with such lags, by their numbers."""
    question = lags.question
    portion = sorted(number for number in seconds if number > question["after"])[: question["portion"]]
    asked = sorted({*portion, *(number for number in question["also"] if number in seconds)})
    return [Lag(number, f"s{number:04}", int(seconds[number]), seconds[number]) for number in asked]


def _tour(lags: Lags, seconds: dict[int, float]) -> int:
    looks = 1
    while not lags.see(_answer(lags, seconds)):
        looks += 1
    return looks


def test_all_are_asked_in_portions_and_those_furthest_behind_are_found() -> None:
    seconds = {number: float(number * 7919 % 1009) for number in range(1, 951)}
    lags = Lags()
    assert _tour(lags, seconds) == 10
    worst = sorted(seconds.values(), reverse=True)[:20]
    assert [one.lag_seconds for one in lags.worst] == worst
    assert _tour(lags, seconds) == 10, "it begins again"
    assert [one.lag_seconds for one in lags.worst] == worst


def test_who_was_behind_is_asked_at_each_look_and_left_out_when_nothing_waits() -> None:
    seconds = dict.fromkeys(range(1, 1001), 0.0)
    seconds[950] = 30.0
    lags = Lags()
    assert _tour(lags, seconds) == 11, "one more, since the last portion was full"
    assert [one.subscription for one in lags.worst] == ["s0950"]
    seconds[950] = 35.0
    assert not lags.see(_answer(lags, seconds)), "the tour is at the first hundred"
    assert [one.lag_seconds for one in lags.worst] == [35.0]
    assert lags.after == 100
    seconds[950] = 0.0
    lags.see(_answer(lags, seconds))
    assert lags.worst == []
    assert lags.after == 200, "who is asked again does not shorten a portion"


def test_the_busiest_are_asked_at_each_look_and_shown_with_their_rate() -> None:
    seconds = dict.fromkeys(range(1, 1001), 0.0)
    rates = {number: float(number) for number in range(901, 931)}
    lags = Lags()

    def look() -> bool:
        return lags.see(replace(one, rate=rates.get(one.subscription_id, 0.0)) for one in _answer(lags, seconds))

    while not look():
        pass
    assert [one.subscription_id for one in lags.busiest] == list(range(930, 910, -1))
    rates[930], rates[915] = 0.0, 5.5
    assert not look(), "the tour is at the first hundred"
    found = [(one.metric, one.labels["subscription"], one.value) for one in lags.figures]
    assert found[0] == ("pgps_subscription_events_per_second", "s0929", 929.0)
    assert found[-1] == ("pgps_subscription_events_per_second", "s0915", 5.5)
    assert len(found) == 19


def test_few_are_all_asked_at_each_look_and_one_that_was_dropped_is_forgotten() -> None:
    seconds = {3: 1.0, 5: 0.0, 9: 2.0}
    lags = Lags()
    assert lags.see(_answer(lags, seconds))
    assert [(one.metric, one.labels["subscription"], one.value) for one in lags.figures] == [
        ("pgps_subscription_waiting_events", "s0009", 2.0),
        ("pgps_subscription_lag_seconds", "s0009", 2.0),
        ("pgps_subscription_waiting_events", "s0003", 1.0),
        ("pgps_subscription_lag_seconds", "s0003", 1.0),
    ]
    del seconds[9]
    assert lags.see(_answer(lags, seconds))
    assert [one.subscription for one in lags.worst] == ["s0003"]
