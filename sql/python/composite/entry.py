"""Where the broker calls the detector: for a step, in the transaction of a publisher, for an altered definition."""

import json
from typing import Any

from composite.coupled import detect_in_transaction
from composite.server import take_steps
from composite.takeover import take_over


def detect_step(db: Any, memory: dict[str, Any], text: str) -> Any:
    """Do what a job says; return what is to be published, what rules are to be told, or how many rows are open."""
    job = json.loads(text)
    if "to" in job:
        return take_over(db, memory, job)
    return detect_in_transaction(db, memory, job) if "coupling" in job else take_steps(db, memory, job)
