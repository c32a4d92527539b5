"""How much of a step the composite events of one owner may take, where others wait for its end."""

from collections.abc import Callable, Iterable
from time import process_time
from typing import Optional

from composite.subjects import Subject

SECONDS_OF_EVENT, SECONDS_OF_COMPOSITE, SECONDS_OF_DETECTION = 50e-6, 2e-3, 60e-6


class Effort:
    """Share out the processor time of a step among owners: each has so many seconds, and some for each of his events.

    seconds: None: nobody counts. end: called with the composite event that is over what its owner has, and does not
    return. What is detected is counted with what it takes to publish it, before anything is written.
    """

    def __init__(self, seconds: Optional[float], subjects: Iterable[Subject], end: Callable[[int], None]) -> None:
        self.end = end
        self.began = 0.0
        self.left: dict[int, float] = {}
        if seconds is not None:
            for subject in subjects:
                own = SECONDS_OF_COMPOSITE + SECONDS_OF_EVENT * subject.size_of_batch
                self.left[subject.owner] = self.left.get(subject.owner, seconds) + own

    def begin(self) -> None:
        """Begin with a composite event."""
        self.began = process_time()

    def heed(self, subject: Subject) -> None:
        """End the step when what has begun takes too long."""
        if self.left and process_time() - self.began > self.left[subject.owner]:
            self.end(subject.id)

    def count(self, subject: Subject) -> None:
        """Count what a composite event has taken and will take; end the step when it is too much."""
        if self.left:
            self.left[subject.owner] -= process_time() - self.began + SECONDS_OF_DETECTION * subject.detections
            if self.left[subject.owner] < 0:
                self.end(subject.id)
