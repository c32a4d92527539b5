"""Run a script: build the network, let it settle, do the steps, repair, wait for rest, compare; publish and compare."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.links.fleet import Fleet
from tests.links.storm import auditing, trace
from tests.links.storm.crew import FAST, Crew
from tests.links.storm.restores import Storm
from tests.links.storm.script import Script
from tests.links.storm.traffic import BASE_TYPES
from tests.links.storm.truth import Finding
from tests.links.storm.verdict import Verdict, complaints, deadlocks, gather, look, rest, routes, sessions, told
from tests.links.storm.world import World

SETTLE_BOUND = 60.0
QUIET = 1.5
QUIET_AFTER_LOSS = 6.0

Progress = Callable[[str, float], None]


def tell(
    fleet: Fleet,
    script: Script,
    *,
    per_second: float = 120.0,
    command: str = "",
    progress: Progress | None = None,
    reports: Path | None = None,
) -> Verdict:
    """Run a script on a fleet of servers and return the verdict; the fleet is empty afterwards.

    `reports`: a directory for the logs of the workers when it was not clean.
    """
    say = progress or (lambda what, share: None)
    verdict = Verdict(script.seed, script.name, command, str(script), began=time.time())
    started = time.monotonic()

    def done(phase: str) -> None:
        verdict.phases[phase] = time.monotonic() - started - sum(verdict.phases.values())

    with tempfile.TemporaryDirectory(prefix="pgps-storm-") as directory:
        crew = Crew(Path(directory), pulse=FAST if script.name == "random" and script.seed % 2 == 0 else 1.0)
        world = Storm(fleet, crew, script, per_second)
        try:
            say("build", 0.0)
            world.build()
            done("build")
            say("settle", 0.1)
            settle(world)
            done("settle")
            _play(world, say)
            done("storm")
            _judge(world, verdict, say)
            done("rest")
            if reports and not verdict.is_clean:
                reports.mkdir(parents=True, exist_ok=True)
                for log in Path(directory).glob("*.log"):
                    shutil.copy(log, reports / f"{script.name}-{script.seed}-{log.name}")
                for name, member in world.members.items():
                    told_of = reports / f"{script.name}-{script.seed}-trace-{name}.txt"
                    told_of.write_text("\n".join(trace.read(member.admin)) + "\n")
        except BaseException as error:
            error.add_note(verdict.command)
            error.add_note("\n".join(told(world) + complaints(world)))
            raise
        finally:
            world.close()
            crew.close()
    verdict.took = time.monotonic() - started
    return verdict


def settle(world: World) -> None:
    """Publish at all brokers until every subscription has events from each of them: then all filters are in force."""
    deadline = time.monotonic() + SETTLE_BOUND
    publishing, published = 0.0, 0
    while True:
        if time.monotonic() > publishing + 1.0:
            world.round(list(BASE_TYPES))
            publishing, published = time.monotonic(), published + 1
        for subscription in world.subscriptions:
            world.read(subscription)
        for name in world.members:
            world.note_own(name)
        lacks = [one.name for one in world.subscriptions if not _has_all_homes(world, one.broker, one.name)]
        if not lacks and published > 1:
            break
        assert time.monotonic() < deadline, f"the network does not settle: {lacks} lack something"
        time.sleep(0.1)  # before everybody is asked again
    now = time.time()
    for subscription in world.subscriptions:
        subscription.be_sure(world.members, BASE_TYPES, now)


def _has_all_homes(world: World, broker: str, name: str) -> bool:
    """Return whether a subscription has an event of each type that it wants from each broker."""
    found = next(one for one in world.subscriptions_at(broker) if one.name == name)
    events = world.truth.events
    wanted = {(event.home, event.type) for event in events.values() if found.wants(event)}
    return wanted == {(events[n].home, events[n].type) for n in found.got if n in events}


def _play(world: Storm, say: Progress) -> None:
    world.publish()
    undone_at = 0.0
    for step in world.script.steps:
        while world.now < step.at:
            time.sleep(max(0.0, min(step.at - world.now, 0.25)))
            if world.undone and world.now > undone_at + 0.25:
                world.do_undone()
                undone_at = world.now
        say(str(step), 0.2 + 0.5 * min(1.0, world.now / world.script.seconds))
        world.do(step)
    while world.now < world.script.seconds:
        time.sleep(0.1)  # the script ends by the clock
        world.do_undone()
    if world.script.calm:
        world.hush()
    world.mend()
    if not world.script.calm:
        # Load goes on for a while over the mended network; how much of it falls into that is the storm's own chance.
        time.sleep(2.0)
        world.hush()


def _judge(world: Storm, verdict: Verdict, say: Progress) -> None:
    """Compare when the network is at rest, and once more after a last round of events."""
    say("rest", 0.75)
    problems = rest(world, quiet=QUIET)
    stuck: list[str] = []
    if problems:
        stuck = [f"the worker of {name} has gone" for name in world.crew.ask_for_stacks()]
        verdict.sessions = [*problems, *sessions(world), *routes(world)]
        stuck += world.force()
        problems = rest(world, quiet=QUIET)
    say("compare", 0.85)
    before = look(world, verdict)
    if before:
        # Events that are only late get more time; nothing is published meanwhile.
        problems = rest(world, quiet=QUIET_AFTER_LOSS)
        before = look(world, verdict)
    if not problems:
        # The network is at rest, so every filter is in force at every broker.
        for subscription in world.subscriptions:
            subscription.be_sure(world.members, world.types, time.time())
    say("a last round", 0.9)
    world.round(world.types)
    problems_after = rest(world, quiet=QUIET)
    verdict.findings = look(world, verdict)
    if len(verdict.findings) > len(before):
        problems_after = rest(world, quiet=QUIET_AFTER_LOSS)
        verdict.findings = look(world, verdict)
    verdict.late = _only_before(before, verdict.findings)
    verdict.problems = stuck + [f"at rest: {said}" for said in problems]
    verdict.problems += [f"after a last round: {said}" for said in problems_after if said not in problems]
    verdict.problems += auditing.compare(world, verdict.findings)
    verdict.remarks = world.remarks + deadlocks(world)
    verdict.told = told(world)
    if not verdict.is_clean:
        gather(world, verdict)


def _only_before(before: list[Finding], after: list[Finding]) -> list[Finding]:
    """Return what was missing while nothing was published, and has come since."""
    still = {(one.broker, one.subscription, n) for one in after for n in one.ns if one.kind == "missing"}
    came = []
    for one in before:
        ns = tuple(n for n in one.ns if (one.broker, one.subscription, n) not in still)
        if one.kind == "missing" and ns:
            came.append(Finding("late", one.broker, one.subscription, one.home, one.type, ns, one.said))
    return came
