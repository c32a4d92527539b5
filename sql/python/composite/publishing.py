"""What was detected becomes events: as sets, and one by one where one is too large for jsonb."""

from collections.abc import Iterator, Sequence
from typing import Any

from composite.insertion import Statement
from composite.limits import portions
from composite.memo import write_given
from composite.occurrences import bind
from composite.points import TIME_BITS
from composite.queries import SAFE, Queries
from composite.raised import is_fatal, is_too_large
from composite.sequence import as_found
from composite.stepping import Found
from composite.subjects import Subject
from composite.told import PairTeller, tell_part, write_few, write_parts
from lexer import SqlTextError


def publish(queries: Queries, subjects: list[Subject], broker: str) -> None:
    """Publish what was detected, of all composite events as one publication of each owner."""
    moments: dict[int, str] = {}
    told = [subject for subject in subjects if subject.pairs or subject.found]
    ids = queries.event_ids(sum(subject.detections for subject in told)) if told else []
    statements: list[Statement] = []
    at = 0
    for subject in told:
        own = ids[at : at + subject.detections]
        at += subject.detections
        columns, texts = detected(subject, broker, moments)
        first = 0
        for parts in portions(texts, subject.size_of_batch, subject.at_hand):
            behind = first + len(parts)
            if len(parts) == len(own):
                statements += publish_parts(queries, subject, own, [*columns, parts], first)
            else:
                few = [column[first:behind] for column in columns]
                statements += publish_parts(queries, subject, own[first:behind], [*few, parts], first)
            first = behind
    queries.record(statements)


def publish_parts(
    queries: Queries, subject: Subject, ids: Sequence[int], columns: list[list[Any]], first: int
) -> list[Statement]:
    """Publish some of what was detected, from the one at place `first` on; return what is to be recorded.

    What has too many constituents goes to the exception queue, and the others go on.
    """
    if not subject.refused:
        return publish_portion(queries, subject, ids, columns, first)
    statements: list[Statement] = []
    at = 0
    for place in [*(place for place in range(len(ids)) if first + place in subject.refused), len(ids)]:
        if at < place:
            part = [column[at:place] for column in columns]
            statements += publish_portion(queries, subject, ids[at:place], part, first + at)
        if place < len(ids):
            one = [column[place : place + 1] for column in columns]
            queries.fail(subject.job, one, "54000", subject.refused[first + place])
        at = place + 1
    return statements


def publish_portion(
    queries: Queries, subject: Subject, ids: Sequence[int], columns: list[list[Any]], first: int
) -> list[Statement]:
    """Publish some of what was detected, from the one at place `first` on; return what is to be recorded.

    What is too large, or no JSON, goes to the exception queue, and the others go on.
    """
    parts = columns[-1]
    is_small = len(parts[0]) <= SAFE and (len(parts) == 1 or sum(map(len, parts)) <= SAFE)
    if is_small and not queries.is_careful:
        return insert(queries, subject, ids, columns, first)
    try:
        with queries.db.subtransaction():
            return insert(queries, subject, ids, columns, first)
    except queries.db.SPIError as error:
        if not (is_too_large(error) or (queries.is_careful and not is_fatal(error) and error.sqlstate[:2] != "23")):
            raise
        state, message = error.sqlstate, str(error)
        what = "together too large for JSON" if is_too_large(error) else "no JSON"
    if len(ids) == 1:
        reason = f"the events of this detection are {what} ({message})"
        queries.fail(subject.job, [*columns[:-1], [told_without_payloads(subject, first)]], state, reason)
        return []
    half = len(ids) // 2
    return [
        *publish_portion(queries, subject, ids[:half], [column[:half] for column in columns], first),
        *publish_portion(queries, subject, ids[half:], [column[half:] for column in columns], first + half),
    ]


def insert(
    queries: Queries, subject: Subject, ids: Sequence[int], columns: list[list[Any]], first: int
) -> list[Statement]:
    """Put some of what was detected into the log, with its attributes; return what is to be recorded."""
    if not subject.job["binds"]:
        return [queries.publish(subject.job, ids, columns)]
    definition = subject.known.definition
    names = [one.name for one in definition.attributes]
    found = subject.found[first : first + len(ids)]
    bound = [write_given(bind(definition, one.occurrence)) for one in found]
    return queries.publish_made(subject.job, names, ids, columns, bound)


def told_without_payloads(subject: Subject, place: int) -> str:
    """Return the constituents of what was detected, as far as they always fit."""
    if subject.job["asked"] is not None:
        return "[]"
    if subject.pairs:
        assert subject.state is not None
        assert subject.state.sequence is not None
        (found,) = as_found(subject.state.sequence, [subject.pairs[place]])
    else:
        found = subject.found[place]
    return write_few(subject.known.definition, found.occurrence)


def tell_each(subject: Subject, found: list[Found]) -> Iterator[str]:
    """Return the constituents of what was detected; those of what has too many as far as they always fit."""
    definition = subject.known.definition
    for place, one in enumerate(found):
        try:
            text = write_parts(definition, one.occurrence)
        except SqlTextError as error:
            subject.refused[place] = error.message
            text = write_few(definition, one.occurrence)
        yield text


def detected(subject: Subject, broker: str, moments: dict[int, str]) -> tuple[list[list[Any]], Iterator[str]]:
    """Return what was detected as columns, and its constituents, which are written when they are asked for.

    Start, end and detection in microseconds, both bounds as points; end and detection are one object where they are
    the same. Payloads are put into the constituents as they are. moments: times as text.
    """
    definition = subject.known.definition
    parts: Iterator[str]
    if subject.pairs:
        starts = [firsts[0][1] for _, firsts, _ in subject.pairs]
        ends = found_at = [last[2] for _, _, last in subject.pairs]
        tell = PairTeller(definition, moments, subject.known.heads).write
        parts = (tell(firsts, last) for _, firsts, last in subject.pairs)
    elif subject.job["asked"] is not None:
        told = [tell_part(one, subject.job["asked"], broker) for one in subject.found]
        starts, ends = [one[1] for one, _ in told], [one[2] for one, _ in told]
        found_at = [one.point for one in subject.found]
        parts = (text for _, text in told)
    else:
        found = [one.occurrence for one in subject.found]
        starts, ends = [one[1] for one in found], [one[2] for one in found]
        found_at = [one.point for one in subject.found]
        parts = tell_each(subject, subject.found)
    detection_times = [point >> TIME_BITS for point in found_at]
    end_times = detection_times if ends == found_at else [point >> TIME_BITS for point in ends]
    return [[point >> TIME_BITS for point in starts], end_times, detection_times, starts, ends], parts
