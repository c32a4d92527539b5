"""A script says what is done to a network, and when: one line for each step, so that it can be kept, cut and run again.

seed 7
seconds 25
broker a 0          a broker, on which server
link a b            a link that a defines
publish a b c       who publishes
keep a all t* ge5   a subscription from the beginning: broker, name, types, filter
at 1.20 drop a b    a step
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

Pair = tuple[str, str]
"""A link: who defines it, and the other side."""


@dataclass(frozen=True)
class Step:
    """An action with its time, in seconds since publishing began."""

    at: float
    what: str
    args: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"at {self.at:.2f} {' '.join((self.what, *self.args))}"


@dataclass(frozen=True)
class Keep:
    """A subscription that exists from the beginning to the end."""

    broker: str
    name: str
    pattern: str
    filter: str


@dataclass
class Script:
    """The plan of a story: brokers, links, publishers, subscriptions and steps."""

    seed: int = 0
    seconds: float = 25.0
    name: str = "random"
    brokers: dict[str, int] = field(default_factory=dict)
    links: list[Pair] = field(default_factory=list)
    publishers: list[str] = field(default_factory=list)
    keeps: list[Keep] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    calm: bool = True
    """Publishing ends before what is broken is mended: the network has to get complete without traffic."""

    def __str__(self) -> str:
        lines = [f"name {self.name}", f"seed {self.seed}", f"seconds {self.seconds:g}", f"calm {int(self.calm)}"]
        lines += [f"broker {name} {server}" for name, server in self.brokers.items()]
        lines += [f"link {low} {high}" for low, high in self.links]
        lines += [f"publish {' '.join(self.publishers)}"]
        lines += [f"keep {k.broker} {k.name} {k.pattern} {k.filter}" for k in self.keeps]
        lines += [str(step) for step in self.steps]
        return "\n".join(lines) + "\n"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a script; lines that begin with # are left out."""
        made = cls()
        for line in text.splitlines():
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            try:
                made = made._with(words[0], words[1:])
            except (ValueError, IndexError, TypeError) as error:
                raise ValueError(f"cannot read {line!r}: {error}") from error
        made.steps.sort(key=lambda step: step.at)
        return made

    def _with(self, word: str, rest: list[str]) -> Self:
        match word:
            case "name":
                return replace(self, name=rest[0])
            case "seed":
                return replace(self, seed=int(rest[0]))
            case "seconds":
                return replace(self, seconds=float(rest[0]))
            case "calm":
                return replace(self, calm=rest[0] != "0")
            case "broker":
                self.brokers[rest[0]] = int(rest[1])
            case "link":
                self.links.append((rest[0], rest[1]))
            case "publish":
                self.publishers.extend(rest)
            case "keep":
                self.keeps.append(Keep(*rest))
            case "at":
                self.steps.append(Step(float(rest[0]), rest[1], tuple(rest[2:])))
            case _:
                raise ValueError(f'unknown word "{word}"')
        return self

    @property
    def servers(self) -> int:
        """Return on how many servers the brokers are."""
        return max(self.brokers.values()) + 1

    def on(self, server: int) -> list[str]:
        """Return the brokers of a server."""
        return [name for name, place in self.brokers.items() if place == server]


Filter = tuple[str | None, Callable[[int], bool]]
"""What a broker is told, None for no filter, and the same over the attribute m in Python."""


def _at_least(k: int) -> Filter:
    return f"m >= {k}", lambda m: m >= k


def _equal(k: int) -> Filter:
    return f"m = {k}", lambda m: m == k


def _between(k: int) -> Filter:
    return f"m between {k} and {k + 3}", lambda m: k <= m <= k + 3


def _stored(k: int) -> Filter:
    """Return a filter over a table, which is not sent over a link; the condition before it is sent."""
    return f"m >= {k} and m in (select v from storm.odd)", lambda m: m >= k and m % 2 == 1


FILTERS: dict[str, Filter] = {
    "any": (None, lambda m: True),
    "odd": ("m in (select v from storm.odd)", lambda m: m % 2 == 1),
    **{f"ge{k}": _at_least(k) for k in range(1, 9)},
    **{f"eq{k}": _equal(k) for k in range(10)},
    **{f"in{k}": _between(k) for k in range(7)},
    **{f"odd{k}": _stored(k) for k in range(1, 8)},
}
"""Filters by the names that scripts use."""
