"""Rows that are no events, published as events of another type: the dead letters of a job. One row stops nothing."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
import pyarrow as pa

from pgps.errors import BadArgument, PgpsError
from pgps_spark.check import find_event_type
from pgps_spark.copying import copied_in
from pgps_spark.encoding import row_as_json
from pgps_spark.errors import database_errors

__all__ = ["Rejects", "find_rejects", "rejects_job", "rejects_load"]

# What is known of a rejected row, by the attribute that takes it.
_KNOWN = ("event_type", "source", "error", "sqlstate", "job")


@dataclass(frozen=True, slots=True)
class Rejects:
    """The event type that rejected rows are published as, with those of the known attributes that it has."""

    name: str
    attributes: tuple[str, ...]

    def bring_in(
        self,
        connection: psycopg.Connection,
        refused: list[tuple[pa.RecordBatch, int, PgpsError]],
        *,
        event_type: str,
        job: str,
        load: str,
        part: str,
    ) -> int:
        """Copy what is known of refused rows (batch, place, error) into the load of the rejects; return how many."""
        values = {
            "event_type": [event_type] * len(refused),
            "source": [row_as_json(rows, place) for rows, place, _ in refused],
            "error": [error.message for _, _, error in refused],
            "sqlstate": [error.sqlstate for _, _, error in refused],
            "job": [job] * len(refused),
        }
        with database_errors():
            row = connection.execute("select pgps.begin_load(%s, %s)", [self.name, rejects_load(load)]).fetchone()
        assert row is not None
        columns = [pa.array(values[name], type=pa.string()) for name in self.attributes]
        batch = pa.record_batch(columns, names=list(self.attributes))
        return copied_in(connection, row[0], [batch], {"pgps_part": part})


def find_rejects(connection: psycopg.Connection, name: str) -> Rejects:
    """Return the event type for rejects, which this role may publish; raises what find_event_type does, BadArgument."""
    found = find_event_type(connection, name)
    attributes = tuple(attribute.name for attribute in found.attributes if attribute.name in _KNOWN)
    strange = [a.name for a in found.attributes if a.name not in _KNOWN and a.not_null and not a.has_default]
    if "source" not in attributes or strange:
        raise BadArgument(
            f'event type "{found.name}" cannot take rejected rows: '
            + (f'nothing fills "{strange[0]}"' if strange else 'it has no attribute "source"'),
            hint=f"Make one with: select pgps.create_event_type('{found.name}', 'event_type text, source jsonb, "
            "error text, sqlstate text, job text')",
            sqlstate="22023",
        )
    return Rejects(found.name, attributes)


def rejects_load(load: str) -> str:
    """Return the name of the load for a load's rejects."""
    return f"{load}/rejects"


def rejects_job(job: str) -> str:
    """Return the job under which the rejects of a job are claimed."""
    return f"{job}/rejects"
