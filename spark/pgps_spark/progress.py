"""A bar on the terminal while Spark works."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import SparkContext
    from pyspark.sql import DataFrame

__all__ = ["progress"]

_EVERY = 0.2


@contextlib.contextmanager
def progress(df: DataFrame, what: str, *, wanted: bool | None = None) -> Iterator[None]:
    """Show how many tasks of the session's running jobs are done; nothing without a terminal, unless `wanted`."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield
        return
    try:
        context = df.sparkSession.sparkContext
    except Exception:  # Spark Connect: its client has none, and shows progress of its own
        yield
        return
    done = threading.Event()
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("tasks"), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with bar:
        thread = threading.Thread(
            target=_watch, args=(context, bar, what, done), name="pgps-spark-progress", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _watch(context: SparkContext, bar: Progress, what: str, done: threading.Event) -> None:
    task = bar.add_task(what, total=None)
    tracker = context.statusTracker()
    while not done.is_set():
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        tasks = sum(stage.numTasks for stage in stages if stage)
        if tasks:
            bar.update(task, total=tasks, completed=sum(stage.numCompletedTasks for stage in stages if stage))
        time.sleep(_EVERY)
