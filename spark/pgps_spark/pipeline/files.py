"""Directories of an archive, through Hadoop's file system, so that hdfs:// and s3a:// work as file:// does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Files"]


class Files:
    """What an archive does with directories; needs a session that is no Spark Connect."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        jvm = spark._jvm  # the way PySpark gives to Hadoop's classes
        assert jvm is not None
        self._path = jvm.org.apache.hadoop.fs.Path
        self._system = self._path(directory).getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())

    def exists(self, path: str) -> bool:
        """Say whether it is there."""
        return bool(self._system.exists(self._path(path)))

    def children(self, path: str, *, prefix: str = "") -> list[str]:
        """Return the names in a directory that begin with a prefix; [] when it is not there."""
        if not self.exists(path):
            return []
        names = (status.getPath().getName() for status in self._system.listStatus(self._path(path)))
        return sorted(name for name in names if name.startswith(prefix))

    def written_at(self, path: str) -> float:
        """Return when the newest file in a directory was written, in seconds since 1970; of none, it was made."""
        found: list[int] = []
        each = self._system.listFiles(self._path(path), True)
        while each.hasNext():
            found.append(each.next().getModificationTime())
        # A store without directories has the time of day as theirs.
        latest = max(found) if found else self._system.getFileStatus(self._path(path)).getModificationTime()
        return float(latest) / 1000

    def remove(self, path: str) -> None:
        """Remove a directory with all in it."""
        self._system.delete(self._path(path), True)

    def move(self, path: str, target: str) -> None:
        """Rename a directory, in one step where the file system has that; its parent is made."""
        place = self._path(target)
        self._system.mkdirs(place.getParent())
        if not self._system.rename(self._path(path), place):
            raise OSError(f"cannot rename {path} to {target}")

    def read_json(self, path: str) -> Any:
        """Return what a small file says, None when it is not there."""
        if not self.exists(path):
            return None
        stream = self._system.open(self._path(path))
        try:
            return json.loads(bytes(stream.readAllBytes()))
        finally:
            stream.close()

    def write_json(self, path: str, value: Any) -> None:
        """Write a small file."""
        stream = self._system.create(self._path(path), True)
        try:
            stream.write(bytearray(json.dumps(value).encode()))
        finally:
            stream.close()
