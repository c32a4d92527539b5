"""`pgps publish`: one event from the command line, many from a file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import psycopg
import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from pgps import _catalogue
from pgps.cli import _statements
from pgps.cli._command import Session, command
from pgps.cli._errors import WrongUsage
from pgps.cli._format import count, counted
from pgps.cli._sources import Event, Format, Source, chunks, document, open_source
from pgps.cli.event_types import Name, Reliability, Visibility
from pgps.errors import PgpsError, from_database

__all__ = ["register"]

_PRODUCER = "Name of this source: what it has sent before under the same number is not published again."


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "publish", changes=True)(publish)


@dataclass(frozen=True, slots=True)
class _Manner:
    """How to publish; None leaves it to the type's defaults."""

    event_type: str
    visibility: str | None
    reliability: str | None
    producer: str | None
    first_number: int


@dataclass(slots=True)
class _Tally:
    events: int = 0
    last_id: int | None = None


def publish(
    session: Session,
    event_type: Name,
    payload: Annotated[
        str | None, typer.Argument(metavar="[JSON|-]", help="An object, an array of objects, or - for stdin.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="ndjson, json or csv; .gz is unpacked.")
    ] = None,
    file_format: Annotated[Format | None, typer.Option("--format", help="When the name does not tell.")] = None,
    chunk: Annotated[int, typer.Option(min=1, help="Events in one transaction.")] = 1_000,
    atomic: Annotated[bool, typer.Option("--atomic", help="All in one transaction, or nothing.")] = False,
    visibility: Annotated[Visibility | None, typer.Option(help="Other than the type's default.")] = None,
    reliability: Annotated[Reliability | None, typer.Option(help="Other than the type's default.")] = None,
    producer: Annotated[str | None, typer.Option(metavar="NAME", help=_PRODUCER)] = None,
    producer_seq: Annotated[int, typer.Option(metavar="N", help="Number of the first event.")] = 1,
) -> None:
    """Publish events.

    With --producer each event has a number, from --producer-seq up. A file
    that was sent in part can be sent again: what arrived the first time is
    not published twice.

    Example: pgps publish quote '{"symbol": "IBM", "price": 79.5}'
    """
    if (payload is None) == (file is None):
        raise WrongUsage("Give either JSON, or - for stdin, or --file.")
    if session.options.dry_run or atomic:
        _require_deferred(session, event_type, visibility)
    manner = _Manner(
        event_type,
        visibility.value if visibility else None,
        reliability.value if reliability else None,
        producer,
        producer_seq,
    )
    tally = _Tally()
    atomic = atomic or session.options.dry_run
    with _transaction(session, atomic=atomic):
        if payload is not None and payload != "-":
            _send(session, manner, document(payload), tally)
        else:
            with open_source(file or "-", format=file_format) as source:
                _send_all(session, manner, source, chunk, tally, atomic=atomic)
    last = "" if tally.last_id is None or session.options.dry_run else f", the last with id {tally.last_id}"
    what = f"{count(tally.events)} event{'' if tally.events == 1 else 's'}"
    done = f'{what} published as "{event_type}"' if producer is None else f'{what} sent to "{event_type}" by {producer}'
    session.told(
        done + last,
        event_type=event_type,
        events=tally.events,
        last_event_id=tally.last_id,
    )


def _require_deferred(session: Session, event_type: str, visibility: Visibility | None) -> None:
    """Raise WrongUsage when the events could not be taken back, by the option or by the type's default."""
    if visibility is None:
        usual = [row["visibility"] for row in session.rows(_catalogue.event_types(event_type))]
        visibility = Visibility(usual[0]) if usual else None
    if visibility is Visibility.IMMEDIATE:
        raise WrongUsage(
            "An immediate event cannot be taken back, so there is no dry run of it, and no --atomic. "
            "With --visibility deferred events become visible at the commit."
        )


@contextlib.contextmanager
def _transaction(session: Session, *, atomic: bool) -> Iterator[None]:
    if not atomic:
        yield
        return
    with session.connection.transaction(force_rollback=session.options.dry_run):
        yield


def _send_all(session: Session, manner: _Manner, source: Source, chunk: int, tally: _Tally, *, atomic: bool) -> None:
    """Send a whole source, chunk by chunk, with a progress bar on a terminal."""
    with _progress(session, source) as advance:
        events: list[Event] = []
        try:
            for events in chunks(source, chunk):
                _send(session, manner, events, tally)
                advance(tally.events)
        except psycopg.Error as error:
            told = from_database(error)
            told.message += f" ({source.name}, lines {events[0].line} to {events[-1].line})"
            raise _with_rest(told, tally, atomic=atomic) from error
        except PgpsError as error:
            raise _with_rest(error, tally, atomic=atomic) from error
        except KeyboardInterrupt:
            if tally.events and not atomic:
                session.told(f"interrupted; published until then: {counted(tally.events, 'event')}")
            raise


def _with_rest(error: PgpsError, tally: _Tally, *, atomic: bool) -> PgpsError:
    """Return the error, which also says how much had been published before."""
    if tally.events and not atomic:
        error.message += f"; what comes before is published: {counted(tally.events, 'event')}"
    return error


def _send(session: Session, manner: _Manner, events: list[Event], tally: _Tally) -> None:
    """Send events in one transaction and one call; with a producer they have consecutive numbers."""
    call = {
        "event_type": manner.event_type,
        "payload": events[0].text if len(events) == 1 else "[" + ",".join(event.text for event in events) + "]",
        "visibility": manner.visibility,
        "reliability": manner.reliability,
        "producer": manner.producer,
        "producer_seq": None if manner.producer is None else manner.first_number + tally.events,
    }
    if session.options.show_sql:
        session.show([psycopg.ClientCursor(session.connection).mogrify(_statements.PUBLISH, call)])
    tally.last_id = session.rows(_statements.PUBLISH, call)[-1]["publish"]
    tally.events += len(events)


@contextlib.contextmanager
def _progress(session: Session, source: Source) -> Iterator[Callable[[int], None]]:
    """Give a function to call with the number of events sent so far."""
    console = session.out.stderr
    if session.out.json or not console.is_terminal:
        yield lambda _: None
        return
    columns = [SpinnerColumn(), TextColumn("{task.description}")]
    if source.size_bytes is not None:
        columns += [BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn()]
    columns += [TextColumn("{task.fields[events]} events, {task.fields[rate]}/s")]
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(source.name, total=source.size_bytes, events="0", rate="0")

        def advance(events: int) -> None:
            elapsed = progress.tasks[0].elapsed or 0.0
            rate = count(round(events / elapsed)) if elapsed else "0"
            progress.update(task, completed=source.position(), events=count(events), rate=rate)

        yield advance
