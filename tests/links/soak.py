"""Stories with fresh seeds, until stopped or for a time: `make soak SECONDS=600 ARGS='--brokers 7'`."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path

from tests.links.chaos import Plan
from tests.links.disasters import tell
from tests.links.fleet import make_fleet


def plan_of(seed: int, brokers: int | None, steps: int | None) -> Plan:
    """What the story of a seed is like: from three brokers to seven, with or without trimmed logs."""
    chance = random.Random(seed * 7919 + 1)
    plan = Plan(
        brokers=chance.randint(3, 6), redundant=chance.randint(0, 4), steps=chance.randint(100, 400),
        crashes=chance.randint(0, 2), physical=chance.randint(0, 1), restores=chance.randint(0, 2),
        clones=chance.randint(0, 1), trims=chance.choice([0, 0, 4]),
    )  # fmt: skip
    return replace(plan, brokers=brokers or plan.brokers, steps=steps or plan.steps)


def main() -> int:
    """Run stories; print one line for each, and the totals; 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.0, help="how long; 0 is until stopped")
    parser.add_argument("--seed", type=int, help="only this story")
    parser.add_argument("--stories", type=int, default=0, help="how many at most")
    parser.add_argument("--brokers", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    args = parser.parse_args()
    began, failed, totals = time.monotonic(), 0, Counter[str]()
    with tempfile.TemporaryDirectory(prefix="pgps-soak-") as home:
        Path(home).chmod(0o711)
        fleet = make_fleet(Path(home), "soak", 2)
        try:
            while not args.seconds or time.monotonic() - began < args.seconds:
                seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1_000_000_000)
                started = time.monotonic()
                try:
                    story = tell(fleet, seed, plan_of(seed, args.brokers, args.steps))
                except Exception:
                    failed += 1
                    print(f"seed {seed}: FAILED", flush=True)
                    traceback.print_exc()
                    if not args.keep_going:
                        break
                else:
                    totals += Counter(
                        stories=1,
                        steps=sum(story.done.values()),
                        deliveries=story.oracle.checked,
                        gaps=story.oracle.gaps,
                    )
                    totals += Counter(
                        {key: story.done[key] for key in ("crash", "physical", "restore", "clone", "trim")}
                    )
                    took = time.monotonic() - started
                    print(f"seed {seed}: {took:.1f} s; so far {dict(totals)}", flush=True)
                if args.seed is not None or (args.stories and totals["stories"] + failed >= args.stories):
                    break
        except KeyboardInterrupt:
            pass
        finally:
            fleet.close()
    print(f"{time.monotonic() - began:.0f} s, {failed} failed, {dict(totals)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
