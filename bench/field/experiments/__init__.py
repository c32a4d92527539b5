"""One module an experiment, in the order of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.field.experiments import (
    fanout,
    guaranteed,
    held,
    latency,
    produce,
    profile,
    retry,
    stored,
    sustained,
    transactional,
)

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["EXPERIMENTS"]

EXPERIMENTS: dict[str, ModuleType] = {
    "stored": stored,
    "guaranteed": guaranteed,
    "transactional": transactional,
    "produce": produce,
    "fanout": fanout,
    "sustained": sustained,
    "latency": latency,
    "retry": retry,
    "held": held,
    "profile": profile,
}
