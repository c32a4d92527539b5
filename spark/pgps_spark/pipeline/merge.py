"""Putting the small directories of an archive together, whoever else is at work there.

A directory made of others names in its file _covers which these are, and its own files. What is covered is removed when
all these files are in their place: where a rename copies file by file (s3a), a kill leaves some of them. Such a rest is
one more directory to put together, and the originals are still there. Who only reads leaves out what is there twice.

Several runs may be at work at once. Each has a working directory of its own, and that of another one is removed only
when nothing has been written there for a day.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from pgps.errors import WrongState
from pgps_spark.pipeline.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["clean", "read", "together"]

_COVERS = "_covers"
_TOGETHER = "batch=together-"
_WORK = ("_together", "_new-")
_LEFT_SECONDS = 86_400.0
# A file of Parquet holds this many events, about.
_EVENTS_PER_FILE = 1_000_000


def together(spark: SparkSession, directory: str, key: list[str]) -> None:
    """Put the small directories of each day together; of rows with the same `key` one is kept.

    Raises WrongState when what was written is not all there; what was to be put together stays then.
    """
    files = Files(spark, directory)
    work = f"{directory}/_together-{uuid.uuid4().hex[:12]}"
    for day in files.children(directory, prefix="date="):
        places = {
            batch: f"{directory}/{day}/{batch}" for batch in files.children(f"{directory}/{day}", prefix="batch=")
        }
        places = {batch: place for batch, place in places.items() if _parts(files, place)}
        if len(places) < 2:
            continue
        for alike in _alike(spark, places):
            if len(alike) > 1:
                _put(spark, files, [places[batch] for batch in alike], key, work, f"{directory}/{day}")
    files.remove(work)


def _put(spark: SparkSession, files: Files, places: list[str], key: list[str], work: str, day: str) -> None:
    """Make one directory of several, and remove them."""
    name = f"{_TOGETHER}{uuid.uuid4().hex[:12]}"
    made = f"{work}/{name}"
    # Attributes come and go: the columns are those of all files.
    df = spark.read.option("mergeSchema", "true").parquet(*places)
    wanted = df.select(*key).distinct().count()
    parts = max(1, wanted // _EVENTS_PER_FILE)
    df.repartition(parts, *key).dropDuplicates(key).sortWithinPartitions("event_id").write.parquet(made)
    covers = {"covers": [place.rpartition("/")[2] for place in places], "files": _parts(files, made)}
    files.write_json(f"{made}/{_COVERS}", covers)
    found = spark.read.schema(df.schema).parquet(made).count()
    if found == wanted:
        files.move(made, f"{day}/{name}")
    if found != wanted or not _cover(files, f"{day}/{name}")[1]:
        raise WrongState(
            f"{found} of {wanted} rows are in {made if found != wanted else day}, where others were put together",
            hint="Somebody has removed files of this run. Nothing is lost: run the job again.",
            sqlstate="55000",
        )
    for place in places:
        files.remove(place)


def _alike(spark: SparkSession, places: dict[str, str]) -> list[list[str]]:
    """Return batches whose columns can be put together: all of them, but where an attribute changed its type."""
    try:
        spark.read.option("mergeSchema", "true").parquet(*places.values())
        return [list(places)]
    except Exception as error:
        # Some versions of Spark let the Java exception through as it is.
        if "CANNOT_MERGE_SCHEMA" not in str(error):
            raise
    groups: dict[str, list[str]] = {}
    for batch, place in places.items():
        groups.setdefault(spark.read.parquet(place).schema.json(), []).append(batch)
    return list(groups.values())


def _parts(files: Files, place: str) -> list[str]:
    return files.children(place, prefix="part-")


def _cover(files: Files, place: str) -> tuple[list[str], bool]:
    """Return the names of the directories that one was made of, and whether it has got all its files."""
    said = files.read_json(f"{place}/{_COVERS}")
    if said is None:
        return [], False
    if isinstance(said, list):
        # Of a release that did not say which files there are.
        return said, True
    return said["covers"], set(said["files"]) <= set(_parts(files, place))


def clean(spark: SparkSession, directory: str) -> None:
    """Remove what a run that was killed has left: directories that another one covers, and work a day old."""
    files = Files(spark, directory)
    for day in files.children(directory, prefix="date="):
        for name in files.children(f"{directory}/{day}", prefix=_TOGETHER):
            covered, is_whole = _cover(files, f"{directory}/{day}/{name}")
            for one in covered if is_whole else ():
                files.remove(f"{directory}/{day}/{one}")
    for prefix in _WORK:
        for left in files.children(directory, prefix=prefix):
            if files.written_at(f"{directory}/{left}") < time.time() - _LEFT_SECONDS:
                files.remove(f"{directory}/{left}")


def read(spark: SparkSession, directory: str) -> DataFrame:
    """Return the rows of a directory of days, each once, also while a run is at work there; nothing is removed."""
    files = Files(spark, directory)
    places = []
    is_left_out = False
    for day in files.children(directory, prefix="date="):
        batches = files.children(f"{directory}/{day}", prefix="batch=")
        twice: set[str] = set()
        for name in batches:
            if name.startswith(_TOGETHER):
                covered, is_whole = _cover(files, f"{directory}/{day}/{name}")
                twice.update(covered if is_whole else [name] if {*covered} & {*batches} else ())
        is_left_out = is_left_out or not twice.isdisjoint(batches)
        places += [f"{directory}/{day}/{batch}" for batch in batches if batch not in twice]
    # By the name of the directory where it is possible: Spark lists it at once then.
    return spark.read.option("basePath", directory).parquet(*(places if is_left_out else [directory]))
