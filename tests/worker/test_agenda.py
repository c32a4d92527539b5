from __future__ import annotations

import asyncio

import pytest

from pgps_worker.agenda import Agenda, Outcome, Result, Turn
from pgps_worker.calls import Pending

pytestmark = pytest.mark.anyio


class Clock:
    """Time that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def agenda(clock: Clock) -> Agenda:
    return Agenda(slots=2, patience=30.0, clock=clock)


def offer(agenda: Agenda, **priorities: int) -> None:
    agenda.offer(Pending(name, priority) for name, priority in priorities.items())


async def take(agenda: Agenda) -> Turn:
    turn = await asyncio.wait_for(agenda.take(), 1)
    assert turn is not None
    return turn


async def order(agenda: Agenda, count: int) -> list[str]:
    """Take `count` turns, each of which finds nothing more."""
    names = []
    for _ in range(count):
        turn = await take(agenda)
        names.append(turn.subscription)
        agenda.done(turn, Result(Outcome.NOTHING))
    return names


async def make_suspect(agenda: Agenda, name: str) -> None:
    offer(agenda, **{name: 0})
    turn = await take(agenda)
    assert turn.subscription == name
    agenda.done(turn, Result(Outcome.HUNG))


async def test_higher_priorities_go_first_and_equal_ones_in_turn(agenda: Agenda) -> None:
    offer(agenda, low=-1, first=3, second=3, high=9)
    assert await order(agenda, 4) == ["high", "first", "second", "low"]
    assert agenda.idle


async def test_a_subscription_with_more_events_waits_its_turn_again(agenda: Agenda) -> None:
    offer(agenda, a=0, b=0)
    turn = await take(agenda)
    agenda.done(turn, Result(Outcome.HANDLED))
    assert await order(agenda, 2) == ["b", "a"]


async def test_one_that_had_few_events_waits_until_it_is_offered_again(agenda: Agenda) -> None:
    offer(agenda, a=0)
    agenda.done(await take(agenda), Result(Outcome.HANDLED, more=False))
    assert agenda.idle
    offer(agenda, a=0)
    assert (await take(agenda)).subscription == "a"


async def test_a_subscription_never_runs_twice_at_once(agenda: Agenda) -> None:
    offer(agenda, a=0)
    turn = await take(agenda)
    offer(agenda, a=0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(agenda.take(), 0.01)
    agenda.done(turn, Result(Outcome.NOTHING))
    assert (await take(agenda)).subscription == "a", "what came while it ran is not forgotten"


async def test_takers_wait_until_there_is_work(agenda: Agenda) -> None:
    taker = asyncio.create_task(take(agenda))
    await asyncio.sleep(0)  # let it begin to wait
    offer(agenda, a=0)
    assert (await taker).subscription == "a"


async def test_closing_ends_all_who_wait(agenda: Agenda) -> None:
    takers = [asyncio.create_task(agenda.take()) for _ in range(3)]
    await asyncio.sleep(0)
    agenda.close()
    assert await asyncio.gather(*takers) == [None, None, None]
    offer(agenda, a=0)
    assert await agenda.take() is None


async def test_a_callback_that_hangs_comes_again_with_one_event_and_is_then_is_to_blame(agenda: Agenda) -> None:
    await make_suspect(agenda, "a")
    turn = await take(agenda)
    assert turn.alone
    assert turn.is_to_blame(Outcome.HUNG)
    assert not turn.is_to_blame(Outcome.HANDLED)
    agenda.done(turn, Result(Outcome.FILED))
    assert (await take(agenda)).alone, "the next event may be just as bad"


async def test_a_whole_batch_is_never_is_to_blame(agenda: Agenda) -> None:
    offer(agenda, a=0)
    turn = await take(agenda)
    assert not turn.is_to_blame(Outcome.HUNG)
    assert not turn.is_to_blame(Outcome.DIED)


async def test_a_session_must_end_twice_with_the_same_event_before_that_is_is_to_blame(
    agenda: Agenda, clock: Clock
) -> None:
    blamed = []
    for _ in range(3):
        clock.now += 60
        offer(agenda, a=0)
        turn = await take(agenda)
        blamed.append(turn.is_to_blame(Outcome.DIED))
        agenda.done(turn, Result(Outcome.DIED))
    assert blamed == [False, False, True], "first as a batch, then twice alone"


async def again(agenda: Agenda, clock: Clock, name: str) -> Turn:
    """Take a subscription that was put off."""
    assert agenda.idle, "it is not run at once"
    clock.now += 60
    offer(agenda, **{name: 0})
    return await take(agenda)


async def test_a_verdict_whose_session_is_gone_is_filed_before_anything_runs(agenda: Agenda, clock: Clock) -> None:
    await make_suspect(agenda, "a")
    verdict = Result(Outcome.HUNG, sqlstate="57014", error="too long")
    agenda.done(await take(agenda), verdict)
    turn = await again(agenda, clock, "a")
    assert turn.verdict == verdict
    assert turn.is_to_blame(verdict.outcome)
    agenda.done(turn, Result(Outcome.UNTOUCHED))
    turn = await take(agenda)
    assert turn.verdict == verdict, "until it has been filed"
    agenda.done(turn, Result(Outcome.FILED))
    assert (await take(agenda)).verdict is None


async def test_a_verdict_is_void_when_another_worker_is_at_the_event(agenda: Agenda, clock: Clock) -> None:
    await make_suspect(agenda, "a")
    agenda.done(await take(agenda), Result(Outcome.HUNG))
    agenda.done(await again(agenda, clock, "a"), Result(Outcome.REFUSED))
    assert (await again(agenda, clock, "a")).verdict is None


async def test_success_between_two_deaths_acquits(agenda: Agenda, clock: Clock) -> None:
    for outcome in (Outcome.DIED, Outcome.DIED, Outcome.HANDLED):
        clock.now += 60
        offer(agenda, a=0)
        agenda.done(await take(agenda), Result(outcome, share=1.0))
    assert not (await take(agenda)).is_to_blame(Outcome.DIED)


async def test_a_suspect_that_behaves_gets_larger_batches_until_it_is_none(agenda: Agenda) -> None:
    await make_suspect(agenda, "a")
    limits = []
    for _ in range(12):
        turn = await take(agenda)
        limits.append(turn.limit)
        agenda.done(turn, Result(Outcome.HANDLED, share=0.01))
    assert limits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, None]


async def test_a_slow_suspect_keeps_its_batch_size(agenda: Agenda) -> None:
    await make_suspect(agenda, "a")
    for _ in range(3):
        turn = await take(agenda)
        agenda.done(turn, Result(Outcome.HANDLED, share=0.5))
    assert (await take(agenda)).limit == 1


async def test_suspects_wait_behind_others_whatever_their_priority(agenda: Agenda) -> None:
    await make_suspect(agenda, "bad")
    offer(agenda, good=-5)
    assert await order(agenda, 2) == ["good", "bad"]


async def test_a_suspect_that_has_waited_long_goes_by_priority_again(agenda: Agenda, clock: Clock) -> None:
    await make_suspect(agenda, "bad")
    clock.now += 31
    offer(agenda, good=-5)
    assert await order(agenda, 2) == ["bad", "good"]


async def test_suspects_never_have_all_slots(agenda: Agenda) -> None:
    await make_suspect(agenda, "bad")
    first = await take(agenda)
    offer(agenda, worse=0)
    second = await take(agenda)
    agenda.done(second, Result(Outcome.HUNG))
    assert first.subscription == "bad"
    offer(agenda, good=0)
    assert await order(agenda, 1) == ["good"]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(agenda.take(), 0.01)
    agenda.done(first, Result(Outcome.NOTHING))
    assert (await take(agenda)).subscription == "worse"


async def test_with_one_slot_a_suspect_still_gets_it() -> None:
    agenda = Agenda(slots=1, patience=30.0, clock=Clock())
    await make_suspect(agenda, "bad")
    assert (await take(agenda)).subscription == "bad"


async def test_what_is_refused_is_put_off_for_longer_each_time(agenda: Agenda, clock: Clock) -> None:
    pauses = []
    for _ in range(9):
        offer(agenda, a=0)
        agenda.done(await take(agenda), Result(Outcome.REFUSED))
        began = clock.now
        while agenda.idle:
            clock.now += 0.25
            offer(agenda, a=0)
        pauses.append(clock.now - began)
    assert pauses == [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30]


async def test_settled_returns_when_the_last_turn_is_done(agenda: Agenda) -> None:
    await agenda.settled()
    offer(agenda, a=0)
    turn = await take(agenda)
    settled = asyncio.create_task(agenda.settled())
    await asyncio.sleep(0)  # let it begin to wait
    assert not settled.done()
    agenda.done(turn, Result(Outcome.NOTHING))
    await asyncio.wait_for(settled, 60)


async def test_owners_share_the_time_and_priority_counts_among_an_owners_own(agenda: Agenda, clock: Clock) -> None:
    """A role with many busy subscriptions of high priority, and one with a single one of low priority."""
    agenda.offer([Pending(f"loud{n}", 1_000_000 + n, "loud") for n in range(50)])
    agenda.offer([Pending("quiet", -5, "quiet")])
    served: list[str] = []
    for _ in range(40):
        turn = await take(agenda)
        served.append(turn.subscription)
        clock.now += 1.0 if turn.owner == "loud" else 0.25
        agenda.done(turn, Result(Outcome.HANDLED))
    assert "quiet" in served[:2]
    assert served.count("quiet") >= 20, "as much time for each of the two"
    others = [name for name in served if name != "quiet"]
    assert set(others) == {"loud49"}, "of its own the highest priority first"


async def test_an_owner_that_has_all_slots_leaves_a_runner_to_others(agenda: Agenda) -> None:
    agenda.offer([Pending(f"loud{n}", 9, "loud") for n in range(3)])
    loud = [await take(agenda), await take(agenda)]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(agenda.take(), 0.01)
    agenda.offer([Pending("quiet1", 0, "quiet"), Pending("quiet2", 0, "quiet")])
    quiet = await take(agenda)
    assert quiet.owner == "quiet"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(agenda.take(), 0.01)
    agenda.done(quiet, Result(Outcome.NOTHING))
    quiet = await take(agenda)
    assert quiet.subscription == "quiet2"
    agenda.done(loud[0], Result(Outcome.NOTHING))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(agenda.take(), 0.01)
    agenda.done(quiet, Result(Outcome.NOTHING))
    assert (await take(agenda)).owner == "loud"


async def wanted(agenda: Agenda, turn: Turn) -> bool:
    try:
        await asyncio.wait_for(agenda.wanted(turn), 0.01)
    except TimeoutError:
        return False
    return True


async def test_however_many_owners_take_long_another_one_waits_for_a_slice(agenda: Agenda, clock: Clock) -> None:
    hogs = [f"hog{n}" for n in range(9)]
    agenda.offer([Pending(hog, 9, hog) for hog in hogs])
    running = [await take(agenda) for _ in range(3)]
    clock.now += 20
    assert not await wanted(agenda, running[0]), "who has a slot keeps it"
    tried = []
    while await wanted(agenda, running[-1]):
        tried.append(running[-1].owner)
        agenda.done(running.pop(), Result(Outcome.OUSTED))
        running.append(await take(agenda))
        clock.now += 2
    assert sorted([*tried, running[-1].owner]) == hogs[2:], "each is tried once; then it is known to take long"
    clock.now += 10
    assert await wanted(agenda, running[-1]), "others that take long wait longer, and not for ever"
    agenda.offer([Pending("quick", 0, "quick")])
    assert await wanted(agenda, running[-1])
    agenda.done(running.pop(), Result(Outcome.OUSTED))
    quick = await take(agenda)
    assert (quick.owner, quick.limit) == ("quick", None)
    agenda.done(quick, Result(Outcome.NOTHING))
    hog = await take(agenda)
    assert hog.limit is not None, "and has few events there when nobody else waits"
    agenda.done(running.pop(), Result(Outcome.HANDLED))
    await take(agenda)
    agenda.offer([Pending("quick", 0, "quick")])
    assert not await wanted(agenda, hog), "it has come into a slot, where it has the time that it needs"


async def test_who_takes_long_is_quick_again_when_a_whole_turn_was(agenda: Agenda, clock: Clock) -> None:
    agenda.offer([Pending(f"hog{n}", 9, "hog") for n in range(2)])
    hogs = [await take(agenda), await take(agenda)]
    limits = []
    for seconds in (2, 0.1, 0.1):
        agenda.offer([Pending("a", 0, "a")])
        turn = await take(agenda)
        limits.append(turn.limit is None)
        clock.now += seconds
        agenda.done(turn, Result(Outcome.HANDLED, more=False))
    assert limits == [True, False, False]
    agenda.done(hogs[0], Result(Outcome.HANDLED, more=False))
    for _ in range(2):
        agenda.offer([Pending("a", 0, "a")])
        turn = await take(agenda)
        assert turn.limit is None
        agenda.done(turn, Result(Outcome.HANDLED, more=False))


async def test_who_was_idle_has_saved_nothing_up(agenda: Agenda, clock: Clock) -> None:
    agenda.offer([Pending("a", 0, "a")])
    for _ in range(10):
        turn = await take(agenda)
        clock.now += 10
        agenda.done(turn, Result(Outcome.HANDLED))
    agenda.offer([Pending("b", 0, "b")])
    owners = []
    for _ in range(6):
        turn = await take(agenda)
        owners.append(turn.owner)
        clock.now += 1
        agenda.done(turn, Result(Outcome.HANDLED))
    assert sorted(owners) == ["a", "a", "a", "b", "b", "b"]


async def test_a_turn_that_runs_counts_for_its_owner(agenda: Agenda, clock: Clock) -> None:
    agenda.offer([Pending("a1", 9, "a"), Pending("a2", 9, "a"), Pending("b", 0, "b")])
    first = await take(agenda)
    clock.now += 1
    second = await take(agenda)
    assert (first.owner, second.owner) == ("a", "b")
