"""Where the broker calls the detector: for a step of composite events, or in the transaction of a publisher."""

import json
from typing import Any

from composite.coupled import detect_in_transaction
from composite.server import take_steps


def detect_step(db: Any, memory: dict[str, Any], text: str) -> dict[str, Any]:
    """Detect as a job says; return what is to be published, or what rules are to be told."""
    job = json.loads(text)
    return detect_in_transaction(db, memory, job) if "coupling" in job else take_steps(db, memory, job)
