"""What becomes of a row that Spark cannot represent: the option `mode`, by the names that Spark's own readers use.

failfast        the read fails, and says which event, column and value
permissive      the value is null, and the column _corrupt_record says what it was
dropmalformed   the row is left out; how many, the log of the task says
deadletter      streams only, and their default: the event goes to the exception queue of the subscription
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t

from pgps.errors import BadArgument
from pgps_spark.columns import EVENT

__all__ = ["CORRUPT", "DEADLETTER", "FAILFAST", "MODES", "PERMISSIVE", "Misfits", "mode_of"]

FAILFAST = "failfast"
PERMISSIVE = "permissive"
DROPMALFORMED = "dropmalformed"
DEADLETTER = "deadletter"
MODES = (FAILFAST, PERMISSIVE, DROPMALFORMED)
CORRUPT = t.StructField("_corrupt_record", t.StringType(), True)
_HINT = 'Read it as text with .schema("… string"), or say with option mode what becomes of such rows.'
# How many characters of a value are shown.
_SHOWN = 60
# An event's id, by what a schema of the user's leaves as it is.
_IDS = (EVENT.name, "event_id")
_log = logging.getLogger(__name__)


def mode_of(given: str | None, *, streaming: bool) -> str:
    """Return the mode that an option names, or the default. Raises BadArgument."""
    modes = (*MODES, DEADLETTER) if streaming else MODES
    mode = (given or (DEADLETTER if streaming else FAILFAST)).lower()
    if mode not in modes:
        raise BadArgument(
            f'invalid mode "{given}"',
            hint=f"There are {', '.join(modes)}."
            + ("" if streaming else " A queue has no subscription: deadletter is for streams."),
        )
    return mode


@dataclass(frozen=True, slots=True)
class Misfits:
    """Deals with rows that Spark has no values for.

    `reject` puts events, by their ids and with reasons, into an exception queue.
    """

    mode: str = FAILFAST
    reject: Callable[[list[int], list[str]], None] | None = None

    def settled(self, rows: pa.Table, complaints: Sequence[str | None]) -> pa.Table:
        """Return the rows that Spark gets.

        A row's complaint is JSON: [column, value, type] for each value that does not fit, separated by commas. It is
        None for most rows, and if no row has one, there are no complaints at all.
        """
        if not any(complaints):
            return self._with_corrupt(rows, complaints)
        unfit = [place for place, complaint in enumerate(complaints) if complaint]
        if self.mode == PERMISSIVE:
            return self._with_corrupt(rows, complaints)
        name = next((each for each in _IDS if each in rows.column_names), None)
        ids = rows.column(name).take(unfit).to_pylist() if name else []
        reasons = [_told(complaints[place]) for place in unfit]
        if self.mode == FAILFAST:
            raise BadArgument(f"event {ids[0]}: {reasons[0]}" if ids else reasons[0], hint=_HINT)
        if self.mode == DEADLETTER:
            assert self.reject is not None
            self.reject(ids, reasons)
        _log.warning("%s rows cannot be represented in Spark, the first: event %s", len(unfit), ids[0] if ids else "?")
        return rows.filter(pa.array([not complaint for complaint in complaints]))

    def _with_corrupt(self, rows: pa.Table, complaints: Sequence[str | None]) -> pa.Table:
        if self.mode != PERMISSIVE:
            return rows
        told = pa.array(map(_record, complaints), type=pa.string()) if complaints else pa.nulls(len(rows), pa.string())
        return rows.append_column(CORRUPT.name, told)


def _parsed(complaint: str | None) -> list[list[Any]]:
    return json.loads(f"[{complaint}]") if complaint else []


def _told(complaint: str | None) -> str:
    return "; ".join(
        f"{column} {value if len(value) <= _SHOWN else value[:_SHOWN] + '…'} is no {kind}"
        for column, value, kind in _parsed(complaint)
    )


def _record(complaint: str | None) -> str | None:
    found = _parsed(complaint)
    return json.dumps({column: value for column, value, _ in found}) if found else None
