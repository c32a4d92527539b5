"""A whole game: the players' programs are started until it is over, and killed on the way."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

from pgps_chess.player import GAME_OVER
from pgps_chess.setup import PLAYERS

__all__ = ["EachStepOnce", "Match", "Mishap", "Seeded"]

# Far more than any game takes. A program that only finds that it is to try later takes its time to start.
_MOST_STARTS = 400


class Mishap(Enum):
    """What happens before a player makes a step."""

    NONE = auto()
    KILL = auto()
    CRASH = auto()


# Decides by colour and number of the step.
Mishaps = Callable[[str, int], Mishap]


class Seeded:
    """Kills and crashes at random, of these only so many; the same seed draws the same ones."""

    def __init__(self, seed: int, *, kills: float, crashes: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - nothing secret
        self._kills = kills
        self._crashes = crashes

    def __call__(self, _colour: str, _step: int) -> Mishap:
        """Draw what happens."""
        drawn = self._random.random()
        if drawn < self._kills:
            return Mishap.KILL
        if self._crashes and drawn > 1 - self._kills / 3:
            self._crashes -= 1
            return Mishap.CRASH
        return Mishap.NONE


class EachStepOnce:
    """Kills each player before each step that it comes to, the first time that it does."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int]] = set()

    def __call__(self, colour: str, step: int) -> Mishap:
        """Look whether this one is new."""
        if (colour, step) in self.seen:
            return Mishap.NONE
        self.seen.add((colour, step))
        return Mishap.KILL


@dataclass
class Match:
    """A game between two programs, over a broker that `crash` kills and starts again."""

    dsn_of: Callable[[str], str]
    game: str
    mishaps: Mishaps
    crash: Callable[[], None]
    together: bool = False
    counts: Counter[str] = field(default_factory=Counter)

    def play(self) -> Counter[str]:
        """Start the players in turns until both say that the game is over; return what was counted.

        One that was killed, or that is to try later, is started again.
        """
        waiting, over = deque(PLAYERS), set[str]()
        while over != set(PLAYERS):
            if self.counts["starts"] > _MOST_STARTS:
                raise RuntimeError(f"the game does not come to its end: {dict(self.counts)}")
            done = self.start(waiting[0])
            if done == GAME_OVER:
                over.add(waiting[0])
            if done is not None:
                waiting.rotate()
        return self.counts

    def start(self, colour: str) -> str | None:
        """Start a player for one move; return what it found or did, None when it was killed or is to try later."""
        self.counts["starts"] += 1
        with self.program(colour) as program:
            assert program.stdin is not None
            assert program.stdout is not None
            try:
                for line in program.stdout:
                    word, _, rest = line.strip().partition(" ")
                    if word == "done":
                        self.counts[rest.partition(" ")[0]] += 1
                        return rest
                    mishap = self.mishaps(colour, int(rest))
                    if mishap is Mishap.KILL:
                        self.counts["killed"] += 1
                        return None
                    if mishap is Mishap.CRASH:
                        self.counts["crashed"] += 1
                        self.crash()
                    program.stdin.write("\n")
                    program.stdin.flush()
                assert program.stderr is not None
                # One that is to try later has said why, which is no news: its session or its server was killed.
                said = program.stderr.read()
                if program.wait() != 75:
                    raise RuntimeError(f"{colour} has ended with exit status {program.returncode}: {said}")
                self.counts["try later"] += 1
                return None
            finally:
                # SIGKILL: the program gets no chance to log off. One that has ended already has done so.
                program.kill()

    def program(self, colour: str) -> subprocess.Popen[str]:
        """Start a player's program, which names each step, and waits for a line before it makes it."""
        options = ["--by-hand", *(["--together"] if self.together else [])]
        return subprocess.Popen(
            [sys.executable, "-m", "pgps_chess", colour, self.dsn_of(colour), self.game, *options],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
